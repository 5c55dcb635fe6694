"""Who may send to a mailbox, known by key, and the message that each of them is in the middle of.

Identity comes from the authenticated key that the transport hands in, never from a field of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Peer
from partita.engine.transport.assembly import Assembly, Complete, refused, unanswered, unheeded
from partita.engine.transport.counters import Counters
from partita.engine.transport.neighbour import FromNeighbour
from partita.engine.transport.wire import Got, Offer

_MOST_LEFT: Final = 256


@dataclass(frozen=True, slots=True)
class _Sender:
    name: str
    incarnation: int
    machine: str
    assembly: Assembly

    def is_still(self, peer: Peer) -> bool:
        """Whether nothing has changed."""
        return (self.name, self.incarnation, self.machine) == (peer.name, peer.incarnation, peer.machine)


class Senders:
    """The listed keys. Nobody is listed at first.

    Args:
        counters: of the mailbox.
        max_payload: the largest that is taken (bytes).
        machine: of this host, see `Peer`; those on the same one may come on a near way.
        accept: opens the way that such a sender (its key) offers.
        answer: sends an acknowledgement to a sender, known by name and incarnation; False where that is
            not connected.
        heed: takes in an acknowledgement that a sender has sent.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        max_payload: int,
        machine: str = "",
        accept: Callable[[str, Offer], FromNeighbour | None] | None = None,
        answer: Callable[[str, int, Got], bool] | None = None,
        heed: Callable[[str, int, Got], None] | None = None,
    ) -> None:
        self._counters = counters
        self._max_payload = max_payload
        self._machine = machine
        self._accept, self._answer, self._heed = accept, answer, heed
        self._by_key: dict[str, _Sender] = {}
        self._left: dict[str, int] = {}  # the next numbers of those that were listed last, by key

    def replace(self, peers: Iterable[Peer]) -> None:
        """Lists exactly these. Who stays goes on in the middle of its message; who goes loses it.

        Raises:
            ValueError: two peers have the same key. Nothing is changed then.
        """
        by_key: dict[str, _Sender] = {}
        for peer in peers:
            if peer.public_key in by_key:
                raise ValueError(
                    f"'{peer.name}' and '{by_key[peer.public_key].name}' have the same key; "
                    "a key says who sends, so give every host one of its own"
                )
            known = self._by_key.get(peer.public_key)
            stays = known is not None and known.is_still(peer)
            following = self._left.get(peer.public_key, 0) if known is None else known.assembly.following
            by_key[peer.public_key] = known if known is not None and stays else self._new(peer, following)
        before, self._by_key = self._by_key, by_key
        for key, sender in before.items():
            if by_key.get(key) is not sender:
                sender.assembly.close()
                if key not in by_key:
                    self._left[key] = sender.assembly.following
        while len(self._left) > _MOST_LEFT:
            del self._left[next(iter(self._left))]

    def _new(self, peer: Peer, following: int) -> _Sender:
        is_near = self._accept is not None and self._machine and peer.machine == self._machine
        accept = partial(self._accept, peer.public_key) if self._accept is not None and is_near else refused
        me = peer.name, peer.incarnation
        assembly = Assembly(
            max_payload=self._max_payload,
            following=following,
            accept=accept,
            answer=unanswered if self._answer is None else partial(self._answer, *me),
            heed=unheeded if self._heed is None else partial(self._heed, *me),
        )
        return _Sender(peer.name, peer.incarnation, peer.machine, assembly)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def accept(self, key: str | None, frames: Sequence[memoryview]) -> list[Received]:
        """The messages that these frames complete, if their sender is listed. Never raises because of its
        arguments.

        Args:
            key: the authenticated key of the connection they came on (None: it has none).
            frames: the frames of one ZeroMQ message.
        """
        sender = None if key is None else self._by_key.get(key)
        if sender is None:
            self._counters.refused_messages += 1
            return []
        return self._noted(sender, lambda: sender.assembly.add(frames))

    def look(self, key: str) -> list[Received]:
        """The messages that have arrived on the near way from a sender, if it is listed."""
        sender = self._by_key.get(key)
        return [] if sender is None else self._noted(sender, sender.assembly.look)

    def _noted(self, sender: _Sender, assemble: Callable[[], list[Complete]]) -> list[Received]:
        malformed = sender.assembly.malformed
        received = []
        for message, payload in assemble():
            n_bytes, is_shared = (0, False) if payload is None else (payload.n_bytes, payload.is_shared)
            self._counters.note_received(sender.name, message, n_bytes, is_shared=is_shared)
            received.append(Received(sender.name, sender.incarnation, message, payload))
        self._counters.malformed += sender.assembly.malformed - malformed
        return received
