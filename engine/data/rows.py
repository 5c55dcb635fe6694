"""Rows of a file of raw numbers, read without mapping it.

A mapped file counts as memory of the process as far as it was read; what is read by calls is held by the
operating system, which drops it when memory is short.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_GAP_BYTES: Final = 1 << 12
"""Bytes between two wanted rows that are read with them, because a second call would take longer."""


class FileRows:
    """The examples of an array in a file. From any thread.

    Attributes:
        shape: the number of examples, and the shape of each.
        dtype: of the numbers.
    """

    def __init__(self, path: str | Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> None:
        """Opens the file, whose numbers begin at `offset` bytes. Raises OSError."""
        self.shape: Final = shape
        self.dtype: Final = dtype
        self._path, self._offset = Path(path), offset
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._end = weakref.finalize(self, os.close, self._file)  # also of rows that nobody closes

    def __getitem__(self, chosen: Any) -> Array:
        """Returns examples, `[count, *shape]`. Raises OSError."""
        if isinstance(chosen, slice):
            chosen = np.arange(*chosen.indices(self.shape[0]))
        chosen = np.asarray(chosen, np.int64)
        out = np.empty((len(chosen), *self.shape[1:]), self.dtype)
        if not self._row_bytes or not len(chosen):
            return out
        rows = out.reshape(len(chosen), -1).view(np.uint8)
        order = np.argsort(chosen, kind="stable")
        numbers = chosen[order]
        most = max(_GAP_BYTES // self._row_bytes, 0) + 1
        runs = np.flatnonzero(np.diff(numbers) > most) + 1
        for places in np.split(np.arange(len(numbers)), runs):
            first, last = int(numbers[places[0]]), int(numbers[places[-1]])
            block = self._read(first, last + 1 - first)
            rows[order[places]] = block[numbers[places] - first]
        return out

    def _read(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """Reads consecutive rows, `[count, bytes]`."""
        block = np.empty((count, self._row_bytes), np.uint8)
        view, at = block.data.cast("B"), self._offset + first * self._row_bytes
        while view:
            got = os.preadv(self._file, [view], at)
            if not got:
                raise OSError(f"{self._path} ends within example {first}; it was cut since it was opened")
            view, at = view[got:], at + got
        return block

    def close(self) -> None:
        """Closes the file, which nobody may read any more."""
        self._end()


def place_of(array: Array) -> tuple[str, int] | None:
    """Returns the path of a mapped array's file, and the byte at which its numbers begin.

    None where the array is not mapped, not in C order, or may differ from the file.
    """
    path = getattr(array, "filename", None)
    mapped = getattr(array, "_mmap", None)
    if path is None or mapped is None or getattr(array, "mode", "c") == "c" or not array.flags.c_contiguous:
        return None
    mapping = np.frombuffer(mapped, np.uint8)
    parent_offset = int(getattr(array, "offset", 0))
    begins = parent_offset - parent_offset % mmap.ALLOCATIONGRANULARITY
    here = array.__array_interface__["data"][0] - mapping.__array_interface__["data"][0]
    if not 0 <= here <= mapping.nbytes - array.nbytes:
        return None
    return str(path), begins + here


def file_rows(array: Array) -> FileRows | None:
    """Returns the rows of a mapped array, to be read by calls; None where it has no file. Raises OSError."""
    place = place_of(array)
    return None if place is None else FileRows(place[0], array.dtype, array.shape, place[1])
