"""The one place where sockets are made, so that no socket is made without its locks.

Every listening socket is a CURVE server that refuses whoever the authenticator does not know, also while
none is running; every frame has a largest size, every queue a bound, every handshake a time limit, every
connection a heartbeat, and nothing lingers.

Heartbeats come from the listening side alone. Its PING says after how long without another one the connecting
side gives up and connects again. The other way round would not do: a PING lies behind the messages that a
busy receiver has not taken yet, and its connection would be cut for being busy.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
from collections.abc import Iterator

import zmq
from zmq.utils import z85

from partita.engine.protocol.messages import Peer
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.wire import MAX_FRAME_BYTES

LOOPBACK = "tcp://127.0.0.1:*"
"""The default endpoint: this machine only, and any free port."""

ZAP_DOMAIN = b"partita"
ZAP_ENDPOINT = "inproc://zeromq.zap.01"

_MIN_LIBZMQ = (4, 3, 5)
_HIGH_WATER_MARK = 16  # messages per connection and side: with full chunks, 16 MiB
_HANDSHAKE_MS = 1000
_CONNECT_MS = 2000
_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 250
_HEARTBEAT_MS = 1000
_SILENT_MS = 4000  # then the connecting side takes the connection for broken
_UNACKNOWLEDGED_MS = 10_000  # then the kernel of the listening side does
_BACKLOG = 128  # connections that wait to be accepted
_LOOPBACK = re.compile(r"tcp://127\.\d+\.\d+\.\d+:(\*|\d+)", flags=re.ASCII)
_ENDPOINT = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\*|[0-9]{1,5})")


class EndpointUnavailable(OSError):
    """An endpoint on which this process cannot listen."""


def check_library(version: tuple[int, int, int], *, has_curve: bool) -> None:
    """Refuses a libzmq that is too old to be safe, or that cannot encrypt.

    Raises:
        RuntimeError: it is older than 4.3.5 or was built without CURVE.
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
    """Refuses what is not `tcp://HOST:PORT` with a host that peers can reach.

    Raises:
        ValueError: it is another transport, a wildcard host, or (unless listening) has no port.
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
    """Whether only this machine reaches the endpoint."""
    return _LOOPBACK.fullmatch(endpoint) is not None


def local_socket() -> socket.socket:
    """A Unix socket that keeps packets apart and never blocks: for descriptors on one machine."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def given_socket(descriptor: int) -> socket.socket:
    """A socket that another process has handed over; it owns the descriptor."""
    return socket.socket(fileno=descriptor)


@contextlib.contextmanager
def tcp_view(descriptor: int) -> Iterator[socket.socket]:
    """A TCP connection of libzmq's, which keeps the descriptor, and may close it at any moment.

    Raises:
        OSError: it has, or what is done inside fails.
    """
    view = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)
    try:
        yield view
    finally:
        view.detach()


class SocketFactory:
    """Makes the sockets of one mailbox, with its keys, in a ZeroMQ context of its own.

    Raises:
        RuntimeError: the ZeroMQ library is not safe (`check_library`).
    """

    def __init__(self, keys: KeyPair, *, io_threads: int = 1) -> None:
        check_library(zmq.zmq_version_info(), has_curve=bool(zmq.has("curve")))
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)

    def inbox(self, endpoint: str) -> zmq.Socket[bytes]:
        """A PULL socket that listens, as CURVE server. Lets nobody in while no authenticator is running.

        Raises:
            ValueError: this is not an endpoint.
            EndpointUnavailable: it is taken, or not an address of this machine.
        """
        check_endpoint(endpoint, listening=True)
        inbox = self._locked(zmq.PULL, endpoint)
        inbox.curve_server = True
        inbox.zap_domain = ZAP_DOMAIN
        inbox.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        inbox.heartbeat_ivl, inbox.heartbeat_ttl, inbox.heartbeat_timeout = _HEARTBEAT_MS, _SILENT_MS, 0
        inbox.setsockopt(zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS)
        inbox.backlog = _BACKLOG
        try:
            inbox.bind(endpoint)
        except zmq.ZMQError as error:
            inbox.close(linger=0)
            raise EndpointUnavailable(_why_not(endpoint, error)) from error
        return inbox

    def outgoing(self, peer: Peer) -> zmq.Socket[bytes]:
        """A PUSH socket that connects to a peer, as CURVE client; only who has the peer's secret can answer.

        Raises:
            ValueError: the peer's endpoint or key cannot be one.
        """
        check_endpoint(peer.endpoint, listening=False)
        outgoing = self._locked(zmq.PUSH, peer.endpoint)
        try:
            outgoing.curve_serverkey = _checked_key(peer)
            outgoing.connect_timeout = _CONNECT_MS
            outgoing.reconnect_ivl = _RECONNECT_MS
            outgoing.reconnect_ivl_max = _RECONNECT_MAX_MS
            outgoing.connect(peer.endpoint)
        except (zmq.ZMQError, ValueError) as error:
            outgoing.close(linger=0)
            raise ValueError(f"'{peer.name}' cannot be connected at {peer.endpoint}: {error}") from error
        return outgoing

    def authenticator(self) -> zmq.Socket[bytes]:
        """The socket on which libzmq asks, inside this process, whether a key may get in (RFC 27/ZAP)."""
        zap = self._context.socket(zmq.ROUTER)
        zap.linger = 0
        zap.maxmsgsize = MAX_FRAME_BYTES
        zap.bind(ZAP_ENDPOINT)
        return zap

    def events(self, inbox: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
        """The socket on which libzmq says which connections an inbox accepts, and which end."""
        address = "inproc://events"
        inbox.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        events = self._context.socket(zmq.PAIR)
        events.linger = 0
        events.maxmsgsize = MAX_FRAME_BYTES
        events.rcvhwm = 0  # libzmq's own thread would wait for room; an event is a few bytes
        events.connect(address)
        return events

    def close(self) -> None:
        """Closes every socket that was made here, and the context."""
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
    key = peer.public_key
    if not (len(key) == 40 and key.isascii() and all(byte in z85.Z85MAP for byte in key.encode("ascii"))):
        raise ValueError("its public key is not 40 characters of Z85")
    return key.encode("ascii")


def _why_not(endpoint: str, error: zmq.ZMQError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{endpoint} is already in use; choose another port or leave it out"
    return f"this machine cannot listen on {endpoint} ({error.strerror}); choose an address that it has"
