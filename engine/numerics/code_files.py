"""Files of machine code in the user's cache folder, shared by all processes, checkouts and versions.

A file's name is a digest of everything that determines its content, so that a file is never wrong, only
unused; nothing is changed in place. A broken file counts as missing. Files that no process has read for some
weeks are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from partita.engine.numerics.cache import cache_folder

FOLDER: Final = "code"
_SUFFIX: Final = ".nbc"
_DAY_S: Final = 24 * 60 * 60.0
_UNUSED_S: Final = 30 * _DAY_S
_WAIT_S: Final = 120.0
"""Longer than any function takes to compile: the holder of the lock is stopped, and others do its work."""
_LOOK_AGAIN_S: Final = 0.01


def code_folder() -> Path | None:
    """Finds the folder of the files; None, and a warning that says why, where no file can be kept."""
    try:
        folder = cache_folder(FOLDER)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"the cache folder {folder} cannot be written to; make it yours: chmod 700")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        _warn_once(f"every process compiles for itself, because compiled code cannot be kept: {error}")
        return None
    return folder


def path_of(folder: Path, name: str, key: str) -> Path:
    """Names the file of a function: its name for people, and the key."""
    readable = "".join(letter if letter.isalnum() or letter == "_" else "." for letter in name)
    return folder / f"{readable[-60:].strip('.')}-{key}{_SUFFIX}"


def read(path: Path) -> bytes | None:
    """Reads a file; None if it is missing or broken."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    with contextlib.suppress(OSError):  # it may be removed meanwhile
        os.utime(path)  # so that it counts as used
    return data[32:]


def write(path: Path, data: bytes) -> None:
    """Puts a file into its place whole, while others may do the same; warns where the disk fails."""
    half = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        half.write_bytes(hashlib.sha256(data).digest() + data)
        now = half.stat().st_mtime
        half.replace(path)
        _sweep(path.parent, now)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        _warn_once(f"code is compiled again in every process, as {path.parent} cannot take it: {reason}")
    finally:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Waits until no other process compiles for this file, and keeps others waiting."""
    lock = FileLock(path.with_suffix(".lock"), mode=0o600, poll_interval=_LOOK_AGAIN_S)
    try:
        lock.acquire(timeout=_WAIT_S)
    except (Timeout, OSError, NotImplementedError):
        yield  # then several compile the same, and each writes it whole
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # whoever waits finds that the file is gone, and makes another
            os.unlink(lock.lock_file)
        lock.release()


def _sweep(folder: Path, now: float) -> None:
    """Removes files that have long been unused, once a day. The clock is that of the files."""
    marker = folder / "swept"
    with contextlib.suppress(FileNotFoundError):
        if now - marker.stat().st_mtime < _DAY_S:
            return
    marker.touch(mode=0o600)
    for path in folder.iterdir():
        limit_s = _UNUSED_S if path.suffix == _SUFFIX else _DAY_S
        with contextlib.suppress(OSError):
            if path != marker and now - path.stat().st_mtime > limit_s:
                path.unlink()


@cache
def _warn_once(text: str) -> None:
    """Warns of a text, once in a process; workers do not, as the process that started them does."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)
