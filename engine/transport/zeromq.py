"""The mailbox of a real host: ZeroMQ over TCP, every connection encrypted and known by its key.

One thread, one poll: messages, handshakes, the way out and wake-ups are all served inside `receive`. Other
threads may send; but a socket in the poll is the owner's alone, so as long as a peer has a backlog they only
add to that.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterable

import zmq

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.authenticator import Authenticator
from partita.engine.transport.connections import LOOK_S, Connections
from partita.engine.transport.counters import Counters
from partita.engine.transport.doorway import Doorway
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.mailbox import MAX_PAYLOAD, Mailbox, MailboxClosed, UnknownPeer
from partita.engine.transport.neighbour import FromNeighbour, ToNeighbour
from partita.engine.transport.outgoing import ASK_S, Outgoing
from partita.engine.transport.payload import PayloadLike, views
from partita.engine.transport.senders import Senders
from partita.engine.transport.sockets import LOOPBACK, SocketFactory
from partita.engine.transport.wire import Got, Offer

_MOST_AT_ONCE = 256  # groups of frames per look: a busy inbox must not starve handshakes and the way out


class ZmqMailbox(Mailbox):
    """A mailbox that listens on a TCP endpoint.

    Args:
        keys: the key pair of this host's incarnation; peers know it by the public half.
        endpoint: `tcp://HOST:PORT`, or `tcp://HOST:*` for any free port. Loopback unless said otherwise.
        max_payload: the largest payload that is sent or taken (bytes).
        max_backlog: how much may wait for one peer beyond what ZeroMQ holds (bytes).
        io_threads: ZeroMQ's own threads. Encryption runs there, at about 0.35 ms per MiB and side, so a
            host that sends and receives much may want a second one, if it has a core for it.
        machine: which machine this is, see `Peer`. Between peers on the same one, messages need no encryption
            and payloads lie in memory that both share. "" shares memory with nobody.

    Raises:
        ValueError: this is not an endpoint.
        EndpointUnavailable: somebody listens there already, or this machine has no such address.
        RuntimeError: the ZeroMQ library is too old or cannot encrypt.
    """

    def __init__(
        self,
        keys: KeyPair,
        *,
        endpoint: str = LOOPBACK,
        max_payload: int = MAX_PAYLOAD,
        max_backlog: int = MAX_PAYLOAD,
        io_threads: int = 1,
        machine: str = "",
    ) -> None:
        self.counters = Counters()
        self._public_key = keys.public
        self._machine = machine
        self._max_payload = max_payload
        self._max_backlog = max_backlog
        self._senders = Senders(
            self.counters,
            max_payload=max_payload,
            machine=machine,
            accept=self._accepted,
            answer=self._answer,
            heed=self._heed,
        )
        self._ways = threading.Lock()  # held by whoever uses what follows
        self._outgoing: dict[str, Outgoing] = {}
        self._streams = 0  # connections so far
        self._ask_at = 0.0  # when to look for peers that acknowledge nothing
        self._backlogs: set[Outgoing] = set()
        self._polled: set[Outgoing] = set()  # those of them whose sockets are in the poll
        self._channels: dict[int, str] = {}  # of near ways, and the keys of those who send there
        self._owner: int | None = None
        self._closed = False
        self._wake_lock = threading.Lock()  # or a late wake() could write into a descriptor of somebody else
        self._sockets = SocketFactory(keys, io_threads=io_threads)
        self._doorway: Doorway | None = None
        try:
            zap = self._sockets.authenticator()
            self._inbox = self._sockets.inbox(endpoint)
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self._sockets.close()
            raise
        if machine:
            with contextlib.suppress(OSError):  # nobody can share memory with this host, then
                self._doorway = Doorway(keys.public)
        self._endpoint = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        self._connections = Connections(
            self._sockets.events(self._inbox),
            port=int(self._endpoint.rpartition(":")[2]),
            on_cut=self._count_cut,
        )
        self._zap = zap
        self._authenticator = Authenticator(
            zap, is_listed=self._senders.__contains__, on_stranger=self._count_stranger
        )
        self._poller = zmq.Poller()
        for source in (self._inbox, self._zap, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)

    @property
    def endpoint(self) -> str:
        """Where this mailbox listens, with the port that it got."""
        return self._endpoint

    @property
    def public_key(self) -> str:
        """The public half of its keys (Z85)."""
        return self._public_key

    def connect(self, peer: Peer) -> None:
        """See `Mailbox.connect`."""
        self._check_open()
        present = self._outgoing.get(peer.name)
        if present is not None and (present.peer == peer or present.peer.incarnation > peer.incarnation):
            return
        is_near = self._doorway is not None and peer.machine == self._machine
        neighbour = ToNeighbour(peer.public_key) if is_near else None
        socket = self._sockets.outgoing(peer)
        self.disconnect(peer.name)
        with self._ways:
            self._outgoing[peer.name] = Outgoing(
                peer, socket, max_backlog=self._max_backlog, stream=self._streams, neighbour=neighbour
            )
            self._streams += 1

    def disconnect(self, name: str) -> None:
        """See `Mailbox.disconnect`."""
        with self._ways:
            outgoing = self._outgoing.pop(name, None)
            if outgoing is not None:
                self._forget_backlog(outgoing)
                outgoing.close()

    def renew(self, name: str) -> None:
        """See `Mailbox.renew`."""
        outgoing = self._outgoing.get(name)
        if outgoing is not None:
            self.disconnect(name)
            self.connect(outgoing.peer)

    def allow(self, peers: Iterable[Peer]) -> None:
        """See `Mailbox.allow`."""
        self._check_open()
        self._senders.replace(peers)
        self._authenticator.list_changed()

    def send(self, to: str, message: Message, payload: PayloadLike = None) -> None:
        """See `Mailbox.send`."""
        buffers, n_bytes = views(payload, max_payload=self._max_payload)
        with self._ways:
            self._check_open()
            outgoing = self._outgoing.get(to)
            if outgoing is None:
                raise UnknownPeer(to)
            is_owner = self._owner in (None, threading.get_ident())
            had_backlog = outgoing.has_backlog
            if had_backlog and is_owner:
                outgoing.flush()
            is_shared = outgoing.send(message, buffers, n_bytes)
            self.counters.note_sent(to, message, n_bytes, is_shared=is_shared)
            is_news = outgoing.has_backlog and not had_backlog
            if is_news:
                self._backlogs.add(outgoing)
        if is_news and not is_owner:
            self.wake()  # so that the owner looks after it

    def receive(self, timeout_s: float) -> list[Received]:
        """See `Mailbox.receive`."""
        self._check_open()
        self._owner = threading.get_ident()
        deadline = time.monotonic() + timeout_s
        arrived: list[Received] = []
        left_s = timeout_s
        while True:
            wait_s = min(left_s, LOOK_S)
            woken = self._look(max(0, math.ceil(wait_s * 1000)), arrived)
            if arrived or woken:
                return arrived
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return arrived

    def wake(self) -> None:
        """See `Mailbox.wake`."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """See `Mailbox.close`."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        for name in list(self._outgoing):
            self.disconnect(name)
        self._senders.replace(())
        if self._doorway is not None:
            self._doorway.close()
        self._sockets.close()

    def _look(self, wait_ms: int, arrived: list[Received]) -> bool:
        """Waits until something can be done, does all of it, and says whether somebody called `wake`."""
        woken = False
        now = time.monotonic()
        self._ask_peers(now)
        self._connections.look_when_due(now)
        self._serve_backlogs()
        for source, _ in self._poller.poll(wait_ms):
            if source is self._inbox:
                self._drain(arrived)
            elif source is self._zap:
                self._authenticator.serve()
            elif source == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                woken = True
            elif source in self._channels:
                arrived += self._senders.look(self._channels[source])
        return woken

    def _drain(self, arrived: list[Received]) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                frame = self._inbox.recv(zmq.NOBLOCK, copy=False)
                frames = [frame.buffer]
                more = frame.more
                while more:
                    following = self._inbox.recv(zmq.NOBLOCK, copy=False)
                    more = following.more
                    if len(frames) < 3:  # the third says that these are too many; none of the rest is kept
                        frames.append(following.buffer)
            except zmq.Again:
                return
            if self._connections.suspects:
                self._connections.delivered(frame.get(zmq.SRCFD))
            arrived += self._senders.accept(_key_of(frame), frames)

    def _answer(self, name: str, incarnation: int, got: Got) -> bool:
        """Tells a sender what has come from it, if this process of it is connected."""
        with self._ways:
            outgoing = self._outgoing.get(name)
            if outgoing is None or outgoing.peer.incarnation != incarnation:
                return False
            outgoing.tell(got)
            self._note_backlog(outgoing)
            return True

    def _heed(self, name: str, incarnation: int, got: Got) -> None:
        """A peer says what has come to it."""
        with self._ways:
            outgoing = self._outgoing.get(name)
            if outgoing is not None and outgoing.peer.incarnation == incarnation:
                outgoing.acknowledged(got, time.monotonic())
                self._note_backlog(outgoing)

    def _ask_peers(self, now: float) -> None:
        """Asks those that should have acknowledged something by now."""
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_S / 4
        with self._ways:
            for outgoing in self._outgoing.values():
                outgoing.ask_when_due(now)
                self._note_backlog(outgoing)

    def _note_backlog(self, outgoing: Outgoing) -> None:
        if outgoing.has_backlog:
            self._backlogs.add(outgoing)

    def _serve_backlogs(self) -> None:
        """Hands over what waits, and lets the poll watch those who do not take all of it."""
        if not self._backlogs:
            return
        with self._ways:
            for outgoing in list(self._backlogs):
                outgoing.flush()
                if not outgoing.has_backlog:
                    self._forget_backlog(outgoing)
                elif outgoing not in self._polled:
                    self._polled.add(outgoing)
                    self._poller.register(outgoing.socket, zmq.POLLOUT)

    def _forget_backlog(self, outgoing: Outgoing) -> None:
        self._backlogs.discard(outgoing)
        if outgoing in self._polled:
            self._polled.remove(outgoing)
            self._poller.unregister(outgoing.socket)

    def _accepted(self, key: str, offer: Offer) -> FromNeighbour | None:
        """The near way that a sender of this machine has left at the doorway."""
        visit = None if self._doorway is None else self._doorway.take(offer.token)
        if visit is None:
            return None
        try:
            near = FromNeighbour(visit, offer.n_bytes, on_close=self._forget_channel)
        except OSError:
            return None
        self._channels[near.channel] = key
        self._poller.register(near.channel, zmq.POLLIN)
        return near

    def _forget_channel(self, channel: int) -> None:
        del self._channels[channel]
        self._poller.unregister(channel)

    def _count_stranger(self) -> None:
        self.counters.refused_handshakes += 1

    def _count_cut(self) -> None:
        self.counters.cut_connections += 1

    def _check_open(self) -> None:
        if self._closed:
            raise MailboxClosed


def _key_of(frame: zmq.Frame) -> str | None:
    """The key that the authenticator let in on this frame's connection."""
    try:
        return str(frame.get("User-Id"))
    except (zmq.ZMQError, UnicodeDecodeError):
        return None
