"""Prepared data: a data set with all that happens to a minibatch before a network takes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.data.columns import Columns
from partita.engine.data.conversion import converted
from partita.engine.data.dataset import DataError, Dataset, Reader
from partita.engine.data.draws import Batch, Draws
from partita.engine.data.naming import Naming
from partita.engine.data.order import Ordering
from partita.engine.data.transforms import Transform, applied
from partita.engine.files.sources import ArrayFile, DataSource, OpensArrays
from partita.layers.graph import Grid

Array = npt.NDArray[Any]

AHEAD_BYTES: Final = 1 << 26
"""The most bytes of minibatches that are made ahead of a part."""

_CHECKED_EXAMPLES: Final = 4
_KEPT_WINDOWS: Final = 3  # the one in use, the one that is read ahead, and blocks at their borders


@dataclass(frozen=True)
class Prepared:
    """A data set, and how minibatches are made of it. It can be pickled if the data set can.

    Args:
        dataset: the examples.
        naming: fields of the arrays that transforms take.
        grids: inputs and targets of the network that are needed.
        precision: of the plan.
        transforms: of each minibatch, one after another.
        ordering: of the examples in training.
        workers: threads or processes that make minibatches.
        processes: whether these are processes.
        ahead_bytes: the most bytes of minibatches that are made ahead.
        seed: of the random numbers of transforms.
    """

    dataset: Dataset
    naming: Naming
    grids: tuple[Grid, ...]
    precision: str
    transforms: tuple[Transform, ...] = ()
    ordering: Ordering = field(default_factory=Ordering)
    workers: int = 1
    processes: bool = False
    ahead_bytes: int = AHEAD_BYTES
    seed: int = 0

    @property
    def examples(self) -> int:
        """The number of examples."""
        return self.dataset.examples

    def only(self, names: Collection[str]) -> Prepared:
        """Returns what a part needs that reads only some inputs and targets; transforms get all fields."""
        grids = tuple(grid for grid in self.grids if grid.name in names)
        naming = self.naming if self.transforms else self.naming.of(names)
        return replace(self, grids=grids, naming=naming)

    def maker(self, files: OpensArrays) -> Maker:
        """Opens the data set on a host, which then makes minibatches of it."""
        reader = self.dataset.open(files)
        reader.keep(_KEPT_WINDOWS * self.ordering.window * self.dataset.example_bytes)
        return Maker(self, reader)

    def check(self, files: OpensArrays) -> None:
        """Makes a minibatch of the first examples. Raises DataError, and what transforms raise."""
        maker = self.maker(files)
        try:
            maker.make(np.arange(min(_CHECKED_EXAMPLES, self.examples)), 0)
        finally:
            maker.close()


HostData: TypeAlias = Mapping[str, DataSource] | Prepared
"""Data as hosts open it: a source for each input and target, or data that is prepared ahead."""


def files_in(data: HostData) -> tuple[ArrayFile, ...]:
    """Returns the files of data that lie on the machine that trains, which others fetch from it."""
    sources: Mapping[str, DataSource] = {}
    if not isinstance(data, Prepared):
        sources = data
    elif isinstance(data.dataset, Columns):
        sources = data.dataset.sources
    return tuple(one for one in sources.values() if isinstance(one, ArrayFile))


class Maker:
    """Makes minibatches of an open data set. From several threads.

    Attributes:
        made_s: seconds that making took, of all threads.
        made: examples that were made.
    """

    def __init__(self, prepared: Prepared, reader: Reader) -> None:
        self.made_s, self.made = 0.0, 0
        self._prepared, self._reader = prepared, reader
        self._lock = threading.Lock()

    def make(self, chosen: Array, epoch: int) -> Batch:
        """Reads, transforms and converts examples.

        Args:
            chosen: numbers of the examples, `[count]`.
            epoch: for the random numbers of transforms.

        Returns:
            `[count, *shape]` by input or target, in the types of the network.

        Raises:
            DataError: the examples cannot be used, or a transform failed.
            OSError: they cannot be read at present.
        """
        began, prepared = time.perf_counter(), self._prepared
        read = self._reader.read(np.asarray(chosen, np.int64), prepared.naming.read)
        batch = prepared.naming.named(read)
        if prepared.transforms:
            batch = self._transformed(batch, Draws(prepared.seed, epoch, chosen))
        made = {}
        for grid in prepared.grids:
            if grid.name not in batch:
                has = ", ".join(map(repr, batch))
                raise DataError(
                    f"the minibatch has no '{grid.name}' after its transforms; it has {has}; add it to the "
                    "dictionary that the last transform returns"
                )
            made[grid.name] = converted(grid, batch[grid.name], prepared.precision, numbers=chosen)
        with self._lock:
            self.made_s += time.perf_counter() - began
            self.made += len(chosen)
        return made

    def _transformed(self, batch: Batch, draws: Draws) -> Batch:
        transforms: Sequence[Transform] = self._prepared.transforms
        try:
            return applied(transforms, batch, draws)
        except Exception as error:
            first = int(draws.examples[0])
            raise DataError(
                f"a transform failed in the minibatch that begins with example {first}, epoch {draws.epoch}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        """Closes the data set."""
        self._reader.close()
