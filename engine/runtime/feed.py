"""Feeds: the sources of the inputs and targets of a step.

Users give batch-first arrays; a feed turns the rows that its machine needs to node-major, once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.files.fetched import FetchedArray
from partita.engine.files.sources import Rows
from partita.engine.kernels.kernel import Array
from partita.engine.numerics import stored
from partita.layers.box import Box

AHEAD_STEPS: Final = 8
"""Steps whose examples are fetched ahead, where they are on another machine."""


class Feed(ABC):
    """The inputs and targets of the step that is played, node-major.

    Attributes:
        step: number of the step.
        visit: how often its examples were seen before: the epoch.
        position: examples of the run, of all replicas, before the step's first one.
        seed: of the run.
        count: the real examples in the step; the others are padding that counts for nothing.
        pads_portions: whether a gradient is the mean over a whole minibatch even where that is not full,
            because
            its portions are added to others; else the mean is over the real examples.
        mean_over: the number of examples over which a gradient is the mean, where the step's are a share of
            them and gradients of other replicas are added; None: see `pads_portions`.
    """

    step: int = 0
    visit: int = 0
    position: int = 0
    seed: int = 0
    count: int = 0
    pads_portions: bool = False
    mean_over: int | None = None

    @abstractmethod
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        """Writes a box of an input or target, for some of the step's examples. From any thread.

        Args:
            name: of the input or target.
            box: rows, or rows and columns.
            out: `[rows, ..., example]`.
            first: the number of its first example in the step.
        """

    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The numbers in the data of so many of the step's examples; where nobody knows them, in the step."""
        return np.arange(first, first + count)

    def close(self) -> None:  # noqa: B027 - most have none
        """Ends the threads of the feed."""


