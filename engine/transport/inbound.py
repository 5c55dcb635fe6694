"""Authorised senders of a mailbox, by key, and the reassembly of their messages.

A sender's identity is the authenticated key that the transport passes in, never a field of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Malformed, Peer
from partita.engine.transport.counters import Counters
from partita.engine.transport.reassembly import Delivered, Reassembly
from partita.engine.transport.shared_link import SharedLinkReceiver
from partita.engine.transport.shared_region import RegionReader
from partita.engine.transport.stream_receiver import StreamReceiver
from partita.engine.transport.wire import Ack, LinkOffer, RegionOffer, StreamOffer

_MAX_REMOVED: Final = 256


@dataclass(eq=False)
class InboundConnections:
    """Authorised keys and what arrives from each; no key is authorised at first.

    Senders on the same `machine` (see `Peer`) may use shared memory: `accept_link` opens the link that a
    sender, given by key, offers, and `accept_region` memory of it; `accept_stream` opens a stream link to any
    sender. `send_ack` and `on_ack` exchange acknowledgements with a sender, given by name and incarnation;
    `send_ack` returns False if it is not connected.
    """

    counters: Counters
    max_payload: int = field(kw_only=True)
    machine: str = field(default="", kw_only=True)
    accept_link: Callable[[str, LinkOffer], SharedLinkReceiver | None] = lambda key, offer: None
    accept_region: Callable[[RegionOffer], RegionReader | None] = lambda offer: None
    accept_stream: Callable[[str, StreamOffer], StreamReceiver | None] = lambda key, offer: None
    send_ack: Callable[[str, int, Ack], bool] = lambda name, incarnation, ack: False
    on_ack: Callable[[str, int, Ack], None] = lambda name, incarnation, ack: None

    def __post_init__(self) -> None:
        self._by_key: dict[str, tuple[Peer, Reassembly]] = {}
        self._removed: dict[str, int] = {}  # next message numbers of recently removed senders, by key

    def replace(self, peers: Iterable[Peer]) -> None:
        """Authorises exactly these peers; only unchanged ones keep their unfinished message.

        Raises:
            ValueError: two peers have the same key; nothing is changed.
        """
        by_key: dict[str, tuple[Peer, Reassembly]] = {}
        for peer in peers:
            key = peer.public_key
            if key in by_key:
                raise ValueError(
                    f"'{peer.name}' and '{by_key[key][0].name}' have the same key; "
                    "a key says who sends, so give every host one of its own"
                )
            known = self._by_key.get(key)
            if known is None:
                by_key[key] = peer, self._new(peer, self._removed.get(key, 0))
            elif _identity(known[0]) == _identity(peer):
                by_key[key] = known
            else:
                by_key[key] = peer, self._new(peer, known[1].following)
        before, self._by_key = self._by_key, by_key
        for key, sender in before.items():
            if by_key.get(key) is not sender:
                sender[1].close()
                if key not in by_key:
                    self._removed[key] = sender[1].following
        while len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def _new(self, peer: Peer, following: int) -> Reassembly:
        shares_memory = bool(self.machine) and peer.machine == self.machine
        return Reassembly(
            max_payload=self.max_payload,
            following=following,
            accept=partial(self._accept, peer.public_key, shares_memory),
            accept_region=self.accept_region if shares_memory else lambda offer: None,
            send_ack=partial(self.send_ack, peer.name, peer.incarnation),
            on_ack=partial(self.on_ack, peer.name, peer.incarnation),
        )

    def _accept(
        self, key: str, shares_memory: bool, offer: LinkOffer | StreamOffer
    ) -> SharedLinkReceiver | StreamReceiver | None:
        if isinstance(offer, StreamOffer):
            return self.accept_stream(key, offer)
        return self.accept_link(key, offer) if shares_memory else None

    def __contains__(self, key: str | None) -> bool:
        return key in self._by_key

    @property
    def peers(self) -> Iterable[Peer]:
        """Those whose keys are authorised now."""
        return (peer for peer, _ in self._by_key.values())

    def misbehaved(self, key: str, reason: str) -> list[Received]:
        """Returns what the owner of the mailbox receives of a sender that misuses its connections."""
        sender = self._by_key.get(key)
        if sender is None:
            return []
        self.counters.malformed += 1
        return [Received(sender[0].name, sender[0].incarnation, Malformed(reason))]

    def accept(self, key: str | None, frames: Sequence[memoryview]) -> list[Received]:
        """Returns the messages that the frames of one ZeroMQ message complete, if their sender is authorised.

        `key` is the authenticated key of the connection; None if it has none. Never raises.
        """
        sender = None if key is None else self._by_key.get(key)
        if sender is None:
            self.counters.refused_messages += 1
            return []
        peer, reassembly = sender
        malformed = reassembly.malformed
        return self._count(peer, reassembly, reassembly.add(frames), malformed)

    def poll_link(self, key: str) -> list[Received]:
        """Returns the messages on the shared-memory link of a sender, if it is authorised."""
        sender = self._by_key.get(key)
        if sender is None:
            return []
        peer, reassembly = sender
        malformed = reassembly.malformed
        return self._count(peer, reassembly, reassembly.poll_link(), malformed)

    def _count(
        self, peer: Peer, reassembly: Reassembly, delivered: list[Delivered], malformed: int
    ) -> list[Received]:
        """Counts what was delivered, and what was dropped since there were so many malformed ones."""
        received = []
        for message, payload in delivered:
            n_bytes, is_shared = (0, False) if payload is None else (payload.n_bytes, payload.is_shared)
            self.counters.count_received(peer.name, message, n_bytes, is_shared=is_shared)
            received.append(Received(peer.name, peer.incarnation, message, payload))
        self.counters.malformed += reassembly.malformed - malformed
        return received


def _identity(peer: Peer) -> tuple[str, int, str]:
    return peer.name, peer.incarnation, peer.machine
