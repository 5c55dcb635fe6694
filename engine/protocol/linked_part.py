"""The machine of a part with links to shards: it runs `driver.replica(me)`, and waits for no other replica.

It carries out the generator's actions over `parameter_links`, and decides what is reported and when the part
has finished. Its body computes; it must not know arrays, examples or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from partita.engine.protocol.actions import Action, Compute, Drain, Install, Program, Pull, Push, Room
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.leases import LeasedSteps
from partita.engine.protocol.messages import (
    Begin,
    Credit,
    Finished,
    Heartbeat,
    Parameters,
    PushAck,
    Report,
    ResumeStep,
    Tensor,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.parameter_links import ParameterLinks
from partita.engine.protocol.part import LookForWaits, PartMachine
from partita.engine.protocol.program_effects import Deliver, StuckOn
from partita.engine.protocol.program_reports import ReportSpacing

RESEND_S: Final = 1.0
OTHERS_FIRST_S: Final = 2.0
"""The time for a machine that sent a nonfinite array to report where that began."""


class HasSteps(Protocol):
    """A part, as far as a driver's `replica(me)` knows it."""

    def steps(self) -> Iterable[int]:
        """The steps that are to be done."""


@dataclass(frozen=True, slots=True)
class RunStep:
    """Effect: compute this step; `StepPlayed` or `Nonfinite` reports its end.

    Args:
        step: its number among the replica's steps.
        unit: its number among the steps of the run: what its examples are.
        updates: earlier updates of the parameters, for schedules.
    """

    step: int
    unit: int
    updates: int


@dataclass(frozen=True, slots=True)
class StepPlayed:
    """Event: the step's gradient is accumulated, and applied to the part's parameters.

    Args:
        examples: of this step, as far as this part counts them.
        loss, correct: sums over the examples since `ClearMetrics`.
        may_begin: whether the next step could begin at once; `PlayerReady` follows where it could not.
    """

    examples: int = 1
    loss: float = 0.0
    correct: int = 0
    may_begin: bool = True


@dataclass(frozen=True, slots=True)
class PlayerReady:
    """Event: the parts that this one sends to are not too far behind any more."""


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """Event: an array of the step is not finite.

    `received`: it came from another machine, where an earlier cause may lie.
    """

    reason: str
    received: bool


