"""The numbers that travel beside a message: how a sender hands them over, and how a receiver takes them.

A payload is bytes. What they mean (dtype, shape, rows) is known to both ends from the plan, and never here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
"""Something whose memory can be sent as it lies: C-contiguous, of any dtype."""

PayloadLike: TypeAlias = Buffer | Sequence[Buffer] | None
"""What `Mailbox.send` takes: nothing, one buffer, or several that are sent one after another."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]


class Payload:
    """The bytes that came with a message, still in the frames or the shared memory in which they came.

    Nothing is copied before `copy_into`. What holds the bytes is given back by `release`, or with the
    payload: a sender on this machine has that much less room until then. May be read by any thread, by one at
    a time.
    """

    __slots__ = ("_pieces", "_release", "is_shared", "n_bytes")

    def __init__(self, pieces: Sequence[memoryview], *, release: Callable[[], None] | None = None) -> None:
        """Takes over the pieces.

        Args:
            pieces: flat views of bytes, one after another.
            release: gives back the shared memory in which they lie; None: they lie in none.
        """
        self._pieces: tuple[memoryview, ...] | None = tuple(pieces)
        self._release = release
        self.is_shared = release is not None
        self.n_bytes: int = sum(piece.nbytes for piece in pieces)

    def copy_into(self, *destinations: npt.NDArray[Any]) -> None:
        """Copies the payload into one array, or into several one after another (runs of rows, say).

        Args:
            destinations: writable C-contiguous arrays of any dtype and shape, `n_bytes` in all.

        Raises:
            ValueError: their sizes do not add up to `n_bytes`, one cannot be written, or the payload was
                released. Nothing is changed then.
        """
        pieces = self._readable()
        targets = [_writable_bytes(destination) for destination in destinations]
        room = sum(target.size for target in targets)
        if room != self.n_bytes:
            raise ValueError(
                f"a payload of {self.n_bytes} bytes cannot fill {room} bytes; give arrays of exactly its size"
            )
        sources = [np.frombuffer(piece, np.uint8) for piece in pieces]
        for target, source in _aligned(targets, sources):
            np.copyto(target, source)

    def to_bytes(self) -> bytes:
        """The payload as one new bytes object, for payloads that are not arrays."""
        return b"".join(self._readable())

    def release(self) -> None:
        """The bytes are where they belong: they cannot be read here any more. May be called again."""
        self._pieces = None
        release, self._release = self._release, None
        if release is not None:
            release()

    def _readable(self) -> tuple[memoryview, ...]:
        if self._pieces is None:
            raise ValueError(f"the payload of {self.n_bytes} bytes was released; copy it before that")
        return self._pieces

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Payload({self.n_bytes} bytes{' in shared memory' * self.is_shared})"


def views(payload: PayloadLike, *, max_payload: int) -> tuple[list[memoryview] | None, int]:
    """The non-empty buffers of a payload as flat views of their bytes, uncopied, and their size in all.

    Raises:
        ValueError: a buffer is not C-contiguous, or the payload has more than `max_payload` bytes.
    """
    if payload is None:
        return None, 0
    buffers = [payload] if isinstance(payload, bytes | bytearray | memoryview | np.ndarray) else payload
    found = [view for view in map(_flat, buffers) if view.nbytes]
    n_bytes = sum(view.nbytes for view in found)
    if n_bytes > max_payload:
        raise ValueError(f"a payload of {n_bytes} bytes is larger than {max_payload}; send it in pieces")
    return found, n_bytes


def chunks(buffers: Sequence[memoryview], *, chunk_bytes: int) -> Iterator[memoryview | bytes]:
    """Cuts consecutive buffers into pieces of exactly `chunk_bytes`; only the last one may be shorter.

    A piece inside one buffer is a view of its own, which the caller may release; one across a border is
    joined.
    """
    parts: list[memoryview] = []
    room = chunk_bytes
    for buffer in buffers:
        at = 0
        while at < buffer.nbytes:
            part = buffer[at : at + room]
            parts.append(part)
            at += part.nbytes
            room -= part.nbytes
            if room == 0:
                yield _joined(parts)
                parts, room = [], chunk_bytes
    if parts:
        yield _joined(parts)


def _joined(parts: list[memoryview]) -> memoryview | bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _flat(buffer: Buffer) -> memoryview:
    if isinstance(buffer, np.ndarray):
        # Through uint8, because a memoryview refuses dtypes it does not know (bfloat16) and empty shapes.
        if not buffer.flags.c_contiguous:
            raise ValueError(_STRIDED)
        return buffer.reshape(-1).view(np.uint8).data
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise ValueError(_STRIDED)
    return view.cast("B") if view.nbytes else memoryview(b"")


_STRIDED = "a payload must be C-contiguous, because it is sent as it lies; send a contiguous slice or a copy"


def _writable_bytes(destination: npt.NDArray[Any]) -> _Bytes:
    flags = destination.flags
    if not (flags.c_contiguous and flags.writeable):
        raise ValueError(
            f"an array of shape {destination.shape} is not C-contiguous and writable, as a payload needs it; "
            "copy into a contiguous array first"
        )
    return destination.reshape(-1).view(np.uint8)


def _aligned(targets: Sequence[_Bytes], sources: Sequence[_Bytes]) -> Iterator[tuple[_Bytes, _Bytes]]:
    """Pairs of equally long runs that walk through targets and sources of the same total size."""
    waiting = iter(sources)
    source = np.empty(0, np.uint8)
    for target in targets:
        while target.size:
            if not source.size:
                source = next(waiting)
            n = min(target.size, source.size)
            yield target[:n], source[:n]
            target, source = target[n:], source[n:]
