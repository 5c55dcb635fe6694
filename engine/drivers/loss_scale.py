"""The dynamic scale of a loss, by which small gradients do not vanish in float16.

The gradient of the loss is multiplied by a scale before it is stored in float16, and gradients of parameters,
in float32, are divided by it. A step whose gradient is not finite is skipped and halves the scale; so many
good steps in a row double it. All scales are powers of two, so that scaling rounds nothing.

Source: Micikevicius and others, "Mixed precision training", 2018, section 3.2; the settings are those of
NVIDIA's guide, "Train with mixed precision".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from partita.engine.protocol.loss_scale import ScaleState
from partita.layers.checks import check_number, check_whole


@dataclass(frozen=True)
class LossScale:
    """The settings of a dynamic loss scale.

    Args:
        start: scale of the first step.
        double_after: good steps in a row after which the scale is doubled.
        least: a step that is not finite with this scale ends the run: no scale helps.
        most: the scale is not doubled beyond this.

    Raises:
        ValueError: a scale is no power of two, or they are not in order.
    """

    start: float = 2.0**16
    double_after: int = 2000
    least: float = 1.0
    most: float = 2.0**24

    def __post_init__(self) -> None:
        for name in ("start", "least", "most"):
            scale = getattr(self, name)
            rule = "; write a power of two, for example 2.0**16"
            check_number(scale, f"LossScale's {name} is", zero=False, rule=rule)
            if math.frexp(scale)[0] != 0.5:
                raise ValueError(f"LossScale's {name} is {scale}{rule}")
        check_whole(self.double_after, "LossScale's double_after is")
        if not self.least <= self.start <= self.most:
            raise ValueError(
                f"LossScale starts with {self.start}, which is not between least={self.least} and "
                f"most={self.most}; change one of them"
            )

    @property
    def first(self) -> ScaleState:
        """The state before the first step."""
        return ScaleState(self.start)

    def after(self, state: ScaleState, *, finite: bool) -> ScaleState:
        """Returns the state after a step.

        Raises:
            ArithmeticError: the gradient is not finite, and the scale cannot be lower.
        """
        if not finite:
            if state.scale <= self.least:
                raise ArithmeticError(
                    f"a gradient is not finite with the least loss scale, {self.least:g}, either; lower the "
                    "learning rate, clip the gradients, or look at the data"
                )
            return ScaleState(max(state.scale / 2, self.least), 0, state.skipped + 1)
        if state.good + 1 < self.double_after:
            return ScaleState(state.scale, state.good + 1, state.skipped)
        return ScaleState(min(state.scale * 2, self.most), 0, state.skipped)
