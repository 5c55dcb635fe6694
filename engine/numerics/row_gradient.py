"""The gradient of a table of which few rows have one: those rows alone, and their values."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.NDArray[Any]


class RowGradient:
    """A sum of gradients of rows. A row that is not there has the gradient zero.

    The sum over several calls of `add` rounds as that of whole tables would. Used by one thread at a time.

    Attributes:
        rows: int64 `[k]`, ascending, each once.
        values: `[k, width]`, the gradient of each.
    """

    def __init__(self, width: int, dtype: npt.DTypeLike) -> None:
        """No row; each has `width` numbers, float32 or float64."""
        self.width: Final = width
        self._none = np.zeros(0, np.int64), np.zeros((0, width), dtype)
        self.rows: Rows
        self.values: Values
        self.clear()

    def clear(self) -> None:
        """Makes the sum zero."""
        self.rows, self.values = self._none

    def add(self, rows: Rows, values: Values) -> None:
        """Adds the gradients of some rows, which are ascending, each once; it may keep the arrays."""
        if not len(self.rows):
            self.rows, self.values = rows, values.astype(self.values.dtype, copy=False)
        elif np.array_equal(rows, self.rows):
            self.values = self.values + values
        elif len(rows):
            both = np.union1d(self.rows, rows)
            total = np.zeros((len(both), self.width), self.values.dtype)
            total[np.searchsorted(both, self.rows)] = self.values
            total[np.searchsorted(both, rows)] += values
            self.rows, self.values = both, total

    def add_table(self, table: Values) -> None:
        """Adds the gradient of a whole table, `[rows, width]`: the rows that are not zero."""
        rows = np.flatnonzero((table != 0).any(axis=1))
        self.add(rows, table[rows])

    def between(self, start: int, stop: int) -> tuple[Rows, Values]:
        """The rows `[start, stop)` that are there, as views."""
        low, high = np.searchsorted(self.rows, (start, stop))
        return self.rows[low:high], self.values[low:high]

    def remove(self, start: int, stop: int) -> None:
        """Removes the rows `[start, stop)`."""
        low, high = np.searchsorted(self.rows, (start, stop))
        if low < high:
            self.rows = np.delete(self.rows, slice(low, high))
            self.values = np.delete(self.values, slice(low, high), axis=0)
