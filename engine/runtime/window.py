"""Windows: rows of a buffer, for kernels on the device, and for messages and feeds on the host."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.layers.box import Box, BoxSet

Sliced = TypeVar("Sliced")


class Window:
    """Rows `[start, stop)` of a buffer, in one array for kernels and messages alike.

    The array of a picture that is cut into tiles may begin in column `left`.
    """

    def __init__(self, start: int, array: Array, left: int = 0) -> None:
        self.start, self.left = start, left
        self.array = array

    @property
    def rows(self) -> tuple[int, int]:
        """First row and end of the rows."""
        return self.start, self.start + len(self.array)

    @property
    def columns(self) -> tuple[int, int]:
        """`(left, right)` of a picture."""
        return self.left, self.left + self.array.shape[1]

    def of(self, rows: BoxSet) -> list[Array]:
        """The runs of these rows, as views of what kernels see: contiguous, unless they are narrower."""
        return [self.view(self.array, box) for box in rows]

    def view(self, array: Sliced, box: Box) -> Sliced:
        """A box of rows in an array (or a tensor) that holds what the window holds."""
        start, stop = box[0]
        rows, columns = slice(start - self.start, stop - self.start), box.columns
        if columns is None:
            return array[rows]  # type: ignore[index, no-any-return]
        return array[rows, columns[0] - self.left : columns[1] - self.left]  # type: ignore[index, no-any-return]

    def arriving(self, rows: BoxSet) -> list[Array]:
        """The host's arrays for these boxes, to be filled; kernels see their numbers after `upload`."""
        return self.of(rows)

    def wait(self) -> None:
        """Waits until the host's arrays may be filled again."""

    def upload(self, rows: BoxSet) -> None:
        """Moves the host's arrays of these rows to where kernels read them."""

    def download(self, rows: BoxSet) -> list[Array]:
        """The host's arrays of these boxes, with the numbers that kernels have written."""
        return self.of(rows)


class PackedWindow(Window):
    """A window of a picture that packs boxes which do not lie in one piece.

    Args:
        window: the window that holds the picture.
    """

    def __init__(self, window: Window) -> None:
        super().__init__(window.start, window.array, window.left)
        self._window = window
        self._packed: dict[Box, Array] = {}

    def arriving(self, rows: BoxSet) -> list[Array]:
        """See `Window`; an array for a box is always the same one."""
        return [
            view
            if view.flags.c_contiguous
            else self._packed.setdefault(run, np.zeros(view.shape, view.dtype))
            for run, view in zip(rows, self._window.arriving(rows), strict=True)
        ]

    @override
    def wait(self) -> None:
        self._window.wait()

    @override
    def upload(self, rows: BoxSet) -> None:
        for run, view in zip(rows, self._window.arriving(rows), strict=True):
            if not view.flags.c_contiguous:
                np.copyto(view, self._packed[run])
        self._window.upload(rows)

    @override
    def download(self, rows: BoxSet) -> list[Array]:
        return [np.ascontiguousarray(view) for view in self._window.download(rows)]
