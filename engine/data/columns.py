"""Data sets of separate arrays: one source for each input and target."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import Dataset, Field, Reader
from partita.engine.data.rows import FileRows, file_rows
from partita.engine.files.sources import DataSource, OpensArrays, Rows

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class HeldArray(DataSource):
    """An array of this process, for what is read in it."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The number of examples, and the shape of each."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """The type of the numbers."""
        return self.array.dtype

    def open(self, files: OpensArrays) -> Rows:
        """Returns the array itself."""
        return self.array


@dataclass(frozen=True)
class Columns(Dataset):
    """Sources of equal lengths, by the names of inputs and targets."""

    sources: Mapping[str, DataSource]

    @property
    def fields(self) -> Mapping[str, Field]:  # type: ignore[override]
        """The arrays of an example."""
        return {name: Field(one.shape[1:], np.dtype(one.dtype)) for name, one in self.sources.items()}

    @property
    def examples(self) -> int:  # type: ignore[override]
        """The number of examples."""
        return next(iter(self.sources.values())).shape[0]

    @property
    def identity(self) -> str:
        """Words that change when a source does."""
        return " ".join(
            f"{name} {getattr(source, 'checksum', source)}" for name, source in sorted(self.sources.items())
        )

    def open(self, files: OpensArrays) -> Reader:
        """Opens the source of each column."""
        return _ColumnReader({name: source.open(files) for name, source in self.sources.items()})


class _ColumnReader(Reader):
    """Rows of each column; those of mapped files are read by calls, so that they take no memory."""

    def __init__(self, columns: Mapping[str, Rows]) -> None:
        self._columns: dict[str, Rows] = {}
        for name, rows in columns.items():
            by_calls = file_rows(rows) if isinstance(rows, np.ndarray) else None
            self._columns[name] = rows if by_calls is None else by_calls

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        return {name: np.asarray(self._columns[name][chosen]) for name in names}

    def close(self) -> None:
        for rows in self._columns.values():
            if isinstance(rows, FileRows):
                rows.close()
