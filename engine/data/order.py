"""The order of the examples of each epoch, as a function of the seed: the same for any number of replicas.

Where any example can be read by itself, the order is a permutation of all examples: drawn while it is small,
and counted (`counted.Permutation`) above. Where examples are read by blocks, blocks come in a new order, and
examples are permuted within windows of several blocks; a stream has one block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.counted import Permutation

Numbers = npt.NDArray[np.int64]

DRAWN_EXAMPLES: Final = 1 << 20
"""The most examples whose order is drawn, and kept in memory."""


@dataclass(frozen=True)
class Ordering:
    """Settings of the order.

    Args:
        shuffled: whether each epoch has a new order; else examples come as they lie.
        window: examples of a window, where there are blocks; 0: all are permuted.
        blocks: sizes of the blocks; (): there are none.
        seekable: whether blocks may come in another order.
    """

    shuffled: bool = True
    window: int = 0
    blocks: tuple[int, ...] = ()
    seekable: bool = True

    def of(
        self, examples: int, seeds: Callable[[int], Sequence[int]], draw: Callable[[int], Any] | None = None
    ) -> Order:
        """Returns the orders of a run.

        Args:
            examples: in an epoch.
            seeds: returns the numbers that determine an epoch's order.
            draw: draws the permutation of a small data set in an epoch; by `seeds` if not given.
        """
        if not self.shuffled:
            return Order(examples)
        if self.window:
            return _Windows(examples, self, seeds)
        if examples > DRAWN_EXAMPLES:
            return _Counted(examples, seeds)
        return _Drawn(
            examples, draw or (lambda epoch: np.random.default_rng(seeds(epoch)).permutation(examples))
        )


SHUFFLED: Final = Ordering()
"""A permutation of all examples in each epoch."""


class Order:
    """Examples as they lie, in each epoch."""

    def __init__(self, examples: int) -> None:
        self.examples: Final = examples

    def at(self, epoch: int, start: int, stop: int) -> Numbers:
        """Returns the examples at the places `[start, stop)` of an epoch, int64."""
        return np.arange(start, min(stop, self.examples))


class _Drawn(Order):
    """A permutation in memory."""

    def __init__(self, examples: int, draw: Callable[[int], Any]) -> None:
        super().__init__(examples)
        self._draw = lru_cache(maxsize=2)(draw)

    def at(self, epoch: int, start: int, stop: int) -> Numbers:
        found: Numbers = self._draw(epoch)[start:stop]
        return found


class _Counted(Order):
    """A permutation of which only what is asked for is computed."""

    def __init__(self, examples: int, seeds: Callable[[int], Sequence[int]]) -> None:
        super().__init__(examples)
        self._of = lru_cache(maxsize=2)(lambda epoch: Permutation(examples, *seeds(epoch)))

    def at(self, epoch: int, start: int, stop: int) -> Numbers:
        return self._of(epoch).at(np.arange(start, min(stop, self.examples)))


class _Windows(Order):
    """Blocks in a new order, one behind the other, and examples permuted within windows of these."""

    def __init__(self, examples: int, settings: Ordering, seeds: Callable[[int], Sequence[int]]) -> None:
        super().__init__(examples)
        self._seeds, self._window = seeds, settings.window
        self._sizes = np.asarray(settings.blocks or (examples,), np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._moves = settings.seekable and len(self._sizes) > 1
        assert int(self._sizes.sum()) == examples, (settings.blocks, examples)
        self._blocks = lru_cache(maxsize=2)(self._draw_blocks)
        self._within = lru_cache(maxsize=4)(self._draw_window)

    def at(self, epoch: int, start: int, stop: int) -> Numbers:
        windows = range(start // self._window, -(-min(stop, self.examples) // self._window))
        found = [np.zeros(0, np.int64), *(self._within(epoch, window) for window in windows)]
        first = start - start // self._window * self._window
        return np.concatenate(found)[first : first + stop - start]

    def _draw_blocks(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Draws the order of the blocks: the place of each one's begin, and its number."""
        order = np.arange(len(self._sizes))
        if self._moves:
            order = np.random.default_rng([*self._seeds(epoch), 0]).permutation(order)
        sizes = self._sizes[order]
        return np.cumsum(sizes) - sizes, order

    def _draw_window(self, epoch: int, window: int) -> Numbers:
        places, order = self._blocks(epoch)
        first, last = window * self._window, min((window + 1) * self._window, self.examples)
        random = np.random.default_rng([*self._seeds(epoch), 1, window])
        chosen = first + random.permutation(last - first)
        block = np.searchsorted(places, chosen, side="right") - 1
        return np.asarray(self._starts[order[block]] + chosen - places[block], np.int64)
