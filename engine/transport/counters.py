"""What a mailbox has carried and what it has turned away, as numbers that tests and reports compare with a
plan.

The mailbox writes, one thread at a time; other threads may read and see numbers a moment old.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from partita.engine.protocol.messages import Malformed, Message


@dataclass(slots=True)
class Count:
    """Messages, and the bytes of their payloads (headers are not counted)."""

    messages: int = 0
    payload_bytes: int = 0

    def add(self, n_bytes: int) -> None:
        """One more message."""
        self.messages += 1
        self.payload_bytes += n_bytes


Counts = defaultdict[tuple[str, str], Count]
"""By (name of the other host, kind of message), as in `("part 0.1", "Tensor")`."""


def _empty() -> Counts:
    return defaultdict(Count)


@dataclass(slots=True)
class Counters:
    """The counters of one mailbox.

    Attributes:
        sent: messages that `send` accepted, whether or not they have left by now.
        received: messages that `receive` returned.
        sent_shared, received_shared: those of them whose payload lay in memory that both hosts share; all
            other payloads went through the socket.
        refused_handshakes: times that somebody without a listed key asked to be let in.
        refused_messages: frames that arrived on a live connection whose key is no longer listed; and messages
            that the host turned away, because it was not for their sender to say that.
        cut_connections: those that held more than a connection may without giving out a message, or of which
            there were too many at once.
        malformed: frames dropped because they were no part of a message, and messages that were never
            finished.
    """

    sent: Counts = field(default_factory=_empty)
    received: Counts = field(default_factory=_empty)
    sent_shared: Count = field(default_factory=Count)
    received_shared: Count = field(default_factory=Count)
    refused_handshakes: int = 0
    refused_messages: int = 0
    cut_connections: int = 0
    malformed: int = 0

    def note_sent(self, to: str, message: Message, n_bytes: int, *, is_shared: bool = False) -> None:
        """Counts an accepted message."""
        self.sent[to, type(message).__name__].add(n_bytes)
        if is_shared:
            self.sent_shared.add(n_bytes)

    def note_received(
        self, sender: str, message: Message | Malformed, n_bytes: int, *, is_shared: bool = False
    ) -> None:
        """Counts a delivered message."""
        self.received[sender, type(message).__name__].add(n_bytes)
        if is_shared:
            self.received_shared.add(n_bytes)

    def sent_of(self, kind: str) -> Count:
        """The sum over all receivers of the sent messages of a kind, as in `sent_of("Tensor")`."""
        return _total(self.sent, kind)

    def received_of(self, kind: str) -> Count:
        """The sum over all senders of the received messages of a kind."""
        return _total(self.received, kind)


def _total(counts: Counts, kind: str) -> Count:
    # In one go, because another thread may add a kind of message meanwhile.
    chosen = [count for (_, of_kind), count in list(counts.items()) if of_kind == kind]
    return Count(sum(c.messages for c in chosen), sum(c.payload_bytes for c in chosen))
