"""Adagrad and RMSProp: each number's own rate, from the squares of its gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from partita.engine.numerics import compiled, narrow, widen
from partita.engine.parameters.optimizers.finite import marked
from partita.engine.parameters.optimizers.optimizer import (
    Moment,
    Number,
    Optimizer,
    State,
    Stored,
    is_nothing,
)
from partita.engine.parameters.vector import Vector
from partita.layers.checks import check_fields, check_number


@compiled
def _adagrad(
    values: Vector,
    gradient: Stored,
    total: Vector,
    accumulated: Vector | None,
    copy: Stored | None,
    factor: Number,
    learning_rate: Number,
    decay: Number,
    epsilon: Number,
) -> bool:
    real, mark = values.dtype.type, np.int32(0)
    factor, learning_rate, decay, epsilon = real(factor), real(learning_rate), real(decay), real(epsilon)
    for i in range(values.size):
        w, g = values[i], widen(gradient[i]) * factor
        mark = marked(mark, g)
        if accumulated is not None:
            accumulated[i] += g
        g += decay * w
        s = total[i] + g * g
        total[i] = s
        w -= learning_rate * g / (math.sqrt(s) + epsilon)
        values[i] = w
        if copy is not None:
            copy[i] = narrow(w, copy[i])
    return bool(mark == 0)


@compiled
def _rmsprop(
    values: Vector,
    gradient: Stored,
    square: Vector,
    mean: Vector | None,
    velocity: Vector | None,
    accumulated: Vector | None,
    copy: Stored | None,
    factor: Number,
    learning_rate: Number,
    decay: Number,
    epsilon: Number,
    alpha: Number,
    rest: Number,
    momentum: Number,
) -> bool:
    real, mark = values.dtype.type, np.int32(0)
    factor, learning_rate, decay, epsilon = real(factor), real(learning_rate), real(decay), real(epsilon)
    alpha, rest, momentum, nothing = real(alpha), real(rest), real(momentum), real(0)
    for i in range(values.size):
        w, g = values[i], widen(gradient[i]) * factor
        mark = marked(mark, g)
        if accumulated is not None:
            accumulated[i] += g
        g += decay * w
        s = alpha * square[i] + rest * (g * g)
        square[i] = s
        if mean is not None:
            m = alpha * mean[i] + rest * g
            mean[i] = m
            s = max(s - m * m, nothing)  # rounding may take a variance below 0
        change = g / (math.sqrt(s) + epsilon)
        if velocity is not None:
            change += momentum * velocity[i]
            velocity[i] = change
        w -= learning_rate * change
        values[i] = w
        if copy is not None:
            copy[i] = narrow(w, copy[i])
    return bool(mark == 0)


@dataclass(frozen=True, repr=False)
class Adagrad(Optimizer):
    """Adagrad: s <- s + g*g, then w <- w - rate * g / (sqrt(s) + epsilon), each number by itself.

    With the defaults this is DistBelief's optimizer (section 4.1): eta(i, K) = gamma / sqrt(sum over j of
    dw(i, j)^2), gamma being `learning_rate`, about ten times the best fixed rate. Same arguments and results
    as PyTorch's `Adagrad`, whose `lr_decay` is the schedule `InverseTime` here.

    Args:
        rate: see `Optimizer`. While s starts at 0, the first update moves every number by just this much.
        initial_accumulator: where s starts. Above 0 it damps the first updates, as if gradients with this
            sum of squares had been seen.
        epsilon: keeps the quotient finite while s is 0, as it is where no gradient has come yet.
        weight_decay, clip_norm: see `Optimizer`.

    Raises:
        ValueError: a number out of range, or both `initial_accumulator` and `epsilon` 0 (0/0 where a
            gradient is 0).
    """

    initial_accumulator: float = 0.0
    epsilon: float = 1e-10

    _keeps: ClassVar[tuple[str, ...]] = ("sum",)
    _loop = staticmethod(_adagrad)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_number, "initial_accumulator", zero=True)
        check_fields(self, check_number, "epsilon", zero=True)
        if is_nothing(self.initial_accumulator) and is_nothing(self.epsilon):
            raise ValueError(
                f"{self}: with both initial_accumulator and epsilon 0 a zero gradient gives 0/0; "
                "leave epsilon at 1e-10"
            )

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """See `Optimizer.state`: "sum", the accumulated squares."""
        return {"sum": np.full(n, self.initial_accumulator, dtype)}

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        return self._learning_rate(moment), self.weight_decay, self.epsilon


@dataclass(frozen=True, repr=False)
class RMSProp(Optimizer):
    """RMSProp: s <- alpha*s + (1-alpha)*g*g, then w <- w - rate * g / (sqrt(s) + epsilon).

    Source: Tieleman and Hinton, 2012, lecture 6.5. Same arguments and results as PyTorch's `RMSprop`.

    Args:
        rate, weight_decay, clip_norm: see `Optimizer`.
        alpha: how much of the mean square is kept, from 0 to below 1.
        epsilon: above 0, also in float32: keeps the quotient finite where s is 0.
        momentum: from 0 to below 1. Above 0 the quotients go into a velocity, and the values follow that.
        centered: divide by the root of the variance instead of the mean square.

    Raises:
        ValueError: a number out of range.
    """

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    _loop = staticmethod(_rmsprop)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, check_number, "alpha", zero=True, below=1.0)
        check_fields(self, check_number, "momentum", zero=True, below=1.0)
        self._epsilon()

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """See `Optimizer.state`: "square", and as the settings ask, "mean" and "velocity"."""
        asked = {"square": True, "mean": self.centered, "velocity": self.momentum > 0}
        return {name: np.zeros(n, dtype) for name, wanted in asked.items() if wanted}

    def _arrays(self, state: State) -> tuple[Vector | None, ...]:
        mean = state["mean"] if self.centered else None
        return state["square"], mean, state["velocity"] if self.momentum > 0 else None

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        decay, alpha = self.weight_decay, self.alpha
        return self._learning_rate(moment), decay, self.epsilon, alpha, 1.0 - alpha, self.momentum
