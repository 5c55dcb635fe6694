"""Memory that two hosts of one machine share: what one of them sends lies in it until the other has taken it.

One connection has one ring, in one direction, in anonymous memory that nobody else can open and that is gone
with the last of the two processes. The sender writes payloads one after another and says, elsewhere, where
each lies. The receiver gives room back by a counter in the memory itself, so the sender never waits for it.

What the other side could do is bounded: the file can neither shrink nor grow, so no access ever fails; a
position is checked before anything is read; and a counter that makes no sense ends the use of the ring. The
sender can change numbers while they are read, but it could have sent other numbers as well.
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
from typing import Any, Final

import numpy as np
import numpy.typing as npt

PAGE_BYTES: Final = mmap.PAGESIZE
LARGEST_RING: Final = 1 << 30
_LINE_BYTES: Final = 64  # payloads begin at a cache line
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HUGE_PAGE_BYTES: Final = 2 << 20
_ACCEPTED, _RELEASED = 0, 1  # counters in the first page, both written by the receiver

_Counters = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.uint8]


class UnfitMemory(ValueError):
    """A descriptor or a position that cannot be what the other side says it is."""


class RingWriter:
    """The sender's end. Not for several threads at a time.

    Positions count bytes from the beginning of the connection and never go back; a payload lies in one piece
    at its position modulo the size.
    """

    def __init__(self, n_bytes: int) -> None:
        """Makes the memory, none of which is taken before it is written.

        Args:
            n_bytes: a multiple of the page, `LARGEST_RING` at most.

        Raises:
            OSError: the system gives no such memory.
        """
        self.n_bytes = n_bytes
        self.is_broken = False
        self._end = self._released = 0
        self.descriptor = os.memfd_create("partita", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, PAGE_BYTES + n_bytes)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._counters, self._bytes = _mapped(self.descriptor, n_bytes)
        except BaseException:
            self.close_descriptor()
            raise

    def close_descriptor(self) -> None:
        """Once the other side has it; the memory lasts as long as somebody uses it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def is_accepted(self) -> bool:
        """Whether the receiver reads it."""
        return bool(self._counters[_ACCEPTED] == 1)

    def place(self, payload: Sequence[memoryview], n_bytes: int) -> int | None:
        """Copies a payload in and returns its position, or None where there is no room for it now."""
        start = self._room_for(n_bytes)
        if start is None:
            return None
        at = start % self.n_bytes
        for view in payload:
            np.copyto(self._bytes[at : at + view.nbytes], np.frombuffer(view, np.uint8))
            at += view.nbytes
        self._end = _after(start, n_bytes)
        return start

    def _room_for(self, n_bytes: int) -> int | None:
        self._hear()
        if self.is_broken or n_bytes > self.n_bytes:
            return None
        border = -(-self._end // self.n_bytes) * self.n_bytes
        if self._released == self._end:
            return border  # nothing is on its way: the same memory as before, which the caches know
        start = self._end if self._end + n_bytes <= border else border
        return start if _after(start, n_bytes) - self._released <= self.n_bytes else None

    def _hear(self) -> None:
        released = int(self._counters[_RELEASED])
        if self._released <= released <= self._end:
            self._released = released
        else:
            self.is_broken = True


class RingReader:
    """The receiver's end. Payloads may be given back by any thread."""

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        """Maps the memory, and tells the sender so. The descriptor stays the caller's.

        Args:
            descriptor: of the memory, from a process of the same user.
            n_bytes: the size of the ring, as its sender says.

        Raises:
            UnfitMemory: this is not sealed memory of that size.
            OSError: it cannot be mapped.
        """
        _check(descriptor, n_bytes)
        self.n_bytes = n_bytes
        self._counters, self._bytes = _mapped(descriptor, n_bytes)
        self._lock = threading.Lock()
        self._live: deque[Span] = deque()
        self._next = 0
        self._counters[_ACCEPTED] = 1

    def span(self, start: int, n_bytes: int) -> Span:
        """The payload at a position.

        Raises:
            UnfitMemory: no payload of this size can be there.
        """
        with self._lock:
            oldest = self._live[0].start if self._live else start
            inside = start % _LINE_BYTES == 0 and start % self.n_bytes + n_bytes <= self.n_bytes
            if not (inside and n_bytes > 0 and start >= self._next):
                raise UnfitMemory(f"no payload of {n_bytes} bytes can be at {start}")
            if _after(start, n_bytes) - oldest > self.n_bytes:
                raise UnfitMemory(f"a payload at {start} would lie upon one that was not given back")
            self._next = _after(start, n_bytes)
            span = Span(self, start, self._bytes[start % self.n_bytes :][:n_bytes].data.toreadonly())
            self._live.append(span)
            return span

    def give_back(self, span: Span) -> None:
        """The payload has been read, or will never be. (For spans.)"""
        with self._lock:  # what was read before is read, on any processor, when others see the counter
            span.is_released = True
            while self._live and self._live[0].is_released:
                self._live.popleft()
            self._counters[_RELEASED] = self._live[0].start if self._live else self._next

    def close(self) -> None:
        """Lets the sender take the socket again. Payloads that are there can still be read."""
        self._counters[_ACCEPTED] = 0


class Span:
    """A payload in a ring, until it is released."""

    __slots__ = ("_ring", "is_released", "start", "view")

    def __init__(self, ring: RingReader, start: int, view: memoryview) -> None:
        self._ring = ring
        self.start = start
        self.view = view
        self.is_released = False

    def release(self) -> None:
        """Gives the room back: what is read from the view from now on may be anything."""
        if not self.is_released:
            self._ring.give_back(self)


def _after(start: int, n_bytes: int) -> int:
    """Where the next payload may begin."""
    return -(-(start + n_bytes) // _LINE_BYTES) * _LINE_BYTES


def _mapped(descriptor: int, n_bytes: int) -> tuple[_Counters, _Bytes]:
    """The counters and the bytes. The memory is unmapped with the last array that looks at it."""
    memory = mmap.mmap(descriptor, PAGE_BYTES + n_bytes)
    found: npt.NDArray[Any] = np.frombuffer(memory, np.uint8)
    return found[:PAGE_BYTES].view(np.uint64), found[PAGE_BYTES:]


def _check(descriptor: int, n_bytes: int) -> None:
    if not (0 < n_bytes <= LARGEST_RING and n_bytes % PAGE_BYTES == 0):
        raise UnfitMemory(f"a ring of {n_bytes} bytes; whole pages up to {LARGEST_RING} bytes are taken")
    status = os.fstat(descriptor)
    # A page more than a round number: no file of huge pages has such a size, and those can fail when touched.
    expected = PAGE_BYTES + n_bytes
    if not stat.S_ISREG(status.st_mode) or status.st_size != expected or expected % _HUGE_PAGE_BYTES == 0:
        raise UnfitMemory(f"a file of {status.st_size} bytes is no memory of {expected} bytes")
    seals = 0
    with contextlib.suppress(OSError):  # a file of a disk cannot be sealed
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    if seals & _SEALS != _SEALS:
        raise UnfitMemory("the memory is not sealed, so it could vanish while it is read")
