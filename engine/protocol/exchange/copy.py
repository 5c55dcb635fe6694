"""Copies of named vectors from one member to others, when they join a view or are behind.

The receiver asks for every piece, a few of them ahead; the source keeps no state and answers as long as it
exists. So nothing piles up, and a loss costs one repeated request. The source's vectors must stay as they are
until the receivers are done: in training, they do until the first exchange of the view is, which needs the
contributions of the receivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.events import Received, Refuse, Send, Span, payload_bytes
from partita.engine.protocol.exchange.exchange import (
    CopyChunk,
    ExchangeDone,
    ExchangeEffect,
    ExchangeEvent,
    pieces_of,
    ranges_of,
)
from partita.engine.protocol.exchange.group import CHUNK_BYTES, Group, Numbers
from partita.engine.protocol.replica_messages import ChunkRequest, FinalChunk
from partita.engine.protocol.retry import PendingRequest

AHEAD: Final = 16
"""Pieces that a receiver has asked for and not got yet."""


def _pieces(spans: Sequence[Span], item_bytes: int) -> list[tuple[Span, int]]:
    """The pieces of the spans, one span after the other, each with its size in bytes."""
    return [
        (Span(span.vector, span.start + start, span.start + stop), (stop - start) * item_bytes)
        for span in spans
        for start, stop in Numbers(span.stop - span.start, item_bytes, CHUNK_BYTES).pieces(0, 1)
    ]


class CopySource:
    """The member whose vectors are copied.

    Attributes:
        pieces_sent: number of answers, repeated ones included.
    """

    def __init__(self, group: Group, spans: Sequence[Span], *, number: int = 0, item_bytes: int = 4) -> None:
        """Creates a source, whose vectors can be asked for from now on.

        Args:
            group: the members that may ask.
            spans: of this host's vectors; of the same lengths on all hosts.
            number: of the copy; the same on all hosts.
            item_bytes: bytes of a number.
        """
        self.pieces_sent = 0
        self._group, self._number, self._pieces = group, number, _pieces(spans, item_bytes)

    def receive(self, event: ExchangeEvent, now: float) -> list[ExchangeEffect]:
        """Returns the effects of an event, in order."""
        if not isinstance(event, Received):
            return []
        message = event.message
        if not isinstance(message, ChunkRequest):
            return [Refuse(event.sender, f"the source of a copy does not take a {type(message).__name__}")]
        group = self._group
        if (message.view, message.exchange, message.number) != (group.view, group.exchange, self._number):
            return []
        reason = group.rejection_reason(event.sender, event.incarnation)
        if reason is not None:
            return [Refuse(event.sender, reason)]
        wanted = pieces_of(message.final, len(self._pieces))
        self.pieces_sent += len(wanted)
        return [
            Send(
                event.sender,
                FinalChunk(group.view, group.exchange, self._number, piece),
                self._pieces[piece][0],
            )
            for piece in wanted
        ]


class CopyTarget:
    """A member that gets the vectors of another one, the `source`."""

    def __init__(
        self,
        group: Group,
        source: str,
        spans: Sequence[Span],
        *,
        number: int = 0,
        item_bytes: int = 4,
        retry_s: float = 1.0,
    ) -> None:
        """Creates a receiver that has not begun.

        Args:
            group: of the copy; `source` is a member.
            source: name of the member that has the vectors.
            spans: of this host's vectors; of the same lengths on all hosts.
            number: of the copy; the same on all hosts.
            item_bytes: bytes of a number.
            retry_s: seconds without a piece after which missing ones are asked for again.
        """
        assert source in group.ranks and source != group.me, source
        self.source: Final = source
        self._group, self._number = group, number
        self._pieces, self._retry_s = _pieces(spans, item_bytes), retry_s
        self._have = bytearray(len(self._pieces))
        self._asked = 0  # pieces below were asked for
        self._lacking = len(self._pieces)
        self._waiting: PendingRequest[int] | None = None

    @property
    def under_way(self) -> bool:
        """Returns whether the copy has begun and is not complete."""
        return self._waiting is not None

    def begin(self, now: float) -> list[ExchangeEffect]:
        """Begins the copy at `now` (seconds, the host's monotonic clock)."""
        self._waiting = PendingRequest(self._number, now)
        effects: list[ExchangeEffect] = []
        self._advance(effects)
        return effects

    def receive(self, event: ExchangeEvent, now: float) -> list[ExchangeEffect]:
        """Returns the effects of an event at `now`, in order."""
        effects: list[ExchangeEffect] = []
        waiting = self._waiting
        if isinstance(event, Received):
            reason = self._rejection_reason(event)
            if reason is not None:
                effects.append(Refuse(event.sender, reason))
            elif waiting is not None and self._is_new(event.message):
                assert isinstance(event.message, FinalChunk)
                waiting.restart(now)
                self._have[event.message.piece] = 1
                self._lacking -= 1
                effects.append(CopyChunk(self._pieces[event.message.piece][0], event.payload))
                self._advance(effects)
        elif waiting is not None and waiting.retry(now, self._retry_s):
            effects.append(self._request([piece for piece in range(self._asked) if not self._have[piece]]))
        return effects

    def _is_new(self, message: object) -> bool:
        group = self._group
        return (
            isinstance(message, FinalChunk)
            and (message.view, message.exchange, message.number) == (group.view, group.exchange, self._number)
            and not self._have[message.piece]
        )

    def _rejection_reason(self, event: Received) -> str | None:
        message = event.message
        if not isinstance(message, FinalChunk):
            return f"a copy does not take a {type(message).__name__}"
        if (message.view, message.exchange, message.number) != (
            self._group.view,
            self._group.exchange,
            self._number,
        ):
            return None  # late, and without effect
        reason = self._group.rejection_reason(event.sender, event.incarnation)
        if reason is None and event.sender != self.source:
            reason = f"'{self.source}' is the source of this copy"
        if reason is None and message.piece >= len(self._pieces):
            reason = f"piece {message.piece} of a copy of {len(self._pieces)}"
        if reason is None and payload_bytes(event.payload) != self._pieces[message.piece][1]:
            expected = self._pieces[message.piece][1]
            reason = f"piece {message.piece} has {expected} bytes, not {payload_bytes(event.payload)}"
        return reason

    def _advance(self, effects: list[ExchangeEffect]) -> None:
        """Asks for more, half a window at a time; ends the copy when nothing is lacking."""
        if not self._lacking:
            self._waiting = None
            effects.append(ExchangeDone(self._group.exchange, self._number))
            return
        got = len(self._pieces) - self._lacking
        stop = min(got + AHEAD, len(self._pieces))
        if stop - self._asked >= AHEAD // 2 or (stop == len(self._pieces) and stop > self._asked):
            effects.append(self._request(range(self._asked, stop)))
            self._asked = stop

    def _request(self, pieces: Sequence[int]) -> Send:
        group = self._group
        return Send(
            self.source, ChunkRequest(group.view, group.exchange, self._number, (), ranges_of(pieces))
        )

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self._lacking == self._have.count(0)
        got = len(self._pieces) - self._lacking
        assert got <= self._asked <= got + AHEAD, (got, self._asked)
        assert self._lacking or not self.under_way
