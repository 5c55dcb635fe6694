"""A file of the user's cache folder, of which several processes keep what they found out.

Whoever deletes it loses time and nothing else. A file that is not of its form, or of another version, counts
as empty and is written anew. It changes as a whole; whoever adds to it holds its lock from reading to
writing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, Generic, TypeVar, cast

import msgspec

_LOOK_AGAIN_S: Final = 0.02


class Versioned(msgspec.Struct, frozen=True):
    """What every such file says first."""

    version: int


Content = TypeVar("Content", bound=Versioned)


class KeptFile(Generic[Content]):
    """The file at a path. Safe from several threads and processes."""

    def __init__(self, path: Path, content: type[Content], *, version: int) -> None:
        """Names it.

        Args:
            path: where it is, or will be.
            content: its form.
            version: of the form.
        """
        self.path, self._content, self._version = path, content, version

    def read(self) -> Content | None:
        """What is kept; None where the file is missing or cannot be used."""
        try:
            return self._decoded()
        except (OSError, ValueError, msgspec.DecodeError):
            return None

    def trouble(self) -> str | None:
        """In one sentence why the file cannot be used; None if it can be, or is missing."""
        try:
            self._decoded()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            return (
                f"{self.path} cannot be used ({error}); it counts as empty, and is written anew when needed"
            )
        return None

    def write(self, content: Content) -> None:
        """Replaces what is kept. To be called with the lock held.

        Raises:
            OSError: the file cannot be written; the old one stands.
        """
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self) -> bool:
        """Removes the file; says whether there was one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
            return True
        return False

    @contextlib.contextmanager
    def locked(self, *, wait_s: float) -> Iterator[None]:
        """Holds the lock, which ends with the process, however that ends.

        Raises:
            TimeoutError: another process has held it for so long.
            OSError: there can be no lock in this folder.
        """
        descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + wait_s
            while not _taken(descriptor):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held {self.path.with_suffix('.lock')} for {wait_s} s"
                    )
                time.sleep(_LOOK_AGAIN_S)
            yield
        finally:
            os.close(descriptor)

    def _decoded(self) -> Content:
        found = self.path.stat()
        stamp = found.st_ino, found.st_mtime_ns, found.st_size
        return cast(Content, _decoded(self.path, stamp, self._content, self._version))


@lru_cache(maxsize=8)
def _decoded(path: Path, stamp: tuple[int, int, int], form: type[Versioned], version: int) -> Versioned:
    """What a file holds, read once for each stamp: a network of a hundred products asks a hundred times."""
    data = path.read_bytes()
    found = msgspec.json.decode(data, type=Versioned).version
    if found != version:
        raise ValueError(f"its version is {found}, and this Partita reads version {version}")
    return msgspec.json.decode(data, type=form)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
