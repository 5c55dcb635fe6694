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
        overlap: so many whole minibatches in one step, each of which is learnt as soon as its errors are
            there, while others are on their way. A machine that is n machines before the loss (see
            `pipeline`) has then learnt n others between a minibatch's way up and its own update: its gradient
            is n updates late, but for the first n of a step, which find fewer before them. No parameters are
            kept for it: the way down takes those of the moment.
    """

    train: bool = True
    gradients: Literal["blocks", "whole"] = "blocks"
    norms: bool = False
    overlap: int = 1

    def of(self, graph: Graph) -> StepKind:
        """The same, said in the one way: what a network does not do is not asked for."""
        if not self.train or not graph.losses:
            return StepKind(train=False)
        return replace(self, gradients="whole") if self.norms else self
