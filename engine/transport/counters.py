"""Counters of a mailbox, for tests and for reports that compare them with a plan.

The mailbox writes, one thread at a time; other threads may read slightly outdated numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from partita.engine.protocol.messages import Malformed, Message


@dataclass(slots=True)
class Count:
    """Number of messages, and bytes of their payloads (without headers)."""

    messages: int = 0
    payload_bytes: int = 0

    def add(self, n_bytes: int) -> None:
        """Counts one message and its bytes."""
        self.messages += 1
        self.payload_bytes += n_bytes


Counts = defaultdict[tuple[str, str], Count]
"""By (name of the other host, kind of message), as in `("part 0.1", "Tensor")`."""


@dataclass(slots=True)
class Counters:
    """Counters of one mailbox.

    Attributes:
        sent: messages that `send` accepted, whether or not they have left.
        received: messages that `receive` returned.
        sent_shared, received_shared: those whose payload was in shared memory.
        refused_handshakes: handshakes with a key that is not authorised.
        refused_messages: frames on an open connection whose key is no longer authorised, and messages that
            the host rejected because their sender has no permission for them.
        cut_connections: connections closed by `ConnectionGuard`.
        malformed: frames dropped because they were no part of a message, and unfinished messages.
    """

    sent: Counts = field(default_factory=lambda: defaultdict(Count))
    received: Counts = field(default_factory=lambda: defaultdict(Count))
    sent_shared: Count = field(default_factory=Count)
    received_shared: Count = field(default_factory=Count)
    refused_handshakes: int = 0
    refused_messages: int = 0
    cut_connections: int = 0
    malformed: int = 0

    def count_sent(self, to: str, message: Message, n_bytes: int, *, is_shared: bool = False) -> None:
        """Counts an accepted message."""
        count = self.sent[to, type(message).__name__]
        count.messages += 1
        count.payload_bytes += n_bytes
        if is_shared:
            self.sent_shared.add(n_bytes)

    def count_received(
        self, sender: str, message: Message | Malformed, n_bytes: int, *, is_shared: bool = False
    ) -> None:
        """Counts a delivered message."""
        count = self.received[sender, type(message).__name__]
        count.messages += 1
        count.payload_bytes += n_bytes
        if is_shared:
            self.received_shared.add(n_bytes)

    def sent_of(self, kind: str) -> Count:
        """Returns the sum over all receivers for a kind of message, as in `sent_of("Tensor")`."""
        return _total(self.sent, kind)

    def received_of(self, kind: str) -> Count:
        """Returns the sum over all senders for a kind of message."""
        return _total(self.received, kind)


def _total(counts: Counts, kind: str) -> Count:
    # `list` copies at once: another thread may add a kind of message meanwhile.
    chosen = [count for (_, of_kind), count in list(counts.items()) if of_kind == kind]
    return Count(sum(c.messages for c in chosen), sum(c.payload_bytes for c in chosen))
