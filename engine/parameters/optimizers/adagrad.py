"""Adagrad and RMSProp: a learning rate for each number, from the squares of its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.optimizers.optimizer import Optimizer, UpdateContext, is_zero
from partita.engine.parameters.optimizers.settings import NON_NEGATIVE, Range
from partita.engine.parameters.vector import Vector


def _adagrad(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
    rate, decay, epsilon = settings
    g += real(decay) * w
    s = state[0][i] + g * g
    state[0][i] = s
    return w - real(rate) * g / (math.sqrt(s) + real(epsilon))


@cache
def _rmsprop(centered: bool, has_velocity: bool) -> Callable[..., Any]:
    def update(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
        rate, decay, epsilon, alpha, rest, momentum = settings
        g += real(decay) * w
        s = real(alpha) * state[0][i] + real(rest) * (g * g)
        state[0][i] = s
        if centered:
            m = real(alpha) * state[1][i] + real(rest) * g
            state[1][i] = m
            s = max(s - m * m, real(0))  # rounding may take a variance below 0
        change = g / (math.sqrt(s) + real(epsilon))
        if has_velocity:
            change += real(momentum) * state[-1][i]
            state[-1][i] = change
        return w - real(rate) * change

    return update


@dataclass(frozen=True, repr=False)
class Adagrad(Optimizer):
    """Adagrad: s <- s + g*g, then w <- w - learning_rate * g / (sqrt(s) + epsilon), for each number.

    With the defaults this is DistBelief's (section 4.1): eta(i, K) = gamma / sqrt(sum over j of dw(i, j)^2),
    where gamma is `learning_rate`, about ten times the best fixed rate. Same arguments and results as
    PyTorch's `Adagrad`, whose `lr_decay` is the schedule `InverseTime` here.

    Args:
        learning_rate: see `Optimizer`. While s starts at 0, the first update moves every number by this much.
        initial_accumulator: initial s. Above 0 it damps the first updates, as if earlier gradients had this
            sum of squares.
        epsilon: keeps the quotient finite while s is 0, before the first gradient.
        weight_decay, clip_norm: see `Optimizer`.

    Raises:
        ValueError: a setting out of range, or both `initial_accumulator` and `epsilon` 0 (0/0 for a zero
            gradient).
    """

    initial_accumulator: float = 0.0
    epsilon: float = 1e-10

    state_names: ClassVar[tuple[str, ...]] = ("sum",)
    _ranges: ClassVar[Mapping[str, Range]] = {**Optimizer._ranges, "epsilon": NON_NEGATIVE}
    _keeps_untouched: ClassVar[bool] = True
    _arithmetic = staticmethod(_adagrad)

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_zero(self.initial_accumulator) and is_zero(self.epsilon):
            raise ValueError(
                f"{self}: with both initial_accumulator and epsilon 0 a zero gradient gives 0/0; "
                "leave epsilon at 1e-10"
            )

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """See `Optimizer.state`: "sum", the accumulated squares."""
        return {"sum": np.full(n, self.initial_accumulator, dtype)}

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        return self._rate(context), self.weight_decay, self.epsilon


@dataclass(frozen=True, repr=False)
class RMSProp(Optimizer):
    """RMSProp: s <- alpha*s + (1-alpha)*g*g, then w <- w - learning_rate * g / (sqrt(s) + epsilon).

    Source: Tieleman and Hinton, 2012, lecture 6.5. Same arguments and results as PyTorch's `RMSprop`.

    Args:
        learning_rate, weight_decay, clip_norm: see `Optimizer`.
        alpha: remaining part of the mean square, from 0 to below 1.
        epsilon: above 0, also in float32: keeps the quotient finite where s is 0.
        momentum: from 0 to below 1. Above 0 the quotients accumulate in a velocity, which changes the values.
        centered: divide by the root of the variance instead of the mean square.

    Raises:
        ValueError: a setting out of range.
    """

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_epsilon(self.epsilon)

    @property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the state vectors: "square", and by the settings "mean" and "velocity"."""
        return ("square", *["mean"] * bool(self.centered), *["velocity"] * (self.momentum > 0))

    @property
    def _arithmetic(self) -> Callable[..., Any]:  # type: ignore[override]
        return _rmsprop(bool(self.centered), self.momentum > 0)

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        decay, alpha = self.weight_decay, self.alpha
        return self._rate(context), decay, self.epsilon, alpha, 1.0 - alpha, self.momentum
