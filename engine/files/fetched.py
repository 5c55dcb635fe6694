"""An array whose examples are fetched from the coordinator's machine when they are needed, or before."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.files.copies import SparseCopy

Array = npt.NDArray[Any]


class FetchedArray:
    """The examples of a copy, of which some may be missing. From any thread.

    Attributes:
        copy: the file of the numbers.
        shape: the number of examples, and the shape of each.
        dtype: of the numbers.
    """

    def __init__(
        self, copy: SparseCopy, shape: tuple[int, ...], dtype: np.dtype[Any], *, offset: int = 0
    ) -> None:
        """Maps the copy, in which the numbers begin at `offset` bytes.

        Raises:
            ValueError: the file is too small.
        """
        self.copy: Final = copy
        self.shape: Final = shape
        self.dtype: Final = dtype
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._offset = offset
        if copy.n_bytes < offset + self._row_bytes * shape[0]:
            raise ValueError(f"the file of {shape} {dtype} has {copy.n_bytes} bytes")
        self._mapped: Array = np.memmap(copy.path, dtype, mode="r", offset=offset, shape=shape)

    def ready(self, chosen: Array | slice) -> Array:
        """Waits until these examples are there, and returns the array of all. Raises FilesUnavailable."""
        if not self.copy.complete:
            self.copy.ensure(self._chunks(chosen))
        return self._mapped

    def ahead(self, chosen: Array | slice) -> None:
        """Fetches these examples after what is waited for. Does not wait."""
        if not self.copy.complete:
            self.copy.ahead(self._chunks(chosen))

    def __getitem__(self, chosen: Any) -> Array:
        """Returns examples, `[count, *shape]`. Raises FilesUnavailable."""
        found: Array = self.ready(chosen)[chosen]
        return found

    def _chunks(self, chosen: Array | slice) -> npt.NDArray[np.int64]:
        if isinstance(chosen, slice):
            chosen = np.arange(*chosen.indices(self.shape[0]))
        starts = self._offset + np.asarray(chosen, np.int64) * self._row_bytes
        return self.copy.chunks_of(starts, self._row_bytes)
