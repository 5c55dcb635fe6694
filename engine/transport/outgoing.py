"""The way to one peer: a PUSH socket, and behind it a bounded queue for what the socket does not take yet.

A PUSH socket at its high-water mark would block, or lose what it is given; so what it refuses waits here,
in order. And a connection that breaks loses what was on its way; so what was sent is kept until the peer has
acknowledged it, and sent again when the peer says that something is missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq

from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.kept import Group, Kept, size
from partita.engine.transport.mailbox import PeerStalled
from partita.engine.transport.neighbour import ToNeighbour
from partita.engine.transport.wire import STREAM_BITS, Got, Sent, alone, frames

ASK_S: Final = 1.0
"""A peer that has acknowledged nothing for so long, although something is kept for it, is asked."""

_AGAIN_S: Final = 0.25  # nothing is sent again more often, unless something was acknowledged in between


class Outgoing:
    """Sends to one peer, in order, without blocking. One thread at a time.

    Invariant: nothing is handed to the socket while something waits in the queue.

    Args:
        peer: who is at the other end.
        socket: from `SocketFactory.outgoing`; closed by `close`.
        max_backlog: how many bytes may wait here, if the message that first has to wait is not larger itself.
        stream: counts the connections of a mailbox; of two to the same peer the later one has more.
        neighbour: the near way to the peer, where it is on this machine.
    """

    def __init__(
        self,
        peer: Peer,
        socket: zmq.Socket[bytes],
        *,
        max_backlog: int,
        stream: int = 0,
        neighbour: ToNeighbour | None = None,
    ) -> None:
        self.peer = peer
        self.socket = socket
        self._neighbour = neighbour
        self._max_backlog = max_backlog
        self._queue: deque[Group] = deque()
        self._waiting_bytes = 0
        self._since = 0.0
        self._number = stream << STREAM_BITS
        self._kept = Kept()
        self._ask_at = float("inf")
        self._repeated_at = float("-inf")

    @property
    def has_backlog(self) -> bool:
        """Whether something waits until the socket takes more."""
        return bool(self._queue)

    def send(self, message: Message, payload: Sequence[memoryview] | None, n_bytes: int) -> bool:
        """Sends or queues a message as a whole; its payload (`n_bytes` in all) is copied.

        Returns:
            Whether the payload lies in shared memory.

        Raises:
            PeerStalled: there is a backlog and this would exceed its bound. Nothing of the message is sent
                then.
            ValueError: the encoded message is too large. Nothing is sent.
        """
        if self._queue and self._waiting_bytes + n_bytes > self._max_backlog:
            raise PeerStalled(self.peer.name, since=self._since, n_bytes=self._waiting_bytes)
        groups: list[Group] = []
        if self._neighbour is not None:
            offer = self._neighbour.offer(n_bytes, number=self._number)
            if offer is not None:
                groups.append((alone(offer), None))
            header = self._neighbour.place(self._number, message, payload, n_bytes)
            if header is not None:
                if self._neighbour.tell(header):
                    self._number += 1
                else:
                    self._send([*groups, (header, None)])
                return n_bytes > 0
        for envelope, chunk in frames(self._number, message, payload):
            groups.append((envelope, None if chunk is None else _copied(chunk)))
        self._send(groups)
        return False

    def tell(self, envelope: Got | Sent) -> None:
        """Sends an envelope that is no message: it is not kept, and who misses it asks again."""
        self._pass(alone(envelope), None)

    def acknowledged(self, got: Got, now: float) -> None:
        """The peer has received all messages below a number, and may want those from there on again.

        Args:
            got: what it says; anything, if it does not follow the protocol.
            now: seconds, `time.monotonic`.
        """
        if got.number > self._number:
            return
        if self._kept.drop(below=got.number):
            self._repeated_at = float("-inf")
        self._ask_at = now + ASK_S if self._kept else float("inf")
        if not got.again or now - self._repeated_at < _AGAIN_S:
            return
        self._repeated_at = now
        first = self._kept.first
        self._queue.clear()
        self._waiting_bytes = 0
        self.tell(Sent(self._number if first is None else first))
        for group in self._kept.groups():
            self._pass(*group)

    def ask_when_due(self, now: float) -> None:
        """Asks the peer what it has received, where it should have said so by now."""
        if now >= self._ask_at:
            self._ask_at = now + ASK_S
            first = self._kept.first
            if first is not None and not self._queue:
                self.tell(Sent(first, self._number))

    def flush(self) -> None:
        """Hands over what waits, until the socket takes no more."""
        while self._queue:
            envelope, frame = self._queue[0]
            if not self._taken(envelope, frame):
                return
            self._queue.popleft()
            self._waiting_bytes -= size(envelope, frame)
            self._since = time.monotonic()

    def close(self) -> None:
        """Closes the socket at once, forgets what waits, and shares no memory any more."""
        if self._neighbour is not None:
            self._neighbour.close()
        self._queue.clear()
        self._waiting_bytes = 0
        self._kept = Kept()
        self.socket.close(linger=0)

    def _send(self, groups: list[Group]) -> None:
        """Through the encrypted socket, as the next message."""
        if not self._kept:
            self._ask_at = time.monotonic() + ASK_S
        for group in groups:
            self._pass(*group)
        self._kept.add(self._number, groups, waiting_bytes=self._waiting_bytes)
        self._number += 1

    def _pass(self, envelope: bytes, frame: zmq.Frame | None) -> None:
        if self._queue or not self._taken(envelope, frame):
            self._wait(envelope, frame)

    def _wait(self, envelope: bytes, frame: zmq.Frame | None) -> None:
        if not self._queue:
            self._since = time.monotonic()
        self._queue.append((envelope, frame))
        self._waiting_bytes += size(envelope, frame)

    def _taken(self, envelope: bytes, frame: zmq.Frame | None) -> bool:
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


def _copied(chunk: memoryview | bytes) -> zmq.Frame:
    """A frame with its own memory: the only copy on the way out, whether the frame has to wait or not."""
    frame = zmq.Frame(chunk, copy=True)
    if isinstance(chunk, memoryview):
        chunk.release()  # the frame would keep the caller's buffer alive
    return frame
