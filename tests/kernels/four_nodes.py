"""Four nodes of a drawn function, computed by plain Python."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np
from hypothesis import reject

from partita.engine.kernels import Array
from partita.engine.kernels.nodes.vectors import Signature

SIGNATURE = Signature((("weight", "e"), ("bias", "n")), 1, "float64")


COUNTS = (3, 1, 5, 3)


SENDERS = 6


BATCH = 5


def answer(function: FunctionType, *given: Any) -> Any:
    """Result of a drawn function; one that changes whole numbers in place by fractions has none."""
    try:
        return function(*given)
    except TypeError as error:
        if "same_kind" in str(error):
            reject()
        raise


class Nodes:
    """Four nodes with edges from six senders, padding among them, and five examples."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.offsets = np.cumsum((0, *COUNTS))
        self.senders = np.concatenate([draw.permutation(np.arange(-1, SENDERS))[:count] for count in COUNTS])
        self.x, self.state, self.error = (
            draw.normal(size=(n, BATCH)) for n in (SENDERS, len(COUNTS), len(COUNTS))
        )
        self.weight, self.bias = draw.normal(size=sum(COUNTS)), draw.normal(size=len(COUNTS))

    @property
    def table(self) -> tuple[Any, ...]:
        starts = self.offsets[:-1]
        return self.x, np.zeros(BATCH), self.senders, starts, np.array(COUNTS), starts, max(COUNTS)

    def given(self, n: int, e: int) -> tuple[Any, ...]:
        edges = slice(self.offsets[n], self.offsets[n + 1])
        senders_read = [0.0 if s < 0 else self.x[s, e] for s in self.senders[edges]]
        return np.array(senders_read), self.weight[edges].copy(), float(self.bias[n])

    def states(self, function: FunctionType) -> Array:
        pairs = np.ndindex(len(COUNTS), BATCH)
        return np.array([answer(function, *self.given(n, e)) for n, e in pairs], float).reshape(-1, BATCH)

    def backward(self, function: FunctionType) -> tuple[Array, Array, Array]:
        errors, weight, bias = np.zeros_like(self.x), np.zeros_like(self.weight), np.zeros_like(self.bias)
        for n, e in np.ndindex(len(COUNTS), BATCH):
            edges = slice(self.offsets[n], self.offsets[n + 1])
            found = answer(function, *self.given(n, e), float(self.state[n, e]), float(self.error[n, e]))
            for sender, value in zip(self.senders[edges], found[0], strict=True):
                errors[sender, e] += value if sender >= 0 else 0
            weight[edges] += found[1]
            bias[n] += found[2]
        return errors, weight, bias
