"""Work that the coordinator assigns unit by unit (`Assignment`), in the order of its numbers.

Each unit belongs to an evaluation. Where that is over, a part alone skips the unit; a part among others
computes it for them, who may wait for its messages, and its numbers are discarded. Results are kept for
repeats.

Source: DistBelief, section 4.2 (portions, backups).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from partita.engine.protocol.actions import Action
from partita.engine.protocol.batch_messages import Assignment, AssignmentResult
from partita.engine.protocol.events import Received, Refuse, Send
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import Work
from partita.engine.protocol.point_links import LinkEffect, PointLinks
from partita.engine.protocol.program_effects import StepDone

REMEMBERED: Final = 8
"""Assignments whose results are kept for repeats: more than a coordinator leaves open."""

AHEAD: Final = 64
"""Largest distance of an assignment from the next one; more is a protocol error."""


@dataclass(frozen=True, slots=True)
class RunAssignment:
    """Effect: compute portions `[first, first + count)` and accumulate their gradient, from zero.

    `StepDone` reports the end. `discarded`: the numbers are not wanted; the assignment is computed only for
    the other parts of the replica, which may wait for this part's messages. After the end of its evaluation
    an assignment may be cut short, and its sums are arbitrary.
    """

    number: int
    evaluation: int
    unit: int
    first: int
    count: int
    discarded: bool = False


class AssignedWork(Work):
    """The assignments of a part. A step is an assignment."""

    takes: ClassVar[tuple[type, ...]] = (Assignment,)
    step: int

    def __init__(self, links: PointLinks, *, alone: bool) -> None:
        """No assignments yet.

        Args:
            links: to the shards that hold the part's parameters.
            alone: the replica has no other machine: discarded assignments are skipped.
        """
        self.others, self.shared = (links,), links
        self.step = 0  # runs next, or now
        self._links: Final = links
        self._alone: Final = alone
        self._assigned: dict[int, Assignment] = {}  # from the next one on
        self._results: dict[int, AssignmentResult] = {}  # the last ones
        self._result: AssignmentResult | None = None  # of the present one
        self._unsent: list[Send] = []
        self._playing: RunAssignment | None = None

    @property
    def me(self) -> HasSteps:
        """The part, whose steps are its assignments."""
        return self

    def steps(self) -> Iterator[int]:
        """Yields the number of each assignment; it is over when the next one is asked for."""
        while True:
            yield self.step
            if self._result is None:
                raise RuntimeError(
                    f"the driver's program has not computed step {self.step}; compute each step of me.steps()"
                )
            self._close(self._result)

    def _close(self, result: AssignmentResult) -> None:
        """Reports the present assignment's end to the coordinator, with NaN for discarded numbers."""
        del self._assigned[self.step]
        self._results[self.step] = result
        self._results.pop(self.step - REMEMBERED, None)
        self._result, self.step = None, self.step + 1
        self._unsent.append(Send(COORDINATOR, result))
        self._look_ahead()

    def _look_ahead(self) -> None:
        following = self._assigned.get(self.step)
        self._links.wanted = 0 if following is None else following.evaluation

    def is_over(self, evaluation: int) -> bool:
        """Returns whether the evaluation's numbers are not wanted any more. Any thread may ask."""
        return self._links.is_over(evaluation)

    @property
    def following(self) -> Assignment | None:
        """The assignment after the one that runs now, as far as is known. Any thread may ask."""
        return self._assigned.get(self.step + (self.computing is not None))

    # Events.

    def receive(self, event: Any, now: float) -> Iterable[Any]:
        """Handles an assignment; a repeat of one that is over is answered from memory."""
        if not isinstance(event, Received):
            return ()
        assert isinstance(event.message, Assignment), event
        return self._assign(event.sender, event.message, now)

    def _assign(self, sender: str, given: Assignment, now: float) -> Iterator[LinkEffect]:
        if given.sequence < self.step:
            if given.sequence in self._results:
                yield Send(sender, self._results[given.sequence])
            return
        known = self._assigned.get(given.sequence, given)
        if given.sequence > self.step + AHEAD or known != given or given.count < 1:
            yield Refuse(sender, f"{given} does not fit assignment {self.step} and what was assigned before")
            return
        self._assigned[given.sequence] = given
        self._links.begin_evaluation(given.evaluation, now)
        self._look_ahead()
        yield from self._links.ask(given.evaluation, now)

    def comes(self, action: Action | None, now: float) -> list[Send]:
        """Sends the result of the last assignment: its gradient, which takes longer, has left before."""
        unsent, self._unsent = self._unsent, []
        return unsent

    # Assignments.

    def may_begin(self, action: Action) -> bool:
        """Returns whether the assignment is known."""
        return self.step in self._assigned

    def begin(self, action: Action, now: float) -> Iterator[Any]:
        """Orders the assignment and asks for the next point, or skips it."""
        given = self._assigned[self.step]
        over = self.is_over(given.evaluation)
        if over and self._alone:
            self._result = self._result_of(given, StepDone(given.sequence, loss=math.nan))
            return
        self.computing = given.sequence
        self._playing = RunAssignment(
            given.sequence, given.evaluation, given.unit, given.first, given.count, over
        )
        yield self._playing
        yield from self._links.ask(given.evaluation + 1, now)

    def done(self, done: StepDone, now: float) -> Iterable[Any]:
        """Counts the gradient of the assignment, unless its evaluation is over."""
        given, self._playing = self._assigned[self.step], None
        if self.is_over(given.evaluation):
            self._result = self._result_of(given, StepDone(given.sequence, loss=math.nan, read=done.read))
        else:
            self._links.computed(given.evaluation, given.unit)
            self._result = self._result_of(given, done)
        return ()

    @staticmethod
    def _result_of(given: Assignment, done: StepDone) -> AssignmentResult:
        numbers = given.sequence, given.evaluation, given.unit
        return AssignmentResult(*numbers, done.loss, done.correct, done.sums, done.read)

    def waits(self) -> Iterator[tuple[str, str]]:
        """Yields the shards that a known assignment waits for."""
        yield from ((shard, "an answer") for shard in self._links.waits_for)

    def validate(self) -> None:
        """Checks what must hold between two events. Raises AssertionError.

        An assignment's points are of one evaluation, and no gradient is overwritten.
        """
        playing = self._playing
        assert (playing is None) == (self.computing is None), (playing, self.computing)
        if playing is not None:
            assert not self._links.accumulates, "an assignment overwrites a gradient that was not sent"
            assert playing.number == self.step and self.step in self._assigned, (playing, self.step)
            assert playing.discarded or self._links.is_at(playing.evaluation), playing
        assert all(self.step <= n <= self.step + AHEAD for n in self._assigned), self._assigned
        assert all(self.step - REMEMBERED <= n < self.step for n in self._results), self._results
