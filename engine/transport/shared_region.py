"""Memory of a host in which peers of its machine read payloads where they lie.

A region is allocated once, by `Mailbox.memory`, and passed to each such peer when a payload in it is first
sent there. From then on a message has the payload's place alone, and nothing is copied. The owner may write
to the payload again when the peer has answered (`Steady`), or has released it (`Versioned`): those are
numbered, and a counter in the link's ring says which are released.

The memory is anonymous, can neither shrink nor grow, and only its owner can map it to write. A place is
checked before anything is read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from partita.engine.transport.ring_buffer import PAGE_BYTES, InvalidMemory, RingReader, check_memory

REGION_BITS: Final = 44
FIRST_PLACE: Final = 1 << 61
"""First of the places in regions: `FIRST_PLACE + (region << REGION_BITS) + offset`. No ring comes near."""

MAX_REGIONS: Final = 8  # of one sender
_MAX_REGION_BYTES: Final = 1 << 32
_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1, without a name in Python


class Region:
    """A region of this host.

    Attributes:
        memory: zeros, uint8 `[n_bytes]`.
        descriptor: of the memory.
    """

    def __init__(self, n_bytes: int) -> None:
        """Allocates whole pages.

        Raises:
            OSError: the system provides no such memory.
            ValueError: it is too large.
        """
        self.n_bytes = -(-n_bytes // PAGE_BYTES) * PAGE_BYTES
        if not 0 < self.n_bytes <= _MAX_REGION_BYTES:
            raise ValueError(f"a region of {n_bytes} bytes; at most {_MAX_REGION_BYTES} are possible")
        self.descriptor = os.memfd_create("partita", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, self.n_bytes + PAGE_BYTES)
            mapped = mmap.mmap(self.descriptor, self.n_bytes + PAGE_BYTES)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _FUTURE_WRITE | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)[:n_bytes]
        self._address = self.memory.ctypes.data

    def offset_of(self, payload: npt.NDArray[Any]) -> int | None:
        """Returns where an array lies in the region; None where it does not."""
        offset = payload.ctypes.data - self._address
        return offset if offset >= 0 and offset + payload.nbytes <= self.memory.size else None

    def close(self) -> None:
        """Closes the descriptor; the memory lasts as long as it is used."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class RegionReader:
    """A region of a peer."""

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        """Maps a region of the size that its owner states. The descriptor stays the caller's.

        Raises:
            InvalidMemory: it is not sealed memory of that size.
            OSError: it cannot be mapped.
        """
        check_memory(descriptor, n_bytes, most=_MAX_REGION_BYTES)
        mapped = mmap.mmap(descriptor, PAGE_BYTES + n_bytes, access=mmap.ACCESS_READ)
        self._view = memoryview(mapped)[:n_bytes]

    def slice_at(
        self, offset: int, n_bytes: int, *, ring: RingReader | None = None, reading: int | None = None
    ) -> RegionSlice:
        """Returns the payload at an offset; its release is reported by the ring, if it has a number there.

        Raises:
            InvalidMemory: the region ends before it does.
        """
        if not 0 < n_bytes <= self._view.nbytes - offset:
            raise InvalidMemory(f"no payload of {n_bytes} bytes can be at {offset} of a region")
        if reading is not None:
            if ring is None:
                raise InvalidMemory("a payload whose release nobody would learn of")
            ring.check_reading(reading)
        return RegionSlice(self._view[offset : offset + n_bytes], ring, reading)


@dataclass(slots=True, eq=False)
class RegionSlice:
    """A payload in a region, which stays as it is until its sender has an answer, or it is released."""

    is_shared: ClassVar[bool] = True
    is_clear: ClassVar[bool] = False

    view: memoryview
    _ring: RingReader | None = None
    _reading: int | None = None

    def release(self) -> None:
        """Lets the owner write there; where the answer does, nothing happens."""
        number, self._reading = self._reading, None
        if self._ring is not None and number is not None:
            self._ring.end_reading(number)
