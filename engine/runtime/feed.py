"""Feeds: where the inputs and targets of a step come from.

Users hand over batch-first arrays; a feed turns the rows that its machine needs to node-major, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import stored
from partita.engine.runtime.compute import Feed
from partita.layers.rows import Run


class Sampler:
    """Which examples a replica sees in which step: its own share of the data, in a new seeded order each
    epoch.

    The share and the orders follow from the seed alone, so that every machine of a replica, also one that was
    started again, knows them without being told.
    """

    def __init__(self, *, examples: int, batch: int, seed: int, replica: int, replicas: int) -> None:
        """Shares out the examples.

        Raises:
            ValueError: a replica's share is smaller than a batch.
        """
        share = examples // replicas
        if share < batch:
            raise ValueError(
                f"{examples} examples for {replicas} replicas are {share} each, fewer than a batch of "
                f"{batch}; use a batch of at most {share}, or fewer replicas"
            )
        self._share = np.random.default_rng([seed, 0]).permutation(examples)[replica::replicas][:share]
        self._batch, self._seed, self._replica = batch, seed, replica
        self.steps_per_epoch = share // batch
        self._epoch = -1
        self._order = self._share

    def indices(self, step: int) -> Array:
        """The examples of a step, `[batch]`."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, 1, self._replica, epoch]).permutation(
                self._share
            )
            self._epoch = epoch
        return self._order[position * self._batch : (position + 1) * self._batch]


@dataclass(frozen=True)
class ArrayFile:
    """An array in a file of its own that every host can read: its numbers in C order and nothing else."""

    path: Path
    dtype: str
    shape: tuple[int, ...]

    def write(self, array: Array) -> None:
        """Makes the file."""
        assert (array.dtype, array.shape) == (np.dtype(self.dtype), self.shape), (array.dtype, array.shape)
        array.tofile(self.path)

    def open(self) -> Array:
        """Maps the file: hosts of one machine share the memory, and read what they need."""
        return np.memmap(self.path, self.dtype, mode="r", shape=self.shape)


class DatasetFeed(Feed):
    """Takes each step's examples from arrays that lie in memory or in mapped files."""

    def __init__(self, arrays: Mapping[str, Array], sampler: Sampler) -> None:
        """`arrays` hold, for each input and target, `[example, *shape]`; labels are `[example]`."""
        self._arrays = arrays
        self._sampler = sampler
        self._chosen: Array = np.zeros(0, np.int64)
        self._taken: dict[str, Array] = {}

    def choose(self, step: int) -> None:
        """The step that follows."""
        self._chosen = self._sampler.indices(step)

    def fill(self, name: str, rows: Run, out: Array) -> None:
        """See `Feed`."""
        array = self._arrays[name]
        taken = self._taken.get(name)
        if taken is None:  # at the first step; from then on its place is used again
            taken = self._taken[name] = np.empty((len(self._chosen), *array.shape[1:]), array.dtype)
        np.take(array, self._chosen, axis=0, out=taken, mode="clip")
        turned = node_major(taken, rows, out.shape)
        if out.dtype == np.uint16:
            out[...] = stored(turned, out.dtype)
        else:
            np.copyto(out, turned)

    @property
    def count(self) -> int:
        """A whole batch."""
        return len(self._chosen)


class GivenFeed(Feed):
    """The rows are in place already: they came with the message that started the step."""

    def __init__(self) -> None:
        self.real = 0

    def fill(self, name: str, rows: Run, out: Array) -> None:
        """Nothing is left to do."""

    @property
    def count(self) -> int:
        """As the message said."""
        return self.real


def node_major(examples: Array, rows: Run, shape: tuple[int, ...]) -> Array:
    """Rows of a batch-first array as `[rows, ..., example]`, or a box of pictures; a view where possible.

    Args:
        examples: `[example, *shape]`, or labels `[example]`.
        rows: `(start, stop)`, or `(start, stop, left, right)`.
        shape: of an array of some rows `[rows, ..., example]`; its first axis counts for nothing.
    """
    if len(rows) > 2:
        return np.moveaxis(examples, 0, -1)[rows[0] : rows[1], rows[2] : rows[3]]
    turned = np.moveaxis(examples.reshape(len(examples), -1, *shape[1:-1]), 0, -1)
    return turned[rows[0] : rows[1]]
