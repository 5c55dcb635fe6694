"""Atomic writes (I5), checked reads, and whole networks in one file.

A file is written under another name in the same folder, synced and renamed, and the folder is synced. A
failed write or fsync is reported to the caller and never retried, because the kernel may then claim success
for data that it has dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy

from partita.engine.parameters.layer_text import in_todays_names, is_same_but_for_digests, is_same_layer
from partita.engine.parameters.layout import Shape
from partita.engine.parameters.vector import Vector
from partita.layers.text import listed

_SYNC_BYTES: Final = 1 << 24
"""Interval of syncs in a long file: they show its progress, and shorten the last one."""


class AtomicFile:
    """A file that is being written under another name, and that `finish` gives its own.

    Attributes:
        n_bytes: written so far.
    """

    def __init__(
        self, path: Path, *, mode: int = 0o600, written: Callable[[int], None] = lambda n_bytes: None
    ) -> None:
        """Creates the temporary file; for the arguments see `write_atomically`. Raises OSError."""
        self._path, self._written = path, written
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: int | None = os.open(self._temporary, flags, mode)
        self._sha256 = hashlib.sha256()
        self._since_sync = 0
        self.n_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Adds bytes. Raises OSError."""
        assert self._descriptor is not None, self._path
        for view in _views(data):
            self._sha256.update(view)
            while view:
                n_bytes = os.write(self._descriptor, view)
                view, self._since_sync = view[n_bytes:], self._since_sync + n_bytes
                self.n_bytes += n_bytes
            if self._since_sync >= _SYNC_BYTES:
                os.fdatasync(self._descriptor)
                self._written(self._since_sync)
                self._since_sync = 0

    def finish(self, *, sha256: str | None = None) -> str:
        """Forces the file to the disk under its own name, and returns its SHA-256.

        Raises:
            ValueError: it is not `sha256`.
            OSError: a step failed.
        """
        assert self._descriptor is not None, self._path
        found = self._sha256.hexdigest()
        if sha256 is not None and found != sha256:
            raise ValueError(f"{self._path.name} has the SHA-256 {found}, and its writer says {sha256}")
        os.fsync(self._descriptor)
        self._close()
        os.replace(self._temporary, self._path)
        sync_folder(self._path.parent)
        return found

    def drop(self) -> None:
        """Removes the temporary file, if there is still one."""
        with contextlib.suppress(OSError):  # an earlier error is the one to report
            self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    *,
    mode: int = 0o600,
    written: Callable[[int], None] = lambda n_bytes: None,
) -> str:
    """Replaces a file's content atomically and durably; after a crash, the old content is there.

    The file's `mode` lets only its owner read it by default. `written` is called with the number of bytes
    that have just been synced, every 16 MiB. Returns the SHA-256 of the data, in hexadecimal.

    Raises:
        OSError: a step failed. Before the rename the old file remains; the temporary one is removed.
    """
    file = AtomicFile(path, mode=mode, written=written)
    try:
        for piece in (data,) if isinstance(data, bytes) else data:
            file.write(piece)
        return file.finish()
    except BaseException:
        file.drop()
        raise


def _views(data: bytes | memoryview) -> Iterator[memoryview]:
    """Yields the bytes in pieces, between which they may be synced."""
    view = memoryview(data)
    for start in range(0, len(view), _SYNC_BYTES):
        yield view[start : start + _SYNC_BYTES]


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents durably, private to the owner; nothing where it exists, or a link to
    it.

    Raises:
        OSError: it could not be created.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Syncs a folder's entries to disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_plain(path: Path) -> BufferedReader:
    """Opens a plain file (no link, no device) for reading. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise ValueError(f"{path} is not a plain file")
    return file


def read_plain(path: Path, *, at_most: int) -> bytes:
    """Reads a plain file of at most this many bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no plain file, or larger.
    """
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most:
            raise ValueError(f"{path} is not a plain file of at most {at_most} bytes")
        return file.read(size)  # `read(n)` allocates n bytes, however few there are


def hash_plain(path: Path) -> str:
    """Returns the SHA-256 (hexadecimal) of a plain file. Raises OSError, ValueError."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_parameters(path: str | os.PathLike[str], parameters: Mapping[str, Vector]) -> None:
    """Writes whole parameters (by name, float32 or float64, any shape) as one safetensors file, atomically.

    `safetensors.torch.load_file(path)` reads it.

    Raises:
        OSError: it could not be written; an older file is unchanged.
    """
    target = Path(path)
    check_target(target)
    tensors = {name: np.asarray(values, order="C") for name, values in parameters.items()}
    write_atomically(target, safetensors.numpy.save(tensors, metadata={"format": "pt"}), mode=0o644)


def check_target(path: Path) -> None:
    """Raises FileNotFoundError or IsADirectoryError where no file of this name can be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file name in it")


def load_parameters(
    path: str | os.PathLike[str], shapes: Mapping[str, Shape], *, only: Collection[str] | None = None
) -> dict[str, Vector]:
    """Reads whole parameters by name from a file of `save_parameters` (or of torch, with the same names).

    The file must have exactly the parameters of `shapes`. Only the names in `only` are read (None: all).

    Raises:
        ValueError: the file is missing or unreadable, or of another network: says what differs.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = file.keys()
            found = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            why = shape_difference(found, shapes)
            if why is not None:
                raise ValueError(f"{path} holds another network's parameters: {why}")
            wanted = [name for name in shapes if only is None or name in only]
            values = {name: np.asarray(file.get_tensor(name)) for name in wanted}
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}; check the path, or train and save first") from error
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}); save it again") from error
    for name, array in values.items():
        if array.dtype not in (np.float32, np.float64):
            raise ValueError(f"{path}: {name!r} is {array.dtype}; save it as float32 or float64")
    return values


def shape_difference(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> str | None:
    """Describes the differences between the parameters of a file and of this network; None if equal."""
    wrong = []
    for name, shape in expected.items():
        if name not in found:
            wrong.append(f"{name!r} {tuple(shape)} is missing")
        elif tuple(found[name]) != tuple(shape):
            wrong.append(f"{name!r} is {tuple(found[name])}, and {tuple(shape)} in this network")
    wrong += [f"this network has no {name!r}" for name in found if name not in expected]
    return listed(wrong) if wrong else None


def layer_difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """Describes the first difference between the layers' texts of a file and of this network; None if equal.

    Nothing is compared where either is empty, as in files written before there were texts.
    """
    if not found or not expected:
        return None
    for name, text in expected.items():
        if name not in found:
            return f"it has no layer '{name}'"
        known = in_todays_names(found[name])
        if is_same_layer(known, text):
            continue
        if is_same_but_for_digests(known, text):
            return f"the code or the numbers of layer '{name}' are others: {found[name]}, and {text} here"
        return f"layer '{name}' is {found[name]}, and {text} in this network"
    extra = [name for name in found if name not in expected]
    return f"this network has no layer '{extra[0]}'" if extra else None
