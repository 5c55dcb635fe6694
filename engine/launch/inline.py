"""Inline hosts: hosts in the coordinator's process and thread, so that its messages are function calls.

Each has a mailbox, a key and an endpoint of its own: to hosts in other processes it is a host like any other.
It ends with the coordinator, as every process of a run does. What keeps the thread keeps all of them: an
inline host sends no heartbeat while a user's method computes, and nobody looks for one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from typing_extensions import override

from partita.engine.launch.launcher import JOIN_S, StillRunning
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.host import Host
from partita.engine.transport.mailbox import MAX_PAYLOAD, Mailbox
from partita.engine.transport.payload import Payload, PayloadLike, views
from partita.engine.transport.zeromq import ZmqMailbox

POLL_S: Final = 0.005
"""Seconds for which messages of this process may come before those of others."""

_T = TypeVar("_T")


class InlineNetwork(Mailbox):
    """The coordinator's mailbox where there are inline hosts: `receive` runs them, too.

    Attributes:
        hosts: the inline hosts by name.
    """

    def __init__(self, network: ZmqMailbox) -> None:
        """Takes over the coordinator's mailbox for the hosts in other processes."""
        super().__init__(network.endpoint, network.public_key)
        self.counters = network.counters
        self.hosts: Final[dict[str, InlineHost]] = {}
        self.network: Final = network
        self._arrived: Final[deque[Received]] = deque()  # from inline hosts
        self._owner = threading.get_ident()
        self._polled_at = float("-inf")

    def start(self, peer: Peer, network: ZmqMailbox, coordinator: Peer) -> None:
        """Starts an inline host; `network` is polled by the coordinator's mailbox, and belongs to it."""
        mailbox = InlineMailbox(peer, network, self)
        host = Host(mailbox, peer.name, peer.incarnation, coordinator, interruptible=True)
        self.hosts[peer.name] = InlineHost(host, mailbox)
        host.begin()

    def stop(self, name: str) -> None:
        """Ends an inline host, if there is one of this name. Raises StillRunning."""
        host = self.hosts.pop(name, None)
        if host is not None:
            host.close()

    def pass_on(self, to: str, event: Received) -> bool:
        """Gives a message to the coordinator or an inline host; False: it is neither. From any thread."""
        if to == COORDINATOR:
            self._arrived.append(event)
        elif (host := self.hosts.get(to)) is not None:
            host.mailbox.arrived.append(event)
        else:
            return False
        if threading.get_ident() != self._owner:
            self.network.wake()
        return True

    @override
    def receive(self, timeout_s: float) -> list[Received]:
        self._owner = threading.get_ident()
        self._run()
        now = time.monotonic()
        if self._arrived and now - self._polled_at < POLL_S:
            return [*_taken(self._arrived)]
        found = self.network.receive(0.0 if self._arrived else timeout_s)
        self._polled_at = now
        for host in tuple(self.hosts.values()):
            host.turn()
        self._run()
        found += _taken(self._arrived)
        return found

    def _run(self) -> None:
        """Runs the hosts until none of them has a message."""
        hosts = tuple(self.hosts.values())
        while waiting := [host for host in hosts if host.mailbox.arrived]:
            for host in waiting:
                host.turn()

    @override
    def send(self, to: str, message: Message, payload: PayloadLike = None) -> bool:
        if to not in self.hosts:
            return self.network.send(to, message, payload)
        self.pass_on(to, Received(COORDINATOR, 0, message, _copied(payload)))
        return False

    @override
    def connect(self, peer: Peer) -> None:
        if peer.name not in self.hosts:
            self.network.connect(peer)

    @override
    def _open(self, peer: Peer) -> object:
        raise AssertionError(f"{peer} is connected by another mailbox")

    @override
    def disconnect(self, name: str) -> None:
        self.network.disconnect(name)

    @override
    def reconnect(self, name: str) -> None:
        self.network.reconnect(name)

    @override
    def allow(self, peers: Iterable[Peer]) -> None:
        self.network.allow(peers)

    @override
    def wake(self) -> None:
        self.network.wake()

    @override
    def close(self) -> None:
        self.network.close()


class InlineMailbox(Mailbox):
    """The mailbox of an inline host.

    Attributes:
        arrived: messages of the coordinator and of other inline hosts.
    """

    def __init__(self, own: Peer, network: ZmqMailbox, inline: InlineNetwork) -> None:
        """Takes over the host's mailbox for hosts in other processes."""
        super().__init__(network.endpoint, network.public_key)
        self.counters = network.counters
        self.arrived: Final[deque[Received]] = deque()
        self._own, self._network, self._inline = own, network, inline

    @override
    def receive(self, timeout_s: float) -> list[Received]:
        return [*self._network.receive(0.0), *_taken(self.arrived)]

    @override
    def send(self, to: str, message: Message, payload: PayloadLike = None) -> bool:
        if to == COORDINATOR or to in self._inline.hosts:
            own = self._own
            self._inline.pass_on(to, Received(own.name, own.incarnation, message, _copied(payload)))
            return False
        return self._network.send(to, message, payload)

    @override
    def connect(self, peer: Peer) -> None:
        if peer.name != COORDINATOR and peer.name not in self._inline.hosts:
            self._network.connect(peer)

    @override
    def _open(self, peer: Peer) -> object:
        raise AssertionError(f"{peer} is connected by another mailbox")

    @override
    def disconnect(self, name: str) -> None:
        self._network.disconnect(name)

    @override
    def reconnect(self, name: str) -> None:
        self._network.reconnect(name)

    @override
    def allow(self, peers: Iterable[Peer]) -> None:
        self._network.allow(peers)

    @override
    def wake(self) -> None:
        self._inline.wake()

    @override
    def close(self) -> None:
        self._network.close()


class InlineHost:
    """An inline host and its mailbox."""

    def __init__(self, host: Host, mailbox: InlineMailbox) -> None:
        self._host: Final = host
        self.mailbox: Final = mailbox

    @property
    def stopped(self) -> bool:
        """Returns whether it has come to its end."""
        return self._host.stopped

    def turn(self) -> None:
        """Does all that is to be done, without waiting."""
        if self._host.stopped:
            self.mailbox.arrived.clear()
        else:
            self._host.turn(0.0)

    def close(self) -> None:
        """Ends the threads of its role, after the computation that is under way, and closes the mailbox.

        Raises:
            StillRunning: a computation does not end.
        """
        thread = threading.Thread(target=self._host.close, name="the end of an inline host", daemon=True)
        try:
            thread.start()
            thread.join(JOIN_S)
        finally:
            self.mailbox.close()
        if thread.is_alive():
            raise StillRunning([thread], after_s=JOIN_S)


def _taken(events: deque[_T]) -> Iterator[_T]:
    """Yields what is in a queue to which other threads may add."""
    while events:
        yield events.popleft()


def _copied(payload: PayloadLike) -> Payload | None:
    """Returns a payload as it would be received."""
    if payload is None:
        return None
    buffers, _ = views(payload, max_payload=MAX_PAYLOAD)
    return Payload((memoryview(b"".join(buffers)),) if buffers else ())
