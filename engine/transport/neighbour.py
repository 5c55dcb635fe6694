"""The way between two hosts of one machine: payloads lie in a ring, and a Unix socket says where.

Neither is encrypted, and neither needs to be: both were handed over between two processes of one user under a
token that the authenticated connection brought, so who sends there is known as surely as on that connection.
Messages are numbered over both ways, which lets the receiver put them into their order. The near way is taken
once the peer has accepted it; until then, when it is full, and where it cannot be had at all, everything goes
through the encrypted socket, as to any other peer. Nothing here waits.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Final

from partita.engine.protocol.messages import Message
from partita.engine.transport.doorway import TOKEN_BYTES, Visit, visit
from partita.engine.transport.ring import LARGEST_RING, RingReader, RingWriter
from partita.engine.transport.wire import Offer, placed

MAX_HEADER_BYTES: Final = 1 << 16
"""Larger headers take the encrypted socket."""

_SMALLEST_RING: Final = 1 << 24
_PAYLOADS: Final = 4  # a ring has room for so many; a part may be two steps ahead of another one
_MOST_AT_ONCE: Final = 1024  # more than a channel holds, so that one look sees all that was sent before it


class ToNeighbour:
    """The sender's end, for one peer. A larger payload wants a larger ring, and begins a way of its own.

    Args:
        public_key: of the peer.
    """

    def __init__(self, public_key: str) -> None:
        self._public_key = public_key
        self._ring: RingWriter | None = None
        self._channel: socket.socket | None = None
        self._is_willing = True

    def offer(self, n_bytes: int, *, number: int) -> Offer | None:
        """What the peer is to be told, on the authenticated connection and before any other message.

        Args:
            n_bytes: of a payload that should fit.
            number: of the message that follows.
        """
        size = _ring_size(n_bytes)
        if not self._is_willing or size is None or (self._ring is not None and self._ring.n_bytes >= size):
            return None
        self.close()
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            ring = RingWriter(size)
        except OSError:
            ring = None
        if ring is not None:
            self._channel = visit(self._public_key, token, ring.descriptor)
            ring.close_descriptor()
        if ring is None or self._channel is None:
            self._is_willing = False
            return None
        self._ring = ring
        return Offer(token, size, number)

    def place(
        self, number: int, message: Message, payload: Sequence[memoryview] | None, n_bytes: int
    ) -> bytes | None:
        """Copies the payload into the ring and returns the header that says so; None where it has no room.

        Raises:
            ValueError: the encoded message is too large.
        """
        ring = self._ring
        if ring is None or not ring.is_accepted:
            return None
        if not n_bytes:
            return placed(number, message, None if payload is None else 0, None)
        place = ring.place(payload or (), n_bytes)
        return None if place is None else placed(number, message, n_bytes, place)

    def tell(self, header: bytes) -> bool:
        """Sends a header, or says that it has to go through the encrypted socket."""
        if self._channel is None or len(header) > MAX_HEADER_BYTES:
            return False
        try:
            return self._channel.send(header) == len(header)
        except OSError:  # full, or the peer has left
            return False

    def close(self) -> None:
        """Ends the way; what was sent on it can still be received."""
        if self._channel is not None:
            self._channel.close()
        self._ring = self._channel = None


class FromNeighbour:
    """The receiver's end.

    Attributes:
        ring: where payloads are, for headers of either way.
    """

    def __init__(self, visit: Visit, n_bytes: int, *, on_close: Callable[[int], None]) -> None:
        """Accepts a visit, of which nothing is left to the caller.

        Args:
            visit: what came through the doorway.
            n_bytes: size of the ring, as its sender says.
            on_close: told the number of the channel's descriptor before that is closed.

        Raises:
            UnfitMemory: the descriptor is not of such a ring.
            OSError: it cannot be mapped.
        """
        try:
            self.ring = RingReader(visit.descriptor, n_bytes)
        except BaseException:
            visit.channel.close()
            raise
        finally:
            os.close(visit.descriptor)
        self._channel: socket.socket | None = visit.channel
        self._on_close = on_close

    @property
    def channel(self) -> int:
        """The number of the channel's descriptor, which becomes readable when there are headers."""
        assert self._channel is not None, "this way is closed"
        return self._channel.fileno()

    def headers(self) -> list[bytes]:
        """Those that have arrived. Ends the channel when the other side has."""
        found: list[bytes] = []
        while self._channel is not None and len(found) < _MOST_AT_ONCE:
            try:
                header = self._channel.recv(MAX_HEADER_BYTES)
            except OSError:
                break
            if header:
                found.append(header)
            else:
                self._close_channel()
        return found

    def close(self) -> None:
        """Nothing more is taken from here; the sender will see it."""
        self.ring.close()
        self._close_channel()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._on_close(self._channel.fileno())
            self._channel.close()
            self._channel = None


def _ring_size(n_bytes: int) -> int | None:
    """The size of ring for payloads of so many bytes: a power of two; None where they are too large."""
    size = max(_SMALLEST_RING, 1 << (_PAYLOADS * n_bytes - 1).bit_length())
    return min(size, LARGEST_RING) if 2 * n_bytes <= LARGEST_RING else None
