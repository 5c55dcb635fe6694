"""Shared-memory link between hosts of one machine: payloads in a ring buffer, their positions on a Unix
socket.

Neither is encrypted: both were passed between two processes of one user with a token from the authenticated
connection, so the sender is as certain as there. Message numbers run over link and socket, which lets the
receiver restore the order. The link is used once the peer has accepted it; before that, while it is full, and
where it cannot be opened, messages take the encrypted socket. Nothing here blocks.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from partita.engine.protocol.messages import Message
from partita.engine.transport.rendezvous import TOKEN_BYTES, LocalConnection, connect
from partita.engine.transport.ring_buffer import (
    MAX_RING_BYTES,
    PeerState,
    RegionReading,
    RingReader,
    RingWriter,
)
from partita.engine.transport.shared_region import FIRST_PLACE, MAX_REGIONS, REGION_BITS, Region
from partita.engine.transport.wire import INLINE_BYTES, LinkOffer, RegionOffer, encode_inline, encode_shared

MAX_HEADER_BYTES: Final = 1 << 16  # larger headers take the encrypted socket
_MIN_RING_BYTES: Final = 1 << 24
_AGAIN_S: Final = 1.0  # after which a peer is looked for again that was not found, or was beset by others
_PAYLOADS: Final = 4  # capacity of a ring; a part may be two steps ahead of another
_MAX_HEADERS: Final = 1024  # more than a channel holds, so one read returns all that was sent before it


class SharedLinkSender:
    """Sending end of a link to one peer, given by public key."""

    def __init__(self, public_key: str) -> None:
        self._public_key = public_key
        self._ring: RingWriter | None = None
        self._channel: socket.socket | None = None
        self._again_at = float("-inf")
        self._offered: set[int] = set()
        self.taken: set[int] = set()  # regions that the peer can read

    def offer(self, n_bytes: int, *, number: int) -> LinkOffer | None:
        """Opens a new link, with a larger ring, if a payload of this size needs one.

        Returns the offer with the number of the following message, to be sent on the authenticated connection
        before any other message.
        """
        if self._ring is not None and _PAYLOADS * n_bytes <= self._ring.n_bytes:
            return None
        size = _ring_size(n_bytes)
        if size is None or (self._ring is not None and self._ring.n_bytes >= size):
            return None
        if time.monotonic() < self._again_at:
            return None
        self.close()
        token = secrets.token_bytes(TOKEN_BYTES)
        try:
            ring = RingWriter(size)
        except OSError:
            ring = None
        if ring is not None:
            self._channel = connect(self._public_key, token, ring.descriptor)
            ring.close_descriptor()
        if ring is None or self._channel is None:
            self._again_at = time.monotonic() + _AGAIN_S
            return None
        self._ring = ring
        return LinkOffer(token, size, number)

    def place(
        self, number: int, message: Message, payload: Sequence[memoryview] | None, n_bytes: int
    ) -> bytes | None:
        """Copies the payload into the ring and returns the message's header; None where there is no space.

        Raises:
            ValueError: the encoded message is too large.
        """
        ring = self._ring
        if ring is None or not ring.is_accepted:
            return None
        if not n_bytes:
            return encode_shared(number, message, None if payload is None else 0, None)
        if n_bytes <= INLINE_BYTES:
            return encode_inline(number, message, n_bytes, payload or ())
        place = ring.place(payload or (), n_bytes)
        return None if place is None else encode_shared(number, message, n_bytes, place)

    def offer_region(self, region: int, memory: Region) -> RegionOffer | None:
        """Passes a region to the peer, once; the offer is to be sent on the authenticated connection."""
        if region in self._offered or len(self._offered) >= MAX_REGIONS or not self._is_accepted:
            return None
        self._offered.add(region)
        token = secrets.token_bytes(TOKEN_BYTES)
        channel = connect(self._public_key, token, memory.descriptor)
        if channel is None:
            return None
        channel.close()  # the peer finds what was sent on it
        return RegionOffer(token, memory.n_bytes, region)

    def place_in_region(
        self, number: int, message: Message, n_bytes: int, region: int, offset: int, *, is_versioned: bool
    ) -> bytes | None:
        """Returns the header of a message whose payload lies in a region; None if the peer cannot read it."""
        if region not in self.taken or self._ring is None or not self._is_accepted:
            return None
        place = FIRST_PLACE + (region << REGION_BITS) + offset
        reading = self._ring.next_reading if is_versioned else None
        return encode_shared(number, message, n_bytes, place, reading)

    def begin_reading(self, peer: PeerState) -> RegionReading:
        """Counts a payload in a region whose header was sent: the peer reads it until it reports so."""
        assert self._ring is not None
        return self._ring.begin_reading(peer)

    @property
    def _is_accepted(self) -> bool:
        return self._ring is not None and self._ring.is_accepted

    def send(self, header: bytes) -> bool:
        """Sends a header; False if it has to take the encrypted socket."""
        if self._channel is None or len(header) > MAX_HEADER_BYTES:
            return False
        try:
            return self._channel.send(header) == len(header)
        except OSError:  # full, or the peer has left
            return False

    def close(self) -> None:
        """Closes the link; messages sent on it can still be received."""
        if self._channel is not None:
            self._channel.close()
        self._ring = self._channel = None


class SharedLinkReceiver:
    """Receiving end of a link; the headers of link and socket refer to positions in its `ring`."""

    def __init__(self, connection: LocalConnection, n_bytes: int, *, on_close: Callable[[int], None]) -> None:
        """Takes over a connection from the rendezvous, also where this raises.

        `n_bytes` is the size of the ring, as its sender states. `on_close` is called with the channel's
        descriptor before that is closed.

        Raises:
            InvalidMemory: the descriptor is not a ring of this size.
            OSError: it cannot be mapped.
        """
        try:
            self.ring = RingReader(connection.descriptor, n_bytes)
        except BaseException:
            connection.channel.close()
            raise
        finally:
            os.close(connection.descriptor)
        self._channel: socket.socket | None = connection.channel
        self._on_close = on_close

    @property
    def channel(self) -> int:
        """Descriptor of the channel, readable when headers have arrived."""
        assert self._channel is not None, "this link is closed"
        return self._channel.fileno()

    def arrived(self) -> list[tuple[bytes, RingReader]]:
        """Returns the headers that have arrived, with the ring of their payloads.

        Closes the channel if the sender has.
        """
        found: list[tuple[bytes, RingReader]] = []
        while self._channel is not None and len(found) < _MAX_HEADERS:
            try:
                header = self._channel.recv(MAX_HEADER_BYTES)
            except OSError:
                break
            if header:
                found.append((header, self.ring))
            else:
                self._close_channel()
        return found

    def close(self) -> None:
        """Closes the link, which the sender notices."""
        self.ring.close()
        self._close_channel()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._on_close(self._channel.fileno())
            self._channel.close()
            self._channel = None


def _ring_size(n_bytes: int) -> int | None:
    """Returns a power of two for payloads of this size; None where they are too large."""
    size = max(_MIN_RING_BYTES, 1 << (_PAYLOADS * n_bytes - 1).bit_length())
    return min(size, MAX_RING_BYTES) if 2 * n_bytes <= MAX_RING_BYTES else None
