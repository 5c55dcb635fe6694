"""Payloads: the bytes that accompany a message.

Their meaning (dtype, shape, rows) is known to both hosts from the plan, and never here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[Any]
"""C-contiguous memory that can be sent as it lies, of any dtype."""


@dataclass(frozen=True, eq=False, slots=True)
class Steady:
    """A payload to which its sender does not write until the peer has answered, so that nobody copies it.

    Args:
        numbers: a C-contiguous array. In `Mailbox.memory`, peers of this machine read it where it lies.
    """

    numbers: npt.NDArray[Any]


class Reading(Protocol):
    """The use of a payload where it lies, by a peer or by the connection to it."""

    @property
    def is_over(self) -> bool:
        """Returns whether the payload is read no more."""


@dataclass(frozen=True, eq=False, slots=True)
class Versioned:
    """A payload that its sender changes only while nobody reads it; else it writes a next version elsewhere.

    Args:
        numbers: a C-contiguous array. In `Mailbox.memory`, peers of this machine read it where it lies.
        readings: `Mailbox.send` adds one, unless it has copied the payload.
    """

    numbers: npt.NDArray[Any]
    readings: list[Reading]


PayloadLike: TypeAlias = Buffer | Sequence[Buffer] | Steady | Versioned | None
"""Argument of `Mailbox.send`: no payload, one buffer, or several that are sent one after another."""

_Bytes: TypeAlias = npt.NDArray[np.uint8]

_KNOWN: Final = "bBhHiIlLqQfd"  # types that a memoryview casts to bytes

_BLOCK_BYTES: Final = 1 << 18
_SMALL_BYTES: Final = 1 << 14  # a copy takes less time than looking where the numbers lie


class _Numbers:
    """Bytes as a vector of numbers, by NumPy's array interface; `data` keeps the memory."""

    __slots__ = ("__array_interface__", "data", "is_aligned")

    def __init__(self, data: memoryview, dtype: np.dtype[Any]) -> None:
        self.data = np.frombuffer(data, np.uint8)
        address = self.data.ctypes.data
        self.is_aligned = address % dtype.alignment == 0
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": (data.nbytes // dtype.itemsize,),
            "data": (address, False),
        }


