"""Rows of a buffer, as kernels see them and as messages and feeds do."""

from __future__ import annotations

from partita.engine.kernels.kernel import Array
from partita.layers.rows import Rows


class Window:
    """Rows `[start, stop)` of a buffer, and the array that holds them: one for kernels and messages alike."""

    def __init__(self, start: int, array: Array) -> None:
        self.start = start
        self.array = array

    @property
    def rows(self) -> tuple[int, int]:
        """`(start, stop)`."""
        return self.start, self.start + len(self.array)

    def of(self, rows: Rows) -> list[Array]:
        """The runs of these rows, as contiguous views of what kernels see."""
        return [self.array[a - self.start : b - self.start] for a, b in rows]

    def arriving(self, rows: Rows) -> list[Array]:
        """The host's arrays for these runs, to be filled now; kernels see what is there after `upload`."""
        return self.of(rows)

    def wait(self) -> None:
        """Returns when the host's arrays may be filled: what was put there before has been taken."""

    def upload(self, rows: Rows) -> None:
        """What the host has put into these rows goes to where kernels read it."""

    def download(self, rows: Rows) -> list[Array]:
        """The host's arrays of these runs, with what kernels have written there by now."""
        return self.of(rows)
