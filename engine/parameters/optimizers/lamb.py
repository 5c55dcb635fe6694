"""LAMB: Adam's steps, each parameter's scaled to the norm of the parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from typing_extensions import override

from partita.engine.parameters.optimizers.adam import Adam
from partita.engine.parameters.optimizers.optimizer import Optimizer, Squares, UpdateContext


def _lamb(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
    kept, rate, decay, first, epsilon, root, beta1, rest1, beta2, rest2 = settings
    m = real(beta1) * state[0][i] + real(rest1) * g
    s = real(beta2) * state[1][i] + real(rest2) * (g * g)
    state[0][i], state[1][i] = m, s
    direction = real(first) * m / (real(root) * math.sqrt(s) + real(epsilon)) + real(decay) * w
    return real(kept) * w - real(rate) * direction


def _unscaled(gradient: Any, value: Any, factor: Any, settings: Any, real: Any) -> Any:
    return gradient


@dataclass(frozen=True, repr=False)
class LAMB(Adam):
    """Layer-wise adaptive moments: Adam's direction, each step in proportion to the parameter's norm.

    With r = m' / (sqrt(s') + epsilon) + weight_decay * w, where m' and s' are those of `Adam` without decay,
    w <- w - learning_rate * (‖w‖ / ‖r‖) * r; both norms are those of a whole parameter. Source: You and
    others, "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020, algorithm 2,
    with phi(x) = x. Where ‖w‖ or ‖r‖ is 0 (as for initial biases) their quotient is 1.

    Replicas must have the whole state, so it is an optimizer of `AllReduce` and of one process, not of
    `Downpour`, whose shards have parts of parameters.

    Args:
        learning_rate: see `Optimizer`; the paper's eta.
        betas, epsilon: see `Adam`; the paper's epsilon is 1e-6.
        weight_decay: 0 or above; the paper's lambda.

    Raises:
        ValueError: a setting out of range, or a `clip_norm`: the size of a step is that of the parameter.
    """

    epsilon: float = 1e-6
    weight_decay: float = field(default=0.01, kw_only=True)

    _arithmetic = staticmethod(_lamb)
    _scale = staticmethod(_unscaled)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_norm is not None:
            raise ValueError(
                f"{type(self).__name__}: clip_norm is {self.clip_norm!r}, and the size of its steps is that "
                "of the parameters; leave it out"
            )

    @property
    @override
    def needs_norms(self) -> bool:
        return True

    @property
    @override
    def measured(self) -> Optimizer | None:
        return Direction(**{one.name: getattr(self, one.name) for one in fields(self)})

    @override
    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        return {name: _trust(math.sqrt(w), math.sqrt(r)) for name, (w, r) in squares.items()}

    @override
    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        (beta1, beta2), t = self.betas, 1 + (context.updates if context.age is None else context.age)
        first, root = 1.0 / (1.0 - beta1**t), 1.0 / math.sqrt(1.0 - beta2**t)
        moments = first, self.epsilon, root, beta1, 1.0 - beta1, beta2, 1.0 - beta2
        return (*self._step(context), self.weight_decay, *moments)

    def _step(self, context: UpdateContext) -> tuple[float, float]:
        """Returns the share of the value that is kept, and the factor of the direction."""
        return 1.0, self._rate(context) * context.factor


@dataclass(frozen=True, repr=False)
class Direction(LAMB):
    """Replaces values by LAMB's direction r, of which a norm is taken."""

    @property
    @override
    def measured(self) -> Optimizer | None:
        return None

    @override
    def _step(self, context: UpdateContext) -> tuple[float, float]:
        return 0.0, -1.0


def _trust(values: float, direction: float) -> float:
    if not math.isfinite(values + direction):
        return math.nan  # so that every update reports it
    return 1.0 if values == 0 or direction == 0 else values / direction
