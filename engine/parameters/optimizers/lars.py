"""LARS: a rate for each parameter, from its norm and that of its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from partita.engine.numerics import compiled, narrow, widen
from partita.engine.parameters.optimizers.finite import marked
from partita.engine.parameters.optimizers.norms import Squares
from partita.engine.parameters.optimizers.optimizer import Moment, Number, Optimizer, Stored
from partita.engine.parameters.vector import Vector
from partita.layers.checks import check_fields, check_number


@compiled
def _velocity(
    values: Vector,
    gradient: Stored,
    velocity: Vector,
    accumulated: Vector | None,
    copy: Stored | None,
    factor: Number,
    learning_rate: Number,
    decay: Number,
    momentum: Number,
) -> bool:
    real, mark = values.dtype.type, np.int32(0)
    factor, learning_rate, decay, momentum = real(factor), real(learning_rate), real(decay), real(momentum)
    for i in range(values.size):
        w = values[i]
        g = factor * (widen(gradient[i]) + decay * w)
        mark = marked(mark, g)
        if accumulated is not None:
            accumulated[i] += g
        v = momentum * velocity[i] + learning_rate * g
        velocity[i] = v
        w -= v
        values[i] = w
        if copy is not None:
            copy[i] = narrow(w, copy[i])
    return bool(mark == 0)


@dataclass(frozen=True, repr=False)
class Velocity(Optimizer):
    """Momentum with the rate inside: v <- momentum * v + rate * (g + weight_decay * w), then w <- w - v.

    It differs from `Momentum` where the rate changes: what the velocity holds keeps the rate that it came
    with. The factor of a moment multiplies the decay too. This is what shards do for `LARS`.

    Args:
        rate, weight_decay, clip_norm: see `Optimizer`.
        momentum: how much of the velocity is kept, from 0 to below 1.

    Raises:
        ValueError: a setting out of range.
    """

    momentum: float = 0.9

    _keeps: ClassVar[tuple[str, ...]] = ("velocity",)
    _loop = staticmethod(_velocity)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_number, "momentum", zero=True, below=1.0)

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        return self._learning_rate(moment), self.weight_decay, self.momentum


@dataclass(frozen=True, repr=False)
class LARS(Velocity):
    """Layer-wise adaptive rate scaling: each parameter's step is a part of its own norm.

    With local = trust * ‖w‖ / (‖g‖ + weight_decay * ‖w‖), of a whole parameter and its gradient,
    v <- momentum * v + rate * local * (g + weight_decay * w), then w <- w - v. Source: You, Gitman and
    Ginsburg, 2017, section 4, algorithm 1.

    A replica multiplies and decays, so what accumulates for the shards is local * (g + weight_decay * w), and
    they keep only the velocity. Where ‖w‖ or ‖g‖ is 0 (biases begin so) local is 1; the paper does not say.

    Args:
        rate: see `Optimizer`; the paper's gamma.
        momentum: how much of the velocity is kept, from 0 to below 1.
        trust: above 0; the paper's eta.
        weight_decay: 0 or above; the paper's beta.

    Raises:
        ValueError: a setting out of range, or a `clip_norm`: a step does not depend on the gradient's size.
    """

    trust: float = 0.001
    weight_decay: float = field(default=0.0005, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_number, "trust")
        if self.clip_norm is not None:
            raise ValueError(
                f"LARS: clip_norm is {self.clip_norm!r}, and its steps do not depend on the size of the "
                "gradient; leave it out"
            )

    @property
    def needs_norms(self) -> bool:
        """See `Optimizer`."""
        return True

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """See `Optimizer`."""
        return {name: self._local(math.sqrt(w), math.sqrt(g)) for name, (w, g) in squares.items()}

    def on_shard(self) -> Optimizer:
        """See `Optimizer`."""
        return Velocity(self.learning_rate, self.momentum)

    def _local(self, values: float, gradient: float) -> float:
        if not math.isfinite(values + gradient):
            return math.nan  # so that the update says so
        if values == 0 or gradient == 0:
            return 1.0
        return self.trust * values / (gradient + self.weight_decay * values)
