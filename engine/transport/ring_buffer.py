"""Ring buffer in memory that two hosts of one machine share, one per connection and direction.

The memory is anonymous: no other process can open it, and it disappears with the last of the two. The sender
writes payloads one after another and sends their positions elsewhere. The receiver frees space by a counter
in the memory itself, so the sender never waits for it.

Neither side trusts the other: the memory can neither shrink nor grow, so no access fails; a position is
checked before anything is read; and an impossible counter ends the use of the ring. The sender can change
numbers while they are read, but it could have sent other numbers as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

PAGE_BYTES: Final = mmap.PAGESIZE
MAX_RING_BYTES: Final = 1 << 30
_LINE_BYTES: Final = 64  # payloads begin at a cache line
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HUGE_PAGE_BYTES: Final = 2 << 20
_ACCEPTED, _RELEASED, _READ = 0, 1, 2  # counters in the first page, written by the receiver
_MAX_READINGS: Final = 4096  # more than a receiver ever has unread; bounds what it remembers

_Counters = memoryview  # of 64-bit numbers: reading one takes fewer steps than from an array
_Bytes = npt.NDArray[np.uint8]


class InvalidMemory(ValueError):
    """A descriptor or a position is not what the other side claims."""


@dataclass(slots=True)
class PeerState:
    """States whether a peer's key is authorised no more: then nobody cares what it reads."""

    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class RegionReading:
    """A payload that a peer reads where it lies, see `shared_region`."""

    _counters: _Counters
    number: int
    peer: PeerState

    @property
    def is_over(self) -> bool:
        """Returns whether the peer has released this payload and all earlier ones, or is gone."""
        return self.peer.is_gone or self._counters[_READ] > self.number


