"""The kinds of steps: forward alone or training, and the treatment of gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from partita.layers.graph import Graph


@dataclass(frozen=True)
class StepKind:
    """A kind of step.

    Args:
        train: whether the backward pass and the update follow the forward pass.
        gradients: "blocks" updates each block of a layer's parameters as soon as its gradient is computed, so
            that only gradients of weights shared over machines are ever whole; "whole" leaves the gradient of
            every parameter in memory.
        norms: whether machines exchange the sums of squares of their parameters and gradients before they
            update; gradients are then whole.
        overlap: number of minibatches in one step. Each is updated as soon as its gradients are there, while
            others are in progress. On a machine that is n machines before the loss (see `pipeline`),
            gradients are n updates late, but for the first n minibatches of a step. No parameters are kept
            for them: the backward pass takes the current ones.
        at_rest: whether layers compute what they compute at rest, without dropout and with running
            statistics, though a backward pass follows.
    """

    train: bool = True
    gradients: Literal["blocks", "whole"] = "blocks"
    norms: bool = False
    overlap: int = 1
    at_rest: bool = False

    @property
    def in_training(self) -> bool:
        """Returns whether layers compute what they compute in training."""
        return self.train and not self.at_rest

    def of(self, graph: Graph) -> StepKind:
        """Normalises the kind for a network: without a loss, a step is a forward pass."""
        if not self.train or not graph.losses:
            return StepKind(train=False)
        return replace(self, gradients="whole") if self.norms else self
