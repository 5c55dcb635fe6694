"""A sender's way to a peer on its own machine: large payloads lie in a ring, and the socket only says where.

The ring is used once the peer has mapped it; until then, when it is full, and where it cannot be had at all,
everything goes through the socket as to any other peer. Nothing here waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from partita.engine.transport.doorway import TOKEN_BYTES, hand_over
from partita.engine.transport.ring import LARGEST_RING, RingWriter
from partita.engine.transport.wire import Offer

LEAST_SHARED: Final = 1 << 14
"""Payloads of fewer bytes are encrypted faster than they are placed."""

_SMALLEST_RING: Final = 1 << 24
_PAYLOADS: Final = 4  # a ring has room for so many; a part may be two steps ahead of another one


class Neighbour:
    """The rings for one peer, one after another: a larger payload wants a larger one.

    Args:
        public_key: of the peer.
    """

    def __init__(self, public_key: str) -> None:
        self._public_key = public_key
        self._ring: RingWriter | None = None
        self._is_willing = True

    def offer(self, n_bytes: int) -> Offer | None:
        """What is to be said to the peer before its next message, where payloads of this size need a ring."""
        size = _ring_size(n_bytes)
        if not self._is_willing or size is None or (self._ring is not None and self._ring.n_bytes >= size):
            return None
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            ring = RingWriter(size)
        except OSError:
            self._is_willing = False
            return None
        self._is_willing = hand_over(ring.descriptor, token, self._public_key)
        ring.close_descriptor()
        if not self._is_willing:
            return None
        self._ring = ring
        return Offer(token, size)

    def place(self, payload: Sequence[memoryview], n_bytes: int) -> int | None:
        """Copies a payload into the ring and returns its position; None where the socket has to carry it."""
        if self._ring is None or not self._ring.is_accepted:
            return None
        return self._ring.place(payload, n_bytes)


def _ring_size(n_bytes: int) -> int | None:
    """The size of ring for payloads of so many bytes: a power of two; None where they are too large."""
    size = max(_SMALLEST_RING, 1 << (_PAYLOADS * n_bytes - 1).bit_length())
    return min(size, LARGEST_RING) if 2 * n_bytes <= LARGEST_RING else None
