"""The way to one peer: a PUSH socket, and behind it a bounded queue for what the socket does not take yet.

A PUSH socket at its high-water mark would block, or lose what it is given; so what it refuses waits here,
in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import zmq

from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.mailbox import PeerStalled
from partita.engine.transport.neighbour import ToNeighbour
from partita.engine.transport.wire import frames, offered


class Outgoing:
    """Sends to one peer, in order, without blocking. One thread at a time.

    Invariant: nothing is handed to the socket while something waits in the queue.

    Args:
        peer: who is at the other end.
        socket: from `SocketFactory.outgoing`; closed by `close`.
        max_backlog: how many bytes may wait here, if the message that first has to wait is not larger itself.
        neighbour: the near way to the peer, where it is on this machine.
    """

    def __init__(
        self,
        peer: Peer,
        socket: zmq.Socket[bytes],
        *,
        max_backlog: int,
        neighbour: ToNeighbour | None = None,
    ) -> None:
        self.peer = peer
        self.socket = socket
        self._neighbour = neighbour
        self._max_backlog = max_backlog
        self._queue: deque[tuple[bytes, zmq.Frame | None]] = deque()
        self._waiting_bytes = 0
        self._since = 0.0
        self._number = 0

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
        if self._neighbour is not None:
            offer = self._neighbour.offer(n_bytes)
            if offer is not None:
                self._pass(offered(offer), None)
            header = self._neighbour.place(self._number, message, payload, n_bytes)
            if header is not None:
                if not self._neighbour.tell(header):
                    self._pass(header, None)
                self._number += 1
                return n_bytes > 0
        for envelope, chunk in frames(self._number, message, payload):
            self._pass(envelope, None if chunk is None else _copied(chunk))
        self._number += 1
        return False

    def flush(self) -> None:
        """Hands over what waits, until the socket takes no more."""
        while self._queue:
            envelope, frame = self._queue[0]
            if not self._taken(envelope, frame):
                return
            self._queue.popleft()
            self._waiting_bytes -= _size(envelope, frame)
            self._since = time.monotonic()

    def close(self) -> None:
        """Closes the socket at once, forgets what waits, and shares no memory any more."""
        if self._neighbour is not None:
            self._neighbour.close()
        self._queue.clear()
        self._waiting_bytes = 0
        self.socket.close(linger=0)

    def _pass(self, envelope: bytes, frame: zmq.Frame | None) -> None:
        if self._queue or not self._taken(envelope, frame):
            self._wait(envelope, frame)

    def _wait(self, envelope: bytes, frame: zmq.Frame | None) -> None:
        if not self._queue:
            self._since = time.monotonic()
        self._queue.append((envelope, frame))
        self._waiting_bytes += _size(envelope, frame)

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


def _size(envelope: bytes, frame: zmq.Frame | None) -> int:
    return len(envelope) + (0 if frame is None else len(frame))
