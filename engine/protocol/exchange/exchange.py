"""One exchange of a group: every use sums a vector over all members, along the trees of an algorithm.

The machine knows neither the numbers nor how they are added; effects are to be carried out in their order,
each before the next. Pieces are independent of each other: while one is added, the next is on its way.

**Losses.** Nothing is acknowledged. A member that has lacked pieces for `retry_s` asks for them again, so a
sender keeps what it has sent, in the vector itself: a partial sum is overwritten only by the result, which
contains the receiver's numbers, so the receiver has that sum. A member that lacks a final piece may ask when
the sender has gone on: so **the numbers of use n must stay as they are until use n + 1 is done**. (That takes
the contributions of all members to n + 1, and each had all of n before it gave its own.) Users alternate
between two vectors: one is exchanged while the next gradient accumulates in the other. Where a reduce-scatter
and an all-gather alternate, each plays that part for the other, and one vector each is enough.

**Bounds.** Members are at most one use apart; messages of the next use are kept, each once, and others
dropped (they are asked for again). A member begins few pieces ahead: in an all-reduce, of those whose results
have come back; in a half of a ring, of those that have come from others. So no more than these wait in a
connection, or at a member that needs another one's piece first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from partita.engine.protocol.events import Received, Refuse, Send, Span, Tick, payload_bytes
from partita.engine.protocol.exchange.algorithm import Algorithm, Phase, Route
from partita.engine.protocol.exchange.group import Group, Numbers
from partita.engine.protocol.replica_messages import ChunkRequest, ExchangeAck, FinalChunk, PartialChunk
from partita.engine.protocol.retry import PendingRequest

WINDOW: Final = 8
"""Pieces that a member begins ahead; in a ring more, for all of its connections have to be busy."""

_UNBOUNDED: Final = 1 << 60
_MOST_RANGES: Final = 256  # of a request; the rest is asked for later


class AddChunk(msgspec.Struct, frozen=True):
    """Effect: add the payload to the numbers of the span, then divide these by `divisor` unless it is 1."""

    span: Span
    payload: object
    divisor: float = 1


class CopyChunk(msgspec.Struct, frozen=True):
    """Effect: copy the payload into the span."""

    span: Span
    payload: object


@dataclass(frozen=True, slots=True)
class ExchangeDone:
    """Effect: the span holds the result of this use. `dropped`: ranks whose contributions are not in it."""

    exchange: int
    number: int
    dropped: tuple[int, ...] = ()


_CHUNKS: Final = (PartialChunk, FinalChunk)
_OF_EXCHANGES: Final = (*_CHUNKS, ChunkRequest, ExchangeAck)

ExchangeEvent: TypeAlias = Received | Tick
ExchangeEffect: TypeAlias = Send | AddChunk | CopyChunk | ExchangeDone | Refuse


@dataclass(slots=True)
class Use:
    """State of one use: what has been done with each piece of the vector."""

    number: int
    span: Span
    added: list[int]  # by piece: sums of other members that were added
    sent: bytearray  # by piece: the own sum was sent on
    final: bytearray  # by piece: it holds the result
    lacking: int  # pieces that are not done
    waiting: PendingRequest[int]
    held: dict[tuple[int, int], object] = field(default_factory=dict)  # by piece and rank: not their turn
    starts: deque[int] = field(default_factory=deque)  # pieces that this member has yet to begin, in order
    ahead: int = 0  # pieces begun, less those that have come back or come from others
    adds: tuple[int, ...] | None = None  # members whose sums are added, where not those of the routes
    dropped: tuple[int, ...] = ()


class Exchange:
    """The exchange of a group in one view, used once for each number, in ascending order.

    Attributes:
        group: its members.
        phase: what a use does.
        next: the number of the next use.
        stale: messages of other views, of uses that are over, or repeated in vain; they had no effect.
        repeats: messages that were sent again because a member asked.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        group: Group,
        numbers: Numbers,
        *,
        first: int = 0,
        mean: bool = False,
        phase: Phase = "all-reduce",
        retry_s: float = 1.0,
    ) -> None:
        """Creates an exchange that is not under way, see `create_exchange`."""
        self.phase: Final = phase
        self.next = first
        self.stale = self.repeats = 0
        self.group: Final = group
        self._numbers, self._mean, self._retry_s = numbers, mean, retry_s
        segments = algorithm.segments(group.machines)
        routes = [algorithm.route(group.rank, segment, group.machines) for segment in range(segments)]
        pieces = [numbers.pieces(segment, segments) for segment in range(segments)]
        self._pieces: Final = [piece for found in pieces for piece in found]
        self._routes: Final = [
            route for route, found in zip(routes, pieces, strict=True) for _ in found
        ]  # by piece, as all that follows
        places = [(place, segment) for segment, found in enumerate(pieces) for place in range(len(found))]
        self._order: Final = sorted(range(len(places)), key=places.__getitem__)  # segments side by side
        self._window: Final = _window(algorithm, group, routes, phase)
        self._use: Use | None = None
        self._last: Use | None = None
        self._early: dict[tuple[int, type, int], Received] = {}

    @property
    def under_way(self) -> int | None:
        """The number of the use under way; None between two."""
        return None if self._use is None else self._use.number

    @property
    def owned(self) -> list[tuple[int, int]]:
        """`[start, stop)` of the exchange's numbers whose sums end here: in a reduce-scatter, the result."""
        spans: list[tuple[int, int]] = []
        for (start, stop), route in zip(self._pieces, self._routes, strict=True):
            if route.sums_to is not None:
                continue
            if spans and spans[-1][1] == start:
                start = spans.pop()[0]
            spans.append((start, stop))
        return spans

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The members whose messages the use under way lacks, in rank order."""
        missing = {} if self._use is None else self._missing(self._use)
        return tuple(self.group.members[rank].name for rank in sorted(missing))

    def begin(self, number: int, span: Span, now: float) -> list[ExchangeEffect]:
        """Begins a use: the span holds this member's contribution.

        Args:
            number: of the use: `next`, or above; the same on all members.
            span: of one of this member's vectors, in which the result will be.
            now: seconds, the host's monotonic clock.
        """
        assert self._use is None and number >= self.next, (self.under_way, number, self.next)
        self.next = number + 1
        assert span.stop - span.start == self._numbers.length, (span, self._numbers)
        n = len(self._pieces)
        use = Use(number, span, [0] * n, bytearray(n), bytearray(n), n, PendingRequest(number, now))
        self._use = use
        effects: list[ExchangeEffect] = []
        use.starts.extend(piece for piece in self._order if self._begins(self._routes[piece]))
        early, self._early = self._early, {}
        for event in early.values():
            if getattr(event.message, "number", None) == number:
                self._take(use, event, effects)
        self._begun(use, effects)
        self._advance(use, effects)
        return effects

    def receive(self, event: ExchangeEvent, now: float) -> list[ExchangeEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        effects: list[ExchangeEffect] = []
        if isinstance(event, Received):
            self._receive(event, now, effects)
        else:
            self._retry(now, effects)
        return effects

    def _receive(self, event: Received, now: float, effects: list[ExchangeEffect]) -> None:
        message = event.message
        if not isinstance(message, _OF_EXCHANGES):
            kind = type(message).__name__
            effects.append(Refuse(event.sender, f"an exchange does not take a {kind}"))
            return
        if message.view != self.group.view or message.exchange != self.group.exchange:
            self.stale += 1
            return
        reason = self.group.rejection_reason(event.sender, event.incarnation)
        rank = self.group.ranks.get(event.sender, -1)
        if reason is None and isinstance(message, _CHUNKS):
            reason = self._misplaced(message, rank, payload_bytes(event.payload))
        if reason is not None:
            effects.append(Refuse(event.sender, reason))
        elif isinstance(message, ChunkRequest):
            self._serve(message, rank, effects)
        elif isinstance(message, ExchangeAck):
            self._acknowledged(rank, message.number, effects)
            if self._use is not None:
                self._advance(self._use, effects)
        elif self._use is not None and message.number == self._use.number:
            self._use.waiting.restart(now)
            self._take(self._use, event, effects)
            self._advance(self._use, effects)
        elif message.number == self.next:
            self._early.setdefault((rank, type(message), message.piece), event)
        else:
            self.stale += 1
            if message.number < self.next:
                self._repeated(rank, message, effects)

    def _misplaced(self, message: PartialChunk | FinalChunk, rank: int, n_bytes: int) -> str | None:
        """Returns why this piece cannot come from that member, in a few words; None when it can."""
        if message.piece >= len(self._pieces):
            return f"piece {message.piece} of an exchange of {len(self._pieces)}"
        route = self._routes[message.piece]
        if isinstance(message, PartialChunk):
            allowed = self.phase != "all-gather" and rank in route.adds
        else:
            allowed = self.phase != "reduce-scatter" and rank == route.copies_from
        if not allowed:
            return f"a {type(message).__name__} of piece {message.piece}, which another member sends"
        start, stop = self._pieces[message.piece]
        expected = (stop - start) * self._numbers.item_bytes
        if n_bytes != expected:
            return f"piece {message.piece} has {expected} bytes, not {n_bytes}"
        return None

    def _take(self, use: Use, event: Received, effects: list[ExchangeEffect]) -> None:
        """Adds or copies a piece of the use under way, unless that was done."""
        message, rank = event.message, self.group.ranks[event.sender]
        if isinstance(message, PartialChunk):
            self._add(use, message.piece, rank, event.payload, effects)
        elif isinstance(message, FinalChunk):
            self._copy(use, message, event, effects)

    def _add(self, use: Use, piece: int, rank: int, payload: object, effects: list[ExchangeEffect]) -> None:
        """Adds a sum when its turn has come, and those after it that were held for their turn."""
        adds = self._adds(use, piece)
        if rank not in adds[use.added[piece] :] or (piece, rank) in use.held:
            self.stale += 1
            return
        use.held[piece, rank] = payload
        self._add_held(use, piece, effects)

    def _add_held(self, use: Use, piece: int, effects: list[ExchangeEffect]) -> None:
        adds, added = self._adds(use, piece), use.added[piece]
        is_root = self._routes[piece].sums_to is None
        while added < len(adds) and (piece, adds[added]) in use.held:
            payload = use.held.pop((piece, adds[added]))
            added += 1
            divisor = self._divisor(use) if is_root and added == len(adds) else 1
            effects.append(AddChunk(self._span(use, piece), payload, divisor))
            if added == len(adds):
                self._complete(use, piece, effects)
        use.added[piece] = added

    def _copy(self, use: Use, message: FinalChunk, event: Received, effects: list[ExchangeEffect]) -> None:
        """Takes over a result, which contains the member's own sum unless the root has dropped it."""
        piece = message.piece
        if use.final[piece]:
            self.stale += 1
        elif self.phase == "all-reduce" and not use.sent[piece] and not message.dropped:
            effects.append(
                Refuse(event.sender, f"the result of piece {piece} before this member's sum of it")
            )
        else:
            use.dropped = message.dropped
            effects.append(CopyChunk(self._span(use, piece), event.payload))
            use.ahead -= self.phase == "all-gather" and not self._routes[piece].copies_to
            self._finish_piece(use, piece, effects)

    def _complete(self, use: Use, piece: int, effects: list[ExchangeEffect]) -> None:
        """The sum of a piece over this member and its children is there: it is sent on, or is the result."""
        if self._routes[piece].sums_to is not None:
            use.sent[piece] = 1
            effects.append(self._partial(use, piece))
        if self.phase == "reduce-scatter":
            use.lacking -= 1
            use.ahead -= not use.sent[piece]
        elif not use.sent[piece]:
            self._finish_piece(use, piece, effects)

    def _finish_piece(self, use: Use, piece: int, effects: list[ExchangeEffect]) -> None:
        """The piece holds the result: sends it on."""
        use.final[piece] = 1
        use.lacking -= 1
        if self.phase == "all-reduce" and use.sent[piece] and not self._routes[piece].adds:
            use.ahead -= 1
        for rank in self._routes[piece].copies_to:
            effects.append(self._final(use, piece, rank))

    def _begins(self, route: Route) -> bool:
        """Returns whether a piece starts on its way at this member."""
        return route.copies_from is None if self.phase == "all-gather" else not route.adds

    def _advance(self, use: Use, effects: list[ExchangeEffect]) -> None:
        """Begins the pieces that may be begun, and ends the use when nothing is lacking."""
        while use.starts and use.ahead < self._window:
            piece = use.starts.popleft()
            if use.final[piece]:
                continue  # summed without this member
            route = self._routes[piece]
            use.ahead += bool(route.copies_to) if self.phase == "all-gather" else route.sums_to is not None
            if self.phase == "all-gather":
                self._finish_piece(use, piece, effects)
            else:
                self._complete(use, piece, effects)
        if not use.lacking:
            self._use, self._last = None, use
            self._done(use, effects)
            effects.append(ExchangeDone(self.group.exchange, use.number, use.dropped))

    # Losses

    def _retry(self, now: float, effects: list[ExchangeEffect]) -> None:
        """Asks for what is missing, when nothing has arrived for a while."""
        use = self._use
        if use is None or not use.waiting.retry(now, self._retry_s):
            return
        self._ask(use, effects)

    def _ask(self, use: Use, effects: list[ExchangeEffect]) -> None:
        group = self.group
        for rank, (partial, final) in sorted(self._missing(use).items()):
            message = ChunkRequest(
                group.view, group.exchange, use.number, ranges_of(partial), ranges_of(final)
            )
            effects.append(Send(group.members[rank].name, message))

    def _missing(self, use: Use) -> dict[int, tuple[list[int], list[int]]]:
        """By rank: the pieces whose sums, and whose results, are to come from that member."""
        missing: dict[int, tuple[list[int], list[int]]] = {}
        for piece, route in enumerate(self._routes):
            if self.phase != "all-gather":
                for rank in self._adds(use, piece)[use.added[piece] :]:
                    if (piece, rank) not in use.held:
                        missing.setdefault(rank, ([], []))[0].append(piece)
            comes = self.phase == "all-gather" or use.sent[piece] or use.dropped
            if (
                comes
                and not use.final[piece]
                and self.phase != "reduce-scatter"
                and route.copies_from is not None
            ):
                missing.setdefault(route.copies_from, ([], []))[1].append(piece)
        return missing

    def _serve(self, request: ChunkRequest, rank: int, effects: list[ExchangeEffect]) -> None:
        """Sends pieces again; a piece that is not ready yet is sent when it is."""
        use = next((one for one in (self._use, self._last) if one and one.number == request.number), None)
        if use is None:
            return
        before = len(effects)
        for piece in pieces_of(request.partial, len(self._pieces)):
            if self._routes[piece].sums_to == rank and use.sent[piece] and not use.final[piece]:
                effects.append(self._partial(use, piece))
        for piece in pieces_of(request.final, len(self._pieces)):
            if rank in self._routes[piece].copies_to and use.final[piece]:
                effects.append(self._final(use, piece, rank))
        self.repeats += len(effects) - before

    def _divisor(self, use: Use) -> float:
        """The divisor of a sum: contributions, for the mean; for the sum, their share of the members."""
        members = len(self.group.members)
        counted = members - len(use.dropped)
        return counted if self._mean else counted / members

    # What a subclass adds

    def _begun(self, use: Use, effects: list[ExchangeEffect]) -> None:
        """A use has begun."""

    def _done(self, use: Use, effects: list[ExchangeEffect]) -> None:
        """A use is over."""

    def _acknowledged(self, rank: int, number: int, effects: list[ExchangeEffect]) -> None:
        """A member has every piece of a use."""
        effects.append(Refuse(self.group.members[rank].name, "an acknowledgement that nobody waits for"))

    def _repeated(self, rank: int, message: PartialChunk | FinalChunk, effects: list[ExchangeEffect]) -> None:
        """A piece of a use that is over has arrived."""

    def _adds(self, use: Use, piece: int) -> tuple[int, ...]:
        """The members whose sums of a piece are added, in order."""
        return self._routes[piece].adds if use.adds is None else use.adds

    # Messages

    def _span(self, use: Use, piece: int) -> Span:
        start, stop = self._pieces[piece]
        return Span(use.span.vector, use.span.start + start, use.span.start + stop)

    def _partial(self, use: Use, piece: int) -> Send:
        rank = self._routes[piece].sums_to
        assert rank is not None
        message = PartialChunk(self.group.view, self.group.exchange, use.number, piece)
        return Send(self.group.members[rank].name, message, self._span(use, piece))

    def _final(self, use: Use, piece: int, rank: int) -> Send:
        message = FinalChunk(self.group.view, self.group.exchange, use.number, piece, use.dropped)
        return Send(self.group.members[rank].name, message, self._span(use, piece))

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        if self._early:
            assert len(self._early) <= 2 * sum([len(route.adds) + 1 for route in self._routes])
            for event in self._early.values():
                assert isinstance(event.message, _CHUNKS) and event.message.number == self.next, event
        for use in (self._use, self._last):
            if use is None:
                continue
            assert use.number < self.next
            assert use is self._use or not use.lacking
            for piece, (route, added) in enumerate(zip(self._routes, use.added, strict=True)):
                n = len(route.adds if use.adds is None else use.adds)
                assert added == n or (added < n and not use.sent[piece]), (piece, added, n, "or sent early")
            for piece, rank in use.held:
                assert rank in self._adds(use, piece)[use.added[piece] :], (piece, rank)
            if self.phase != "reduce-scatter":
                assert use.lacking == use.final.count(0), (use.lacking, use.final)


def _window(algorithm: Algorithm, group: Group, routes: Sequence[Route], phase: Phase) -> int:
    """The number of pieces that a member begins ahead, so that none waits for one that is begun later.

    In an all-reduce any number does: a piece waits only for the same piece of others, and all begin pieces in
    one order. In a half of a ring as many pieces come to each member as it begins, but for one.
    """
    n = len(group.members)
    if phase == "all-reduce":
        return WINDOW if all(route.sums_to == route.copies_from for route in routes) else max(WINDOW, 4 * n)
    return max(WINDOW, 2 * n) if algorithm.balanced else _UNBOUNDED


def ranges_of(pieces: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges `[start, stop)`, the first few of them."""
    found: list[tuple[int, int]] = []
    for piece in pieces:
        if found and found[-1][1] == piece:
            found[-1] = (found[-1][0], piece + 1)
        else:
            found.append((piece, piece + 1))
    return tuple(found[:_MOST_RANGES])


def pieces_of(ranges: Iterable[tuple[int, int]], pieces: int) -> list[int]:
    """The numbers in these ranges that are numbers of pieces, each once."""
    return sorted({piece for start, stop in ranges for piece in range(start, min(stop, pieces))})