class Sampler:
    """The examples of each unit of work: all data in a new seeded order each epoch, a unit after the other.

    Every example comes once in an epoch; its last unit has the remainder. The orders follow from the seed
    alone: every machine knows them, also one that was started again.

    Attributes:
        seed: of the orders.
        per_step: examples in a full unit.
        units_per_epoch: units of an epoch, of all replicas together.
    """

    def __init__(self, *, examples: int, batch: int, seed: int, minibatches: int = 1) -> None:
        """Orders the examples, for units of so many minibatches."""
        self._examples, self.seed = np.random.default_rng([seed, 0]).permutation(examples), seed
        self.per_step = batch * minibatches
        self.units_per_epoch = -(-examples // self.per_step)
        self._epoch = -1
        self._order = self._examples

    def indices(self, unit: int) -> Array:
        """The examples of a unit, `[count]`, of which there is at least one."""
        epoch, position = divmod(unit, self.units_per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng([self.seed, 1, 0, epoch])
            self._order, self._epoch = random.permutation(self._examples), epoch
        return self._order[position * self.per_step : (position + 1) * self.per_step]


class Examples:
    """The examples of each input and target, `[example, *shape]`: arrays, or rows of any source."""

    def __init__(self, arrays: Mapping[str, Rows]) -> None:
        self._arrays = arrays
        self._fetched: set[str] = set()  # that `put` has used, and whose rows come from elsewhere
        self._gathered: dict[tuple[str, int], Array] = {}

    def put(self, name: str, box: Box, out: Array, chosen: Array | slice) -> None:
        """Writes rows of an input or target into `out`, node-major, see `Feed.fill`. From any thread.

        Args:
            name: of the input or target.
            box: rows, or rows and columns.
            out: `[rows, ..., example]`.
            chosen: the numbers of as many examples as `out` has, or their range.
        """
        array = self._arrays[name]
        if not isinstance(array, np.ndarray):
            array = self._ready(name, array, chosen)
        if isinstance(chosen, slice) or not isinstance(array, np.ndarray):
            taken = array[chosen]
        else:
            taken = self._scratch(name, array, len(chosen))
            np.take(array, chosen, axis=0, out=taken, mode="clip")
        transposed = node_major(taken, box, out.shape)
        if out.dtype == np.uint16:
            out[...] = stored(transposed, out.dtype)
        else:
            np.copyto(out, transposed)

    def _ready(self, name: str, rows: Rows, chosen: Array | slice) -> Rows:
        """Returns what has these examples, as an array if it can."""
        if not isinstance(rows, FetchedArray):
            self._fetched.add(name)
            return rows
        array = rows.ready(chosen)
        if rows.copy.complete:  # from now on it is an array like any other
            self._arrays = {**self._arrays, name: array}
            self._fetched.discard(name)
        else:
            self._fetched.add(name)
        return array

    @property
    def fetches(self) -> bool:
        """Returns whether some rows come from elsewhere, so that `ahead` saves time."""
        return bool(self._fetched)

    def ahead(self, chosen: Array | slice) -> None:
        """Has these examples fetched soon, of the inputs and targets that were used so far."""
        for name in tuple(self._fetched):
            ahead = getattr(self._arrays[name], "ahead", None)
            if ahead is not None:
                ahead(chosen)

    def _scratch(self, name: str, array: Array, count: int) -> Array:
        """The array in which this thread gathers examples; reused."""
        key = (name, threading.get_ident())
        found = self._gathered.get(key)
        if found is None or len(found) != count:
            found = self._gathered[key] = np.empty((count, *array.shape[1:]), array.dtype)
        return found


class Lookahead:
    """Has the examples of the next steps fetched while one is computed."""

    def __init__(self, examples: Examples, chosen: Callable[[int], Array | slice]) -> None:
        """`chosen` returns the examples of a step."""
        self._examples, self._chosen = examples, chosen
        self._next = 0

    def after(self, step: int) -> None:
        """Has the examples of the steps after this one fetched, which were not asked for yet."""
        if self._examples.fetches:
            first = self._next if step < self._next <= step + AHEAD_STEPS else step + 1
            for following in range(first, step + 1 + AHEAD_STEPS):
                self._examples.ahead(self._chosen(following))
            self._next = step + 1 + AHEAD_STEPS


class DatasetFeed(Feed):
    """Takes each step's examples from the data, as a sampler says."""

    def __init__(self, arrays: Mapping[str, Rows], sampler: Sampler) -> None:
        """`arrays` hold, for each input and target, `[example, *shape]`; labels are `[example]`."""
        self._examples, self._sampler = Examples(arrays), sampler
        self._lookahead = Lookahead(self._examples, copy(sampler).indices)
        self._chosen: Array = np.zeros(0, np.int64)
        self.seed = sampler.seed

    def choose(self, unit: int) -> None:
        """Chooses the examples of the next step. Padding is its own examples, once more."""
        self._chosen = self._sampler.indices(unit)
        self.step, self.visit = unit, unit // self._sampler.units_per_epoch
        self.position = unit * self._sampler.per_step
        self.count = len(self._chosen)
        if self.count < self._sampler.per_step:
            self._chosen = np.resize(self._chosen, self._sampler.per_step)
        self._lookahead.after(unit)

    @override
    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        return self._chosen[first : first + count]

    @override
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        self._examples.put(name, box, out, self._chosen[first : first + out.shape[-1]])


class MessageFeed(Feed):
    """Rows that come with the message that starts the step.

    They are in place already; or, where a place is filled several times in a step, in arrays beside it.
    """

    def __init__(self) -> None:
        self._beside: dict[tuple[str, Box, int], Array] = {}

    def beside(self, name: str, box: Box, like: Array, *, first: int) -> Array:
        """Makes the array in which these rows will come, see `fill`."""
        found = self._beside[name, box, first] = np.zeros_like(like)
        return found

    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        """Copies rows that are not in place."""
        found = self._beside.get((name, box, first))
        if found is not None:
            np.copyto(out, found)


def node_major(examples: Array, box: Box, shape: tuple[int, ...]) -> Array:
    """Rows of a batch-first array as `[rows, ..., example]`, or a box of pictures; a view where possible.

    Args:
        examples: `[example, *shape]`, or labels `[example]`.
        box: rows, or rows and columns.
        shape: of an array of some rows `[rows, ..., example]`; its first axis counts for nothing.
    """
    rows_first = examples if len(box) > 1 else examples.reshape(len(examples), -1, *shape[1:-1])
    return rows_first.transpose(*range(1, rows_first.ndim), 0)[box.slices]
