"""Files that are the old one or the new one, never half of either (I5), and whole networks in one file.

A file is written under another name in the same folder, forced to disk, renamed, and the folder is forced to
disk. A failed write or fsync is the caller's to report; it is never tried again, because the kernel may then
claim success for data that it has dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy

from partita.engine.parameters.layout import Shape
from partita.engine.parameters.vector import Vector

_DIGEST: Final = re.compile(r"#[0-9a-f]+")

_SYNC_BYTES: Final = 1 << 24
"""Bytes after which a long file is forced to the disk: how far it has come is then known, and its end does
not wait for all of it."""


def write_atomically(
    path: Path,
    data: bytes | Iterable[bytes | memoryview],
    *,
    mode: int = 0o600,
    written: Callable[[int], None] = lambda n_bytes: None,
) -> str:
    """Makes `data` the content of `path`, at once and durably; a crash leaves what was there before.

    Args:
        path: of the file.
        data: its bytes, whole or piece by piece.
        mode: the file's permissions; by default only its owner reads it.
        written: called with the number of bytes that have just reached the disk, every 16 MiB.

    Returns:
        Its SHA-256, in hexadecimal.

    Raises:
        OSError: a step failed. Before the rename the old file stands; the temporary one is removed.
    """
    sha256 = hashlib.sha256()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            since_sync = 0
            for view in _views(data):
                sha256.update(view)
                while view:
                    n_bytes = os.write(descriptor, view)
                    view, since_sync = view[n_bytes:], since_sync + n_bytes
                if since_sync >= _SYNC_BYTES:
                    os.fdatasync(descriptor)
                    written(since_sync)
                    since_sync = 0
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what counts
            os.unlink(temporary)
        raise
    sync_folder(path.parent)
    return sha256.hexdigest()


def _views(data: bytes | Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """The bytes, in pieces after each of which they may be forced to the disk."""
    for piece in (data,) if isinstance(data, bytes) else data:
        view = memoryview(piece)
        for start in range(0, len(view), _SYNC_BYTES):
            yield view[start : start + _SYNC_BYTES]


def make_folder(folder: Path) -> None:
    """Makes a folder, and those above it, durably; nothing where it exists, also as a link to one.

    Those that are made are their owner's alone.

    Raises:
        OSError: it could not be made.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Forces a folder's entries to disk: names that were made or changed in it. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_plain(path: Path, *, at_most: int) -> bytes:
    """The content of a plain file (no link, no device) of so many bytes at most.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no plain file, or larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > at_most:
            raise ValueError(f"{path} is not a plain file of at most {at_most} bytes")
        return file.read(status.st_size)  # `read(n)` takes memory for n bytes, however few there are


def open_plain(path: Path) -> BufferedReader:
    """A plain file (no link, no device), to be read. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise ValueError(f"{path} is not a plain file")
    return file


def hash_plain(path: Path) -> str:
    """The SHA-256 (hexadecimal) of a plain file. Raises OSError, ValueError."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_parameters(path: str | os.PathLike[str], parameters: Mapping[str, Vector]) -> None:
    """Writes whole parameters (by name, float32 or float64, any shape) as one safetensors file, atomically.

    `safetensors.torch.load_file(path)` reads it.

    Raises:
        OSError: it could not be written; a file that was there before still is.
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
    """Whole parameters by name, from a file that `save_parameters` (or torch, with the same names) wrote.

    Args:
        path: the file.
        shapes: the parameters that the network has; more in the file are refused, too.
        only: those to be read; None: all.

    Raises:
        ValueError: the file is missing or unreadable, or is of another network: says what differs.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = file.keys()
            found = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            why = difference(found, shapes)
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


def difference(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> str | None:
    """The first difference between parameters found and those of this network, in words; None if equal."""
    for name, shape in expected.items():
        if name not in found:
            return f"{name!r} {tuple(shape)} is missing"
        if tuple(found[name]) != tuple(shape):
            return f"{name!r} is {tuple(found[name])}, and {tuple(shape)} in this network"
    extra = [name for name in found if name not in expected]
    return f"this network has no {extra[0]!r}" if extra else None


def other_layers(found: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """The first difference between the texts of two networks' layers, in words.

    Args:
        found: a text for each layer of the network that was found; none where it was written before there
            were texts: then nothing is compared.
        expected: those of this network; none: nothing is compared.
    """
    if not found or not expected:
        return None
    for name, text in expected.items():
        if name not in found:
            return f"it has no layer '{name}'"
        if found[name] == text:
            continue
        if _DIGEST.sub("", found[name]) == _DIGEST.sub("", text):
            return f"the code or the numbers of layer '{name}' are others: {found[name]}, and {text} here"
        return f"layer '{name}' is {found[name]}, and {text} in this network"
    extra = [name for name in found if name not in expected]
    return f"this network has no layer '{extra[0]}'" if extra else None
