"""Stochastic gradient descent, plain and with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from partita.engine.parameters.optimizers.optimizer import Optimizer, UpdateContext


def _sgd(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
    rate, decay = settings
    return w - real(rate) * (g + real(decay) * w)


def _momentum(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
    rate, decay, momentum, direct, through = settings
    g += real(decay) * w
    v = real(momentum) * state[0][i] + g
    state[0][i] = v
    return w - real(rate) * (real(direct) * g + real(through) * v)


@dataclass(frozen=True, repr=False)
class SGD(Optimizer):
    """Stochastic gradient descent, w <- w - learning_rate * g (DistBelief, algorithm 1.1; PyTorch's `SGD`).

    Args:
        learning_rate, weight_decay, clip_norm: see `Optimizer`.

    Raises:
        ValueError: a setting out of range.
    """

    _keeps_untouched: ClassVar[bool] = True
    _arithmetic = staticmethod(_sgd)

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        return self._rate(context), self.weight_decay


@dataclass(frozen=True, repr=False)
class Averaging(SGD):
    """The update of running averages: a share of what it is given, which is no rate that anybody changes."""

    def _rate(self, context: UpdateContext) -> float:
        return super()._rate(context._replace(scale=1.0))


AVERAGE: Final = Averaging(1.0)
"""Subtracts what it is given: the update of running averages."""


@dataclass(frozen=True, repr=False)
class Momentum(Optimizer):
    """Gradient descent with momentum: v <- momentum * v + g, then w <- w - learning_rate * v.

    With `nesterov`, w changes by g + momentum * v instead of v. Same arguments and results as PyTorch's `SGD`
    with them (no dampening).

    Args:
        learning_rate, weight_decay, clip_norm: see `Optimizer`.
        momentum: remaining part of the velocity, from 0 to below 1.
        nesterov: whether to look ahead.

    Raises:
        ValueError: a setting out of range.
    """

    momentum: float = 0.9
    nesterov: bool = False

    state_names: ClassVar[tuple[str, ...]] = ("velocity",)
    _arithmetic = staticmethod(_momentum)

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        direct, through = (1.0, self.momentum) if self.nesterov else (0.0, 1.0)
        return self._rate(context), self.weight_decay, self.momentum, direct, through
