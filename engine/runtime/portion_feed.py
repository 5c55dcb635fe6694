"""The examples of portions, fetched before they are needed, and kept while memory allows.

A batch method comes back to the same portions in every evaluation. Where all portions of an epoch fit, each
is turned to node-major once, and copied as it lies the next time. Where they do not, a few are enough: a
thread of its own fetches the next portion, into memory that is still in a cache.
"""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from partita.engine.data.ahead import Wanted
from partita.engine.data.order import SHUFFLED, Ordering
from partita.engine.data.times import FeedTimes
from partita.engine.kernels.kernel import Array
from partita.engine.protocol.commands import Portions
from partita.engine.runtime.feed import Examples, Feed
from partita.layers.box import Box

KEPT_BYTES: Final = 64 << 20
"""The most memory in which all portions of an epoch are kept."""

AT_LEAST: Final = 3
"""Portions that are kept in any case: one is used, one is fetched, one was used last."""

WORTH_A_THREAD: Final = 1 << 16
"""Bytes of a portion that take longer than waking a thread."""

_Key: TypeAlias = tuple[str, Box, int]
_Fetched: TypeAlias = dict[_Key, Array]


class PortionOrder:
    """The examples of each portion: in the order of the data, or in a new seeded order each epoch.

    The order follows from the seed alone, so that every replica takes the same examples for a portion.
    """

    def __init__(
        self, portions: Portions, *, seed: int, shuffled: bool, ordering: Ordering = SHUFFLED
    ) -> None:
        """The order of so many examples; `ordering` says how they are shuffled."""
        self.portions: Final = portions
        self.seed, self._shuffled = seed, shuffled
        self._order = ordering.of(portions.examples, lambda epoch: [seed, epoch])

    def same(self, portion: int) -> int:
        """The lowest portion that has the same examples."""
        return portion if self._shuffled else portion % self.portions.per_epoch

    def real(self, portion: int) -> int:
        """The number of real examples in a portion."""
        _, start, stop = self.portions.place(portion)
        return stop - start

    def chosen(self, portion: int, first: int, count: int) -> Array | slice:
        """A portion's examples `[first, first + count)`. Padding is its own examples, once more."""
        epoch, start, stop = self.portions.place(portion)
        if not self._shuffled and first + count <= stop - start:
            return slice(start + first, start + first + count)
        places = np.arange(first, first + count) % (stop - start)
        return self._order.at(epoch, start, stop)[places] if self._shuffled else start + places

    def all_of(self, portion: int) -> Array | slice:
        """A portion's examples, as many as a full one has."""
        return self.chosen(portion, 0, self.portions.size)

    def wanted(self, portion: int) -> Wanted:
        """A portion's examples by their numbers, and its epoch."""
        chosen = self.all_of(portion)
        numbers = np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen
        return numbers, self.portions.place(portion)[0]


class PortionFeed(Feed):
    """Feeds portion after portion; `ahead` fetches the next one."""

    pads_portions = True  # an objective divides the sum of all portions by the number of examples

    def __init__(self, examples: Examples, order: PortionOrder, *, kept_bytes: int = KEPT_BYTES) -> None:
        """Feeds nothing yet.

        Args:
            examples: of all inputs and targets.
            order: the examples of each portion.
            kept_bytes: the memory for portions that are kept.
        """
        self._examples, self._order, self._kept_bytes = examples, order, kept_bytes
        self._lock = threading.Lock()
        self._like: dict[_Key, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}  # all that was asked for
        self._portions: dict[int, Future[_Fetched]] = {}  # the oldest first
        self._n_bytes = 0  # of a portion
        self._waited_s = 0.0  # for the thread that fetches
        self._chosen, self.seed = -1, order.seed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")

    def choose(self, portion: int) -> None:
        """Chooses the portion that is played now."""
        self._chosen, self.count = self._order.same(portion), self._order.real(portion)
        self.step, (self.visit, *_) = portion, self._order.portions.place(self._chosen)
        count = self._examples.steps_ahead
        if count:
            following = map(self._order.same, range(portion + 1, portion + 1 + count))
            self._examples.ahead([self._order.wanted(one) for one in following])

    def ahead(self, portion: int) -> None:
        """Fetches the portion that will be played next, as far as is known."""
        portion = self._order.same(portion)
        if portion not in self._portions and self._n_bytes >= WORTH_A_THREAD:
            future, memory = self._entry(portion)
            if memory is not None:
                self._thread.submit(self._fetch, portion, memory, future, ahead=True)

    @override
    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        chosen = self._order.chosen(self._chosen, first, count)
        return np.arange(chosen.start, chosen.stop) if isinstance(chosen, slice) else chosen

    @override
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        key, found = (name, box, first), None
        if key not in self._like:  # from now on it is fetched with the rest
            self._like[key] = (out.shape, out.dtype)
            self._n_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in [*self._like.values()])
        elif self._chosen in self._portions or self._keeps_all:
            future, memory = self._entry(self._chosen)
            if memory is not None:
                self._fetch(self._chosen, memory, future)
            elif not future.done():
                began = time.perf_counter()
                future.exception()
                self._waited_s += time.perf_counter() - began
            found = future.result().get(key)
        if found is None:
            self._put(key, self._chosen, out)
        else:
            np.copyto(out, found)

    @property
    @override
    def times(self) -> FeedTimes | None:
        found = self._examples.times
        return None if found is None else found._replace(waited_s=found.waited_s + self._waited_s)

    @override
    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._examples.close()

    @property
    def _keeps_all(self) -> bool:
        """Returns whether all portions of an epoch are kept."""
        return self._order.portions.per_epoch * self._n_bytes <= self._kept_bytes

    def _entry(self, portion: int) -> tuple[Future[_Fetched], _Fetched | None]:
        """A portion; and memory for it, where the caller is to fetch it."""
        with self._lock:
            future = self._portions.get(portion)
            if future is not None:
                return future, None
            memory: _Fetched = {}
            most = max(AT_LEAST, self._order.portions.per_epoch if self._keeps_all else 0)
            if len(self._portions) >= most:
                oldest = next(one for one in self._portions if one != self._chosen)
                memory = self._portions.pop(oldest).result()
            future = self._portions[portion] = Future()
            return future, memory

    def _put(self, key: _Key, portion: int, out: Array, *, ahead: bool = False) -> None:
        name, box, first = key
        chosen, (epoch, *_) = self._order.all_of(portion), self._order.portions.place(portion)
        self._examples.put(name, box, out, chosen, first=first, epoch=epoch, ahead=ahead)

    def _fetch(
        self, portion: int, memory: _Fetched, future: Future[_Fetched], *, ahead: bool = False
    ) -> None:
        """Fetches all that was asked for, into the memory of a portion that is not kept any more."""
        try:
            for key, (shape, dtype) in list(self._like.items()):
                out = memory.setdefault(key, np.empty(0, dtype))
                if out.shape != shape:
                    out = memory[key] = np.empty(shape, dtype)
                self._put(key, portion, out, ahead=ahead)
            future.set_result(memory)
        except BaseException as error:  # noqa: BLE001 - raised again by `fill`
            future.set_exception(error)
