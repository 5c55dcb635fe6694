"""Tables in Parquet files, read by pyarrow row group by row group."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.data.blocks import BlockReader
from partita.engine.data.dataset import DataError, Dataset, Field, Reader
from partita.engine.data.paths import files_of, reading, stamp_of
from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Parquet(Dataset):
    """Rows of Parquet files, which all machines have at the same paths.

    A row group is read whole, so rows are shuffled within windows of several row groups. A column holds a
    number in each row, or a list of equally many (nested lists: of equal shapes).

    Args:
        pattern: of the files, as `tables/*.parquet`; or their paths.
        columns: names of the columns to use; those with numbers if not given.

    Raises:
        ValueError: pyarrow is not installed, there is no such file, one cannot be read, or they differ.
    """

    pattern: str | Path | Sequence[str | Path]
    columns: Sequence[str] | None = None
    paths: tuple[str, ...] = field(init=False, repr=False)
    fields: Mapping[str, Field] = field(init=False, repr=False)
    groups: tuple[tuple[int, int], ...] = field(init=False, repr=False)
    blocks: tuple[int, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        paths, parquet = files_of(self.pattern), pyarrow_parquet()
        groups, sizes = [], []
        names: list[str] = []
        for number, path in enumerate(paths):
            with reading(path), parquet.ParquetFile(path) as file:
                found = list(file.schema_arrow.names)
                missing = [name for name in (self.columns or names) if name not in found]
                if missing:
                    raise DataError(f"{path} has no column '{missing[0]}'; it has {', '.join(found)}")
                names = names or list(self.columns or found)
                for group in range(file.num_row_groups):
                    groups.append((number, group))
                    sizes.append(file.metadata.row_group(group).num_rows)
        set_ = object.__setattr__
        set_(self, "paths", paths)
        set_(self, "groups", tuple(groups))
        set_(self, "blocks", tuple(sizes))
        set_(self, "fields", self._fields(names))

    def _fields(self, names: Sequence[str]) -> dict[str, Field]:
        """Reads the first row group, for the shapes of lists."""
        first = next((n for n, size in enumerate(self.blocks) if size), None)
        if first is None:
            return {}
        reader, fields = _GroupReader(self), {}
        for name in names:
            try:
                fields[name] = Field.of(reader.load(first, [name])[name][0])
            except DataError:
                if self.columns is not None:
                    raise
        return fields

    @property
    def examples(self) -> int:  # type: ignore[override]
        """The number of rows in all files."""
        return sum(self.blocks)

    @property
    def identity(self) -> str:
        """Names and sizes of the files."""
        return stamp_of(self.paths)

    def open(self, files: OpensArrays) -> Reader:
        """Opens files when they are needed."""
        return _GroupReader(self)


class _GroupReader(BlockReader):
    def __init__(self, table: Parquet) -> None:
        super().__init__(table.blocks)
        self._paths, self._groups, self._files = table.paths, table.groups, threading.local()

    def load(self, block: int, names: Collection[str]) -> dict[str, Array]:
        file, group = self._groups[block]
        path = self._paths[file]
        with reading(path):
            opened = self._opened(path)
            table = opened.read_row_group(group, columns=list(names), use_threads=False)
            return {name: _numbers(table.column(name), name, path) for name in names}

    def _opened(self, path: str) -> Any:
        """Returns the file; each thread keeps the last one open."""
        if getattr(self._files, "path", None) != path:
            self._files.file, self._files.path = pyarrow_parquet().ParquetFile(path), path
        return self._files.file


def pyarrow_parquet() -> Any:
    """Returns pyarrow's module for Parquet files. Raises DataError where it is missing."""
    try:
        return import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError("Parquet files need the package pyarrow: pip install 'partita[data]'") from error


def _numbers(column: Any, name: str, path: str) -> Array:
    """Returns the numbers of a column, `[row, *shape]`. Raises DataError."""
    if column.null_count:
        raise DataError(
            f"column '{name}' of {path} has {column.null_count} rows without a value; fill them, or leave "
            "those rows out"
        )
    flat, shape = column.combine_chunks(), [len(column)]
    while str(flat.type).startswith(("list", "large_list", "fixed_size_list")):
        lengths = flat.value_lengths().unique().to_pylist()
        if len(lengths) > 1:
            raise DataError(f"the lists in column '{name}' of {path} differ in length; give all the same")
        shape.append(lengths[0] if lengths else 0)
        flat = flat.flatten()
    found = flat.to_numpy(zero_copy_only=False)
    if found.dtype.kind not in "biuf":
        raise DataError(
            f"column '{name}' of {path} holds {flat.type}, not numbers; name those to use: columns=[...]"
        )
    return np.asarray(found).reshape(shape)
