"""`Files`: an array of the data in a file that every host has, at the same path."""

from __future__ import annotations

import math
import os
import platform
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from partita.engine.files.sources import DataSource, OpensArrays, Rows

Array = npt.NDArray[Any]

_WHOLE_BYTES: Final = 1 << 30
_SAMPLE_BYTES: Final = 1 << 20
_SAMPLES: Final = 512
_BLOCK: Final = 1 << 24
_LOCAL_HEADER: Final = struct.Struct("<4s5H3L2H")


class FileDiffers(ValueError):
    """A file of the data is not on a host as it is where the run was started. Names both."""


@dataclass(frozen=True)
class Files(DataSource):
    """An array in a file that every machine of the run has, at the same path. Hosts map it.

    The machine that trains has the file, too. Each host compares its size, and a checksum: of the whole file
    up to 1 GiB, of 512 MiB spread evenly over a larger one.

    Args:
        path: of a `.npy` file, of an uncompressed `.npz` file, or of raw numbers in C order.
        key: name of the array in the `.npz` file.
        shape: of raw numbers, `(examples, ...)`; that of another file if not given.
        dtype: of raw numbers; that of another file if not given.

    Raises:
        ValueError: the arguments do not go together, or the file is not what they say.
        OSError: the file cannot be read.
    """

    path: str | Path
    key: str | None = None
    shape: tuple[int, ...] = ()
    dtype: Any = None

    def __post_init__(self) -> None:
        kind = Path(self.path).suffix
        if (kind == ".npz") != (self.key is not None):
            raise ValueError(
                f"Files({str(self.path)!r}, key={self.key!r}): a .npz file needs a key, and no other has one"
            )
        raw = kind not in (".npy", ".npz")
        if raw and not (self.shape and self.dtype is not None):
            raise ValueError(
                f"Files({str(self.path)!r}): raw numbers need shape= and dtype=; or write a .npy file"
            )
        array = self.array()
        if not raw and (self.shape or self.dtype is not None):
            self._check(array)
        object.__setattr__(self, "path", Path(self.path).absolute())
        object.__setattr__(self, "shape", array.shape)
        object.__setattr__(self, "dtype", array.dtype)

    def _check(self, array: Array) -> None:
        wanted = self.shape or array.shape, np.dtype(self.dtype or array.dtype)
        if wanted != (array.shape, array.dtype):
            raise ValueError(
                f"{self.path} has {array.dtype} of shape {array.shape}, not {wanted[1]} of shape {wanted[0]}"
            )

    def array(self) -> Array:
        """Maps the file on this machine. Raises OSError, or ValueError if it is no such file."""
        path, kind = Path(self.path), Path(self.path).suffix
        if kind == ".npy":
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
            return found
        if kind == ".npz":
            assert self.key is not None
            return member(path, self.key)
        return np.memmap(path, self.dtype, mode="r", shape=self.shape)

    def bound(self, name: str) -> FileOfHosts:
        """Returns the source as an input or target, with what hosts compare. Raises OSError."""
        size = os.path.getsize(self.path)
        checksum = checksum_of(Path(self.path), size)
        return FileOfHosts(self, name, size, checksum, self.shape, self.dtype)

    def open(self, files: OpensArrays) -> Rows:
        """Maps the file on a host, which compares nothing. Raises as `array`."""
        return self.array()


@dataclass(frozen=True)
class FileOfHosts(DataSource):
    """A file that hosts have, as it is where the run was started.

    Args:
        file: the file.
        name: of the input or target.
        size: in bytes.
        checksum: see `checksum_of`.
        shape: the number of examples, and the shape of each.
        dtype: of the numbers.
    """

    file: Files
    name: str
    size: int
    checksum: int
    shape: tuple[int, ...]
    dtype: Any

    def open(self, files: OpensArrays) -> Rows:
        """Maps the file on a host, after it was compared. Raises FileDiffers."""
        path = Path(self.file.path)
        try:
            size = os.path.getsize(path)
            if size != self.size:
                self._differs(f"{size:,} bytes", f"{self.size:,}")
            found = checksum_of(path, size)
            if found != self.checksum:
                self._differs(f"the checksum {found:08x}", f"{self.checksum:08x}")
            return self.file.array()
        except OSError as error:
            raise FileDiffers(
                f"'{self.name}' cannot be read on {platform.node()} ({error.strerror or error}); every "
                f"machine of the run needs {path}"
            ) from error

    def _differs(self, found: str, expected: str) -> NoReturn:
        raise FileDiffers(
            f"{self.file.path} of '{self.name}' has {found} on {platform.node()}, and {expected} where the "
            "run was started; copy it to that machine again"
        )


def checksum_of(path: Path, size: int) -> int:
    """Returns the CRC-32 of a file, or of blocks that are spread over a large one. Raises OSError."""
    found = 0
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            while block := file.read(_BLOCK):
                found = zlib.crc32(block, found)
            return found
        for sample in range(_SAMPLES):
            file.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            found = zlib.crc32(file.read(_SAMPLE_BYTES), found)
    return found


def member(path: Path, key: str) -> Array:
    """Maps an array in an uncompressed .npz file."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if f"{key}.npy" not in names:
            has = ", ".join(f"'{name.removesuffix('.npy')}'" for name in names)
            raise ValueError(f"{path} has no array '{key}'; it has {has}")
        info = archive.getinfo(f"{key}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{path} is compressed; write it with numpy.savez, not savez_compressed")
    with path.open("rb") as file:
        file.seek(info.header_offset)
        *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
        form = np.lib.format
        old = form.read_magic(file) == (1, 0)
        read = form.read_array_header_1_0 if old else form.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if fortran or dtype.hasobject:
            raise ValueError(f"'{key}' in {path} is not in C order, or no array of numbers; save it again")
        if not math.prod(shape):
            return np.empty(shape, dtype)
        return np.memmap(path, dtype, mode="r", offset=file.tell(), shape=shape)
