"""The order in which a machine takes the micro-batches of a step: one forward, one backward.

    loss           forward 0, backward 0, forward 1, backward 1, forward 2, backward 2
    one before it  forward 0, forward 1, backward 0, forward 2, backward 1, backward 2

A machine that is n machines before the loss makes n more forward passes before its first backward pass, so
that those after it have work while gradients travel. Machines that wait for one another (those of a vertical
cut) are in one stage. After the last backward pass of a minibatch follows its update.

A step may consist of several minibatches; its micro-batches are numbered through.

Source of the order: one-forward-one-backward, as in PipeDream (Narayanan and others, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MicroBatchPass:
    """The forward or backward pass of a micro-batch, by its number in the step.

    `starts_minibatch` marks the first forward pass of a minibatch, `updates` its last backward pass.
    """

    direction: Literal["forward", "backward"]
    micro_batch: int
    starts_minibatch: bool = False
    updates: bool = False


@dataclass(frozen=True)
class Pipeline:
    """The micro-batches of a step on one machine.

    Args:
        micro_batches: micro-batches in a minibatch.
        overlap: minibatches in the step.
        stage: machines between this one and the loss, see `pipeline_stages`.
    """

    micro_batches: int = 1
    overlap: int = 1
    stage: int = 0

    @property
    def total(self) -> int:
        """Number of micro-batches in the step."""
        return self.micro_batches * self.overlap

    @property
    def slots(self) -> int:
        """Micro-batches that need memory: a minibatch until its update, and those started meanwhile."""
        return min(self.total, self.micro_batches + (self.stage if self.overlap > 1 else 0))

    def minibatch_of(self, micro_batch: int) -> int:
        """The minibatch of a micro-batch."""
        return micro_batch // self.micro_batches

    def micro_batches_of(self, minibatch: int) -> range:
        """The micro-batches of a minibatch."""
        return range(minibatch * self.micro_batches, (minibatch + 1) * self.micro_batches)

    def passes(self, *, train: bool) -> Iterator[MicroBatchPass]:
        """Lists the passes in their order; without `train` only forward passes."""
        ahead = self.stage if train else self.total
        for n in range(self.total + ahead):
            if n < self.total:
                yield MicroBatchPass("forward", n, starts_minibatch=n % self.micro_batches == 0)
            if n >= ahead and train:
                yield MicroBatchPass("backward", n - ahead, updates=(n - ahead + 1) % self.micro_batches == 0)

    @property
    def delay(self) -> float:
        """Mean number of updates between a minibatch's forward pass and its own update."""
        late: list[int] = []
        updated = 0
        for each in self.passes(train=True):
            if each.starts_minibatch:
                late.append(len(late) - updated)
            updated += each.updates
        return sum(late) / len(late)
