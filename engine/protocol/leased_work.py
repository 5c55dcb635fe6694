"""Work that the coordinator leases in ranges (`Begin`): a part does its steps in order, waiting for nobody.

Before the first step it reports which one to go on with (`ResumeStep`). The last step that it knows waits
until it is known whether another one follows, so that all parts of the replica end with the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from typing_extensions import override

from partita.engine.protocol.actions import Action, Compute
from partita.engine.protocol.events import Received, Send, Tick
from partita.engine.protocol.leases import LeasedSteps
from partita.engine.protocol.messages import Begin, ResumeStep
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.parameter_links import ParameterLinks
from partita.engine.protocol.part import RESEND_S, Work
from partita.engine.protocol.program_effects import StepDone
from partita.engine.protocol.program_reports import ProgramReports


class HasSteps(Protocol):
    """A part, as far as the `replica(me)` of a driver with shards knows it."""

    def steps(self) -> Iterable[int]:
        """The steps that are to be done."""


@dataclass(frozen=True, slots=True)
class RunUnit:
    """Effect: compute a step, as soon as the part's receivers keep up; `StepDone` reports its end.

    Afterwards its gradient is accumulated, and applied to the part's parameters.

    Args:
        number: of the step among those that this process computes.
        step: its number among the replica's steps.
        unit: its number among the steps of the run: what its examples are.
        updates: earlier updates of the parameters, for schedules.
        scale: factor of the learning rate.
    """

    number: int
    step: int
    unit: int
    updates: int
    scale: float = 1.0


class LeasedWork(Work):
    """The steps of a part.

    Attributes:
        step: the next step, or the present one; -1 before `Begin`.
        leases: what its steps are.
    """

    takes: ClassVar[tuple[type, ...]] = (Begin,)
    step: int

    def __init__(self, links: ParameterLinks, *, delay: float = 0.0, reports_each: bool = False) -> None:
        """Work that is not known yet.

        Args:
            links: to the shards that hold the part's parameters.
            delay: updates by which a gradient is late on this machine, see `Downpour.overlap`.
            reports_each: reports each step at once.
        """
        self.others, self.shared = (links,), links
        self.step = -1
        self.leases: Final = LeasedSteps()
        self._links: Final = links
        self._delay: Final = delay
        self._reports_each: Final = reports_each
        self._scale = self._scale_now = 1.0  # as ordered, and that of the step under way
        self._changes = 0  # of the scale
        self._number = -1  # of the newest step that this process computes
        self._sent_at = float("-inf")
        self._reports: Final = ProgramReports()

    @property
    def me(self) -> HasSteps:
        """The part, whose steps are those of its leases."""
        return self

    def steps(self) -> Iterator[int]:
        """Yields the steps that are to be done, each when the one before it is computed."""
        before = -1
        while self.step < self.leases.stop:
            if self.step == before:
                raise RuntimeError(
                    f"the driver's program has not computed step {before}; compute each step of me.steps()"
                )
            before = self.step
            yield before

    @property
    def runs(self) -> bool:
        """Returns whether the first step is known."""
        return self.step >= 0

    @property
    def is_complete(self) -> bool:
        """Returns whether every gradient is acknowledged."""
        return self._links.drained

    @property
    def _is_dry(self) -> bool:
        """Returns whether the next step has to wait until it is known whether another one follows."""
        return self.step + 1 >= self.leases.stop and not self.leases.is_last

    # Events.

    def start(self, now: float) -> Iterable[Any]:
        """Asks for the parameters, and for what the shards have of earlier processes."""
        return self._links.pull(now)

    def receive(self, event: Any, now: float) -> Iterator[Any]:
        """Handles `Begin`, and repeats what the coordinator may not know."""
        match event:
            case Received(message=Begin() as begin):
                self._begin(begin, now)
                if isinstance(self.running.action, Compute) and self.computing is None:
                    yield from self._make_way(now)
            case Tick() if self._waits_for_work and now - self._sent_at >= RESEND_S:
                yield from self._report(now)

    def _begin(self, begin: Begin, now: float) -> None:
        """Begins, or goes on, with more steps."""
        if begin.changes >= self._changes:
            self._scale, self._changes = begin.scale, begin.changes
        self.leases.take(begin.leases, begin.stop, is_last=begin.is_last)
        if self.step < 0:
            self.step = begin.step
            self._reports.begin(now)
        elif self.running.is_over and self.step < self.leases.stop:
            self._links.go_on()
            self.running.drop()

    def advance(self, now: float) -> Iterator[Send]:
        """Reports the step to go on with, which the coordinator waits for before it sends `Begin`."""
        if self.step < 0 and self._links.informed and now - self._sent_at >= RESEND_S:
            self._sent_at = now
            yield Send(COORDINATOR, ResumeStep(self._links.continues))

    def comes(self, action: Action | None, now: float) -> Iterable[Any]:
        """Pushes what is in the way of a step that a shard has; at the end of the program, what is left."""
        if action is None:
            return self._links.drain(now)
        return self._make_way(now) if isinstance(action, Compute) else ()

    def _make_way(self, now: float) -> Iterable[Any]:
        return self._links.make_way(self._unit, now, scale=self._scale) if self._is_leased else ()

    # Steps.

    def may_begin(self, action: Action) -> bool:
        """Returns whether a step can begin."""
        has_way = not self._is_leased or self._links.has_way(self._unit, scale=self._scale)
        return not self._is_dry and has_way

    @property
    def _is_leased(self) -> bool:
        return self.step < self.leases.stop

    @property
    def _unit(self) -> int:
        return self.leases.unit(self.step)

    def begin(self, action: Action, now: float) -> Iterator[RunUnit]:
        """Orders the computation of a step."""
        assert isinstance(action, Compute)
        if action.step != self.step or not self._is_leased:
            raise RuntimeError(
                f"the driver's program computes step {action.step}, and {self.step} is under way; compute "
                "each step of me.steps() once, in its turn"
            )
        if not self._links.installed:
            raise RuntimeError(
                f"the driver's program computes step {self.step} without parameters of every shard; yield "
                "Room(ahead) and Install() before Compute(step)"
            )
        self._number += 1
        self.computing = self._number
        self._scale_now = self._scale
        yield RunUnit(self._number, self.step, self._unit, self._links.updates, self._scale_now)

    def done(self, done: StepDone, now: float) -> Iterator[Any]:
        """Counts the step's gradient, and reports it when a report is due."""
        yield from self._links.computed(self.step, self._unit, now, scale=self._scale_now)
        self.step += 1
        self._reports.add(done)
        ends = self._is_dry or self.step == self.leases.stop or self._reports_each
        if self._reports.settle(self.step, now) or ends:
            yield from self._report(now)

    def _report(self, now: float) -> list[Send]:
        links, self._sent_at = self._links, now
        staleness = links.staleness + links.pushes * self._delay
        return self._reports.send(self.step, now, staleness, links.pushes, links.held)

    @property
    @override
    def staleness(self) -> tuple[int, ...]:
        return tuple(self._links.by_staleness)

    # Waits.

    @property
    def _waits_for_work(self) -> bool:
        return isinstance(self.running.action, Compute) and self.computing is None and self._is_dry

    def waits(self) -> Iterator[tuple[str, str]]:
        """Yields the shards without which the part gets no further."""
        informs = self.step < 0 and self._links.informed
        if not informs and not self._waits_for_work:
            yield from ((shard, "an answer") for shard in self._links.waits_for)

    def wording(self, what: str, step: int) -> str:
        """Words what the computation of a step waits for."""
        return f"{what} in step {self.step}"