class RingWriter:
    """Sending end of a ring. One thread at a time.

    Positions count bytes since the start of the connection and never decrease; a payload lies in one piece at
    its position modulo the size.
    """

    def __init__(self, n_bytes: int) -> None:
        """Creates a ring of whole pages, at most `MAX_RING_BYTES`; the system allocates memory when it is
        written.

        Raises:
            OSError: the system provides no such memory.
        """
        self.n_bytes = n_bytes
        self.is_broken = False
        self._end = self._released = 0
        self._readings = 0
        self._begun = 0  # all before it is free, also where the receiver has counted less
        self.descriptor = os.memfd_create("partita", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, PAGE_BYTES + n_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._counters, self._bytes = _mapped(self.descriptor, n_bytes)
        except BaseException:
            self.close_descriptor()
            raise

    def close_descriptor(self) -> None:
        """Closes the descriptor once the receiver has it; the mapping stays."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def is_accepted(self) -> bool:
        """Returns whether the receiver has mapped the ring."""
        return self._counters[_ACCEPTED] == 1

    def place(self, payload: Sequence[memoryview], n_bytes: int) -> int | None:
        """Copies a payload into the ring and returns its position; None where there is no space."""
        start = self._find_space(n_bytes)
        if start is None:
            return None
        at = start % self.n_bytes
        for view in payload:
            np.copyto(self._bytes[at : at + view.nbytes], np.frombuffer(view, np.uint8))
            at += view.nbytes
        self._end = _after(start, n_bytes)
        return start

    @property
    def next_reading(self) -> int:
        """The number of the next payload that the receiver reads outside the ring."""
        return self._readings

    def begin_reading(self, peer: PeerState) -> RegionReading:
        """Counts a payload, whose message has been sent, that the receiver reads where it lies."""
        self._readings += 1
        return RegionReading(self._counters, self._readings - 1, peer)

    def _find_space(self, n_bytes: int) -> int | None:
        released = self._counters[_RELEASED]
        if self._released <= released <= self._end:
            self._released = released
        else:
            self.is_broken = True
        if self.is_broken or n_bytes > self.n_bytes:
            return None
        border = -(-self._end // self.n_bytes) * self.n_bytes
        if self._released == self._end:
            self._begun = border
            return border  # empty: reuse the memory that is in the caches
        start = self._end if self._end + n_bytes <= border else border
        oldest = max(self._released, self._begun)
        return start if _after(start, n_bytes) - oldest <= self.n_bytes else None


class RingReader:
    """Receiving end of a ring. Any thread may release payloads."""

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        """Maps and accepts a ring of the size that its sender states. The descriptor stays the caller's.

        Raises:
            InvalidMemory: it is not sealed memory of that size.
            OSError: it cannot be mapped.
        """
        check_memory(descriptor, n_bytes)
        self.n_bytes = n_bytes
        self._counters, self._bytes = _mapped(descriptor, n_bytes)
        self._lock = threading.Lock()
        self._live: deque[RingSlice] = deque()
        self._next = 0
        self._first_read = 0  # the payloads outside the ring below it are released, and these
        self._read: set[int] = set()
        self._counters[_ACCEPTED] = 1

    def slice_at(self, start: int, n_bytes: int) -> RingSlice:
        """Returns the payload at a position.

        Raises:
            InvalidMemory: no payload of this size can be there.
        """
        with self._lock:
            oldest = self._live[0].start if self._live else start
            inside = start % _LINE_BYTES == 0 and start % self.n_bytes + n_bytes <= self.n_bytes
            if not (inside and n_bytes > 0 and start >= self._next):
                raise InvalidMemory(f"no payload of {n_bytes} bytes can be at {start}")
            if _after(start, n_bytes) - oldest > self.n_bytes:
                raise InvalidMemory(f"a payload at {start} would overlap one that is still in use")
            self._next = _after(start, n_bytes)
            view = self._bytes[start % self.n_bytes :][:n_bytes].data.toreadonly()
            self._live.append(RingSlice(self, start, view))
            return self._live[-1]

    def give_back(self, payload: RingSlice) -> None:
        """Frees the space of a payload, for `RingSlice.release`."""
        with self._lock:  # orders the reads before it ahead of the counter, on any processor
            payload.is_released = True
            while self._live and self._live[0].is_released:
                self._live.popleft()
            self._counters[_RELEASED] = self._live[0].start if self._live else self._next

    def check_reading(self, number: int) -> None:
        """Checks the number of a payload outside the ring.

        Raises:
            InvalidMemory: it was released, or is far ahead of one that was not.
        """
        if not self._first_read <= number < self._first_read + _MAX_READINGS:
            raise InvalidMemory(f"payload {number} outside the ring, where {self._first_read} is unread")

    def end_reading(self, number: int) -> None:
        """Reports to the sender that a payload outside the ring is released."""
        with self._lock:  # orders the reads before it ahead of the counter
            self._read.add(number)
            while self._first_read in self._read:
                self._read.remove(self._first_read)
                self._first_read += 1
            self._counters[_READ] = self._first_read

    def close(self) -> None:
        """Makes the sender use the socket again. Payloads in the ring can still be read."""
        self._counters[_ACCEPTED] = 0


@dataclass(slots=True, eq=False)
class RingSlice:
    """A payload in a ring, valid until it is released."""

    is_shared: ClassVar[bool] = True
    is_clear: ClassVar[bool] = False

    _ring: RingReader
    start: int
    view: memoryview
    is_released: bool = False

    def release(self) -> None:
        """Frees the space; the view's contents may change from now on."""
        if not self.is_released:
            self._ring.give_back(self)


def _after(start: int, n_bytes: int) -> int:
    """Returns the first position behind a payload."""
    return -(-(start + n_bytes) // _LINE_BYTES) * _LINE_BYTES


def _mapped(descriptor: int, n_bytes: int) -> tuple[_Counters, _Bytes]:
    """Maps counters and bytes. The memory is unmapped with the last array that refers to it."""
    memory = mmap.mmap(descriptor, PAGE_BYTES + n_bytes)
    found: npt.NDArray[Any] = np.frombuffer(memory, np.uint8)
    return found[:PAGE_BYTES].data.cast("Q"), found[PAGE_BYTES:]


def check_memory(descriptor: int, n_bytes: int, *, most: int = MAX_RING_BYTES) -> None:
    """Checks that a descriptor is memory of a page and `n_bytes` that cannot vanish.

    Raises:
        InvalidMemory: it is something else.
    """
    if not (0 < n_bytes <= most and n_bytes % PAGE_BYTES == 0):
        raise InvalidMemory(f"memory of {n_bytes} bytes; whole pages up to {most} bytes are accepted")
    status = os.fstat(descriptor)
    # The extra page excludes files of huge pages, whose accesses can fail: none has such a size.
    expected = PAGE_BYTES + n_bytes
    if not stat.S_ISREG(status.st_mode) or status.st_size != expected or expected % _HUGE_PAGE_BYTES == 0:
        raise InvalidMemory(f"a file of {status.st_size} bytes is no memory of {expected} bytes")
    seals = 0
    with contextlib.suppress(OSError):  # a file of a disk cannot be sealed
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if seals & _SEALS != _SEALS:
        raise InvalidMemory("the memory is not sealed, so it could vanish while it is read")
