"""Feeds: the sources of the inputs and targets of a step.

Users give batch-first arrays; a feed turns the rows that its machine needs to node-major, once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.data.ahead import Wanted
from partita.engine.data.order import SHUFFLED, Ordering
from partita.engine.data.times import FeedTimes
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
        loss_scale: factor of the step's gradients.
    """

    step: int = 0
    visit: int = 0
    position: int = 0
    seed: int = 0
    count: int = 0
    pads_portions: bool = False
    mean_over: int | None = None
    loss_scale: float = 1.0

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

    @property
    def times(self) -> FeedTimes | None:
        """Times of reading and waiting so far; None where nothing is read ahead."""
        return None

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

    def __init__(
        self, *, examples: int, batch: int, seed: int, minibatches: int = 1, ordering: Ordering = SHUFFLED
    ) -> None:
        """Orders the examples, for units of so many minibatches."""
        self.seed = seed
        self.per_step = batch * minibatches
        self.units_per_epoch = -(-examples // self.per_step)
        self._examples = examples
        self._order = ordering.of(examples, lambda epoch: [seed, 1, 0, epoch], self._draw)

    @cached_property
    def _first(self) -> Array:
        """An order of all examples, of which each epoch has a permutation."""
        return np.random.default_rng([self.seed, 0]).permutation(self._examples)

    def _draw(self, epoch: int) -> Array:
        return np.random.default_rng([self.seed, 1, 0, epoch]).permutation(self._first)

    def indices(self, unit: int) -> Array:
        """The examples of a unit, `[count]`, of which there is at least one."""
        epoch, position = divmod(unit, self.units_per_epoch)
        return self._order.at(epoch, position * self.per_step, (position + 1) * self.per_step)

    def padded(self, unit: int) -> Array:
        """The examples of a unit, as many as a full one has: padding is its own examples, once more."""
        found = self.indices(unit)
        return found if len(found) == self.per_step else np.resize(found, self.per_step)

    def epoch(self, unit: int) -> int:
        """The epoch of a unit."""
        return unit // self.units_per_epoch


class Examples:
    """The examples of each input and target, `[example, *shape]`: arrays, or rows of any source."""

    def __init__(self, arrays: Mapping[str, Rows]) -> None:
        self._arrays = arrays
        self._fetched: set[str] = set()  # that `put` has used, and whose rows come from elsewhere
        self._told: set[bytes] = set()  # the minibatches that are fetched ahead
        self._gathered: dict[tuple[str, int], Array] = {}

    def put(
        self,
        name: str,
        box: Box,
        out: Array,
        chosen: Array | slice,
        *,
        first: int = 0,
        epoch: int = 0,
        ahead: bool = False,
    ) -> None:
        """Writes rows of an input or target into `out`, node-major, see `Feed.fill`. From any thread.

        Args:
            name: of the input or target.
            box: rows, or rows and columns.
            out: `[rows, ..., example]`.
            chosen: the numbers of the examples of a minibatch, or their range.
            first: the place in the minibatch of the first example of `out`.
            epoch: how often the examples were seen before.
            ahead: whether computing does not wait for this call, so that `times` does not count its waits.
        """
        chosen = _some(chosen, first, out.shape[-1])
        array = self._arrays[name]
        if not isinstance(array, np.ndarray):
            array = self._ready(name, array, chosen)
        if isinstance(chosen, slice) or not isinstance(array, np.ndarray):
            taken = array[chosen]
        else:
            taken = self._scratch(name, array, len(chosen))
            np.take(array, chosen, axis=0, out=taken, mode="clip")
        transposed = node_major(taken, box, out.shape)
        if out.dtype.itemsize == 2:
            out[...] = stored(np.asarray(transposed, np.float32), out.dtype)
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
    def steps_ahead(self) -> int:
        """The number of following minibatches that `ahead` is to know; 0 where all examples are there."""
        return AHEAD_STEPS if self._fetched else 0

    def ahead(self, following: Iterable[Wanted]) -> None:
        """Has the examples of these minibatches fetched soon, of the inputs and targets used so far."""
        wanted = {chosen.tobytes(): chosen for chosen, _ in following}
        for key, chosen in wanted.items():
            if key not in self._told:
                for name in tuple(self._fetched):
                    ahead = getattr(self._arrays[name], "ahead", None)
                    if ahead is not None:
                        ahead(chosen)
        self._told = set(wanted)

    @property
    def times(self) -> FeedTimes | None:
        """Times of reading and waiting so far; None where nothing is read ahead."""
        return None

    def close(self) -> None:
        """Ends the threads that read ahead."""

    def _scratch(self, name: str, array: Array, count: int) -> Array:
        """The array in which this thread gathers examples; reused."""
        key = (name, threading.get_ident())
        found = self._gathered.get(key)
        if found is None or len(found) != count:
            found = self._gathered[key] = np.empty((count, *array.shape[1:]), array.dtype)
        return found


def _some(chosen: Array | slice, first: int, count: int) -> Array | slice:
    """Returns so many of the chosen examples."""
    if isinstance(chosen, slice):
        return slice(chosen.start + first, chosen.start + first + count)
    return chosen[first : first + count]


class ChosenFeed(Feed):
    """Examples of the data that are chosen for each step."""

    def __init__(self, examples: Examples, seed: int) -> None:
        """Chooses nothing yet."""
        self._examples, self.seed = examples, seed
        self._chosen: Array = np.zeros(0, np.int64)

    @property
    @override
    def times(self) -> FeedTimes | None:
        return self._examples.times

    @override
    def close(self) -> None:
        self._examples.close()

    @override
    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        return self._chosen[first : first + count]

    @override
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        self._examples.put(name, box, out, self._chosen, first=first, epoch=self.visit)


class DatasetFeed(ChosenFeed):
    """Takes each step's examples from the data, as a sampler says."""

    def __init__(self, examples: Examples, sampler: Sampler) -> None:
        """Chooses nothing yet."""
        super().__init__(examples, sampler.seed)
        self._sampler = sampler
        self._known: dict[int, Array] = {}  # of the units that follow

    def choose(self, unit: int, following: Callable[[int], Iterable[int]] | None = None) -> None:
        """Chooses the examples of the next step. Padding is its own examples, once more.

        Args:
            unit: of the step.
            following: returns so many of the units after it; if not given, those of the next numbers.
        """
        sampler = self._sampler
        self._chosen = sampler.indices(unit)
        self.step, self.visit = unit, sampler.epoch(unit)
        self.position = unit * sampler.per_step
        self.count = len(self._chosen)
        if self.count < sampler.per_step:
            self._chosen = np.resize(self._chosen, sampler.per_step)
        count = self._examples.steps_ahead
        if count:
            units = range(unit + 1, unit + 1 + count) if following is None else following(count)
            self._known = {one: self._known.get(one, _NONE) for one in units}
            for one, chosen in self._known.items():
                if chosen is _NONE:
                    self._known[one] = sampler.padded(one)
            self._examples.ahead([(chosen, sampler.epoch(one)) for one, chosen in self._known.items()])


_NONE: Final = np.zeros(0, np.int64)


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
