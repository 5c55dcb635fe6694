"""The examples of portions, brought before they are needed, and kept while there is room.

A batch method comes back to the same portions in every evaluation. Where all of an epoch fit, what was turned
to node-major once is copied as it lies the next time. Where they do not, a few are enough: a thread of its
own turns the next portion, in memory that is still in a cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.protocol.commands import Portions
from partita.engine.runtime.feed import Examples, Feed
from partita.layers.box import Box

KEPT_BYTES: Final = 64 << 20
"""Within which all portions of an epoch are kept."""

AT_LEAST: Final = 3
"""Portions that are kept: one is used, one comes, one was used last."""

WORTH_A_THREAD: Final = 1 << 16
"""Bytes of a portion that take longer than waking a thread."""

_Key: TypeAlias = tuple[str, Box, int]
_Room: TypeAlias = dict[_Key, Array]


class PortionOrder:
    """Which examples a portion has: in the order of the data, or in a new seeded order each epoch.

    It follows from the seed alone, so that whoever computes a portion takes the same.
    """

    def __init__(self, portions: Portions, *, seed: int, shuffled: bool) -> None:
        """The order of so many examples."""
        self.portions: Final = portions
        self._seed, self._shuffled = seed, shuffled
        self._orders = lru_cache(maxsize=2)(self._drawn)

    def same(self, portion: int) -> int:
        """The lowest portion that has the same examples."""
        return portion if self._shuffled else portion % self.portions.per_epoch

    def real(self, portion: int) -> int:
        """How many of its examples are real."""
        _, start, stop = self.portions.place(portion)
        return stop - start

    def chosen(self, portion: int, first: int, count: int) -> Array | slice:
        """Its examples `[first, first + count)`. Those that only fill it up are its own, once more."""
        epoch, start, stop = self.portions.place(portion)
        if not self._shuffled and first + count <= stop - start:
            return slice(start + first, start + first + count)
        places = start + np.arange(first, first + count) % (stop - start)
        return self._orders(epoch)[places] if self._shuffled else places

    def _drawn(self, epoch: int) -> Array:
        return np.random.default_rng([self._seed, epoch]).permutation(self.portions.examples)


class PortionFeed(Feed):
    """Feeds portion after portion; `ahead` says which will follow."""

    def __init__(
        self, arrays: Mapping[str, Array], order: PortionOrder, *, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """Feeds nothing yet.

        Args:
            arrays: for each input and target, `[example, *shape]`; labels are `[example]`.
            order: which examples a portion has.
            kept_bytes: of portions that are kept.
        """
        self._examples, self._order, self._kept_bytes = Examples(arrays), order, kept_bytes
        self._lock = threading.Lock()
        self._like: dict[_Key, tuple[tuple[int, ...], np.dtype[np.generic]]] = {}  # what has been asked for
        self._made: dict[int, Future[_Room]] = {}  # the oldest first
        self._n_bytes = 0  # of a portion
        self._chosen = -1
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._count = 0

    def choose(self, portion: int) -> None:
        """The portion that is played now."""
        self._chosen, self._count = self._order.same(portion), self._order.real(portion)

    def ahead(self, portion: int) -> None:
        """The portion that will be played next, as far as is known."""
        portion = self._order.same(portion)
        if portion not in self._made and self._n_bytes >= WORTH_A_THREAD:
            future, room = self._entry(portion)
            if room is not None:
                self._thread.submit(self._make, portion, room, future)

    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        """See `Feed`."""
        key, found = (name, box, first), None
        if key not in self._like:  # from now on it is brought with the rest
            self._like[key] = (out.shape, out.dtype)
            self._n_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in [*self._like.values()])
        elif self._chosen in self._made or self._keeps_all:
            future, room = self._entry(self._chosen)
            if room is not None:
                self._make(self._chosen, room, future)
            found = future.result().get(key)
        if found is None:
            self._examples.put(name, box, out, self._order.chosen(self._chosen, first, out.shape[-1]))
        else:
            np.copyto(out, found)

    @property
    def count(self) -> int:
        """How many of the portion's are real."""
        return self._count

    @property
    def pads_portions(self) -> bool:
        """An objective divides the sum of all portions by the number of examples."""
        return True

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    @property
    def _keeps_all(self) -> bool:
        """Whether the portions of an epoch stay."""
        return self._order.portions.per_epoch * self._n_bytes <= self._kept_bytes

    def _entry(self, portion: int) -> tuple[Future[_Room], _Room | None]:
        """A portion's numbers; and room for them, where the caller is to make them."""
        with self._lock:
            future = self._made.get(portion)
            if future is not None:
                return future, None
            room: _Room = {}
            most = max(AT_LEAST, self._order.portions.per_epoch if self._keeps_all else 0)
            if len(self._made) >= most:
                oldest = next(one for one in self._made if one != self._chosen)
                room = self._made.pop(oldest).result()
            future = self._made[portion] = Future()
            return future, room

    def _make(self, portion: int, room: _Room, future: Future[_Room]) -> None:
        """Brings all that has been asked for, into the room of a portion that is not kept any more."""
        try:
            for key, (shape, dtype) in list(self._like.items()):
                name, box, first = key
                out = room.setdefault(key, np.empty(0, dtype))
                if out.shape != shape:
                    out = room[key] = np.empty(shape, dtype)
                self._examples.put(name, box, out, self._order.chosen(portion, first, shape[-1]))
            future.set_result(room)
        except BaseException as error:  # noqa: BLE001 - raised again by who needs the portion
            future.set_exception(error)
