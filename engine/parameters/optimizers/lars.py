"""LARS: a learning rate for each parameter, from its norm and that of its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from partita.engine.parameters.optimizers.optimizer import Optimizer, Squares, UpdateContext


def _velocity(w: Any, g: Any, state: Any, i: int, settings: Any, real: Any) -> Any:
    rate, _, momentum = settings
    v = real(momentum) * state[0][i] + real(rate) * g
    state[0][i] = v
    return w - v


def _decayed(gradient: Any, value: Any, factor: Any, settings: Any, real: Any) -> Any:
    return factor * (gradient + real(settings[1]) * value)


@dataclass(frozen=True, repr=False)
class Velocity(Optimizer):
    """Momentum with the rate inside: v <- momentum * v + learning_rate * (g + weight_decay * w), w <- w - v.

    Differs from `Momentum` where the rate changes: the velocity keeps the rates of its gradients. The factor
    of an update multiplies the decay too. This is what shards do for `LARS`.

    Args:
        learning_rate, weight_decay, clip_norm: see `Optimizer`.
        momentum: remaining part of the velocity, from 0 to below 1.

    Raises:
        ValueError: a setting out of range.
    """

    momentum: float = 0.9

    state_names: ClassVar[tuple[str, ...]] = ("velocity",)
    _arithmetic = staticmethod(_velocity)
    _scale = staticmethod(_decayed)

    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        return self._rate(context), self.weight_decay, self.momentum


@dataclass(frozen=True, repr=False)
class LARS(Velocity):
    """Layer-wise adaptive rate scaling: each parameter's step is proportional to its norm.

    With local = trust * ‖w‖ / (‖g‖ + weight_decay * ‖w‖), of a whole parameter and its gradient, v <-
    momentum * v + learning_rate * local * (g + weight_decay * w), then w <- w - v. Source: You, Gitman and
    Ginsburg, 2017, section 4, algorithm 1.

    A replica multiplies and decays, so it accumulates local * (g + weight_decay * w) for the shards, which
    have only the velocity. Where ‖w‖ or ‖g‖ is 0 (as for initial biases) local is 1; the paper does not say.

    Args:
        learning_rate: see `Optimizer`; the paper's gamma.
        momentum: remaining part of the velocity, from 0 to below 1.
        trust: above 0; the paper's eta.
        weight_decay: 0 or above; the paper's beta.

    Raises:
        ValueError: a setting out of range, or a `clip_norm`: a step does not depend on the gradient's size.
    """

    trust: float = 0.001
    weight_decay: float = field(default=0.0005, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_norm is not None:
            raise ValueError(
                f"LARS: clip_norm is {self.clip_norm!r}, and its steps do not depend on the size of the "
                "gradient; leave it out"
            )

    @property
    @override
    def needs_norms(self) -> bool:
        return True

    @override
    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        return {name: self._local(math.sqrt(w), math.sqrt(g)) for name, (w, g) in squares.items()}

    @override
    def on_shard(self) -> Optimizer:
        return Velocity(self.learning_rate, self.momentum)

    def _local(self, values: float, gradient: float) -> float:
        if not math.isfinite(values + gradient):
            return math.nan  # so that every update reports it
        if values == 0 or gradient == 0:
            return 1.0
        return self.trust * values / (gradient + self.weight_decay * values)
