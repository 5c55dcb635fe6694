"""Examples of steps that all replicas do together: step after step through one seeded order of the data.

The examples of all replicas in a step are a joined batch. An epoch is one order of all examples, cut into
joined batches, so N replicas of batch B see what one replica of batch N * B sees. The order follows from the
seed and the epoch alone: every process knows it, also one that was started again.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from partita.engine.data.clients import Division
from partita.engine.data.order import SHUFFLED, Ordering
from partita.engine.kernels.kernel import Array
from partita.engine.protocol.actions import Portion
from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.feed import ChosenFeed, Examples
from partita.engine.runtime.task import CannotGoOn


class JointSampler:
    """The examples of each replica in a joined batch, see `JoinedBatches`."""

    def __init__(
        self, batches: JoinedBatches, *, seed: int, ordering: Ordering = SHUFFLED, reshuffles: bool = True
    ) -> None:
        """An order of all examples for each epoch; the first one for all of them unless it `reshuffles`."""
        self._reshuffles = reshuffles
        self.batches, self.seed = batches, seed
        self._order = ordering.of(batches.examples, lambda epoch: [seed, 2, epoch])

    def total(self, position: int, replicas: int) -> int:
        """The number of examples of all replicas in the step at a position: fewer in the last of an epoch."""
        return self.batches.after(position, replicas) - position

    def indices(self, position: int, *, rank: int, replicas: int) -> Array:
        """The examples of one replica in the step at a position, `[count]`; none where others have the rest.

        `rank` is the replica's index among so many.
        """
        epoch = self.epoch(position) if self._reshuffles else 0
        return self._order.at(epoch, *self.batches.share(position, rank, replicas))

    def padded(self, position: int, *, rank: int, replicas: int) -> tuple[Array, int]:
        """Returns the examples padded to as many as a replica takes at most, and how many of them count."""
        share = self.indices(position, rank=rank, replicas=replicas)
        padded = share if len(share) else np.zeros(1, np.int64)
        return np.resize(padded, self.batches.batch), len(share)

    def epoch(self, position: int) -> int:
        """The epoch of a position."""
        return position // self.batches.examples


_VISITS: Final = 1 << 20
"""More passes over a client's examples than a step has."""


class JointFeed(ChosenFeed):
    """Takes a replica's share of each joined batch from the data. Gradients are parts of the batch's mean."""

    def __init__(
        self, examples: Examples, sampler: JointSampler, *, batch: int, division: Division | None = None
    ) -> None:
        """Nothing is chosen yet.

        Args:
            examples: of all inputs and targets.
            sampler: chooses those of a step.
            batch: examples that are computed at once.
            division: the examples of each client; None: there are no clients.
        """
        super().__init__(examples, sampler.seed)
        self._sampler, self._batch, self._division = sampler, batch, division

    def choose(self, position: int, *, rank: int, replicas: int, alone: bool = False) -> None:
        """Chooses the replica's share of the step at a position. Padding is examples that count for nothing.

        A replica without a share computes a gradient of zeros. `alone`: gradients are the mean of the share.
        """
        if self._division is not None:
            raise CannotGoOn(
                "the driver's program computes a joined batch, and the driver divides the data among "
                "clients; name a portion by Compute(step, of=Portion(...))"
            )
        sampler = self._sampler
        self._chosen, self.count = sampler.padded(position, rank=rank, replicas=replicas)
        self.step, self.visit = position, sampler.epoch(position)
        self.position = position + rank * sampler.batches.batch
        self.mean_over = max(self.count, 1) if alone else sampler.total(position, replicas)
        following = []
        for _ in range(self._examples.steps_ahead):
            position += sampler.total(position, replicas)
            chosen, _ = sampler.padded(position, rank=rank, replicas=replicas)
            following.append((chosen, sampler.epoch(position)))
        if following:
            self._examples.ahead(following)

    def choose_portion(self, portion: Portion, *, step: int) -> None:
        """Chooses examples of a client, in the order of one of its passes in a step. Gradients are their
        mean.

        Raises:
            CannotGoOn: the driver has no clients, or the portion is none.
        """
        if self._division is None:
            raise CannotGoOn(
                f"the driver's program computes {portion}, and the driver has no clients; give it a property "
                "`division` with that of the data"
            )
        if portion.visit >= _VISITS or not 0 <= portion.start < portion.stop <= portion.start + self._batch:
            raise CannotGoOn(
                f"the driver's program computes {portion}, and the plan has a batch of {self._batch}; give a "
                f"range of 1 to {self._batch} places"
            )
        found = self._division.at(step, portion.client, portion.visit, portion.start, portion.stop)
        self._chosen, self.count = np.resize(found, self._batch), len(found)
        self.step, self.visit = step, step * _VISITS + portion.visit
        self.position = step * self._sampler.batches.examples
        self.mean_over = self.count
