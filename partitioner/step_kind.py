"""What a program is for: a way up or a whole step of training, and what becomes of the gradients in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from partita.layers.graph import Graph


@dataclass(frozen=True)
class StepKind:
    """A kind of step.

    Args:
        train: the way down too, and learning.
        gradients: "blocks" updates each block of a layer's parameters as soon as its gradient is computed, so
            that no gradient is ever whole (but that of shared weights over several machines); "whole" leaves
            the gradient of every parameter in memory.
        norms: machines tell one another the sums of squares of their parameters and gradients before they
            update; the gradients are then whole.
    """

    train: bool = True
    gradients: Literal["blocks", "whole"] = "blocks"
    norms: bool = False

    def of(self, graph: Graph) -> StepKind:
        """The same, said in the one way: what a network does not do is not asked for."""
        if not self.train or not graph.losses:
            return StepKind(train=False)
        return replace(self, gradients="whole") if self.norms else self
