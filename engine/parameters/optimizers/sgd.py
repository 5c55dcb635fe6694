"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from partita.engine.numerics import compiled, narrow, widen
from partita.engine.parameters.optimizers.finite import marked
from partita.engine.parameters.optimizers.optimizer import Moment, Number, Optimizer, Stored
from partita.engine.parameters.vector import Vector
from partita.layers.checks import check_fields, check_number


@compiled
def _sgd(
    values: Vector,
    gradient: Stored,
    accumulated: Vector | None,
    copy: Stored | None,
    factor: Number,
    learning_rate: Number,
    decay: Number,
) -> bool:
    real, mark = values.dtype.type, np.int32(0)
    factor, learning_rate, decay = real(factor), real(learning_rate), real(decay)
    for i in range(values.size):
        w, g = values[i], widen(gradient[i]) * factor
        mark = marked(mark, g)
        if accumulated is not None:
            accumulated[i] += g
        w -= learning_rate * (g + decay * w)
        values[i] = w
        if copy is not None:
            copy[i] = narrow(w, copy[i])
    return bool(mark == 0)


@compiled
def _momentum(
    values: Vector,
    gradient: Stored,
    velocity: Vector,
    accumulated: Vector | None,
    copy: Stored | None,
    factor: Number,
    learning_rate: Number,
    decay: Number,
    momentum: Number,
    direct: Number,
    through: Number,
) -> bool:
    real, mark = values.dtype.type, np.int32(0)
    factor, learning_rate, decay = real(factor), real(learning_rate), real(decay)
    momentum, direct, through = real(momentum), real(direct), real(through)
    for i in range(values.size):
        w, g = values[i], widen(gradient[i]) * factor
        mark = marked(mark, g)
        if accumulated is not None:
            accumulated[i] += g
        g += decay * w
        v = momentum * velocity[i] + g
        velocity[i] = v
        w -= learning_rate * (direct * g + through * v)
        values[i] = w
        if copy is not None:
            copy[i] = narrow(w, copy[i])
    return bool(mark == 0)


@dataclass(frozen=True, repr=False)
class SGD(Optimizer):
    """Stochastic gradient descent, w <- w - rate * g (DistBelief, algorithm 1.1; PyTorch's `SGD`).

    Args:
        rate, weight_decay, clip_norm: see `Optimizer`.

    Raises:
        ValueError: a setting out of range.
    """

    _loop = staticmethod(_sgd)

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        return self._learning_rate(moment), self.weight_decay


@dataclass(frozen=True, repr=False)
class Momentum(Optimizer):
    """Gradient descent with momentum: v <- momentum * v + g, then w <- w - rate * v.

    Nesterov's takes g + momentum * v instead of the new v. Same arguments and results as PyTorch's `SGD` with
    them (no dampening).

    Args:
        rate, weight_decay, clip_norm: see `Optimizer`.
        momentum: how much of the velocity is kept, from 0 to below 1.
        nesterov: look ahead.

    Raises:
        ValueError: a setting out of range.
    """

    momentum: float = 0.9
    nesterov: bool = False

    _keeps: ClassVar[tuple[str, ...]] = ("velocity",)
    _loop = staticmethod(_momentum)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_number, "momentum", zero=True, below=1.0)

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        direct, through = (1.0, self.momentum) if self.nesterov else (0.0, 1.0)
        return self._learning_rate(moment), self.weight_decay, self.momentum, direct, through
