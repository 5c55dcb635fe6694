"""Factory of all sockets, so that none is created without its limits.

Every listening socket of ZeroMQ is a CURVE server that refuses unknown keys, also while no authenticator
runs; frames have a maximum size, queues a bound, handshakes a time limit and connections a heartbeat; nothing
lingers.

Heartbeats come from the listening side alone: its PING contains the time after which the connecting side
gives up and reconnects. The reverse would close the connections of busy receivers, whose unread messages
delay the PING.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import socket
import struct
from collections.abc import Iterator

import zmq

from partita.engine.protocol.messages import Peer
from partita.engine.transport.keys import KeyPair, is_public_key
from partita.engine.transport.wire import MAX_FRAME_BYTES

LOOPBACK = "tcp://127.0.0.1:*"  # default endpoint: this machine only, and any free port
ZAP_DOMAIN = b"partita"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"

ACCEPTED_AND_ENDED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
"""The events of the connections of an inbox that its guard reads."""

EVENT = struct.Struct("=HI")
"""Kind and value of an event."""

_MIN_LIBZMQ = (4, 3, 5)
_HIGH_WATER_MARK = 16  # messages per connection and side: with full chunks, 16 MiB
_HANDSHAKE_MS = 1000
_CONNECT_MS = 2000
_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 250
_HEARTBEAT_MS = 1000
_SILENT_MS = 4000  # without a heartbeat, the connecting side treats the connection as broken
_UNACKNOWLEDGED_MS = 10_000  # without TCP acknowledgements, the listening side does
_BACKLOG = 128  # connections that wait to be accepted
_STREAM_BACKLOG = 8  # of connections to a socket that waits for one peer
_LOOPBACK_HOST = "127.0.0.1"
_OWN_LOOPBACK = f"tcp://{_LOOPBACK_HOST}:"
_LOOPBACK = re.compile(r"tcp://127\.\d+\.\d+\.\d+:(\*|\d+)", flags=re.ASCII)
_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\*|[0-9]{1,5})")


class EndpointUnavailable(OSError):
    """Listening on an endpoint failed."""


def check_library(version: tuple[int, int, int], *, has_curve: bool) -> None:
    """Checks that libzmq is recent enough to be safe, and can encrypt.

    Raises:
        RuntimeError: libzmq is older than 4.3.5 or was built without CURVE.
    """
    found = ".".join(map(str, version))
    if version < _MIN_LIBZMQ:
        raise RuntimeError(
            f"libzmq {found} is older than 4.3.5, the oldest that is safe here; install a newer pyzmq"
        )
    if not has_curve:
        raise RuntimeError(
            f"libzmq {found} was built without CURVE, and nothing is sent in the clear; "
            "install pyzmq from a wheel"
        )


def check_endpoint(endpoint: str, *, listening: bool) -> None:
    """Checks that an endpoint is `tcp://HOST:PORT` with a host that peers can reach.

    Raises:
        ValueError: another transport, a wildcard host, or (unless listening) no port.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or match["host"] in ("0.0.0.0", "[::]") or (match["port"] == "*" and not listening):
        raise ValueError(
            f"'{endpoint}' is not an endpoint; "
            "write tcp://HOST:PORT with the address at which peers reach this host"
        )
    if match["port"] != "*" and not 0 < int(match["port"]) < 65536:
        raise ValueError(f"'{endpoint}' has a port outside 1 to 65535; choose another port or leave it out")


def is_loopback(endpoint: str) -> bool:
    """Returns whether the endpoint is reachable from this machine only."""
    return _LOOPBACK.fullmatch(endpoint) is not None


def loopback_source(public_key: str) -> str:
    """Returns the address of this machine from which a key connects over loopback.

    All of 127.0.0.0/8 is this machine. With an address of its own, a peer is not taken for a stranger before
    its handshake. It proves nothing.
    """
    digest = hashlib.sha256(public_key.encode()).digest()
    return f"127.{digest[0] | 1}.{digest[1]}.{digest[2] | 1}"


