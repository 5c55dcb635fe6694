"""The twin of the ZeroMQ mailbox for hosts that are threads of one process: same rules, no sockets.

Messages are really encoded, cut and put together, and payloads really copied, so that what works here has
met the same code as over the network; only encryption is missing, and keys are mere names.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.counters import Counters
from partita.engine.transport.mailbox import MAX_PAYLOAD, Mailbox, MailboxClosed, PeerStalled, UnknownPeer
from partita.engine.transport.payload import PayloadLike, views
from partita.engine.transport.senders import Senders
from partita.engine.transport.wire import STREAM_BITS, frames


class _Link:
    """What one mailbox has sent to another and that one has not taken yet. Used by both of their threads."""

    def __init__(self, sender_key: str, peer: Peer, stream: int) -> None:
        self.sender_key = sender_key
        self.peer = peer
        self.admitted = False  # the handshake: set by the receiver, once the key was listed
        self._lock = threading.Lock()
        self._entries: deque[list[memoryview]] = deque()
        self._waiting_bytes = 0
        self._since = time.monotonic()
        self._number = stream << STREAM_BITS

    def put(
        self, message: Message, payload: list[memoryview] | None, n_bytes: int, *, max_backlog: int
    ) -> None:
        """Copies a message in, or raises `PeerStalled`."""
        with self._lock:
            if self._entries and self._waiting_bytes + n_bytes > max_backlog:
                raise PeerStalled(self.peer.name, since=self._since, n_bytes=self._waiting_bytes)
        groups = [
            [memoryview(envelope)] if chunk is None else [memoryview(envelope), memoryview(bytes(chunk))]
            for envelope, chunk in frames(self._number, message, payload)
        ]
        self._number += 1
        with self._lock:
            if not self._entries:
                self._since = time.monotonic()
            self._entries.extend(groups)
            self._waiting_bytes += sum(frame.nbytes for group in groups for frame in group)

    def take(self) -> list[list[memoryview]]:
        """Everything that has been put in."""
        with self._lock:
            groups = list(self._entries)
            self._entries.clear()
            self._waiting_bytes = 0
            self._since = time.monotonic()
            return groups

    def drop(self) -> None:
        """Forgets what waits."""
        self.take()


class InProcessNetwork:
    """Makes mailboxes that reach one another inside this process. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mailboxes: dict[str, InProcessMailbox] = {}
        self._links: dict[str, list[_Link]] = {}

    def mailbox(
        self,
        name: str,
        *,
        incarnation: int = 0,
        max_payload: int = MAX_PAYLOAD,
        max_backlog: int = MAX_PAYLOAD,
    ) -> InProcessMailbox:
        """A new mailbox for this incarnation of a host.

        Raises:
            ValueError: there is one already.
        """
        made = InProcessMailbox(self, name, incarnation, max_payload=max_payload, max_backlog=max_backlog)
        with self._lock:
            if made.endpoint in self._mailboxes:
                raise ValueError(f"{made.endpoint} is already in use; give each incarnation one mailbox")
            self._mailboxes[made.endpoint] = made
            for link in self._links.get(made.endpoint, ()):
                made.announce(link)
        return made

    def attach(self, link: _Link) -> None:
        """A mailbox has connected. (For mailboxes.)"""
        with self._lock:
            self._links.setdefault(link.peer.endpoint, []).append(link)

    def detach(self, link: _Link) -> None:
        """A mailbox has disconnected. (For mailboxes.)"""
        with self._lock:
            self._links[link.peer.endpoint].remove(link)

    def announce(self, link: _Link) -> None:
        """Tells the receiver, if it exists, that something is waiting in this link. (For mailboxes.)"""
        with self._lock:
            receiver = self._mailboxes.get(link.peer.endpoint)
            if receiver is not None:
                receiver.announce(link)

    def remove(self, endpoint: str) -> None:
        """A mailbox has closed. (For mailboxes.)"""
        with self._lock:
            self._mailboxes.pop(endpoint, None)


