"""Lock of a folder: one run at a time writes in it.

    FOLDER/.partita.lock        the lock, which ends with its process
    FOLDER/.partita.holder      who holds it, for the error of another run

The kernel holds the lock, so the file of a killed process blocks nobody.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import filelock
import msgspec

from partita.engine.parameters.files import read_plain, write_atomically

_LOCK: Final = ".partita.lock"
_HOLDER: Final = ".partita.holder"
_HOLDER_BYTES: Final = 1 << 16


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process that holds a folder's lock.

    Attributes:
        pid: its number.
        host: the computer's name.
        since: when it locked the folder, in UTC.
        what: its command, or the call and the network.
    """

    pid: int
    host: str
    since: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} (process {self.pid} on {self.host}, since {self.since})"


class FolderInUse(ValueError):
    """Another run holds the lock of the folder."""


@contextlib.contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[None]:
    """Holds the lock of an existing folder; the error of another run shows `what`, a command or call.

    Raises:
        FolderInUse: another run holds it.
        OSError: the folder cannot contain a lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_lock(folder))
        except filelock.Timeout as error:
            holder = holder_of(folder)
            raise FolderInUse(
                f"{folder} is in use by {'another run' if holder is None else holder}; wait for its end, or "
                "give another folder"
            ) from error
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        holder = Holder(os.getpid(), socket.gethostname(), since, what)
        write_atomically(folder / _HOLDER, msgspec.json.encode(holder))
        try:
            yield
        finally:
            (folder / _HOLDER).unlink(missing_ok=True)


def holder_of(folder: Path) -> Holder | None:
    """Returns the run that holds a folder, or did when it was killed; None if there is none."""
    try:
        return msgspec.json.decode(read_plain(folder / _HOLDER, at_most=_HOLDER_BYTES), type=Holder)
    except (OSError, ValueError):  # missing, or not written by a run
        return None


@contextlib.contextmanager
def lock_abandoned(folder: Path) -> Iterator[bool]:
    """Holds the lock of a folder whose run was killed on this computer; yields whether it does.

    Yields False where the run is alive or ran on another computer, and where the folder is not a run's. A run
    that was killed before it wrote its name, or after it removed that, has left nothing but files of a lock.
    """
    with contextlib.ExitStack() as stack:
        if not _may_be_abandoned(folder):
            yield False
            return
        try:
            stack.enter_context(_lock(folder))
        except (filelock.Timeout, OSError):
            yield False
            return
        yield _may_be_abandoned(folder)


def _may_be_abandoned(folder: Path) -> bool:
    """Returns whether a run of this computer wrote its name in a folder, or there are only files of a
    lock.
    """
    holder = holder_of(folder)
    if holder is not None:
        return holder.host == socket.gethostname()
    try:
        return all(_is_of_lock(path) for path in folder.iterdir())
    except OSError:  # it has just been removed
        return False


def clear_folder(folder: Path) -> None:
    """Removes all but the files of a lock, as far as possible: who is killed meanwhile is known by them."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif not _is_of_lock(path):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_of_lock(path: Path) -> bool:
    """Returns whether a file is a lock, its holder, or a holder that is being written."""
    return path.name == _LOCK or path.name.lstrip(".").startswith(_HOLDER.lstrip("."))


def _lock(folder: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(folder / _LOCK, timeout=0, mode=0o600)
