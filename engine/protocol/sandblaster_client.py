"""Sandblaster as one part of a replica speaks it: turns played in their order, each gradient told once.

The machine decides when a point is taken over, which turn is played on it, and when its gradient leaves; it
must not know the numbers, the network, the data or the program of a step. The point of the next evaluation
is asked for as soon as one is here: shards hold the question until there is an answer. At most one gradient
is on its way to the shards, and one more accumulates beside it.

Source: DistBelief, section 4.2 (portions, gradients sent every few of them, backups).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from partita.engine.protocol.downpour_client import Install, Stage, Started
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick, payload_bytes
from partita.engine.protocol.messages import (
    Assignment,
    AssignmentResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    Point,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.retry import PendingRequest

REMEMBERED: Final = 8
"""Turns whose results are kept, for repeats of their `Assignment`: more than a coordinator leaves open."""

AHEAD: Final = 64
"""How far a turn may be from the next one: who hands out more does not count as it should."""


@dataclass(frozen=True, slots=True)
class AssignmentDone:
    """Event: the turn was played. Sums over its examples, as far as this part judges them.

    Where its evaluation was over, the turn may have been cut short, and the sums are anything.
    """

    sequence: int
    loss: float
    correct: int


@dataclass(frozen=True, slots=True)
class RunAssignment:
    """Effect: compute portions `[first, first + count)` and accumulate their gradient, from nothing.

    `AssignmentDone` reports its end. `discarded`: only for the other parts of the replica, which may wait for
    this one's messages; nobody wants the numbers.
    """

    sequence: int
    evaluation: int
    unit: int
    first: int
    count: int
    discarded: bool = False


@dataclass(frozen=True, slots=True)
class SwapBuffers:
    """Effect: the accumulated gradient becomes the one in flight, whose place is free for the next turn."""


SandblasterEvent: TypeAlias = Started | AssignmentDone | Received | Replaced | Tick
SandblasterEffect: TypeAlias = Send | Stage | Install | RunAssignment | SwapBuffers | Refuse


@dataclass(slots=True)
class _Link:
    """What is under way with one shard, for the range `[start, stop)` of the machine's vector.

    `fetch` asks for an evaluation above its number. The point of an evaluation is staged, then installed; 0
    is none.
    """

    shard: str
    start: int
    stop: int
    fetch: PendingRequest | None = None
    staged: int = 0
    installed: int = 0

    @property
    def newest(self) -> int:
        return max(self.staged, self.installed)

    def span(self, vector: str) -> Span:
        return Span(vector, self.start, self.stop)


@dataclass(slots=True)
class _InFlight:
    """The gradient of a work unit, and the shards that have not taken their range of it yet."""

    message: Contribution
    untold: dict[str, PendingRequest] = field(default_factory=dict)


class SandblasterClient:
    """The Sandblaster client of one part: one link with each shard that holds parameters of its machine."""

    def __init__(
        self,
        *,
        shards: tuple[tuple[str, int, int], ...],
        alone: bool,
        retry_s: float = 1.0,
        item_bytes: int = 4,
    ) -> None:
        """A client that has no point and no turns.

        Args:
            shards: (name, start, stop) of each shard's range in the machine's vector; may be empty.
            alone: the replica has no other machine: a turn that nobody wants need not be played.
            retry_s: after this long without an answer the same thing is sent again.
            item_bytes: bytes of one number of a payload.
        """
        self._links: Final = {name: _Link(name, start, stop) for name, start, stop in shards}
        self._alone: Final = alone
        self._retry_s: Final = retry_s
        self._item_bytes: Final = item_bytes
        self._newest = 0  # evaluation that was heard of
        self._next = 0  # turn that is played next, or now
        self._assigned: dict[int, Assignment] = {}  # from the next one on
        self._results: dict[int, AssignmentResult] = {}  # the last ones
        self._playing: RunAssignment | None = None
        self._in_flight: _InFlight | None = None
        self._accumulated: Contribution | None = None  # played, but another is in flight

    # What the role may ask

    def is_over(self, evaluation: int) -> bool:
        """Whether nobody wants this evaluation's numbers any more."""
        return evaluation < self._newest

    @property
    def following(self) -> Assignment | None:
        """The turn that will be played after the one that is played now, as far as is known. Any thread may
        ask.
        """
        return self._assigned.get(self._next + (self._playing is not None))

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The shards that a known turn cannot go on without, for reports and error messages."""
        if self._accumulated is not None and self._in_flight is not None:
            return tuple(self._in_flight.untold)
        assignment = self._assigned.get(self._next)
        if assignment is None or self._playing is not None:
            return ()
        return tuple(link.shard for link in self._links.values() if link.newest < assignment.evaluation)

    # What happens

    def receive(self, event: SandblasterEvent, now: float) -> list[SandblasterEffect]:
        """What follows from an event at `now` (seconds, the host's monotonic clock), to be done in order."""
        return [*self._follow(event, now), *self._go_on(now)]

    def _follow(self, event: SandblasterEvent, now: float) -> Iterator[SandblasterEffect]:
        match event:
            case AssignmentDone():
                yield from self._assignment_done(event, now)
            case Received(message=Assignment() as assignment):
                yield from self._schedule(event.sender, assignment, now)
            case Received(message=Point() as point):
                yield from self._point(event, point, now)
            case Received(sender=sender, message=ContributionAck() as taken):
                yield from self._taken(sender, taken)
            case Received(sender=sender, message=message):
                yield Refuse(sender, f"a Sandblaster client does not take a {type(message).__name__}")
            case Replaced(name=name):
                yield from self._replaced(name, now)
            case Tick():
                yield from self._retry(now)
            case Started():
                for link in self._links.values():
                    if link.fetch is None:
                        yield self._fetch(link, now)

    def _go_on(self, now: float) -> Iterator[SandblasterEffect]:
        """Whatever can be done now: drops what is over, sends what is accumulated, begins the next turn."""
        if self._in_flight is not None and self.is_over(self._in_flight.message.evaluation):
            self._in_flight = None
        if self._accumulated is not None and self.is_over(self._accumulated.evaluation):
            self._accumulated = None
        if self._accumulated is not None and self._in_flight is None:
            yield from self._contribute(self._accumulated, now)
            self._accumulated = None
        while self._playing is None and self._accumulated is None and self._next in self._assigned:
            assignment = self._assigned[self._next]
            over = self.is_over(assignment.evaluation)
            if over and self._alone:
                yield self._computed(AssignmentDone(assignment.sequence, math.nan, 0))
            elif over or all(link.newest == assignment.evaluation for link in self._links.values()):
                yield from self._begin(assignment, discarded=over)
            else:
                return

    def _begin(self, assignment: Assignment, *, discarded: bool) -> Iterator[SandblasterEffect]:
        for link in self._links.values():
            if not discarded and link.staged:
                link.installed, link.staged = link.staged, 0
                yield Install(link.span("parameters"))
        self._playing = RunAssignment(
            assignment.sequence,
            assignment.evaluation,
            assignment.unit,
            assignment.first,
            assignment.count,
            discarded,
        )
        yield self._playing

    def _assignment_done(self, event: AssignmentDone, now: float) -> Iterator[SandblasterEffect]:
        played = self._playing
        assert played is not None and played.sequence == event.sequence, (
            f"{event} was not played, but {played}"
        )
        self._playing = None
        if self.is_over(played.evaluation):
            event = AssignmentDone(event.sequence, math.nan, 0)
        elif self._links:
            self._accumulated = Contribution(played.evaluation, played.unit)
            if self._in_flight is None:  # the gradient leaves before the sums do: it takes longer
                yield from self._contribute(self._accumulated, now)
                self._accumulated = None
        yield self._computed(event)

    def _computed(self, event: AssignmentDone) -> Send:
        """Tells the coordinator that the next turn is through; of one that nobody wants, NaN."""
        assignment = self._assigned.pop(self._next)
        assert assignment.sequence == event.sequence, (assignment, event)
        result = AssignmentResult(
            assignment.sequence, assignment.evaluation, assignment.unit, event.loss, event.correct
        )
        self._results[assignment.sequence] = result
        self._results.pop(assignment.sequence - REMEMBERED, None)
        self._next += 1
        return Send(COORDINATOR, result)

    def _contribute(self, message: Contribution, now: float) -> Iterator[SandblasterEffect]:
        self._in_flight = _InFlight(
            message, {name: PendingRequest(message.unit, now) for name in self._links}
        )
        yield SwapBuffers()
        for link in self._links.values():
            yield Send(link.shard, message, link.span("in_flight"))

    def _fetch(self, link: _Link, now: float) -> Send:
        link.fetch = PendingRequest(link.newest, now)
        return Send(link.shard, FetchPoint(link.fetch.number))

    def _schedule(self, sender: str, assignment: Assignment, now: float) -> Iterator[SandblasterEffect]:
        if assignment.sequence < self._next:
            result = self._results.get(assignment.sequence)
            if result is not None:
                yield Send(sender, result)
            return
        if (
            assignment.sequence > self._next + AHEAD
            or self._assigned.get(assignment.sequence, assignment) != assignment
            or assignment.count < 1
        ):
            yield Refuse(
                sender, f"{assignment} does not fit turn {self._next} and what was handed out before"
            )
            return
        self._assigned[assignment.sequence] = assignment
        if assignment.evaluation > self._newest:
            self._newest = assignment.evaluation
            for link in self._links.values():  # it begins now: no answer is no longer a matter of course
                if link.fetch is not None:
                    link.fetch.renew(now)

    def _point(self, event: Received, point: Point, now: float) -> Iterator[SandblasterEffect]:
        link = self._links.get(event.sender)
        if link is None:
            yield Refuse(event.sender, "it holds no parameters of this machine")
            return
        expected, found = (link.stop - link.start) * self._item_bytes, payload_bytes(event.payload)
        if found != expected:
            yield Refuse(link.shard, f"its parameters have {expected} bytes here, not {found}")
            return
        if point.evaluation <= link.newest:
            return  # a repeat
        self._newest = max(self._newest, point.evaluation)
        link.staged = point.evaluation
        yield Stage(link.span("staged"), event.payload)
        yield self._fetch(link, now)

    def _taken(self, sender: str, taken: ContributionAck) -> Iterator[SandblasterEffect]:
        if sender not in self._links:
            yield Refuse(sender, "it holds no parameters of this machine")
            return
        sent = self._in_flight
        if sent is None or (taken.evaluation, taken.unit) != (
            sent.message.evaluation,
            sent.message.unit,
        ):
            return  # of one before
        sent.untold.pop(sender, None)
        if not sent.untold:
            self._in_flight = None

    def _replaced(self, name: str, now: float) -> Iterator[SandblasterEffect]:
        """A shard has started again: it knows nothing of what it was asked and told."""
        link = self._links.get(name)
        if link is None:
            return
        yield self._fetch(link, now)
        if self._in_flight is not None and name in self._in_flight.untold:
            self._in_flight.untold[name].renew(now)
            yield Send(name, self._in_flight.message, link.span("in_flight"))

    def _retry(self, now: float) -> Iterator[SandblasterEffect]:
        for link in self._links.values():
            if link.fetch is not None and link.fetch.is_due(now, self._retry_s):
                link.fetch.repeat(now)
                yield Send(link.shard, FetchPoint(link.fetch.number))
        if self._in_flight is None:
            return
        for name, sent in self._in_flight.untold.items():
            if sent.is_due(now, self._retry_s):
                sent.repeat(now)
                yield Send(name, self._in_flight.message, self._links[name].span("in_flight"))

    def validate(self) -> None:
        """What must hold between two events, I7 as far as a part can see it. Raises AssertionError.

        Points of one evaluation under a turn; no gradient of an evaluation that is over; none overwritten.
        """
        for link in self._links.values():
            assert not link.staged or link.staged > link.installed, link
            assert link.newest <= self._newest, link
            assert link.fetch is None or link.fetch.number == link.newest, link
        playing, sent = self._playing, self._in_flight
        if playing is not None:
            assert self._accumulated is None, "a turn overwrites a gradient that was not sent"
            assert playing.sequence == self._next and self._next in self._assigned, (playing, self._next)
            installed = {link.installed for link in self._links.values()}
            assert playing.discarded or installed <= {playing.evaluation}, (playing, installed)
        for message in (self._accumulated, None if sent is None else sent.message):
            assert message is None or message.evaluation == self._newest, (message, self._newest)
        assert sent is None or set(sent.untold) <= set(self._links), sent
        assert sent is None or sent.untold, sent
        assert self._accumulated is None or sent is not None
        assert all(self._next <= assignment <= self._next + AHEAD for assignment in self._assigned), (
            self._assigned
        )
        assert all(self._next - REMEMBERED <= assignment < self._next for assignment in self._results), (
            self._results
        )