def local_socket() -> socket.socket:
    """Returns a non-blocking Unix packet socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def stream_listener(host: str) -> socket.socket:
    """Returns a non-blocking TCP socket that listens at a numeric address, on any free port.

    Raises:
        OSError: this machine cannot.
    """
    listener = socket.socket(_family(host), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind((host, 0))
        listener.listen(_STREAM_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def browser_listener(port: int) -> socket.socket:
    """Returns a TCP socket for a server of pages, bound to loopback; 0 for any free port.

    Browsers know no CURVE: the server itself requires its token of every request.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK_HOST, port))
    except BaseException:
        listener.close()
        raise
    return listener


def stream_connection(host: str, port: int) -> socket.socket:
    """Returns a TCP socket that connects to a numeric address, and is writable once it has.

    Raises:
        OSError: there is no way to it.
    """
    connection = socket.socket(_family(host), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        tune_stream(connection)
        found = connection.connect_ex((host, port))
        if found not in (0, errno.EINPROGRESS):
            raise OSError(found, os.strerror(found))
    except BaseException:
        connection.close()
        raise
    return connection


def tune_stream(connection: socket.socket) -> None:
    """Sends what there is at once, and finds out within about 12 s that the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def given_socket(descriptor: int) -> socket.socket:
    """Returns a socket that owns a descriptor from another process."""
    return socket.socket(fileno=descriptor)


def source_towards(host: str, port: int) -> str:
    """Returns the address of this machine from which it reaches a host; nothing is sent.

    Raises:
        OSError: the host has no address, or no interface leads there.
    """
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(family, kind, protocol) as way:
        way.connect(address)
        return str(way.getsockname()[0])


@contextlib.contextmanager
def tcp_view(descriptor: int) -> Iterator[socket.socket]:
    """Yields a TCP connection of libzmq, which owns the descriptor and may close it at any moment.

    Raises:
        OSError: libzmq has closed it, or an operation on it fails.
    """
    view = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    try:
        yield view
    finally:
        view.detach()


class SocketFactory:
    """Creates the sockets of one mailbox, with its keys, in a ZeroMQ context of its own.

    Raises:
        RuntimeError: the ZeroMQ library is not safe (`check_library`).
    """

    def __init__(self, keys: KeyPair, *, io_threads: int = 1) -> None:
        check_library(zmq.zmq_version_info(), has_curve=bool(zmq.has("curve")))
        self._keys = keys
        self._monitors = 0
        self.listening = -1  # descriptor of the listening socket; libzmq owns it
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)

    def inbox(self, endpoint: str) -> zmq.Socket[bytes]:
        """Returns a listening PULL socket, a CURVE server that admits nobody without an authenticator.

        Raises:
            ValueError: not an endpoint.
            EndpointUnavailable: the endpoint is in use, or not an address of this machine.
        """
        check_endpoint(endpoint, listening=True)
        inbox = self._locked(zmq.PULL, endpoint)
        self._listen(inbox, endpoint)
        return inbox

    def outgoing(self, peer: Peer) -> zmq.Socket[bytes]:
        """Returns a PUSH socket that connects to a peer, as CURVE client.

        Raises:
            ValueError: the peer's endpoint or key is invalid.
        """
        check_endpoint(peer.endpoint, listening=False)
        outgoing = self._locked(zmq.PUSH, peer.endpoint)
        self._connect(outgoing, peer, self.towards(peer))
        return outgoing

    def towards(self, peer: Peer) -> str:
        """Returns the endpoint of a peer as `outgoing` connects to it, with the source over loopback."""
        if not peer.endpoint.startswith(_OWN_LOOPBACK):
            return peer.endpoint
        return f"tcp://{loopback_source(self._keys.public)}:0;{peer.endpoint.removeprefix('tcp://')}"

    def door(self, endpoint: str) -> zmq.Socket[bytes]:
        """Returns a listening ROUTER socket, which answers over the connection of who asks; as `inbox`.

        Raises:
            ValueError: not an endpoint.
            EndpointUnavailable: the endpoint is in use, or not an address of this machine.
        """
        check_endpoint(endpoint, listening=True)
        door = self._locked(zmq.ROUTER, endpoint)
        door.setsockopt(zmq.ROUTER_MANDATORY, 1)  # what cannot be sent is an error
        self._listen(door, endpoint)
        return door

    def visit(self, peer: Peer, kinds: int) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Returns a DEALER socket that connects to a door, as CURVE client, and its `events` of some kinds.

        Errors as `outgoing`. It takes a message only while it is connected: what is sent is repeated by who
        sends it. No event is missed: a door may refuse a key before this returns.
        """
        check_endpoint(peer.endpoint, listening=False)
        visit = self._locked(zmq.DEALER, peer.endpoint)
        visit.setsockopt(zmq.IMMEDIATE, 1)
        events = self.events(visit, kinds)
        self._connect(visit, peer, peer.endpoint)
        return visit, events

    def authenticator(self) -> zmq.Socket[bytes]:
        """Returns the socket of libzmq's requests to admit a key (ZAP, RFC 27)."""
        zap = self._context.socket(zmq.ROUTER)
        zap.linger = 0
        zap.maxmsgsize = MAX_FRAME_BYTES
        zap.bind(ZAP_ENDPOINT)
        return zap

    def events(self, watched: zmq.Socket[bytes], kinds: int = ACCEPTED_AND_ENDED) -> zmq.Socket[bytes]:
        """Returns the socket on which libzmq reports some kinds of events of the connections of a socket."""
        self._monitors += 1
        address = f"inproc://events-{self._monitors}"
        watched.monitor(address, kinds)
        events = self._context.socket(zmq.PAIR)
        events.linger = 0
        events.maxmsgsize = MAX_FRAME_BYTES
        events.rcvhwm = 0  # a bound would block libzmq's own thread; an event is a few bytes
        events.connect(address)
        return events

    def _listen(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        socket.curve_server = True
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.heartbeat_ivl, socket.heartbeat_ttl, socket.heartbeat_timeout = _HEARTBEAT_MS, _SILENT_MS, 0
        socket.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS)
        socket.backlog = _BACKLOG
        events = self.events(socket, zmq.EVENT_LISTENING)
        try:
            socket.bind(endpoint)
            self.listening = EVENT.unpack(events.recv_multipart()[0])[1]
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise EndpointUnavailable(_why_not(endpoint, error)) from error
        finally:
            if not socket.closed:
                socket.disable_monitor()
            events.close(linger=0)

    def _connect(self, socket: zmq.Socket[bytes], peer: Peer, endpoint: str) -> None:
        try:
            socket.curve_serverkey = _checked_key(peer)
            socket.connect_timeout = _CONNECT_MS
            socket.reconnect_ivl = _RECONNECT_MS
            socket.reconnect_ivl_max = _RECONNECT_MAX_MS
            socket.connect(endpoint)
        except (zmq.ZMQError, ValueError) as error:
            socket.close(linger=0)
            raise ValueError(f"'{peer.name}' cannot be connected at {peer.endpoint}: {error}") from error

    def close(self) -> None:
        """Closes every socket of this factory, and the context."""
        self._context.destroy(linger=0)

    def _locked(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.maxmsgsize = MAX_FRAME_BYTES
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.sndhwm = socket.rcvhwm = _HIGH_WATER_MARK
        socket.ipv6 = "[" in endpoint
        socket.curve_publickey = self._keys.public.encode("ascii")
        socket.curve_secretkey = self._keys.secret.encode("ascii")
        return socket


def _checked_key(peer: Peer) -> bytes:
    if not is_public_key(peer.public_key):
        raise ValueError("its public key is not 40 characters of Z85")
    return peer.public_key.encode("ascii")


def _why_not(endpoint: str, error: zmq.ZMQError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{endpoint} is already in use; choose another port or leave it out"
    return f"this machine cannot listen on {endpoint} ({error.strerror}); choose an address that it has"
