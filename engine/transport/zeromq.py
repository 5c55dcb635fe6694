"""Mailbox of a real host: ZeroMQ over TCP, every connection encrypted and identified by its key, and links.

One thread and one poll serve messages, handshakes, backlogs and wake-ups, inside `receive`. Other threads may
send; but sockets in the poll belong to the owner, so while a peer has a backlog, others only append to it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import zmq
from typing_extensions import override

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.authenticator import Authenticator
from partita.engine.transport.backlogs import Backlogs
from partita.engine.transport.connection_guard import CHECK_S, MAX_UNDELIVERED_BYTES, ConnectionGuard
from partita.engine.transport.encryption import ENCRYPTED, Encryption
from partita.engine.transport.inbound import InboundConnections
from partita.engine.transport.inbound_links import InboundLinks
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.mailbox import MAX_PAYLOAD, Mailbox, UnknownPeer
from partita.engine.transport.outbound import ACK_TIMEOUT_S, OutboundConnection
from partita.engine.transport.payload import PayloadLike, Steady, Versioned, views
from partita.engine.transport.ring_buffer import PeerState
from partita.engine.transport.shared_link import SharedLinkSender
from partita.engine.transport.shared_region import MAX_REGIONS, Region
from partita.engine.transport.sockets import LOOPBACK, SocketFactory
from partita.engine.transport.stream_sender import StreamSender
from partita.engine.transport.stream_watch import StreamWatch
from partita.engine.transport.wire import INLINE_BYTES, Ack

_MAX_DRAINED = 256  # frame groups per poll: a busy inbox must not starve handshakes and backlogs


class ZmqMailbox(Mailbox):
    """A mailbox that listens on a TCP endpoint.

    Args:
        keys: key pair of this host's incarnation; peers know it by the public half.
        endpoint: `tcp://HOST:PORT`, or `tcp://HOST:*` for any free port; by default on loopback.
        max_payload: largest payload that is sent or accepted (bytes).
        max_backlog: bound of what waits for one peer beyond ZeroMQ's own queue (bytes).
        io_threads: ZeroMQ's own threads. Encryption runs there, at about 0.35 ms per MiB and side, so a
            host that sends and receives much may want a second one, if it has a core for it.
        machine: label of this machine, see `Peer`. Peers with the same label exchange messages without
            encryption and payloads in shared memory; "" shares memory with no peer.
        polled_by: a mailbox of the same thread, whose `receive` waits for the messages of this one, too;
            `receive` of this one then returns what is there.
        encryption: what is encrypted between this machine and others. Peers must be told the same.

    Raises:
        ValueError: `endpoint` is not an endpoint, or one where payloads must be encrypted.
        EndpointUnavailable: the endpoint is in use, or not an address of this machine.
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
        polled_by: ZmqMailbox | None = None,
        encryption: Encryption = ENCRYPTED,
    ) -> None:
        encryption.check(endpoint)
        self._encrypts = encryption.payloads
        self._machine, self._max_payload, self._max_backlog = machine, max_payload, max_backlog
        self._sockets = SocketFactory(keys, io_threads=io_threads)
        try:
            self._zap = self._sockets.authenticator()
            self._inbox = self._sockets.inbox(endpoint)
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            self._sockets.close()
            raise
        super().__init__(self._inbox.getsockopt_string(zmq.LAST_ENDPOINT), keys.public)
        self._wake_lock = threading.Lock()  # or a late wake() could write into somebody else's descriptor
        self._owner: int | None = None
        self._outbound_lock = threading.Lock()  # held by every use of a connection
        self._streams = 0  # connections so far
        self._acks_due_at = 0.0  # next search for peers that acknowledge nothing
        self._host = self.endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        self._regions: list[Region] = []
        self._states: dict[str, PeerState] = {}  # of peers that read payloads where they lie, by key
        self._poller: zmq.Poller = zmq.Poller() if polled_by is None else polled_by._poller
        self._backlogs = Backlogs(self._poller)
        self._streams_watch = StreamWatch(self._poller)
        self._polled_by = polled_by
        self._beside: list[ZmqMailbox] = []  # mailboxes in the same poll
        self._held: list[Received] = []  # what the other mailbox's poll has found for this one
        self._misbehaviour: list[Received] = []  # of members, on connections and not in messages
        self._watch_connections(keys.public)
        if polled_by is not None:
            polled_by._beside.append(self)

    def _watch_connections(self, key: str) -> None:
        """Creates what serves the inbox, its connections and links, and registers it in the poll."""
        self._links = InboundLinks(
            key,
            self._poller,
            self._streams_watch,
            shares_memory=bool(self._machine),
            encrypts=self._encrypts,
            max_payload=self._max_payload,
        )
        self._inbound = InboundConnections(
            self.counters,
            max_payload=self._max_payload,
            machine=self._machine,
            accept_link=self._links.accept_link,
            accept_region=self._links.accept_region,
            accept_stream=self._links.accept_stream,
            send_ack=self._send_ack,
            on_ack=self._on_ack,
        )
        self._guard = ConnectionGuard(
            self._sockets.events(self._inbox),
            port=int(self.endpoint.rpartition(":")[2]),
            on_cut=self._count_cut,
            listening=self._sockets.listening,
        )
        self._authenticator = Authenticator(
            self._zap,
            is_authorised=self._inbound.__contains__,
            on_unknown_key=self._count_refused,
            on_storm=self._note_storm,
            on_admitted=self._guard.admitted,
        )
        for source in (self._inbox, self._zap, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)

    def _open(self, peer: Peer) -> OutboundConnection:
        shares_memory = self._links.rendezvous is not None and peer.machine == self._machine
        link = SharedLinkSender(peer.public_key) if shares_memory else None
        socket = self._sockets.outgoing(peer)
        self._streams += 1
        opened = OutboundConnection(
            peer,
            socket,
            max_backlog=self._max_backlog,
            stream=self._streams - 1,
            link=link,
            state=self._states.setdefault(peer.public_key, PeerState()),
        )
        opened.connected_to = self._sockets.towards(peer)
        if not shares_memory:
            opened.stream_link = StreamSender(
                self._host,
                clear=not self._encrypts,
                on_change=lambda: self._streams_watch.note(opened),
            )
        return opened

    @override
    def disconnect(self, name: str) -> None:
        with self._outbound_lock:
            outbound = self._outbound.pop(name, None)
            if outbound is not None:
                self._backlogs.forget(outbound)
                self._streams_watch.forget(outbound)
                outbound.close()

    @override
    def allow(self, peers: Iterable[Peer]) -> None:
        self._check_open()
        self._inbound.replace(peers)
        self._guard.expect(self._inbound.peers)
        for key in [key for key in self._states if key not in self._inbound]:
            self._states.pop(key).is_gone = True
        self._authenticator.admit_held()

    @override
    def send(self, to: str, message: Message, payload: PayloadLike = None) -> bool:
        buffers, n_bytes = views(payload, max_payload=self._max_payload)
        with self._outbound_lock:
            self._check_open()
            outbound = self._outbound.get(to)
            if outbound is None:
                raise UnknownPeer(to)
            is_owner = self._owner in (None, threading.get_ident())
            had_backlog = outbound.has_backlog
            if had_backlog and is_owner:
                outbound.flush()
            if isinstance(payload, Steady | Versioned):
                is_shared = outbound.send(
                    message,
                    buffers,
                    n_bytes,
                    is_steady=True,
                    readings=payload.readings if isinstance(payload, Versioned) else None,
                    region=None if outbound.link is None else self._place_of(payload, n_bytes),
                )
            else:
                is_shared = outbound.send(message, buffers, n_bytes)
            self.counters.count_sent(to, message, n_bytes, is_shared=is_shared)
            is_new_backlog = outbound.has_backlog and not had_backlog
            if is_new_backlog:
                self._backlogs.note(outbound)
            is_new = is_new_backlog or bool(self._streams_watch.changed)
            is_delivered = outbound.is_delivered and not isinstance(payload, Steady | Versioned)
        if is_new and not is_owner:
            self.wake()  # so that the owner serves it
        return is_delivered

    @override
    def memory(self, n_bytes: int) -> npt.NDArray[np.uint8] | None:
        if self._links.rendezvous is None or len(self._regions) >= MAX_REGIONS:
            return None
        try:
            self._regions.append(Region(n_bytes))
        except (OSError, ValueError):
            return None
        return self._regions[-1].memory

    def _place_of(self, payload: Steady | Versioned, n_bytes: int) -> tuple[int, Region, int] | None:
        """Returns the region of a payload that is not copied, and its offset there."""
        if n_bytes > INLINE_BYTES:
            for number, region in enumerate(self._regions):
                offset = region.offset_of(payload.numbers)
                if offset is not None:
                    return number, region, offset
        return None

    @override
    def receive(self, timeout_s: float) -> list[Received]:
        self._check_open()
        self._owner = threading.get_ident()
        if self._polled_by is not None:
            return self._take_held()
        deadline = time.monotonic() + timeout_s
        arrived: list[Received] = []
        left_s = timeout_s
        while True:
            wait_s = min(left_s, CHECK_S)
            woken = self._poll(max(0, math.ceil(wait_s * 1000)), arrived)
            if arrived or woken:
                return arrived
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return arrived

    @override
    def wake(self) -> None:
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    @override
    def close(self) -> None:
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        for name in list(self._outbound):
            self.disconnect(name)
        self._inbound.replace(())
        if self._polled_by is not None:
            self._polled_by._beside.remove(self)
            for source in (self._inbox, self._zap, self._wake_fd):
                self._poller.unregister(source)
        self._links.close()
        while self._regions:
            self._regions.pop().close()
        self._sockets.close()

    def _poll(self, wait_ms: int, arrived: list[Received]) -> bool:
        """Waits until there is work, does all of it, and returns whether `wake` was called."""
        woken = False
        self._serve_peers(time.monotonic())
        for source, _ in self._poller.poll(wait_ms):
            if source == self._wake_fd:
                os.eventfd_read(self._wake_fd)
                woken = True
            elif not self._serve(source, arrived) and self._beside:
                for other in self._beside:
                    other._serve(source, other._held)
                woken = True  # also for a backlog of the other, which its owner flushes
        self._report_misbehaviour(arrived)
        return woken

    def _report_misbehaviour(self, arrived: list[Received]) -> None:
        if self._misbehaviour:
            arrived += self._misbehaviour
            self._misbehaviour.clear()

    def _take_held(self) -> list[Received]:
        """Returns what the poll of the other mailbox has found, and serves this one's peers."""
        self._serve_peers(time.monotonic())
        found, self._held = self._held, []
        self._report_misbehaviour(found)
        return found

    def _serve_peers(self, now: float) -> None:
        """Does what is due for peers: acknowledgements, checks of connections, backlogs."""
        if now >= self._acks_due_at:
            self._request_acks(now)
        if now >= self._guard.next_check:
            self._guard.check(now)
            self._links.sweep()
        if self._backlogs:
            with self._outbound_lock:
                self._backlogs.serve()
        if self._streams_watch.changed:
            with self._outbound_lock:
                self._streams_watch.update()

    def _serve(self, source: object, arrived: list[Received]) -> bool:
        """Takes what has come from a source of the poll; False if that is not this mailbox's."""
        key = self._links.sender_at(source)
        if key is not None:
            arrived += self._inbound.poll_link(key)
            if self._streams_watch.connecting:
                self._streams_watch.look(source)
        elif source in self._streams_watch:
            self._serve_stream(source)
        elif source is self._inbox:
            self._drain(arrived)
        elif source is self._zap:
            self._authenticator.serve()
        else:
            return False
        return True

    def _drain(self, arrived: list[Received]) -> None:
        for _ in range(_MAX_DRAINED):
            try:
                frame = self._inbox.recv(zmq.NOBLOCK, copy=False)
                frames = [frame.buffer]
                more = frame.more
                while more:
                    following = self._inbox.recv(zmq.NOBLOCK, copy=False)
                    more = following.more
                    if len(frames) < 3:  # the third shows that there are too many; the rest is dropped
                        frames.append(following.buffer)
            except zmq.Again:
                return
            key = _key_of(frame)
            if self._guard.watches_messages:
                self._guard.delivered(frame.get(zmq.SRCFD), key or "")
            self._links.frame = frame
            arrived += self._inbound.accept(key, frames)
            if key not in self._inbound:
                self._guard.cut(frame.get(zmq.SRCFD))

    def _send_ack(self, name: str, incarnation: int, ack: Ack) -> bool:
        """Acknowledges messages, if this incarnation of the sender is connected."""
        with self._outbound_lock:
            outbound = self._outbound.get(name)
            if outbound is None or outbound.peer.incarnation != incarnation:
                return False
            outbound.send_control(ack)
            self._backlogs.note(outbound)
            return True

    def _on_ack(self, name: str, incarnation: int, ack: Ack) -> None:
        with self._outbound_lock:
            outbound = self._outbound.get(name)
            if outbound is not None and outbound.peer.incarnation == incarnation:
                outbound.on_ack(ack, time.monotonic())
                self._backlogs.note(outbound)

    def _request_acks(self, now: float) -> None:
        """Asks the peers whose acknowledgements are overdue."""
        self._acks_due_at = now + ACK_TIMEOUT_S / 4
        with self._outbound_lock:
            for outbound in self._outbound.values():
                outbound.request_ack_when_due(now)
                self._end_stream_if_broken(outbound, now)
                self._backlogs.note(outbound)

    def _serve_stream(self, descriptor: object) -> None:
        with self._outbound_lock:
            outbound = self._streams_watch[descriptor]
            self._end_stream_if_broken(outbound, time.monotonic())
            outbound.flush()
            self._backlogs.note(outbound)

    def _end_stream_if_broken(self, outbound: OutboundConnection, now: float) -> None:
        """Serves the stream link; what a broken one has lost is sent again."""
        link = outbound.stream_link
        if link is not None and link.serve(now):
            outbound.send_again(now)

    def _count_refused(self) -> None:
        self.counters.refused_handshakes += 1

    def _count_cut(self, key: str) -> None:
        self.counters.cut_connections += 1
        self._misbehaviour += self._inbound.misbehaved(
            key, f"a message without end, of which {MAX_UNDELIVERED_BYTES >> 20} MiB have come"
        )

    def _note_storm(self, key: str) -> None:
        self._misbehaviour += self._inbound.misbehaved(key, "a storm of connections")


def _key_of(frame: zmq.Frame) -> str | None:
    """Returns the authenticated key of this frame's connection."""
    try:
        return str(frame.get("User-Id"))
    except (zmq.ZMQError, UnicodeDecodeError):
        return None