class Payload:
    """Bytes of a received message, in the frames or the shared memory in which they arrived.

    Nothing is copied before `copy_into`. The memory is given back by `release` or with the object; until then
    a sender on this machine has less space. May be read by any thread, one at a time.
    """

    __slots__ = ("_pieces", "_release", "is_shared", "n_bytes")

    def __init__(
        self,
        pieces: Sequence[memoryview],
        *,
        release: Callable[[], None] | None = None,
        is_shared: bool = False,
    ) -> None:
        """Takes over flat views of bytes; `release` gives their memory back, which may be shared."""
        self._pieces: tuple[memoryview, ...] | None = tuple(pieces)
        self._release = release
        self.is_shared = is_shared
        self.n_bytes: int = pieces[0].nbytes if len(pieces) == 1 else sum(piece.nbytes for piece in pieces)

    def copy_into(self, *destinations: npt.NDArray[Any]) -> None:
        """Copies the payload into writable C-contiguous arrays of any dtype and shape, one after another.

        Raises:
            ValueError: their sizes do not add up to `n_bytes`, one is not writable, or the payload was
                released. Nothing is changed.
        """
        pieces = self._readable()
        if len(destinations) == 1 and self._is_small(destinations[0]):
            destinations[0].data.cast("B")[:] = pieces[0]
            return
        targets = [_writable_bytes(destination) for destination in destinations]
        size = sum(target.size for target in targets)
        if size != self.n_bytes:
            raise ValueError(
                f"a payload of {self.n_bytes} bytes cannot fill {size} bytes; give arrays of exactly its size"
            )
        sources = [np.frombuffer(piece, np.uint8) for piece in pieces]
        for target, source in _aligned(targets, sources):
            np.copyto(target, source)

    def add_into(self, destination: npt.NDArray[Any]) -> None:
        """Adds the payload's numbers to a writable C-contiguous array of their dtype; each sum rounds once.

        Raises:
            ValueError: the sizes differ, the array is not writable, or the payload was released. Nothing is
                changed.
        """
        if destination.ndim == 1 and self._is_small(destination):
            (piece,) = self._readable()
            np.add(destination, np.frombuffer(piece, destination.dtype), out=destination)
            return
        if _writable_bytes(destination).size != self.n_bytes:
            raise ValueError(
                f"a payload of {self.n_bytes} bytes cannot be added to {destination.nbytes} bytes; give an "
                "array of exactly its size"
            )
        target, start = destination.reshape(-1), 0
        for more in self.numbers(destination.dtype):
            part = target[start : start + more.size]
            np.add(part, more, out=part)
            start += more.size

    def numbers(self, dtype: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
        """Yields all numbers in order, as vectors of this dtype that are valid until the next one.

        Numbers in whole aligned frames are given where they lie: the caller must not write to them, although
        the arrays are writable (a compiled loop would be another one for read-only arrays). Others are copied
        block by block, into memory that stays in the cache; and so are few numbers.

        Raises:
            ValueError: the payload is not of whole numbers, or was released.
        """
        pieces, kind = self._readable(), np.dtype(dtype)
        if self.n_bytes % kind.itemsize:
            raise ValueError(f"a payload of {self.n_bytes} bytes has no whole numbers of {kind}")
        if self.n_bytes <= _SMALL_BYTES:
            copied = np.empty(self.n_bytes // kind.itemsize, kind)
            self.copy_into(copied)
            yield copied
            return
        if any(piece.nbytes % kind.itemsize for piece in pieces):
            pieces = (memoryview(b"".join(pieces)),)
        block = np.empty(0, kind)
        for piece in pieces:
            found = _Numbers(piece, kind)
            if found.is_aligned:
                yield np.asarray(found)
                continue
            block = block if block.size else np.empty(min(_BLOCK_BYTES, self.n_bytes) // kind.itemsize, kind)
            for start in range(0, piece.nbytes, _BLOCK_BYTES):
                source = np.frombuffer(piece[start : start + _BLOCK_BYTES], np.uint8)
                copied = block[: source.size // kind.itemsize]
                np.copyto(copied.view(np.uint8), source)
                yield copied

    @property
    def pieces(self) -> tuple[memoryview, ...]:
        """Views of the bytes where they lie, until `release`. Raises ValueError where that was called."""
        return self._readable()

    def second(self) -> Payload:
        """Returns another payload of the same bytes, whose memory is given back when both are released.

        Each may be read by a thread of its own. Raises ValueError where this one was released.
        """
        pieces, release, left = self._readable(), self._release, iter((False, True))
        if release is None:
            return Payload(pieces, is_shared=self.is_shared)

        def release_last() -> None:
            if next(left):
                release()

        self._release = release_last
        return Payload(pieces, release=release_last, is_shared=self.is_shared)

    def to_bytes(self) -> bytes:
        """Returns the payload as a new bytes object."""
        return b"".join(self._readable())

    def replace(self, numbers: npt.NDArray[Any]) -> None:
        """Makes a C-contiguous array of the same size the payload, and gives the memory of before back.

        Raises:
            ValueError: the size differs.
        """
        if numbers.nbytes != self.n_bytes:
            raise ValueError(f"a payload of {self.n_bytes} bytes cannot become one of {numbers.nbytes}")
        self.release()
        self._pieces, self.is_shared = (numbers.reshape(-1).view(np.uint8).data,), False

    def release(self) -> None:
        """Gives the memory back; the payload cannot be read any more. May be called again."""
        self._pieces = None
        release, self._release = self._release, None
        if release is not None:
            release()

    def _is_small(self, destination: npt.NDArray[Any]) -> bool:
        """Returns whether this is one short piece for an ordinary array: steps in Python cost more than its
        bytes.
        """
        flags = destination.flags
        return (
            0 < self.n_bytes == destination.nbytes <= _SMALL_BYTES
            and self._pieces is not None
            and len(self._pieces) == 1
            and destination.dtype.char in _KNOWN
            and flags.c_contiguous
            and flags.writeable
        )

    def _readable(self) -> tuple[memoryview, ...]:
        if self._pieces is None:
            raise ValueError(f"the payload of {self.n_bytes} bytes was released; copy it before that")
        return self._pieces

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Payload({self.n_bytes} bytes{' in shared memory' * self.is_shared})"


def views(payload: PayloadLike, *, max_payload: int) -> tuple[list[memoryview] | None, int]:
    """Returns a payload's non-empty buffers as flat views of their bytes, uncopied, and their total size.

    Raises:
        ValueError: a buffer is not C-contiguous, or the payload has more than `max_payload` bytes.
    """
    if payload is None:
        return None, 0
    if isinstance(payload, Steady | Versioned):
        payload = payload.numbers
    if isinstance(payload, np.ndarray) and 0 < payload.nbytes <= max_payload:
        return [_flat(payload)], payload.nbytes
    buffers = [payload] if isinstance(payload, bytes | bytearray | memoryview | np.ndarray) else payload
    found = [view for view in map(_flat, buffers) if view.nbytes]
    n_bytes = sum(view.nbytes for view in found)
    if n_bytes > max_payload:
        raise ValueError(f"a payload of {n_bytes} bytes is larger than {max_payload}; send it in pieces")
    return found, n_bytes


def chunks(buffers: Sequence[memoryview], *, chunk_bytes: int) -> Iterator[memoryview | bytes]:
    """Cuts consecutive buffers into chunks of exactly `chunk_bytes`; only the last may be shorter.

    A chunk within one buffer is a view, which the caller may release; one across a boundary is a copy.
    """
    parts: list[memoryview] = []
    missing = chunk_bytes
    for buffer in buffers:
        at = 0
        while at < buffer.nbytes:
            part = buffer[at : at + missing]
            parts.append(part)
            at += part.nbytes
            missing -= part.nbytes
            if missing == 0:
                yield _joined(parts)
                parts, missing = [], chunk_bytes
    if parts:
        yield _joined(parts)


def _joined(parts: list[memoryview]) -> memoryview | bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _flat(buffer: Buffer) -> memoryview:
    view = buffer if isinstance(buffer, np.ndarray) else memoryview(buffer)
    if not (view.flags.c_contiguous if isinstance(view, np.ndarray) else view.c_contiguous):
        raise ValueError(
            "a payload must be C-contiguous, because it is sent as it lies; send a contiguous slice or a copy"
        )
    if isinstance(view, np.ndarray):
        if view.dtype.char in _KNOWN and view.nbytes:
            return view.data.cast("B")
        # Through uint8, because a memoryview refuses dtypes it does not know (bfloat16) and empty shapes.
        return view.reshape(-1).view(np.uint8).data
    return view.cast("B") if view.nbytes else memoryview(b"")


def _writable_bytes(destination: npt.NDArray[Any]) -> _Bytes:
    flags = destination.flags
    if not (flags.c_contiguous and flags.writeable):
        raise ValueError(
            f"an array of shape {destination.shape} is not C-contiguous and writable, as a payload needs it; "
            "copy into a contiguous array first"
        )
    return destination.reshape(-1).view(np.uint8)


def _aligned(targets: Sequence[_Bytes], sources: Sequence[_Bytes]) -> Iterator[tuple[_Bytes, _Bytes]]:
    """Yields pairs of equally long runs of targets and sources of the same total size."""
    remaining = iter(sources)
    source = np.empty(0, np.uint8)
    for target in targets:
        while target.size:
            if not source.size:
                source = next(remaining)
            n = min(target.size, source.size)
            yield target[:n], source[:n]
            target, source = target[n:], source[n:]