@dataclass(frozen=True, slots=True)
class FailNonfinite:
    """Effect: end the run with this sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class ClearMetrics:
    """Effect: the sums of losses start from zero."""


class LinkedPart(PartMachine):
    """The training loop of a part.

    Attributes:
        links: to the shards.
        step: the next step, or the present one; -1 before `Begin`.
        leases: what its steps are.
    """

    def __init__(
        self,
        links: ParameterLinks,
        program: Callable[[HasSteps], Program],
        *,
        others: Sequence[str],
        delay: float = 0.0,
        most_early: int = 64,
    ) -> None:
        """A part that knows nobody.

        Args:
            links: to the shards that hold its parameters.
            program: a driver's `replica`.
            others: the other parts of its replica.
            delay: updates by which a gradient is late on this machine, see `Downpour.overlap`.
            most_early: messages of other parts that may come before the first step is known.
        """
        super().__init__(needed=others, watched=links.shards)
        self.links: Final = links
        self.step = -1
        self.leases: Final = LeasedSteps()
        self._program: Final = program
        self._running: Program | None = None
        self._action: Action | None = None  # under way
        self._delay: Final = delay
        self._early: list[Received] = []
        self._most_early: Final = most_early
        self._inside = False  # a step
        self._finished = False  # Finished was sent, and no shard replaced since
        self._player_ready = True
        self._spacing: Final = ReportSpacing()
        self._examples = 0  # since the last report
        self._fails: tuple[str, float] | None = None
        self._sent_at = float("-inf")

    def receive(self, event: Any, now: float) -> list[Any]:
        """Returns the effects of an event, then those of the actions that are possible after it."""
        effects = [*self._follow(event, now)]
        if self._peers is not None and not self._inside:
            effects += self._go_on(now)
        return effects

    def _follow(self, event: Any, now: float) -> Iterator[Any]:
        match event:
            case Received():
                yield from self._received(event, now)
            case StepPlayed():
                yield from self._end(event, now)
            case PlayerReady():
                self._player_ready = True
            case Tick():
                yield from self._tick(now)
            case PeersChanged():
                yield from self._peers_changed(event, now)
            case Nonfinite(reason=reason, received=received):
                self._fails = reason, now + (OTHERS_FIRST_S if received else 0.0)
                yield from self._fail(now)
            case StuckOn(number=step, waits=missing):
                what = [(host, f"{what} in step {step}") for host, what in missing]
                yield from self._report_waits(step, what, now)

    def _received(self, event: Received, now: float) -> Iterator[Any]:
        match event.message:
            case Tensor() | Credit():
                yield from self._of_part(event)
            case Parameters() | PushAck():
                yield from self.links.receive(event, now)
            case Begin() as begin:
                yield from self._begin(begin)
            case Heartbeat():
                return
            case message:
                yield Refuse(event.sender, f"a {type(message).__name__}, which is not for a part in training")

    def _begin(self, begin: Begin) -> Iterator[Deliver]:
        """Begins, or goes on, with more steps."""
        self.leases.take(begin.leases, begin.stop, is_last=begin.is_last)
        if self.step < 0:
            self.step = begin.step
            yield from map(Deliver, self._early)
            self._early.clear()
        elif self._running is not None and self._action is None and self.step < self.leases.stop:
            self.links.go_on()
            self._running = None

    def steps(self) -> Iterator[int]:
        """Yields the steps that are to be done, as a driver's `replica(me)` sees them."""
        while self.step < self.leases.stop:
            yield self.step

    def _of_part(self, event: Received) -> Iterator[Deliver | Refuse]:
        """Gives the player a message, or keeps it until the first step is known."""
        if self.step >= 0:
            yield Deliver(event)
        elif len(self._early) < self._most_early:
            self._early.append(event)
        else:
            yield Refuse(event.sender, "more than the messages of the first steps")

    def _start(self, now: float) -> Iterator[Any]:
        yield from self.links.pull(now)

    def _replace(self, event: Replaced, now: float) -> Iterator[Any]:
        yield from self.links.receive(event, now)

    # The program.

    def _go_on(self, now: float) -> Iterator[Any]:
        """Carries out actions as far as shards and player allow."""
        if self.step < 0:
            yield from self._resume(now)
            return
        if self._running is None:
            self._running = self._program(self)
            self._action = next(self._running, None)
        while self._action is not None and not self._waits(self._action):
            yield from self._carry_out(self._action, now)
            if self._inside:
                return
            self._action = next(self._running, None)
        if self._action is None:
            yield from self._finish(now)

    def _waits(self, action: Action) -> bool:
        """Returns whether the action cannot be carried out now."""
        match action:
            case Room(ahead=ahead):
                return not (self._player_ready and self.links.has_room(ahead))
            case Compute():
                return self._is_dry or not self._player_ready
        return False

    @property
    def _is_dry(self) -> bool:
        """Whether the next step has to wait until it is known whether another one follows."""
        return self.step + 1 >= self.leases.stop and not self.leases.is_last

    def _carry_out(self, action: Action, now: float) -> Iterator[Any]:
        match action:
            case Pull():
                yield from self.links.pull(now)
            case Install():
                yield from self.links.install()
            case Compute(step=step):
                assert step == self.step, f"the program computes step {step} instead of {self.step}"
                self._inside = True
                yield RunStep(step, self.leases.unit(step), self.links.updates)
            case Push():
                yield from self.links.push(now)
            case Drain():
                yield from self.links.drain(now)
            case Room():
                return
            case _:
                raise TypeError(f"a part that exchanges with shards has no {type(action).__name__}")

    def _resume(self, now: float) -> Iterator[Send]:
        """Reports the step to go on with, which the coordinator waits for before it sends `Begin`."""
        if self.links.informed and now - self._sent_at >= RESEND_S:
            self._sent_at = now
            yield Send(COORDINATOR, ResumeStep(self.links.continues))

    def _end(self, over: StepPlayed, now: float) -> Iterator[Any]:
        self._player_ready = over.may_begin
        yield from self.links.computed(self.step, now)
        self._step_ends()
        self._examples += over.examples
        passed_s = now - self._sent_at
        ends = self._is_dry or self.step == self.leases.stop
        if ends or self._spacing.is_due(self.step, passed_s):
            self._sent_at = now
            yield from self._report(over.loss, over.correct)
            self._spacing.space(passed_s)

    def _step_ends(self) -> None:
        assert self._inside and self._running is not None, f"no step {self.step} is under way"
        self._inside, self.step = False, self.step + 1
        self._action = next(self._running, None)

    def _report(self, loss: float, correct: int) -> Iterator[Any]:
        examples, self._examples = self._examples, 0
        yield self._progress(examples, loss, correct)
        yield ClearMetrics()

    def _progress(self, examples: int, loss: float, correct: int) -> Send:
        links = self.links
        staleness = links.staleness + links.pushes * self._delay
        report = Report(self.step, examples, loss, correct, staleness, links.pushes, links.held)
        return Send(COORDINATOR, report)

    def _finish(self, now: float) -> Iterator[Any]:
        """Reports the end when all is acknowledged, and again until the coordinator ends the host."""
        if not self.links.drained:
            self._finished = False
        elif not self._finished or now - self._sent_at >= RESEND_S:
            self._finished, self._sent_at = True, now
            yield Send(COORDINATOR, Finished(self.step, self._revision))

    # Time.

    def _tick(self, now: float) -> Iterator[Any]:
        yield from self._fail(now)
        yield from self.links.receive(Tick(), now)
        if isinstance(self._action, Compute) and self._is_dry and now - self._sent_at >= RESEND_S:
            self._sent_at = now
            yield self._progress(0, 0.0, 0)  # the coordinator may not know that it needs more
        shards = self._waits_for_shards
        if shards or self.step < 0 or self.links.drained:
            yield from self._report_waits(self.step, [(shard, "an answer") for shard in shards], now)
        else:
            yield LookForWaits()

    @property
    def _waits_for_shards(self) -> tuple[str, ...]:
        """The shards without which the part gets no further."""
        if self._peers is None or self._inside or not self._player_ready:
            return ()
        if self.step < 0 and self.links.informed:
            return ()
        if isinstance(self._action, Compute) and self._is_dry:
            return ()
        return self.links.waits_for if self._action is None or self._waits(self._action) else ()

    def _fail(self, now: float) -> Iterator[FailNonfinite]:
        if self._fails is not None and now >= self._fails[1]:
            yield FailNonfinite(self._fails[0])

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self.links.validate()
        assert self.step < 0 or not self._early, self._early
        assert len(self._early) <= self._most_early, len(self._early)
        assert not self._inside or isinstance(self._action, Compute), self._action
