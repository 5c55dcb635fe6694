"""Storage of a shard: its values and the state of its optimizer, each one flat vector.

Which gradients are applied, and in which order, is decided by `partita.engine.protocol.parameter_shard`. One
thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from partita.engine.parameters.optimizers import Optimizer, UpdateContext, all_finite
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Span


class NotFinite(ArithmeticError):
    """Numbers of a shard are NaN or infinite."""


@dataclass(frozen=True)
class ShardSnapshot:
    """Values and optimizer state of a shard at one moment: vectors of its size that do not change."""

    values: Vector
    state: Mapping[str, Vector] = field(default_factory=dict)

    def check_finite(self) -> None:
        """Prevents diverged numbers from becoming the newest checkpoint.

        Raises:
            NotFinite: a value, or a number of the state, is NaN or infinite.
        """
        vectors = {"parameters": self.values}
        vectors.update((f"'{name}' of the optimizer", vector) for name, vector in self.state.items())
        for what, vector in vectors.items():
            if not all_finite(vector):
                raise NotFinite(f"its {what} are not finite; lower the learning rate, or look at the data")


class Storage:
    """Values of a shard, in float32 or float64, and the state of its optimizer."""

    def __init__(
        self, optimizer: Optimizer, values: Vector, state: Mapping[str, Vector] | None = None
    ) -> None:
        """Copies `values`, `[n]` of float32 or float64, and compiles the update.

        `state` of the optimizer is from a checkpoint; None: its initial state.

        Raises:
            ValueError: the state is not this optimizer's, or not of `n` numbers.
        """
        if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
            raise ValueError(f"values are {values.dtype} {values.shape}; use a float32 or float64 vector")
        fresh = optimizer.state(values.size, values.dtype)
        given = fresh if state is None else state
        if {name: vector.shape for name, vector in given.items()} != dict.fromkeys(fresh, values.shape):
            found = {name: vector.size for name, vector in given.items()}
            raise ValueError(
                f"{optimizer} keeps {sorted(fresh)} of {values.size} numbers each, found {found}; "
                "continue with the optimizer that the checkpoint was written with"
            )
        self.optimizer = optimizer.on_shard()
        self.size, self.dtype = values.size, values.dtype
        self._values = values.copy()
        self._state = {name: np.array(given[name], values.dtype) for name in fresh}
        self.apply(Span("values", 0, 0), np.zeros(0, values.dtype), 0)

    def apply(self, span: Span, gradient: Vector, updates: int) -> None:
        """Updates the values of the span, after `updates` earlier ones, with a gradient of its size and
        dtype.

        Raises:
            ValueError: the gradient has another size or dtype; nothing is changed.
            NotFinite: a number of the gradient is NaN or infinite. The pass itself detects it (a check before
                would cost a third of it), so the values are spoilt and must not be read any more.
        """
        part = self._slice(span)
        if gradient.shape != (span.stop - span.start,) or gradient.dtype != self.dtype:
            raise ValueError(
                f"the gradient of [{span.start}:{span.stop}] is {gradient.dtype} {gradient.shape}; "
                f"it must be {self.dtype} ({span.stop - span.start},)"
            )
        state = {name: vector[part] for name, vector in self._state.items()}
        update = self.optimizer.bind(self._values[part], np.ascontiguousarray(gradient), state)
        if not update(UpdateContext(updates)):
            raise NotFinite(
                f"a push to its values [{span.start}:{span.stop}] is not finite; lower the learning rate, or "
                "look at the data"
            )

    def read(self, span: Span) -> Vector:
        """Returns a copy of the values of the span, so that a message does not change while it is sent."""
        return self._values[self._slice(span)].copy()

    def snapshot(self) -> ShardSnapshot:
        """Returns a copy of everything, after the updates applied so far."""
        return ShardSnapshot(
            self._values.copy(), {name: vector.copy() for name, vector in self._state.items()}
        )

    def _slice(self, span: Span) -> slice:
        if span.vector != "values" or not 0 <= span.start <= span.stop <= self.size:
            raise ValueError(f"{span} is no range of a shard's {self.size} values")
        return slice(span.start, span.stop)
