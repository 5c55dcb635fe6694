"""Examples of steps that all replicas do together: step after step through one seeded order of the data.

The examples of all replicas in a step are a joined batch. An epoch is one order of all examples, cut into
joined batches, so N replicas of batch B see what one replica of batch N * B sees. The order follows from the
seed and the epoch alone: every process knows it, also one that was started again.
"""

from __future__ import annotations

from copy import copy

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.feed import AHEAD_STEPS, Examples, Feed
from partita.layers.box import Box


class JointSampler:
    """The examples of each replica in a joined batch, see `JoinedBatches`."""

    def __init__(self, batches: JoinedBatches, *, seed: int) -> None:
        """An order of all examples for each epoch."""
        self.batches, self.seed = batches, seed
        self._epoch = -1
        self._order: Array = np.zeros(0, np.int64)

    def total(self, position: int, replicas: int) -> int:
        """The number of examples of all replicas in the step at a position: fewer in the last of an epoch."""
        return self.batches.after(position, replicas) - position

    def indices(self, position: int, *, rank: int, replicas: int) -> Array:
        """The examples of one replica in the step at a position, `[count]`; none where others have the rest.

        `rank` is the replica's index among so many.
        """
        epoch, examples = position // self.batches.examples, self.batches.examples
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, 2, epoch]).permutation(examples)
            self._epoch = epoch
        return self._order[slice(*self.batches.share(position, rank, replicas))]


class JointFeed(Feed):
    """Takes a replica's share of each joined batch from the data. Gradients are parts of the batch's mean."""

    def __init__(self, examples: Examples, sampler: JointSampler) -> None:
        """Nothing is chosen yet.

        Args:
            examples: of all inputs and targets.
            sampler: chooses those of a step.
        """
        self._examples, self._sampler = examples, sampler
        self._ahead = copy(sampler)  # has an epoch of its own
        self._chosen: Array = np.zeros(0, np.int64)
        self.seed = sampler.seed

    def choose(self, position: int, *, rank: int, replicas: int, alone: bool = False) -> None:
        """Chooses the replica's share of the step at a position. Padding is examples that count for nothing.

        A replica without a share computes a gradient of zeros. `alone`: gradients are the mean of the share.
        """
        share = self._sampler.indices(position, rank=rank, replicas=replicas)
        self.step, self.visit = position, position // self._sampler.batches.examples
        self.position = position + rank * self._sampler.batches.batch
        self.count = len(share)
        self.mean_over = max(len(share), 1) if alone else self._sampler.total(position, replicas)
        padded = share if len(share) else np.zeros(1, np.int64)
        self._chosen = np.resize(padded, self._sampler.batches.batch)
        if self._examples.fetches:
            for _ in range(AHEAD_STEPS):
                position += self._ahead.total(position, replicas)
                self._examples.ahead(self._ahead.indices(position, rank=rank, replicas=replicas))

    @override
    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        return self._chosen[first : first + count]

    @override
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        self._examples.put(name, box, out, self._chosen[first : first + out.shape[-1]])
