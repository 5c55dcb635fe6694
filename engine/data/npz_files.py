"""Shards of NumPy: `.npz` files with arrays of the same names."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.blocks import BlockReader
from partita.engine.data.dataset import DataError, Dataset, Field, Reader
from partita.engine.data.paths import files_of, reading, stamp_of
from partita.engine.data.rows import FileRows, file_rows
from partita.engine.files.host_files import member
from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]
_Header = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

_OPEN_FILES: Final = 256


@dataclass(frozen=True)
class Npz(Dataset):
    """Examples in `.npz` files, which all machines have at the same paths.

    Of files that `numpy.savez` wrote any example is read by itself; those of `numpy.savez_compressed` are
    read whole, so that their examples are shuffled within windows.

    Args:
        pattern: of the files, as `shards/*.npz`; or their paths.

    Raises:
        ValueError: there is no such file, one cannot be read, or they differ in their arrays.
    """

    pattern: str | Path | Sequence[str | Path]
    paths: tuple[str, ...] = field(init=False, repr=False)
    fields: Mapping[str, Field] = field(init=False, repr=False)
    sizes: tuple[int, ...] = field(init=False, repr=False)
    blocks: tuple[int, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        paths, sizes = files_of(self.pattern), []
        fields: dict[str, Field] = {}
        compressed = False
        for path in paths:
            with reading(path):
                header, is_compressed = _header(path)
                compressed |= is_compressed
                sizes.append(_size(path, header))
                found = {name: Field(shape[1:], dtype) for name, (shape, dtype) in header.items()}
                if fields and found != fields:
                    raise DataError(
                        f"{path} has {_words(found)}, and {paths[0]} {_words(fields)}; give all shards the "
                        "same arrays"
                    )
                fields = found
        set_ = object.__setattr__
        set_(self, "paths", paths)
        set_(self, "fields", fields)
        set_(self, "sizes", tuple(sizes))
        set_(self, "blocks", tuple(sizes) if compressed else ())

    @property
    def examples(self) -> int:  # type: ignore[override]
        """The number of examples in all files."""
        return sum(self.sizes)

    @property
    def identity(self) -> str:
        """Names and sizes of the files."""
        return stamp_of(self.paths)

    def open(self, files: OpensArrays) -> Reader:
        """Opens files when they are needed."""
        if self.blocks:
            return _CompressedReader(self.paths, self.sizes)
        return _PlainReader(self.paths, self.sizes)


class _PlainReader(Reader):
    """Reads single examples."""

    def __init__(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        self._paths, self._starts = paths, np.cumsum([0, *sizes])
        self._open: dict[tuple[int, str], FileRows | Array] = {}
        self._lock = threading.Lock()

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        shards = np.searchsorted(self._starts, chosen, side="right") - 1
        found: dict[str, Array] = {}
        for shard in np.unique(shards).tolist():
            here = np.flatnonzero(shards == shard)
            for name in names:
                with reading(self._paths[shard]):
                    rows = self._rows(shard, name)[chosen[here] - self._starts[shard]]
                if name not in found:
                    found[name] = np.empty((len(chosen), *rows.shape[1:]), rows.dtype)
                found[name][here] = rows
        return found

    def _rows(self, shard: int, name: str) -> FileRows | Array:
        with self._lock:
            key = shard, name
            if key not in self._open:
                if len(self._open) >= _OPEN_FILES:
                    self._open.pop(next(iter(self._open)))  # its file is closed when no thread reads it
                mapped = member(Path(self._paths[shard]), name)
                by_calls = file_rows(mapped)
                self._open[key] = mapped if by_calls is None else by_calls
            return self._open[key]

    def close(self) -> None:
        self._open.clear()


class _CompressedReader(BlockReader):
    """Reads whole files."""

    def __init__(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self._paths = paths

    def load(self, block: int, names: Collection[str]) -> dict[str, Array]:
        with reading(self._paths[block]), np.load(self._paths[block], allow_pickle=False) as archive:
            return {name: archive[name] for name in names}


def _header(path: str) -> tuple[_Header, bool]:
    """Reads the shapes and types of a file's arrays, and whether any is compressed."""
    header: _Header = {}
    compressed = False
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                form = np.lib.format
                version = form.read_magic(file)
                read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
                shape, fortran, dtype = read(file)
            compressed |= info.compress_type != zipfile.ZIP_STORED or fortran
            header[info.filename.removesuffix(".npy")] = shape, dtype
    return header, compressed


def _size(path: str, header: _Header) -> int:
    lengths = {name: shape[0] if shape else 0 for name, (shape, _) in header.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"the arrays in {path} differ in their number of examples: {lengths}")
    return next(iter(lengths.values()))


def _words(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"'{name}' {field.dtype} {field.shape}" for name, field in fields.items())
