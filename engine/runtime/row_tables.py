"""Sparse tables of a part: gradients of a few rows, for the next push and in flight, and rows as they were.

A part updates rows that it has fetched. Where the next values bring changed rows alone, the others have to be
what was fetched; so a row is saved before its first change, and restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from partita.engine.numerics import downcast_array
from partita.engine.numerics.row_gradient import RowGradient, Rows, Values
from partita.engine.parameters.slots import Table
from partita.engine.parameters.vector import Vector


class PartTable:
    """One table of a machine's vectors.

    Rows are numbered in the table, and a range `[first, stop)` of them belongs to a shard.

    Attributes:
        place: of the table.
        accumulated: the gradient of the next push.
        in_flight: the gradient of the last push.
    """

    def __init__(
        self, place: Table, parameters: Vector, copy: Vector | None, kept: Mapping[str, Vector]
    ) -> None:
        """Nothing has accumulated.

        Args:
            place: of the table.
            parameters: of the machine.
            copy: the same in bfloat16 (uint16), if there is one.
            kept: the vectors whose rows are saved before they change, by name; "" are the parameters.
        """
        self.place: Final = place
        self.accumulated = RowGradient(place.width, parameters.dtype)
        self.in_flight = RowGradient(place.width, parameters.dtype)
        self._values = self.of(parameters)
        self._copy = None if copy is None else self.of(copy)
        self._kept = {name: self.of(vector) for name, vector in kept.items()}
        self._is_saved = np.zeros(place.n_rows if kept else 0, bool)
        self._saved: list[tuple[Rows, dict[str, Values]]] = []  # each row once

    def of(self, vector: Vector) -> Values:
        """Returns the table in one of the machine's vectors."""
        return vector[self.place.start : self.place.stop].reshape(-1, self.place.width)

    def swap(self, first: int, stop: int) -> None:
        """Moves the accumulated gradient of some rows into flight."""
        rows, values = self.accumulated.between(first, stop)
        self.in_flight.remove(first, stop)
        self.in_flight.add(rows, values)
        self.accumulated.remove(first, stop)

    def save(self, rows: Rows) -> None:
        """Saves rows as they are, but those that were saved before."""
        if not self._kept:
            return
        new = rows[~self._is_saved[rows]]
        if len(new):
            self._is_saved[new] = True
            self._saved.append((new, {name: table[new] for name, table in self._kept.items()}))

    def restore(self, first: int, stop: int) -> None:
        """Makes some rows what they were when they were saved; they are saved no more."""
        for rows, values in self._taken(first, stop):
            for name, table in self._kept.items():
                table[rows] = values[name]
            self._round(rows)

    def write(self, rows: Rows, values: Values) -> None:
        """Makes these the parameters of some rows."""
        self._values[rows] = values
        self._round(rows)

    def _round(self, rows: Rows) -> None:
        if self._copy is not None:
            narrow = np.empty((len(rows), self.place.width), self._copy.dtype)
            downcast_array(self._values[rows], narrow)
            self._copy[rows] = narrow

    def forget(self, first: int, stop: int) -> None:
        """Drops what was saved of some rows."""
        for _ in self._taken(first, stop):
            pass

    def refresh(self, name: str, first: int, stop: int) -> None:
        """Saves of rows that are saved already what one vector holds now."""
        for rows, values in self._saved:
            low, high = np.searchsorted(rows, (first, stop))
            values[name][low:high] = self._kept[name][rows[low:high]]

    def _taken(self, first: int, stop: int) -> Iterator[tuple[Rows, dict[str, Values]]]:
        """Yields the saved rows of a range, and removes them."""
        saved, self._saved = self._saved, []
        for rows, values in saved:
            low, high = np.searchsorted(rows, (first, stop))
            for part in (slice(0, low), slice(high, len(rows))):
                if len(rows[part]):
                    self._saved.append((rows[part], {name: some[part] for name, some in values.items()}))
            if low < high:
                self._is_saved[rows[low:high]] = False
                yield rows[low:high], {name: some[low:high] for name, some in values.items()}
