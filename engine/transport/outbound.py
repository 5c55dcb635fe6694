"""Outbound connection to one peer: a PUSH socket, and a bounded queue of what the socket does not take yet.

A PUSH socket at its high-water mark would block or drop messages, so what it refuses is queued in order. Sent
messages are retained until the peer acknowledges them, and sent again when the peer reports a gap: a broken
connection loses the frames in flight, and neither ZeroMQ nor TCP reports how many. Messages in shared memory
cannot be lost while both processes live, and are not retained; of what takes a stream link, the payload or
the copy from which it is sent is retained.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import zmq

from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.buffer_pool import BufferPool, Memory
from partita.engine.transport.mailbox import PeerStalled
from partita.engine.transport.payload import Reading
from partita.engine.transport.ring_buffer import PeerState
from partita.engine.transport.shared_link import SharedLinkSender
from partita.engine.transport.shared_region import Region
from partita.engine.transport.stream_sender import StreamSender
from partita.engine.transport.wire import INLINE_BYTES, STREAM_BITS, Ack, SendWindow, encode_control, frames

ACK_TIMEOUT_S: Final = 1.0  # after this time without an acknowledgement, the peer is asked for one
MAX_UNACKED_BYTES: Final = 64 << 20  # bound of retained messages: more than is in flight to a correct peer

Group: TypeAlias = tuple[bytes, zmq.Frame | None]
"""An envelope and its chunk, as they were sent: retaining them copies nothing."""


@dataclass(eq=False, slots=True)
class _Retained:
    """A message until the peer acknowledges it: its groups of frames, or what they are made of."""

    number: int
    n_bytes: int
    groups: list[Group] | None = None
    message: Message | None = None
    payload: list[memoryview] | None = None
    copy: Memory | None = None
    is_over: bool = False  # it is not sent from its payload any more: as a `Reading`

    def frames(self) -> list[Group]:
        """Returns the groups of frames for the encrypted socket."""
        if self.groups is not None:
            return self.groups
        assert self.message is not None
        return _groups(self.number, self.message, self.payload)


_RESEND_S: Final = 0.25  # minimum interval of retransmissions, unless something was acknowledged in between


@dataclass(eq=False)
class OutboundConnection:
    """Sends to one peer, in order, without blocking. One thread at a time.

    `socket` is from `SocketFactory.outgoing`, and closed by `close`. `max_backlog` bounds the queue (bytes),
    unless the first queued message alone is larger. `stream` is the number of the connection in its mailbox;
    `link` is the shared-memory link to a peer on this machine. `connected_to` is the endpoint that libzmq was
    given, if not the peer's.

    Invariant: the socket gets nothing while the queue holds something.
    """

    peer: Peer
    socket: zmq.Socket[bytes]
    max_backlog: int = field(kw_only=True)
    stream: int = field(default=0, kw_only=True)
    link: SharedLinkSender | None = field(default=None, kw_only=True)
    state: PeerState = field(default_factory=PeerState, kw_only=True)
    stream_link: StreamSender | None = field(default=None, kw_only=True)
    connected_to: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self._queue: deque[Group] = deque()
        self._waiting_bytes = 0
        self._since = 0.0
        self._number = self.stream << STREAM_BITS
        self._unacked: deque[_Retained] = deque()
        self._forgotten: list[_Retained] = []  # not acknowledged, and perhaps still being sent
        self._copies = BufferPool()
        self._stream_from = 0  # the first message on the present stream link
        self._unacked_bytes = 0
        self._ack_due = float("inf")
        self._resent_at = float("-inf")

    @property
    def has_backlog(self) -> bool:
        """Returns whether the queue holds something."""
        return bool(self._queue) or (self.stream_link is not None and self.stream_link.has_backlog)

    @property
    def is_delivered(self) -> bool:
        """Returns whether all that was sent is in the link's memory and queue: the peer has it unless it
        dies.
        """
        return self.link is not None and not self._unacked and not self._queue

    @property
    def has_queue(self) -> bool:
        """Returns whether something waits for the encrypted socket."""
        return bool(self._queue)

    def send(
        self,
        message: Message,
        payload: Sequence[memoryview] | None,
        n_bytes: int,
        *,
        is_steady: bool = False,
        region: tuple[int, Region, int] | None = None,
        readings: list[Reading] | None = None,
    ) -> bool:
        """Sends or queues a whole message.

        Args:
            message: to be sent.
            payload: copied, unless it is steady.
            n_bytes: of the payload.
            is_steady: the payload stays as it is until the peer has answered, or nobody reads it.
            region: number, memory and offset of a steady payload that lies in a region.
            readings: gets the use of a payload that is not copied (None: the peer answers).

        Returns:
            Whether the payload lies in shared memory.

        Raises:
            PeerStalled: the message would take the backlog beyond its bound; nothing of it is sent.
            ValueError: the encoded message is too large; nothing is sent.
        """
        if self.has_backlog and (waiting := self._all_waiting_bytes) + n_bytes > self.max_backlog:
            raise PeerStalled(self.peer.name, since=self._since, n_bytes=waiting)
        groups: list[Group] = []
        if self.stream_link is not None:
            if self.stream_link.is_open:
                retained = self._retained(message, payload, n_bytes, is_steady=is_steady)
                self._send_by_stream(self.stream_link, retained)
                if readings is not None and n_bytes > INLINE_BYTES:
                    readings.append(retained)
                return False
            wanted = (
                self.stream_link.offer(self._number, time.monotonic()) if n_bytes > INLINE_BYTES else None
            )
            if wanted is not None:
                groups.append((encode_control(wanted), None))
        if self.link is not None:
            offer = self.link.offer(n_bytes, number=self._number)
            if offer is not None:
                groups.append((encode_control(offer), None))
            if region is not None and self._send_in_region(self.link, message, n_bytes, region, readings):
                return True
            header = self.link.place(self._number, message, payload, n_bytes)
            if header is not None:
                if self.link.send(header):
                    self._number += 1
                else:
                    self._send([*groups, (header, None)])
                return n_bytes > INLINE_BYTES
        self._send([*groups, *_groups(self._number, message, payload)])
        return False

    def _send_in_region(
        self,
        link: SharedLinkSender,
        message: Message,
        n_bytes: int,
        region: tuple[int, Region, int],
        readings: list[Reading] | None,
    ) -> bool:
        """Sends a message whose payload is not copied; False until the peer has the region."""
        number, memory, offset = region
        offer = link.offer_region(number, memory)
        if offer is not None:
            self._pass(encode_control(offer), None)
        is_versioned = readings is not None
        if is_versioned and self.state.is_gone:
            return False  # whether it reads what is sent now would not count
        header = link.place_in_region(
            self._number, message, n_bytes, number, offset, is_versioned=is_versioned
        )
        if header is None:
            return False
        if link.send(header):
            self._number += 1
            if readings is not None:
                readings.append(link.begin_reading(self.state))
        elif is_versioned:
            return False  # its release is reported for what took the link alone
        else:
            self._send([(header, None)])
        return True

    @property
    def _all_waiting_bytes(self) -> int:
        return self._waiting_bytes + (0 if self.stream_link is None else self.stream_link.waiting_bytes)

    def _retained(
        self, message: Message, payload: Sequence[memoryview] | None, n_bytes: int, *, is_steady: bool
    ) -> _Retained:
        """Returns what is kept of the next message: its payload, or a copy of that."""
        retained = _Retained(self._number, n_bytes, message=message)
        if payload is not None and is_steady:
            retained.payload = list(payload)
        elif payload is not None:
            retained.copy = self._copies.take(n_bytes)
            at = 0
            for view in payload:
                np.copyto(retained.copy[at : at + view.nbytes], np.frombuffer(view, np.uint8))
                at += view.nbytes
            retained.payload = [retained.copy.data[:n_bytes]]
        return retained

    def _send_by_stream(self, link: StreamSender, retained: _Retained) -> None:
        if not link.has_backlog:
            self._since = time.monotonic()
        if link.is_fresh:
            self._stream_from = self._number
        assert retained.message is not None
        link.send(self._number, retained.message, retained.payload, retained.n_bytes)
        self._retain(retained)

    def send_control(self, envelope: Ack | SendWindow) -> None:
        """Sends an envelope that is not retained: if it is lost, the peer asks again."""
        self._pass(encode_control(envelope), None)

    def on_ack(self, ack: Ack, now: float) -> None:
        """Drops acknowledged messages, and sends the others again if the peer requests it.

        `ack` may be anything, if the peer violates the protocol; `now` is in seconds (`time.monotonic`).
        """
        if ack.number > self._number:
            return
        if ack.region is not None and self.link is not None:
            self.link.taken.add(ack.region)
        while self._unacked and self._unacked[0].number < ack.number:
            oldest = self._drop_oldest()
            oldest.is_over = True
            if oldest.copy is not None and ack.number <= self._number:
                self._copies.give_back(oldest.copy)
            self._resent_at = float("-inf")
        self._ack_due = now + ACK_TIMEOUT_S if self._unacked else float("inf")
        if ack.resend and now - self._resent_at >= _RESEND_S:
            self.send_again(now)

    def send_again(self, now: float) -> None:
        """Sends what was not acknowledged through the encrypted socket.

        What an open stream link carries is on its way; what took one that has ended is sent too.
        """
        self._resent_at = now
        self._clear_queue()
        first, stop = self._by_socket
        is_open = self.stream_link is not None and self.stream_link.is_open
        self.send_control(SendWindow(first, stop if is_open else None))
        for retained in self._unacked:
            if retained.number < stop:
                for group in retained.frames():
                    self._pass(*group)

    @property
    def _by_socket(self) -> tuple[int, int]:
        """The first retained number, and the one behind the last, for the socket; a link has what follows."""
        link = self.stream_link
        stop = self._stream_from if link is not None and link.is_open and not link.is_fresh else self._number
        return min(stop, self._unacked[0].number if self._unacked else stop), stop

    def request_ack_when_due(self, now: float) -> None:
        """Asks the peer for an acknowledgement if it is overdue."""
        if now >= self._ack_due:
            self._ack_due = now + ACK_TIMEOUT_S
            if self._unacked and not self._queue:
                self.send_control(SendWindow(*self._by_socket))

    def flush(self) -> None:
        """Passes what waits to the connections until they take no more."""
        if self.stream_link is not None:
            before = self.stream_link.waiting_bytes
            self.stream_link.flush()
            if self.stream_link.waiting_bytes < before:
                self._since = time.monotonic()
            self._end_forgotten(self.stream_link)
        while self._queue:
            envelope, frame = self._queue[0]
            if not self._try_send(envelope, frame):
                return
            self._queue.popleft()
            self._waiting_bytes -= _size(envelope, frame)
            self._since = time.monotonic()

    def close(self) -> None:
        """Closes socket and links at once, and drops what waits."""
        for link in (self.link, self.stream_link):
            if link is not None:
                link.close()
        self._clear_queue()
        for retained in (*self._unacked, *self._forgotten):
            retained.is_over = True
        self._forgotten.clear()
        self._unacked.clear()
        self._unacked_bytes = 0
        # `close` leaves the connection to libzmq's reaper thread, which may come after a new connection to
        # the same name is at work; `disconnect` orders the I/O thread to drop it before anything later.
        self.socket.disconnect(self.connected_to or self.peer.endpoint)
        self.socket.close(linger=0)

    def _clear_queue(self) -> None:
        self._queue.clear()
        self._waiting_bytes = 0

    def _send(self, groups: list[Group]) -> None:
        """Sends the next message through the encrypted socket."""
        for group in groups:
            self._pass(*group)
        self._retain(_Retained(self._number, sum(_size(*group) for group in groups), groups))

    def _retain(self, retained: _Retained) -> None:
        """Keeps the next message until it is acknowledged."""
        if not self._unacked:
            self._ack_due = time.monotonic() + ACK_TIMEOUT_S
        self._unacked.append(retained)
        self._unacked_bytes += retained.n_bytes
        while self._unacked_bytes - self._all_waiting_bytes > MAX_UNACKED_BYTES and len(self._unacked) > 1:
            oldest = self._drop_oldest()
            if oldest.message is not None:  # else it has frames of its own
                self._forgotten.append(oldest)
        if self._forgotten and self.stream_link is not None:
            self._end_forgotten(self.stream_link)
        self._number += 1

    def _end_forgotten(self, link: StreamSender) -> None:
        """Ends the use of payloads that were not acknowledged, once nothing of them waits to be sent."""
        if self._forgotten and not link.has_backlog:
            for retained in self._forgotten:
                retained.is_over = True
            self._forgotten.clear()

    def _drop_oldest(self) -> _Retained:
        oldest = self._unacked.popleft()
        self._unacked_bytes -= oldest.n_bytes
        return oldest

    def _pass(self, envelope: bytes, frame: zmq.Frame | None) -> None:
        """Gives a group to the socket, or queues it."""
        if self._queue or not self._try_send(envelope, frame):
            if not self._queue:
                self._since = time.monotonic()
            self._queue.append((envelope, frame))
            self._waiting_bytes += _size(envelope, frame)

    def _try_send(self, envelope: bytes, frame: zmq.Frame | None) -> bool:
        try:
            if frame is None:
                self.socket.send(envelope, zmq.NOBLOCK)
            else:
                # libzmq counts whole messages, so it refuses the first frame or neither.
                self.socket.send(envelope, zmq.NOBLOCK | zmq.SNDMORE)
                self.socket.send(frame, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True


def _groups(number: int, message: Message, payload: Sequence[memoryview] | None) -> list[Group]:
    return [
        (envelope, None if chunk is None else _copied(chunk))
        for envelope, chunk in frames(number, message, payload)
    ]


def _copied(chunk: memoryview | bytes) -> zmq.Frame:
    """Returns a frame with its own memory: the only copy of the payload that sending makes."""
    frame = zmq.Frame(chunk, copy=True)
    if isinstance(chunk, memoryview):
        chunk.release()  # the frame would keep the caller's buffer alive
    return frame


def _size(envelope: bytes, frame: zmq.Frame | None) -> int:
    return len(envelope) + (0 if frame is None else len(frame))
