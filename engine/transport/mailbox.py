"""The interface through which a host talks: one inbox, and one way out to each peer.

A runtime knows only this; ZeroMQ, threads of one process and the simulator are behind it. Nothing here knows
what a message means.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message, Peer
from partita.engine.transport.counters import Counters
from partita.engine.transport.payload import PayloadLike

MAX_PAYLOAD = 1 << 30
"""The largest payload of one message (bytes), unless a mailbox is told otherwise."""


class PeerStalled(RuntimeError):
    """A peer takes no more, and what waits for it has reached its bound. `Mailbox.renew` drops that.

    Attributes:
        peer: the name of the host.
        since: when it last took something (seconds, `time.monotonic`).
        n_bytes: what is waiting for it.
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
    """One host's messages, in and out.

    A mailbox belongs to one thread: only `send` and `wake` may be called by others. Its owner must call
    `receive` regularly, because handshakes are answered and waiting messages leave only there (and in its own
    later sends).

    From one sender, messages arrive in the order of sending, each once, as long as both processes live and
    each is connected to the other: what a broken connection loses is sent again. Without a way back, or after
    `disconnect`, messages may be lost. Between senders there is no order.
    """

    counters: Counters

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Where peers reach this mailbox, as in `tcp://127.0.0.1:40521`."""

    @property
    @abstractmethod
    def public_key(self) -> str:
        """The key by which peers know this mailbox (Z85 text)."""

    @abstractmethod
    def connect(self, peer: Peer) -> None:
        """Opens the way to a peer, which need not be there yet; messages wait for it.

        An older incarnation of the same name is replaced, and what still waited for that one is dropped.
        The peer that is already connected stays so, and an older one than that is ignored: a late directory
        does no harm.

        Raises:
            ValueError: the endpoint or the key cannot be one.
        """

    @abstractmethod
    def disconnect(self, name: str) -> None:
        """Closes the way to a peer and drops what waits for it. Does nothing if there is none.

        What is on its way at this moment may still arrive.
        """

    @abstractmethod
    def renew(self, name: str) -> None:
        """Closes the way to a peer that takes nothing, drops what waits for it, and opens the way anew.

        Does nothing if there is none.
        """

    @abstractmethod
    def allow(self, peers: Iterable[Peer]) -> None:
        """From now on exactly these may send here; who they are is read from their keys (endpoints do not
        matter).

        A key that is no longer listed is out at once: nothing more is delivered from it, also on
        connections that it has open, and a message of which only a part has arrived is dropped. Who is not
        listed yet, or no longer, may try until it is, and loses nothing by that.

        Raises:
            ValueError: two peers have the same key.
        """

    @abstractmethod
    def send(self, to: str, message: Message, payload: PayloadLike = None) -> None:
        """Sends a message, with a payload or without. Never blocks. Safe from every thread.

        Args:
            to: the name of a connected peer.
            message: what to say.
            payload: C-contiguous buffers, sent one after another. Copied before this returns.

        Raises:
            UnknownPeer: nobody of this name is connected.
            PeerStalled: the peer has a backlog, and this message would take it beyond its bound.
            ValueError: the message or its payload is larger than this mailbox may send, or not contiguous.
        """

    @abstractmethod
    def receive(self, timeout_s: float) -> list[Received]:
        """The messages that have arrived, at least one unless the time is over or `wake` was called.

        The `payload` of each is a `Payload`, or None where the sender gave none. Whatever strangers or broken
        peers send is dropped and counted, and raises nothing here.

        Args:
            timeout_s: how long to wait for the first (seconds; 0 looks once).
        """

    @abstractmethod
    def wake(self) -> None:
        """Lets a `receive` that is going on, or else the next one, return at once. Safe from every thread."""

    @abstractmethod
    def close(self) -> None:
        """Closes everything at once and drops what still waits. May be called again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
