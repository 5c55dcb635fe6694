"""The state of a loss scale, which replicas have beside their parameters. Drivers have its rule."""

from __future__ import annotations

from typing import Annotated

import msgspec

from partita.engine.protocol.message_base import Count


class ScaleState(msgspec.Struct, frozen=True, array_like=True):
    """The scale at a safe point, the same on all parts of all replicas.

    Args:
        scale: of the next step.
        good: steps since the scale has changed.
        skipped: steps of the run, and of those it goes on from, whose gradient was not finite.
    """

    scale: Annotated[float, msgspec.Meta(gt=0)]
    good: Count = 0
    skipped: Count = 0

    def __str__(self) -> str:
        steps = "step" if self.skipped == 1 else "steps"
        return f"loss scale {self.scale:,.0f}; {self.skipped:,} {steps} skipped"
