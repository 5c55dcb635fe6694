"""A local copy of a file of the coordinator's machine, fetched chunk by chunk as it is needed.

    PATH            the file, of its whole size, with holes
    PATH.chunks     a byte for each chunk: whether it is there

Several processes of one machine may use one copy: each writes a chunk before it marks it. Chunks stay over
epochs, and over restarts of a host on the same machine. On the disk a copy takes at most the size of the
file; in memory, at most `WINDOW_BYTES` are under way.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.engine.files.connection import FileConnection, FilesUnavailable
from partita.engine.transport.payload import Payload

COPY_CHUNK_BYTES: Final = 1 << 18
"""Bytes of a chunk: some examples, which other steps need; small enough that a slow link is not held up."""

_WAIT_S: Final = 0.5

Chunks = npt.NDArray[np.int64]


class SparseCopy:
    """A copy of one file.

    Attributes:
        path: of the copy.
        n_bytes: of the whole file.
        waited_s: seconds that threads have waited for chunks.
        waits_since: when a thread has begun to wait that still waits; None if none does.
        fetched_bytes: bytes that this process has fetched.
    """

    def __init__(self, connection: FileConnection, name: str, path: Path, *, n_bytes: int) -> None:
        """Opens the copy, or makes one without chunks.

        Args:
            connection: to the coordinator's machine.
            name: of the file there.
            path: of the copy.
            n_bytes: size of the file.

        Raises:
            OSError: the copy cannot be made.
        """
        self.path: Final = path
        self.n_bytes: Final = n_bytes
        self.waited_s = 0.0
        self.waits_since: float | None = None
        self.fetched_bytes = 0
        self._connection, self._name = connection, name
        self._n_chunks = -(-n_bytes // COPY_CHUNK_BYTES)
        self._file = _sized(self.path, n_bytes)
        marks = _sized(path.with_name(f"{path.name}.chunks"), max(self._n_chunks, 1))
        try:
            self._marks = np.frombuffer(mmap.mmap(marks, max(self._n_chunks, 1)), np.uint8)
        finally:
            os.close(marks)
        self._arrived = threading.Condition()
        self._ahead: set[int] = set()  # chunks that were asked for ahead
        self._trouble = ""
        self._closed = False
        self._complete = False

    @property
    def complete(self) -> bool:
        """Returns whether all of the file is there."""
        if not self._complete:
            self._complete = bool(self._marks[: self._n_chunks].all())
        return self._complete

    def chunks_of(self, starts: Chunks, n_bytes: int) -> Chunks:
        """Returns the chunks that contain the ranges of `n_bytes` that begin at `starts`, ascending."""
        first, last = starts // COPY_CHUNK_BYTES, (starts + (n_bytes - 1)) // COPY_CHUNK_BYTES
        span = int((last - first).max(initial=0)) + 1
        found = np.minimum(first[:, None] + np.arange(span), last[:, None])
        return np.unique(found)

    def ensure(self, chunks: Chunks) -> None:
        """Fetches the chunks that are missing, and waits for them.

        Raises:
            FilesUnavailable: they cannot be fetched or kept.
        """
        missing = self._missing(chunks)
        if not missing:
            return
        began = time.monotonic()
        if self.waits_since is None:
            self.waits_since = began
        self._fetch(missing, ahead=False)
        try:
            with self._arrived:
                while not self._marks[missing].all():
                    if self._trouble:
                        raise FilesUnavailable(self._trouble)
                    if not self._arrived.wait(_WAIT_S):
                        self._connection.on_wait()
        finally:
            self.waited_s += time.monotonic() - began
            self.waits_since = None

    def ensure_bytes(self, start: int, stop: int) -> None:
        """Fetches a range of bytes, and waits for it. Raises FilesUnavailable."""
        first, last = start // COPY_CHUNK_BYTES, -(-stop // COPY_CHUNK_BYTES)
        self.ensure(np.arange(first, min(last, self._n_chunks)))

    def ahead(self, chunks: Chunks) -> None:
        """Fetches the chunks that are missing after what is waited for. Does not wait."""
        with self._arrived:
            missing = [chunk for chunk in self._missing(chunks) if chunk not in self._ahead]
            self._ahead.update(missing)
        if missing:
            self._fetch(missing, ahead=True)

    def close(self) -> None:
        """Closes the copy, which stays on the disk."""
        with self._arrived:
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def remove(self) -> None:
        """Closes and removes the copy."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.path.with_name(f"{self.path.name}.chunks").unlink(missing_ok=True)

    def _missing(self, chunks: Chunks) -> list[int]:
        if self._complete:
            return []
        return [int(chunk) for chunk in chunks[self._marks[chunks] == 0]]

    def _fetch(self, chunks: Iterable[int], *, ahead: bool) -> None:
        size = COPY_CHUNK_BYTES
        ranges = [(chunk * size, min((chunk + 1) * size, self.n_bytes)) for chunk in chunks]
        self._connection.read(self._name, ranges, self._keep, ahead=ahead)

    def _keep(self, start: int, payload: Payload | None, reason: str) -> None:
        """Writes a chunk that has come. On the connection's thread."""
        with self._arrived:
            if self._closed:
                return
            if payload is None:
                self._trouble = f"{self._name} cannot be fetched from the coordinator's machine: {reason}"
            else:
                self._write(start, payload)
            self._ahead.discard(start // COPY_CHUNK_BYTES)
            self._arrived.notify_all()

    def _write(self, start: int, payload: Payload) -> None:
        """Writes a chunk, and marks it then."""
        try:
            at = start
            for numbers in payload.numbers(np.uint8):
                at += os.pwrite(self._file, numbers.data, at)
            if at - start != payload.n_bytes:
                raise OSError("the disk is full")
        except OSError as error:
            self._trouble = (
                f"{self._name} cannot be kept in {self.path.parent} on {platform.node()} "
                f"({error.strerror or error}); it needs up to {self.n_bytes:,} bytes there"
            )
            return
        self._marks[start // COPY_CHUNK_BYTES] = 1
        self.fetched_bytes += at - start


def _sized(path: Path, n_bytes: int) -> int:
    """Opens a private file of exactly this size; where it was made, it is full of zeros."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_size != n_bytes:
            os.ftruncate(descriptor, n_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
