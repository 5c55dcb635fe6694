"""Reads examples from blocks, of which the last ones used are kept in memory."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import Reader

Array = npt.NDArray[Any]

KEPT_BYTES: Final = 96 << 20
"""Bytes of blocks that a reader keeps, and two blocks in any case."""


class BlockReader(Reader):
    """Examples in blocks, one behind the other."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Opens nothing yet; `sizes` are the numbers of examples of the blocks."""
        self._starts = np.cumsum([0, *sizes])
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], dict[str, Array]] = OrderedDict()
        self._lock = threading.Lock()
        self._most_bytes = KEPT_BYTES

    def keep(self, n_bytes: int) -> None:
        """Keeps at least so many bytes of blocks."""
        self._most_bytes = max(self._most_bytes, n_bytes)

    @abstractmethod
    def load(self, block: int, names: Collection[str]) -> dict[str, Array]:
        """Reads a block, `[count, *shape]` by field. Raises DataError, OSError."""

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        """Reads examples; loads blocks that are not kept, one thread at a time."""
        blocks = np.searchsorted(self._starts, chosen, side="right") - 1
        found: dict[str, Array] = {}
        for block in np.unique(blocks).tolist():
            here = np.flatnonzero(blocks == block)
            with self._lock:
                held = self._block(block, tuple(sorted(names)))
            for name, values in held.items():
                rows = values[chosen[here] - self._starts[block]]
                if name not in found:
                    found[name] = np.empty((len(chosen), *rows.shape[1:]), rows.dtype)
                found[name][here] = rows
        return found

    def _block(self, block: int, names: tuple[str, ...]) -> dict[str, Array]:
        key = block, names
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = self._kept[key] = self.load(block, names)
        while len(self._kept) > 2 and _bytes(self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)
        return found


def _bytes(blocks: Collection[dict[str, Array]]) -> int:
    return sum(array.nbytes for block in blocks for array in block.values())
