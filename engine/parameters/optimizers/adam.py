"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from partita.engine.numerics import compiled, narrow, widen
from partita.engine.parameters.optimizers.finite import marked
from partita.engine.parameters.optimizers.optimizer import Moment, Number, Optimizer, Stored
from partita.engine.parameters.vector import Vector
from partita.layers.checks import check_number


@compiled
def _adam(
    values: Vector,
    gradient: Stored,
    mean: Vector,
    square: Vector,
    accumulated: Vector | None,
    copy: Stored | None,
    factor: Number,
    learning_rate: Number,
    decay: Number,
    kept: Number,
    epsilon: Number,
    root: Number,
    beta1: Number,
    rest1: Number,
    beta2: Number,
    rest2: Number,
) -> bool:
    real, mark = values.dtype.type, np.int32(0)
    factor, learning_rate, decay, kept = real(factor), real(learning_rate), real(decay), real(kept)
    epsilon, root = real(epsilon), real(root)
    beta1, rest1, beta2, rest2 = real(beta1), real(rest1), real(beta2), real(rest2)
    for i in range(values.size):
        w, g = values[i], widen(gradient[i]) * factor
        mark = marked(mark, g)
        if accumulated is not None:
            accumulated[i] += g
        g += decay * w
        m = beta1 * mean[i] + rest1 * g
        s = beta2 * square[i] + rest2 * (g * g)
        mean[i], square[i] = m, s
        w = kept * w - learning_rate * m / (root * math.sqrt(s) + epsilon)
        values[i] = w
        if copy is not None:
            copy[i] = narrow(w, copy[i])
    return bool(mark == 0)


@dataclass(frozen=True, repr=False)
class Adam(Optimizer):
    """Adam: w <- w - rate * m' / (sqrt(s') + epsilon), of running means of the gradient and of its square.

    m <- b1*m + (1-b1)*g and s <- b2*s + (1-b2)*g*g, both corrected for having started at 0: update t, counted
    from 1, divides them by 1 - b1**t and 1 - b2**t. Source: Kingma and Ba, 2015, algorithm 1. Same arguments
    and results as PyTorch's `Adam`.

    Args:
        rate, weight_decay, clip_norm: see `Optimizer`.
        betas: b1 and b2, from 0 to below 1.
        epsilon: above 0, also in float32: keeps the quotient finite where s is 0.

    Raises:
        ValueError: a number out of range.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    _keeps: ClassVar[tuple[str, ...]] = ("mean", "square")
    _loop = staticmethod(_adam)

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.betas
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ValueError(f"{type(self).__name__}: betas is {given!r}, not two numbers; change it")
        what = f"{type(self).__name__}: each of betas is"
        betas = tuple(check_number(beta, what, zero=True, below=1.0) for beta in given)
        object.__setattr__(self, "betas", betas)
        self._epsilon()

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        return self._told(moment, decay=self.weight_decay, kept=1.0)

    def _told(self, moment: Moment, *, decay: float, kept: float) -> tuple[float, ...]:
        """What the loop is told: `decay` times the values go into the gradient, `kept` of them stays."""
        (beta1, beta2), t = self.betas, 1 + (moment.updates if moment.age is None else moment.age)
        learning_rate = self._learning_rate(moment) / (1.0 - beta1**t)
        root = 1.0 / math.sqrt(1.0 - beta2**t)
        return learning_rate, decay, kept, self.epsilon, root, beta1, 1.0 - beta1, beta2, 1.0 - beta2


@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """Adam whose weight decay does not pass through the means: w <- w - rate * weight_decay * w, beside it.

    Source: Loshchilov and Hutter, 2019, algorithm 2. Same arguments and results as PyTorch's `AdamW`.

    Args:
        rate, clip_norm: see `Optimizer`.
        betas, epsilon: see `Adam`.
        weight_decay: as above, 0 or above.

    Raises:
        ValueError: a number out of range.
    """

    weight_decay: float = field(default=0.01, kw_only=True)

    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        return self._told(moment, decay=0.0, kept=1.0 - self._learning_rate(moment) * self.weight_decay)