class InProcessMailbox(Mailbox):
    """A mailbox of an `InProcessNetwork`, which makes it. Its bounds mean what they mean to `ZmqMailbox`."""

    def __init__(
        self, network: InProcessNetwork, name: str, incarnation: int, *, max_payload: int, max_backlog: int
    ) -> None:
        self.counters = Counters()
        self._network = network
        self._endpoint = f"in-process://{name}/{incarnation}"
        self._public_key = f"key of {name}/{incarnation}"
        self._max_payload = max_payload
        self._max_backlog = max_backlog
        self._senders = Senders(self.counters, max_payload=max_payload)
        self._links: dict[str, _Link] = {}
        self._streams = 0  # connections so far
        self._sending = threading.Lock()
        self._strangers: dict[_Link, None] = {}  # those who knock until they are listed, in order
        self._arrivals: queue.SimpleQueue[_Link | None] = queue.SimpleQueue()  # None: a wake-up
        self._closed = False

    @property
    def endpoint(self) -> str:
        """Its place in the network."""
        return self._endpoint

    @property
    def public_key(self) -> str:
        """A name that stands for a key."""
        return self._public_key

    def connect(self, peer: Peer) -> None:
        """See `Mailbox.connect`."""
        self._check_open()
        if not peer.endpoint.startswith("in-process://"):
            raise ValueError(
                f"'{peer.endpoint}' is not an endpoint of an InProcessNetwork; take Mailbox.endpoint"
            )
        present = self._links.get(peer.name)
        if present is not None and (present.peer == peer or present.peer.incarnation > peer.incarnation):
            return
        self.disconnect(peer.name)
        self._links[peer.name] = link = _Link(self._public_key, peer, self._streams)
        self._streams += 1
        self._network.attach(link)

    def disconnect(self, name: str) -> None:
        """See `Mailbox.disconnect`."""
        link = self._links.pop(name, None)
        if link is not None:
            self._network.detach(link)
            link.drop()

    def renew(self, name: str) -> None:
        """See `Mailbox.renew`."""
        link = self._links.get(name)
        if link is not None:
            self.disconnect(name)
            self.connect(link.peer)

    def allow(self, peers: Iterable[Peer]) -> None:
        """See `Mailbox.allow`."""
        self._check_open()
        self._senders.replace(peers)
        knocking, self._strangers = self._strangers, {}
        for link in knocking:
            self._arrivals.put(link)

    def send(self, to: str, message: Message, payload: PayloadLike = None) -> None:
        """See `Mailbox.send`."""
        self._check_open()
        link = self._links.get(to)
        if link is None:
            raise UnknownPeer(to)
        buffers, n_bytes = views(payload, max_payload=self._max_payload)
        with self._sending:
            link.put(message, buffers, n_bytes, max_backlog=self._max_backlog)
            self.counters.note_sent(to, message, n_bytes)
        self._network.announce(link)

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Mailbox.receive`."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        arrived: list[Received] = []
        while True:
            left_s = deadline - time.monotonic()
            try:
                link = self._arrivals.get(timeout=left_s) if left_s > 0 else self._arrivals.get_nowait()
            except queue.Empty:
                return arrived
            if link is not None:
                self._deliver(link, arrived)
            if self._deliver_all(arrived) or link is None or arrived:
                return arrived

    def wake(self) -> None:
        """See `Mailbox.wake`."""
        self._arrivals.put(None)

    def close(self) -> None:
        """See `Mailbox.close`."""
        if self._closed:
            return
        self._closed = True
        self._network.remove(self._endpoint)
        for name in list(self._links):
            self.disconnect(name)

    def announce(self, link: _Link) -> None:
        """Something is waiting in this link. (For the network.)"""
        self._arrivals.put(link)

    def _deliver_all(self, arrived: list[Received]) -> bool:
        """Delivers what else has been announced by now, and says whether a wake-up was among it."""
        woken = False
        for _ in range(self._arrivals.qsize()):
            link = self._arrivals.get_nowait()
            if link is None:
                woken = True
            else:
                self._deliver(link, arrived)
        return woken

    def _deliver(self, link: _Link, arrived: list[Received]) -> None:
        if not link.admitted:
            if link.peer.public_key != self._public_key or link.sender_key not in self._senders:
                if link not in self._strangers:
                    self.counters.refused_handshakes += 1
                    self._strangers[link] = None
                return
            link.admitted = True
        for group in link.take():
            arrived += self._senders.accept(link.sender_key, group)

    def _check_open(self) -> None:
        if self._closed:
            raise MailboxClosed
