"""A file of the user's cache folder to which several processes add.

Deleting it costs time and nothing else. A file of another form or version counts as empty and is written
anew. The file is replaced as a whole; a process that adds to it holds the lock from reading to writing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from filelock import FileLock, Timeout


class Versioned(msgspec.Struct, frozen=True):
    """The first field of every such file."""

    version: int


Content = TypeVar("Content", bound=Versioned)


class KeptFile(Generic[Content]):
    """The file at a path. Safe from several threads and processes."""

    def __init__(self, path: Path, content: type[Content], *, version: int) -> None:
        """Names the file.

        Args:
            path: path of the file, which may be missing.
            content: type of the content.
            version: version of that type.
        """
        self.path, self._content, self._version = path, content, version

    def read(self) -> Content | None:
        """Reads the file; None where it is missing or cannot be used."""
        try:
            return self._decoded()
        except (OSError, ValueError, msgspec.DecodeError):
            return None

    def trouble(self) -> str | None:
        """Explains in one sentence why the file cannot be used; None if it can be, or is missing."""
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
        """Replaces the content. The caller holds the lock.

        Raises:
            OSError: the file cannot be written; the old content stays.
        """
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
            os.replace(temporary, self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self) -> bool:
        """Removes the file; returns whether there was one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
            return True
        return False

    @contextlib.contextmanager
    def locked(self, *, wait_s: float) -> Iterator[None]:
        """Holds the lock, which ends with the process, however that ends.

        Raises:
            TimeoutError: another process has held it for so long.
            OSError: the folder does not allow a lock file.
        """
        lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        try:
            lock.acquire(timeout=wait_s)
        except Timeout as timeout:
            raise TimeoutError(
                f"another process has held {lock.lock_file} for {wait_s} s; wait until it ends, or end it"
            ) from timeout
        try:
            yield
        finally:
            lock.release()

    def _decoded(self) -> Content:
        data = self.path.read_bytes()
        found = msgspec.json.decode(data, type=Versioned).version
        if found != self._version:
            raise ValueError(f"its version is {found}, and this Partita reads version {self._version}")
        return msgspec.json.decode(data, type=self._content)
