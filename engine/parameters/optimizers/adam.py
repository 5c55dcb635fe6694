"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from partita.engine.parameters.optimizers.optimizer import Optimizer, UpdateContext
from partita.engine.parameters.optimizers.settings import FRACTION
from partita.layers.checks import check_number


def _adam(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
    rate, decay, remaining, epsilon, root, beta1, rest1, beta2, rest2 = settings
    g += real(decay) * w
    m = real(beta1) * state[0][i] + real(rest1) * g
    s = real(beta2) * state[1][i] + real(rest2) * (g * g)
    state[0][i], state[1][i] = m, s
    return real(remaining) * w - real(rate) * m / (real(root) * math.sqrt(s) + real(epsilon))


@dataclass(frozen=True, repr=False)
class Adam(Optimizer):
    """Adam: w <- w - learning_rate * m' / (sqrt(s') + epsilon), from running means of gradients and squares.

    m <- b1*m + (1-b1)*g and s <- b2*s + (1-b2)*g*g, both corrected for their start at 0: update t, counted
    from 1, divides them by 1 - b1**t and 1 - b2**t. Source: Kingma and Ba, 2015, algorithm 1. Same arguments
    and results as PyTorch's `Adam`.

    Args:
        learning_rate, weight_decay, clip_norm: see `Optimizer`.
        betas: b1 and b2, from 0 to below 1.
        epsilon: above 0, also in float32: keeps the quotient finite where s is 0.

    Raises:
        ValueError: a setting out of range.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    state_names: ClassVar[tuple[str, ...]] = ("mean", "square")
    _arithmetic = staticmethod(_adam)

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.betas
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ValueError(f"{type(self).__name__}: betas is {given!r}, not two numbers; change it")
        what = f"{type(self).__name__}: each of betas is"
        object.__setattr__(self, "betas", tuple(check_number(beta, what, **FRACTION) for beta in given))
        self._check_epsilon(self.epsilon)

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        return self._decayed(context, decay=self.weight_decay, remaining=1.0)

    def _decayed(self, context: UpdateContext, *, decay: float, remaining: float) -> tuple[float, ...]:
        """Returns the settings: the gradient gets `decay` of the values, which keep `remaining`."""
        (beta1, beta2), t = self.betas, 1 + (context.updates if context.age is None else context.age)
        rate = self._rate(context) / (1.0 - beta1**t)
        root = 1.0 / math.sqrt(1.0 - beta2**t)
        return rate, decay, remaining, self.epsilon, root, beta1, 1.0 - beta1, beta2, 1.0 - beta2


@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """Adam with decoupled weight decay: w <- w - learning_rate * weight_decay * w, beside the means.

    Source: Loshchilov and Hutter, 2019, algorithm 2. Same arguments and results as PyTorch's `AdamW`.

    Args:
        learning_rate, clip_norm: see `Optimizer`.
        betas, epsilon: see `Adam`.
        weight_decay: as above, 0 or above.

    Raises:
        ValueError: a setting out of range.
    """

    weight_decay: float = field(default=0.01, kw_only=True)

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        return self._decayed(context, decay=0.0, remaining=1.0 - self._rate(context) * self.weight_decay)
