"""Checks of the first values of parameters."""

from __future__ import annotations

import math

import numpy as np
import torch

from partita.engine.parameters.initial_values import initial_range
from partita.layers import (
    Conv2D,
    Dense,
    Layer,
    Parameter,
)
from tests.truth.differences.rows import drawn, is_bound, row


def bounds_agree(layer: Layer, shape: tuple[int, ...], theirs: torch.nn.Module, fan_in: int, n: int) -> bool:
    """Whether two layers begin within the same bound; PyTorch's must be the one on the page."""
    bound = 1 / math.sqrt(fan_in)
    assert is_bound([*theirs.parameters()][n].detach().numpy(), bound)
    return is_bound(drawn(layer, shape, n), bound)


@row("first weights of `Dense`")
def _() -> bool:
    assert is_bound(drawn(Dense(300), (400,), 0), math.sqrt(6 / 700))
    return bounds_agree(Dense(300), (400,), torch.nn.Linear(400, 300), 400, 0)


@row("first weights of `Conv2D`")
def _() -> bool:
    assert Conv2D(64, 3).initialiser == "glorot"
    return bounds_agree(Conv2D(64, 3), (9, 9, 16), torch.nn.Conv2d(16, 64, 3), 144, 0)


@row("first biases")
def _() -> bool:
    assert not drawn(Dense(300), (40,), 1).any()
    assert not drawn(Conv2D(300, 3), (9, 9, 16), 1).any()
    assert not bounds_agree(Conv2D(300, 3), (9, 9, 16), torch.nn.Conv2d(16, 300, 3), 144, 1)
    return bounds_agree(Dense(300), (40,), torch.nn.Linear(40, 300), 40, 1)


@row('"glorot"')
def _() -> bool:
    theirs = torch.nn.init.xavier_uniform_(torch.empty(300, 400)).numpy()
    bound = math.sqrt(6 / 700)
    return is_bound(theirs, bound) and is_bound(drawn(Dense(300), (400,), 0), bound)


@row('"he"')
def _() -> bool:
    theirs = torch.nn.init.kaiming_normal_(torch.empty(300, 400), nonlinearity="relu").numpy()
    ours = drawn(Dense(300, initialiser="he"), (400,), 0)
    np.testing.assert_allclose(theirs.std(), math.sqrt(2 / 400), rtol=0.02)
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.02))


@row('"glorot_normal"')
def _() -> bool:
    theirs = torch.nn.init.xavier_normal_(torch.empty(300, 400)).numpy()
    ours = drawn(Dense(300, initialiser="xavier_normal"), (400,), 0)
    assert abs(ours).max() > 3 * ours.std() and abs(theirs).max() > 3 * theirs.std()
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.02))


@row('"normal"')
def _() -> bool:
    theirs = torch.nn.init.normal_(torch.empty(300, 400)).numpy()
    ours = initial_range(Parameter("w", (300, 400), "normal"), 0, start=0, stop=120_000)
    np.testing.assert_allclose([ours.std(), theirs.std()], [0.05, 1], rtol=0.02)
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.02))
