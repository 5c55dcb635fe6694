"""The links of a part under Sandblaster: points of evaluations come, each work unit's gradient goes, once.

Shards hold a request for the next evaluation's point until there is an answer, so the part asks when it
begins a unit of the present one. A replica without a unit asks for nothing, and gets no points that it does
not need. At most one gradient is under way to the shards, and one more accumulates beside it. When a newer
evaluation begins, what was pushed or has accumulated of older ones is dropped: nobody wants it any more.

Source: DistBelief, section 4.2 (parameters fetched once for each batch, gradients sent every few portions).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from partita.engine.protocol.batch_messages import Contribution, ContributionAck, FetchPoint, Point
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span
from partita.engine.protocol.link import Install, Link, Links, Stage, SwapBuffers

LinkEffect: TypeAlias = Send | Stage | Install | SwapBuffers | Refuse


@dataclass(slots=True)
class PointLink(Link[FetchPoint, Contribution]):
    """The exchange with one shard: evaluations whose point is staged and installed; 0 is none."""

    staged: int = 0
    installed: int = 0

    @property
    def newest(self) -> int:
        """The newest evaluation whose point has come."""
        return max(self.staged, self.installed)


class PointLinks(Links[PointLink]):
    """The links of one part.

    Attributes:
        newest: the newest evaluation that is known to have begun.
        wanted: the evaluation of the unit that is computed next; 0: none is known.
    """

    takes: ClassVar[tuple[type, ...]] = (Point, ContributionAck)

    def __init__(
        self, *, streams: tuple[tuple[str, int, int], ...], retry_s: float = 1.0, item_bytes: int = 4
    ) -> None:
        """Creates links without a point.

        Args:
            streams: (name, start, stop) of each one's range in the machine's vector; may be empty.
            retry_s: seconds without an answer after which a request is sent again.
            item_bytes: bytes of one number of a payload.
        """
        super().__init__((PointLink(*stream) for stream in streams), retry_s=retry_s, item_bytes=item_bytes)
        self._size: Final = max((link.stop for link in self._links.values()), default=0)
        self.newest = self.wanted = 0
        self._reached = False  # the part knows all shards, and has asked for the first point
        self._in_flight: Contribution | None = None  # some shard has not acknowledged it
        self._accumulated: Contribution | None = None  # computed, and not sent

    def is_over(self, evaluation: int) -> bool:
        """Returns whether the evaluation's numbers are not wanted any more."""
        return evaluation < self.newest

    @property
    def accumulates(self) -> bool:
        """Returns whether a gradient that is still wanted has not been sent."""
        return self._accumulated is not None

    @property
    def drained(self) -> bool:
        """Returns whether every gradient that is still wanted is acknowledged."""
        return self._in_flight is None and self._accumulated is None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The shards that the next unit waits for."""
        if self._accumulated is not None:
            return tuple(link.shard for link in self._links.values() if link.push)
        return tuple(link.shard for link in self._links.values() if link.newest < self.wanted)

    def is_at(self, evaluation: int) -> bool:
        """Returns whether all values in place are the point of an evaluation."""
        return all(link.installed == evaluation for link in self._links.values())

    # Actions.

    def pull(self, now: float, *, only: int | None = None, after_push: bool = False) -> Iterator[LinkEffect]:
        """Asks each shard for its next point, where no request is open."""
        self._check_all(only)
        self._reached = True
        for link in self._links.values():
            if link.fetch is None:
                yield self._fetch(link, now)

    def ask(self, evaluation: int, now: float) -> Iterator[LinkEffect]:
        """Asks each shard for the point of this evaluation or a newer one, unless it has or was asked."""
        for link in self._links.values():
            if self._reached and link.fetch is None and link.newest < evaluation:
                yield self._fetch(link, now)

    def has_room(self, ahead: int) -> bool:
        """Returns whether a unit is known, all shards' values are of its evaluation, and nothing accumulates.

        A unit of an evaluation that is over needs no values.
        """
        if self._accumulated is not None or not self.wanted:
            return False
        return self.is_over(self.wanted) or all(link.newest == self.wanted for link in self._links.values())

    def install(self) -> Iterator[LinkEffect]:
        """Puts the point of the next unit in place, unless its evaluation is over."""
        for link in self._links.values():
            if link.staged and not self.is_over(self.wanted):
                link.installed, link.staged = link.staged, 0
                yield Install(link.span("parameters"))

    def renew(self, evaluation: int, now: float) -> Iterator[LinkEffect]:
        """Asks each shard for the point of a command that evaluates nothing, for a validation."""
        self.begin_evaluation(evaluation, now)
        yield from self.ask(evaluation, now)

    def not_renewed(self, evaluation: int) -> tuple[str, ...]:
        """Returns the shards whose point of that command is not here yet."""
        return tuple(link.shard for link in self._links.values() if link.newest < evaluation)

    def take(self) -> Iterator[LinkEffect]:
        """Puts it in place."""
        for link in self._links.values():
            if link.staged:
                link.installed, link.staged = link.staged, 0
                yield Install(link.span("parameters"))

    def computed(self, evaluation: int, unit: int) -> None:
        """Counts a unit's gradient, which has accumulated from zero."""
        if self._links and not self.is_over(evaluation):
            self._accumulated = Contribution(evaluation, unit)

    def push(self, now: float, *, only: int | None = None) -> Iterator[LinkEffect]:
        """Sends the accumulated gradient; behind one in flight it follows when that is acknowledged."""
        self._check_all(only)
        if self._in_flight is not None or self._accumulated is None:
            return
        self._in_flight, self._accumulated = self._accumulated, None
        yield SwapBuffers(Span("in_flight", 0, self._size))
        for link in self._links.values():
            yield link.transmit(self._in_flight, now)

    @staticmethod
    def _check_all(only: int | None) -> None:
        if only is not None:
            raise ValueError(
                f"a program that evaluates exchanges fragment {only} alone, and an evaluation needs all "
                "parameters; leave fragment= out"
            )

    def drain(self, now: float) -> Iterator[LinkEffect]:
        """Sends what has accumulated."""
        yield from self.push(now)

    # Events.

    def begin_evaluation(self, evaluation: int, now: float) -> None:
        """Notes that an evaluation has begun, so that its point is due."""
        if evaluation > self.newest:
            self._advance(evaluation)
            for link in self._links.values():
                if link.fetch is not None:
                    link.fetch.restart(now)

    def _advance(self, evaluation: int) -> None:
        """Drops what is of older evaluations."""
        if evaluation <= self.newest:
            return
        self.newest = evaluation
        self._in_flight = self._accumulated = None
        for link in self._links.values():
            link.push = None

    def _received(self, link: PointLink, event: Received, now: float) -> Iterator[LinkEffect]:
        match event.message:
            case Point(evaluation=evaluation):
                yield from self._point(link, evaluation, event.payload, now)
            case ContributionAck(evaluation=evaluation, unit=unit):
                yield from self._acknowledged(link, Contribution(evaluation, unit), now)

    @staticmethod
    def _fetch(link: PointLink, now: float) -> Send:
        return link.request(FetchPoint(link.newest), now)

    def _point(self, link: PointLink, evaluation: int, payload: object, now: float) -> Iterator[LinkEffect]:
        if evaluation <= link.newest:
            return  # a duplicate
        self._advance(evaluation)
        link.staged, link.fetch = evaluation, None
        yield Stage(link.span("staged"), payload)
        yield from self.ask(self.newest, now)  # a newer one is known, and may be waited for already

    def _acknowledged(self, link: PointLink, message: Contribution, now: float) -> Iterator[LinkEffect]:
        """Handles the acknowledgement of a gradient; of an earlier one it is a duplicate."""
        if link.push is None or link.push.message != message:
            return
        link.push = None
        if not any(other.push for other in self._links.values()):
            self._in_flight = None
            yield from self.push(now)

    def _replaced(self, event: Replaced, now: float) -> Iterator[LinkEffect]:
        link = self._links.get(event.name)
        if link is not None:
            yield self._fetch(link, now)
            yield from link.push_again(now)

    def validate(self) -> None:
        """Checks I7 as far as a part can see it: no gradient is of an evaluation that is over, and none is
        overwritten. Raises AssertionError.
        """
        sent = self._in_flight
        for link in self._links.values():
            assert not link.staged or link.staged > link.installed, link
            assert link.newest <= self.newest, link
            assert link.fetch is None or link.fetch.message.after == link.newest, link
            assert link.push is None or link.push.message == sent, link
            is_asked = link.fetch is not None or link.newest >= self.wanted
            assert is_asked or not self._reached, f"nothing will bring the point of {self.wanted} to {link}"
        for message in (self._accumulated, sent):
            assert message is None or message.evaluation == self.newest, (message, self.newest)
        assert (sent is not None) == any(link.push for link in self._links.values()), sent
        assert self.wanted <= self.newest, (self.wanted, self.newest)
