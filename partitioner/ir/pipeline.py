"""In which order a machine takes the portions of a step: one forward, one backward, over a horizontal cut.

    loss           up 0, down 0, up 1, down 1, up 2, down 2
    one before it  up 0, up 1, down 0, up 2, down 1, down 2

A machine that is n machines before the loss goes up n times more before it first comes down, so that those
after it have work while errors travel. Machines that wait for one another in turn (those of a vertical cut)
are as far from the loss as the farthest of them. After the last way down of a minibatch follows its learning.

A portion is a micro-batch of the minibatch; or, in a step of several minibatches, a micro-batch of one of
them.

Source of the order: one-forward-one-backward, as in PipeDream (Narayanan and others, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MicroBatchPass:
    """A portion's way up or down.

    Args:
        way: which.
        portion: its number.
        begins: the way up is the first of its minibatch.
        learns: the way down is the last of its minibatch, and learning follows.
    """

    direction: Literal["forward", "backward"]
    micro_batch: int
    starts_minibatch: bool = False
    updates: bool = False


@dataclass(frozen=True)
class Pipeline:
    """The portions of a step on one machine.

    Args:
        micro_batches: portions of a minibatch.
        overlap: minibatches of the step.
        depth: how many machines lie between this one and the loss, see `pipeline_stages`.
    """

    micro_batches: int = 1
    overlap: int = 1
    stage: int = 0

    @property
    def total(self) -> int:
        """Of the step."""
        return self.micro_batches * self.overlap

    @property
    def slots(self) -> int:
        """For how many portions there must be memory: those of a minibatch, until it has been learnt, and
        those that go up meanwhile.
        """
        return min(self.total, self.micro_batches + (self.stage if self.overlap > 1 else 0))

    def minibatch_of(self, micro_batch: int) -> int:
        """The minibatch of a portion."""
        return micro_batch // self.micro_batches

    def micro_batches_of(self, minibatch: int) -> range:
        """The portions of a minibatch."""
        return range(minibatch * self.micro_batches, (minibatch + 1) * self.micro_batches)

    def passes(self, *, train: bool) -> Iterator[MicroBatchPass]:
        """All of them in their order; without `train` only the ways up."""
        ahead = self.stage if train else self.total
        for n in range(self.total + ahead):
            if n < self.total:
                yield MicroBatchPass("forward", n, starts_minibatch=n % self.micro_batches == 0)
            if n >= ahead and train:
                yield MicroBatchPass("backward", n - ahead, updates=(n - ahead + 1) % self.micro_batches == 0)

    @property
    def delay(self) -> float:
        """Updates that are made between a minibatch's way up and its own update, in the mean over a step."""
        late: list[int] = []
        updated = 0
        for each in self.passes(train=True):
            if each.starts_minibatch:
                late.append(len(late) - updated)
            updated += each.updates
        return sum(late) / len(late)
