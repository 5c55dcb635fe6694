"""The rows of the page of differences from PyTorch, and the checks that are registered for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from partita.engine.parameters.initial_values import initial_range
from partita.layers import Layer
from tests.docs.pages import ROOT
from tests.kernels.cases import case, play

N, BATCH = 5, 4
Check = Callable[[], bool]
CHECKS: dict[str, Check] = {}


def row(what: str) -> Callable[[Check], Check]:
    """Registers the check of a row: whether Partita does as PyTorch does."""

    def register(check: Check) -> Check:
        CHECKS[what] = check
        return check

    return register


def rows() -> dict[str, bool]:
    """Whether each row of the page says "same"."""
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (.*?) \| .* \| (same|differs) \|$", text, flags=re.MULTILINE)
    return {what: last == "same" for what, last in found}


def drawn(layer: Layer, shape: tuple[int, ...], n: int) -> np.ndarray[Any, Any]:
    """The first values of a layer's parameter number `n`."""
    parameter = case(layer, shape, batch=1).grid.parameters[n]
    return initial_range(parameter, 0, start=0, stop=parameter.size)


def is_bound(values: Any, bound: float) -> bool:
    """Whether values fill the interval from -bound to bound and do not leave it."""
    return bool(0.9 * bound < np.abs(values).max() <= bound * (1 + 1e-6))


def agree(given_case: Any, theirs: torch.nn.Module) -> bool:
    """Whether a layer of torch gives the same for the inputs of a case."""
    with torch.no_grad():
        found = theirs(torch.from_numpy(given_case.inputs[0].transpose(3, 2, 0, 1).copy())).numpy()
    return bool(np.allclose(play(given_case).state.transpose(3, 2, 0, 1), found, rtol=1e-10, atol=1e-12))
