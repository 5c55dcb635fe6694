"""Sandblaster as one part of a replica runs it: assignments in their order, each gradient counted once.

The client asks for the point of the next evaluation as soon as it has one: shards hold the request until
there is an answer. At most one gradient is under way to the shards, and one more accumulates beside it.

Source: DistBelief, section 4.2 (portions, gradients sent every few of them, backups).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol import batch_messages as bm
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.link import Install, Link, Links, Stage, Started, SwapBuffers
from partita.engine.protocol.names import COORDINATOR

REMEMBERED: Final = 8
"""Assignments whose results are kept for repeats: more than a coordinator leaves open."""

AHEAD: Final = 64
"""Largest distance of an assignment from the next one; more is a protocol error."""


@dataclass(frozen=True, slots=True)
class AssignmentDone:
    """Event: the assignment was computed. Sums over its examples, as far as this part computes their losses.

    After the end of its evaluation it may have been cut short, and the sums are arbitrary.
    """

    sequence: int
    loss: float
    correct: int


@dataclass(frozen=True, slots=True)
class RunAssignment:
    """Effect: compute portions `[first, first + count)` and accumulate their gradient, from zero.

    `AssignmentDone` reports the end. `discarded`: the numbers are not wanted; the assignment is computed only
    for the other parts of the replica, which may wait for this part's messages.
    """

    sequence: int
    evaluation: int
    unit: int
    first: int
    count: int
    discarded: bool = False


SandblasterEvent: TypeAlias = Started | AssignmentDone | Received | Replaced | Tick
SandblasterEffect: TypeAlias = Send | Stage | Install | RunAssignment | SwapBuffers | Refuse


@dataclass(slots=True)
class PointLink(Link[bm.FetchPoint, bm.Contribution]):
    """The exchange with one shard: evaluations whose point is staged and installed; 0 is none."""

    staged: int = 0
    installed: int = 0

    @property
    def newest(self) -> int:
        """The newest evaluation whose point has come."""
        return max(self.staged, self.installed)


class SandblasterClient(Links[PointLink]):
    """The Sandblaster client of one part."""

    def __init__(
        self,
        *,
        shards: tuple[tuple[str, int, int], ...],
        alone: bool,
        retry_s: float = 1.0,
        item_bytes: int = 4,
    ) -> None:
        """Creates a client without a point or assignments.

        Args:
            shards: (name, start, stop) of each shard's range in the machine's vector; may be empty.
            alone: the replica has no other machine: discarded assignments are skipped.
            retry_s: seconds without an answer after which a request is sent again.
            item_bytes: bytes of one number of a payload.
        """
        super().__init__((PointLink(*shard) for shard in shards), retry_s=retry_s, item_bytes=item_bytes)
        self._size: Final = max((link.stop for link in self._links.values()), default=0)
        self._alone: Final = alone
        self._newest = 0  # evaluation known to have begun
        self._next = 0  # assignment that runs next, or now
        self._assigned: dict[int, bm.Assignment] = {}  # from the next one on
        self._results: dict[int, bm.AssignmentResult] = {}  # the last ones
        self._playing: RunAssignment | None = None
        self._in_flight: bm.Contribution | None = None  # some shard has not acknowledged it
        self._accumulated: bm.Contribution | None = None  # computed, while another gradient is in flight

    def is_over(self, evaluation: int) -> bool:
        """Returns whether the evaluation's numbers are not wanted any more."""
        return evaluation < self._newest

    @property
    def following(self) -> bm.Assignment | None:
        """The assignment after the one that runs now, as far as is known. Any thread may ask."""
        return self._assigned.get(self._next + (self._playing is not None))

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The shards that a known assignment waits for, for reports and error messages."""
        if self._accumulated is not None:
            return tuple(link.shard for link in self._links.values() if link.push)
        assignment = self._assigned.get(self._next)
        if assignment is None or self._playing is not None:
            return ()
        return tuple(link.shard for link in self._links.values() if link.newest < assignment.evaluation)

    def receive(self, event: SandblasterEvent, now: float) -> list[SandblasterEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        return [*self._follow(event, now), *self._go_on(now)]

    def _follow(self, event: SandblasterEvent, now: float) -> Iterator[SandblasterEffect]:
        match event:
            case AssignmentDone():
                yield from self._assignment_done(event, now)
            case Received(sender=sender, message=bm.Assignment() as assignment):
                yield from self._assign(sender, assignment, now)
            case Received(sender=sender, message=bm.Point() | bm.ContributionAck() as message):
                reason = self._rejection_reason(event)
                if reason is not None:
                    yield Refuse(sender, reason)
                elif isinstance(message, bm.Point):
                    yield from self._point(self._links[sender], message.evaluation, event.payload, now)
                else:
                    self._acknowledged(self._links[sender], bm.Contribution(message.evaluation, message.unit))
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
        """Drops what is over, sends what has accumulated, and begins the next assignment."""
        if self._in_flight is not None and self.is_over(self._in_flight.evaluation):
            self._in_flight = None
            for link in self._links.values():
                link.push = None
        if self._accumulated is not None and self.is_over(self._accumulated.evaluation):
            self._accumulated = None
        if self._in_flight is None:
            yield from self._contribute(now)
        while self._playing is None and self._accumulated is None and self._next in self._assigned:
            assignment = self._assigned[self._next]
            over = self.is_over(assignment.evaluation)
            if over and self._alone:
                yield self._report(AssignmentDone(assignment.sequence, math.nan, 0))
            elif over or all(link.newest == assignment.evaluation for link in self._links.values()):
                yield from self._begin(assignment, discarded=over)
            else:
                return

    def _begin(self, given: bm.Assignment, *, discarded: bool) -> Iterator[SandblasterEffect]:
        for link in self._links.values():
            if not discarded and link.staged:
                link.installed, link.staged = link.staged, 0
                yield Install(link.span("parameters"))
        self._playing = RunAssignment(
            given.sequence, given.evaluation, given.unit, given.first, given.count, discarded
        )
        yield self._playing

    def _assignment_done(self, event: AssignmentDone, now: float) -> Iterator[SandblasterEffect]:
        played = self._playing
        assert played is not None and played.sequence == event.sequence, f"{event} ends {played}"
        self._playing = None
        if self.is_over(played.evaluation):
            event = AssignmentDone(event.sequence, math.nan, 0)
        elif self._links:
            self._accumulated = bm.Contribution(played.evaluation, played.unit)
            if self._in_flight is None:  # the gradient leaves before the sums: it takes longer
                yield from self._contribute(now)
        yield self._report(event)

    def _report(self, event: AssignmentDone) -> Send:
        """Reports the next assignment's end to the coordinator, with NaN for discarded numbers."""
        given = self._assigned.pop(self._next)
        assert given.sequence == event.sequence, (given, event)
        result = bm.AssignmentResult(given.sequence, given.evaluation, given.unit, event.loss, event.correct)
        self._results[given.sequence] = result
        self._results.pop(given.sequence - REMEMBERED, None)
        self._next += 1
        return Send(COORDINATOR, result)

    def _contribute(self, now: float) -> Iterator[SandblasterEffect]:
        """Sends the accumulated gradient, if there is one."""
        message, self._accumulated = self._accumulated, None
        if message is None:
            return
        self._in_flight = message
        yield SwapBuffers(Span("in_flight", 0, self._size))
        for link in self._links.values():
            yield link.transmit(message, now)

    @staticmethod
    def _fetch(link: PointLink, now: float) -> Send:
        return link.request(bm.FetchPoint(link.newest), now)

    def _assign(self, sender: str, given: bm.Assignment, now: float) -> Iterator[SandblasterEffect]:
        if given.sequence < self._next:
            if given.sequence in self._results:
                yield Send(sender, self._results[given.sequence])
            return
        known = self._assigned.get(given.sequence, given)
        if given.sequence > self._next + AHEAD or known != given or given.count < 1:
            yield Refuse(sender, f"{given} does not fit assignment {self._next} and what was assigned before")
            return
        self._assigned[given.sequence] = given
        if given.evaluation > self._newest:
            self._newest = given.evaluation
            for link in self._links.values():  # it begins now, so that an answer is due
                if link.fetch is not None:
                    link.fetch.restart(now)

    def _point(
        self, link: PointLink, evaluation: int, payload: object, now: float
    ) -> Iterator[SandblasterEffect]:
        if evaluation <= link.newest:
            return  # a duplicate
        self._newest = max(self._newest, evaluation)
        link.staged = evaluation
        yield Stage(link.span("staged"), payload)
        yield self._fetch(link, now)

    def _acknowledged(self, link: PointLink, message: bm.Contribution) -> None:
        """Takes the acknowledgement of a gradient; of an earlier one it is a duplicate."""
        if link.push is not None and link.push.message == message:
            link.push = None
            if not any(other.push for other in self._links.values()):
                self._in_flight = None

    def _replaced(self, name: str, now: float) -> Iterator[SandblasterEffect]:
        """Sends open requests to a restarted shard."""
        link = self._links.get(name)
        if link is not None:
            yield self._fetch(link, now)
            yield from link.push_again(now)

    def validate(self) -> None:
        """Checks what must hold between two events, I7 as far as a part can see it. Raises AssertionError.

        An assignment's points are of one evaluation; no gradient is of an evaluation that is over, and none
        is overwritten.
        """
        for link in self._links.values():
            assert not link.staged or link.staged > link.installed, link
            assert link.newest <= self._newest, link
            assert link.fetch is None or link.fetch.message.after == link.newest, link
            assert link.push is None or link.push.message == self._in_flight, link
        playing, sent = self._playing, self._in_flight
        if playing is not None:
            assert self._accumulated is None, "an assignment overwrites a gradient that was not sent"
            assert playing.sequence == self._next and self._next in self._assigned, (playing, self._next)
            installed = {link.installed for link in self._links.values()}
            assert playing.discarded or installed <= {playing.evaluation}, (playing, installed)
        for message in (self._accumulated, sent):
            assert message is None or message.evaluation == self._newest, (message, self._newest)
        assert (sent is not None) == any(link.push for link in self._links.values()), sent
        assert self._accumulated is None or sent is not None
        assert all(self._next <= n <= self._next + AHEAD for n in self._assigned), self._assigned
        assert all(self._next - REMEMBERED <= n < self._next for n in self._results), self._results
