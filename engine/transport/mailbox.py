"""Interface of a host's mailbox: one inbox, and one outbound connection to each peer.

The runtime knows only this interface; ZeroMQ and queues between threads implement it. This module does not
know what a message means.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.counters import Counters
from partita.engine.transport.payload import PayloadLike

MAX_PAYLOAD = 1 << 30  # default for the largest payload of one message (bytes)


class PeerStalled(RuntimeError):
    """A peer takes no more, and its backlog has reached the bound. `Mailbox.reconnect` drops the backlog.

    Attributes:
        peer: name of the host.
        since: when it last took something (seconds, `time.monotonic`).
        n_bytes: size of the backlog.
    """

    def __init__(self, peer: str, *, since: float, n_bytes: int) -> None:
        super().__init__(
            f"'{peer}' took nothing for {time.monotonic() - since:.1f} s and {n_bytes} bytes wait for it, "
            "so no more may wait; disconnect it, or see why it does not receive"
        )
        self.peer = peer
        self.since = since
        self.n_bytes = n_bytes


class UnknownPeer(LookupError):
    """A message was addressed to a host that is not connected."""

    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' is not connected; call connect() with its Peer before sending to it")
        self.name = name


class MailboxClosed(RuntimeError):
    """The mailbox was used after `close`."""

    def __init__(self) -> None:
        super().__init__("this mailbox is closed; open another one")


class Mailbox(ABC):
    """Sends and receives the messages of one host.

    A mailbox belongs to one thread; others may call only `send` and `wake`. Its owner must call `receive`
    regularly: handshakes are answered and backlogs sent only there (and in the owner's own sends).

    Messages of one sender arrive in order and once, as long as both processes live and are connected to each
    other: what a broken connection loses is sent again. Without a connection back, or after `disconnect`,
    messages may be lost. Messages of several senders have no order.

    Attributes:
        endpoint: where peers reach this mailbox, as in `tcp://127.0.0.1:40521`.
        public_key: key by which peers know this mailbox (Z85 text).
        counters: of its messages.
    """

    def __init__(self, endpoint: str, public_key: str) -> None:
        self.endpoint = endpoint
        self.public_key = public_key
        self.counters = Counters()
        self._closed = False
        self._outbound: dict[str, Any] = {}  # connections by name of the peer, each with its `peer`

    def connect(self, peer: Peer) -> None:
        """Opens the connection to a peer, which need not exist yet; messages wait for it.

        An older incarnation of the same name is replaced, and its backlog dropped. Nothing changes where the
        peer, or a newer incarnation, is connected: a delayed directory does no harm.

        Raises:
            ValueError: the endpoint or the key is invalid.
        """
        self._check_open()
        present = self._outbound.get(peer.name)
        if present is not None and (present.peer == peer or present.peer.incarnation > peer.incarnation):
            return
        opened = self._open(peer)
        self.disconnect(peer.name)
        self._outbound[peer.name] = opened

    @abstractmethod
    def _open(self, peer: Peer) -> Any:
        """Returns a new connection to a peer, as `connect`."""

    @abstractmethod
    def disconnect(self, name: str) -> None:
        """Closes the connection to a peer, if there is one, and drops its backlog.

        Frames in flight may still arrive.
        """

    def reconnect(self, name: str) -> None:
        """Replaces the connection to a peer, if there is one, and drops its backlog."""
        present = self._outbound.get(name)
        if present is not None:
            self.disconnect(name)
            self.connect(present.peer)

    @abstractmethod
    def allow(self, peers: Iterable[Peer]) -> None:
        """Authorises exactly these peers as senders, by their keys (endpoints do not matter).

        A removed key is out at once: nothing more is delivered from it, also on open connections, and its
        unfinished message is dropped. Peers that are not authorised yet may retry and lose nothing.

        Raises:
            ValueError: two peers have the same key.
        """

    @abstractmethod
    def send(self, to: str, message: Message, payload: PayloadLike = None) -> bool:
        """Sends a message with an optional payload. Never blocks; safe from every thread.

        Args:
            to: name of a connected peer.
            message: to be sent.
            payload: C-contiguous buffers, sent one after another. Copied before this returns, unless it is
                `Steady` or `Versioned`.

        Returns:
            Whether the peer has the message and all before it, as long as it lives: they are in memory that
            it has mapped, and in a queue of the system. Even if this process dies, the peer receives them
            before any message that was sent after that death (see `Host.turn`). Not so for a payload that is
            `Steady` or `Versioned`.

        Raises:
            UnknownPeer: no peer of this name is connected.
            PeerStalled: the message would take the peer's backlog beyond its bound.
            ValueError: the message or its payload is too large, or not contiguous.
        """

    def memory(self, n_bytes: int) -> npt.NDArray[np.uint8] | None:
        """Returns zeros, uint8 `[n_bytes]`, in which peers of this machine can read a `Steady` or `Versioned`
        payload where it lies.

        None where there is none of this size: then any other memory does, and its payloads are copied.
        """
        return None

    @abstractmethod
    def receive(self, timeout_s: float) -> list[Received]:
        """Returns the messages that have arrived: at least one, unless time is up or `wake` was called.

        The `payload` of each is a `Payload`, or None where the sender gave none. Invalid messages and those
        of unauthorised senders are dropped and counted.

        Args:
            timeout_s: how long to wait for the first (seconds; 0 does not wait).
        """

    @abstractmethod
    def wake(self) -> None:
        """Makes the current `receive`, or else the next one, return at once. Safe from every thread."""

    @abstractmethod
    def close(self) -> None:
        """Closes every connection and drops the backlogs. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise MailboxClosed
