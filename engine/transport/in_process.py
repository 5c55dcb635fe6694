"""Mailboxes of hosts that are threads of one process: the rules of the ZeroMQ mailbox without sockets.

Messages are encoded, cut and reassembled, and payloads copied, by the same code as over the network; only
encryption is missing, and keys are mere names.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import override

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.inbound import InboundConnections
from partita.engine.transport.mailbox import (
    MAX_PAYLOAD,
    Mailbox,
    PeerStalled,
    UnknownPeer,
)
from partita.engine.transport.payload import PayloadLike, views
from partita.engine.transport.wire import STREAM_BITS, frames


@dataclass(eq=False)
class _Queue:
    """Frames that one mailbox has sent to another and that one has not taken. Used by both threads."""

    sender_key: str
    peer: Peer
    stream: int
    arrivals: _Arrivals
    admitted: bool = False  # the handshake: set by the receiver once the key was authorised

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: deque[list[memoryview]] = deque()
        self._waiting_bytes = 0
        self._since = time.monotonic()
        self._number = self.stream << STREAM_BITS

    def put(
        self, message: Message, payload: list[memoryview] | None, n_bytes: int, *, max_backlog: int
    ) -> None:
        """Copies a message into the queue, or raises `PeerStalled`."""
        with self._lock:
            if self._groups and self._waiting_bytes + n_bytes > max_backlog:
                raise PeerStalled(self.peer.name, since=self._since, n_bytes=self._waiting_bytes)
        groups = [
            [memoryview(envelope)] if chunk is None else [memoryview(envelope), memoryview(bytes(chunk))]
            for envelope, chunk in frames(self._number, message, payload)
        ]
        self._number += 1
        with self._lock:
            if not self._groups:
                self._since = time.monotonic()
            self._groups.extend(groups)
            self._waiting_bytes += sum(frame.nbytes for group in groups for frame in group)

    def take(self) -> list[list[memoryview]]:
        """Removes and returns all frames."""
        with self._lock:
            groups = list(self._groups)
            self._groups.clear()
            self._waiting_bytes = 0
            self._since = time.monotonic()
            return groups


_Arrivals: TypeAlias = "queue.SimpleQueue[_Queue | None]"
"""Queues with new messages for one endpoint; None is a wake-up."""


class InProcessNetwork:
    """Creates mailboxes that reach one another inside this process. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._arrivals: defaultdict[str, _Arrivals] = defaultdict(queue.SimpleQueue)

    def mailbox(
        self,
        name: str,
        *,
        incarnation: int = 0,
        max_payload: int = MAX_PAYLOAD,
        max_backlog: int = MAX_PAYLOAD,
    ) -> InProcessMailbox:
        """Returns a new mailbox for this incarnation of a host; bounds as of `ZmqMailbox` (bytes).

        Raises:
            ValueError: one is open already.
        """
        made = InProcessMailbox(self, name, incarnation, max_payload=max_payload, max_backlog=max_backlog)
        with self._lock:
            if made.endpoint in self._open:
                raise ValueError(f"{made.endpoint} is already in use; give each incarnation one mailbox")
            self._open.add(made.endpoint)
        return made

    def arrivals(self, endpoint: str) -> _Arrivals:
        """Returns the arrivals of an endpoint, whether or not its mailbox exists. (For mailboxes.)"""
        with self._lock:
            return self._arrivals[endpoint]

    def remove(self, endpoint: str) -> None:
        """Removes a closed mailbox. (For mailboxes.)"""
        with self._lock:
            self._open.discard(endpoint)


class InProcessMailbox(Mailbox):
    """A mailbox of an `InProcessNetwork`, which creates it."""

    def __init__(
        self, network: InProcessNetwork, name: str, incarnation: int, *, max_payload: int, max_backlog: int
    ) -> None:
        super().__init__(f"in-process://{name}/{incarnation}", f"key of {name}/{incarnation}")
        self._network = network
        self._max_payload = max_payload
        self._max_backlog = max_backlog
        self._inbound = InboundConnections(self.counters, max_payload=max_payload)
        self._streams = 0  # connections so far
        self._sending = threading.Lock()
        self._unauthorised: dict[_Queue, None] = {}  # of keys that are not authorised yet, in order
        self._arrivals = network.arrivals(self.endpoint)

    def _open(self, peer: Peer) -> _Queue:
        if not peer.endpoint.startswith("in-process://"):
            raise ValueError(
                f"'{peer.endpoint}' is not an endpoint of an InProcessNetwork; take Mailbox.endpoint"
            )
        self._streams += 1
        arrivals = self._network.arrivals(peer.endpoint)
        return _Queue(self.public_key, peer, self._streams - 1, arrivals)

    @override
    def disconnect(self, name: str) -> None:
        outbound = self._outbound.pop(name, None)
        if outbound is not None:
            outbound.take()

    @override
    def allow(self, peers: Iterable[Peer]) -> None:
        self._check_open()
        self._inbound.replace(peers)
        waiting, self._unauthorised = self._unauthorised, {}
        for stranger in waiting:
            self._arrivals.put(stranger)

    @override
    def send(self, to: str, message: Message, payload: PayloadLike = None) -> bool:
        self._check_open()
        outbound = self._outbound.get(to)
        if outbound is None:
            raise UnknownPeer(to)
        buffers, n_bytes = views(payload, max_payload=self._max_payload)
        with self._sending:
            outbound.put(message, buffers, n_bytes, max_backlog=self._max_backlog)
            self.counters.count_sent(to, message, n_bytes)
        outbound.arrivals.put(outbound)
        return False

    @override
    def receive(self, timeout_s: float) -> list[Received]:
        self._check_open()
        deadline = time.monotonic() + timeout_s
        arrived: list[Received] = []
        while True:
            left_s = deadline - time.monotonic()
            try:
                found = [self._arrivals.get(timeout=left_s) if left_s > 0 else self._arrivals.get_nowait()]
            except queue.Empty:
                return arrived
            found += [self._arrivals.get_nowait() for _ in range(self._arrivals.qsize())]
            for inbound in found:
                if inbound is not None:
                    self._deliver(inbound, arrived)
            if arrived or None in found:
                return arrived

    @override
    def wake(self) -> None:
        self._arrivals.put(None)

    @override
    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.remove(self.endpoint)
        for name in list(self._outbound):
            self.disconnect(name)

    def _deliver(self, inbound: _Queue, arrived: list[Received]) -> None:
        if not inbound.admitted:
            if inbound.peer.public_key != self.public_key or inbound.sender_key not in self._inbound:
                if inbound not in self._unauthorised:
                    self.counters.refused_handshakes += 1
                    self._unauthorised[inbound] = None
                return
            inbound.admitted = True
        for group in inbound.take():
            arrived += self._inbound.accept(inbound.sender_key, group)
