"""Figures of a run as a file of comma-separated values, which pandas and spreadsheets read."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from partita.engine.run.callbacks.callback import Control
from partita.engine.run.loggers.figures import Line, Logger

_FIRST = ["kind", "step", "epoch", "seconds"]


@dataclass
class CSVLog(Logger):
    """Writes a row for each line: kind, step, epoch, seconds, and a column for each figure.

    A column stays empty where a line lacks its figure. Where a later line has a new one, the file is written
    anew with that column. A run that goes on with an earlier one adds its rows.

    Args:
        path: of the file.
        every_s: see `Logger`.
    """

    path: str | Path
    _columns: list[str] = field(default_factory=list, init=False, repr=False)

    @override
    def open(self, control: Control) -> None:
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            self._columns = self._rows()[0]
            if self._columns[: len(_FIRST)] != _FIRST:
                raise ValueError(f"{path} is no log of a run; give another file")

    def _rows(self) -> list[list[str]]:
        with Path(self.path).open(newline="") as file:
            return [*csv.reader(file)]

    @override
    def write(self, line: Line) -> None:
        missing = [name for name in line.figures if name not in self._columns]
        if missing or not self._columns:
            self._widen(missing)
        fixed = [line.kind, line.step, f"{line.epoch:.6g}", f"{line.seconds:.3f}"]
        figures = (line.figures.get(name) for name in self._columns[len(_FIRST) :])
        with Path(self.path).open("a", newline="") as file:
            csv.writer(file).writerow([*fixed, *("" if one is None else repr(one) for one in figures)])

    def _widen(self, missing: list[str]) -> None:
        """Writes the rows so far with further columns."""
        rows = self._rows()[1:] if self._columns else []
        self._columns = [*(self._columns or _FIRST), *missing]
        with Path(self.path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows([*row, *[""] * (len(self._columns) - len(row))] for row in rows)
