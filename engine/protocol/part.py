"""The machine of a part: it runs `driver.replica(me)`, whatever the driver.

It is the only interpreter of that generator. Each action has a carrier (`carrier`), and the first of them is
the source of the part's work: `leased_work`, `assigned_work`, `joined_work` or `requested_work`. The machine
itself decides when the next action comes, and what every part reports: that it has finished, and whom it has
waited for long. It must not know numbers, instructions or time beyond `now`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from typing_extensions import override

from partita.engine.protocol.actions import Action, Compute, Program
from partita.engine.protocol.carrier import Carrier, RunningProgram
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Tick
from partita.engine.protocol.host import PeersChanged, RoleMachine
from partita.engine.protocol.messages import Credit, Finished, Heartbeat, Tensor
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part_validation import (
    PartValidation,
    SharedParameters,
    ValidationDone,
    is_of_validation,
)
from partita.engine.protocol.program_effects import Deliver, StepDone, StuckOn
from partita.engine.protocol.stall_detector import StallDetector
from partita.engine.protocol.watch_messages import PresentWait

RESEND_S: Final = 1.0

_SHOWN_S: Final = 1.0
"""Seconds from which on a wait is shown to those who watch."""


@dataclass(frozen=True, slots=True)
class LookForWaits:
    """Effect: look what the player waits for; `StuckOn` reports it at once."""


class Work(Carrier):
    """The source of a part's steps: what is computed, and what is reported of it.

    Attributes:
        running: the part's program.
        others: the carriers of the actions that it does not carry out itself.
        shared: links to the shards that have the parameters; None: the part has them.
        computing: number of the step that the body computes; None: none.
        step: steps done, as far as the part's reports count them.
    """

    carries: ClassVar[tuple[type, ...]] = (Compute,)

    running: RunningProgram
    others: tuple[Carrier, ...] = ()
    shared: SharedParameters | None = None
    computing: int | None = None
    step: int | None = 0

    @property
    @abstractmethod
    def me(self) -> Any:
        """The part, as far as a driver's `replica(me)` knows it."""

    @property
    def runs(self) -> bool:
        """Returns whether the program may go on."""
        return True

    @property
    def is_complete(self) -> bool:
        """Returns whether nothing is left to be acknowledged when the program has ended."""
        return True

    def start(self, now: float) -> Iterable[Any]:
        """Begins: all hosts that the part needs can be reached."""
        return ()

    def peers_changed(self, event: PeersChanged, now: float) -> Iterable[Any]:
        """Notes a newer directory."""
        return ()

    def advance(self, now: float) -> Iterable[Any]:
        """Does what is due between two actions, whether the program may go on or not."""
        return ()

    def comes(self, action: Action | None, now: float) -> Iterable[Any]:
        """Returns the effects of the program's having come to an action; None: to its end."""
        return ()

    def is_done(self, action: Action) -> bool:
        """Returns whether the step is computed."""
        return self.computing is None

    @abstractmethod
    def done(self, done: StepDone, now: float) -> Iterable[Any]:
        """Returns the effects of the end of the step that was computed."""

    def deliver(self, event: Received) -> Iterable[Any]:
        """Returns the effects of a message of another part of the replica."""
        return (Deliver(event),)

    def waits(self) -> Iterable[tuple[str, str]]:
        """Yields (host, what) that the part gets no further without, while nothing is computed."""
        return ()

    @property
    def staleness(self) -> tuple[int, ...]:
        """Acknowledged pushes by staleness; empty where none are pushed."""
        return ()

    def wording(self, what: str, step: int) -> str:
        """Words what the computation of a step waits for."""
        return what


class Part(RoleMachine):
    """One part of one replica.

    Attributes:
        work: the source of its steps.
        running: its program.
    """

    def __init__(
        self,
        program: Callable[[Any], Program],
        work: Work,
        *,
        needed: Iterable[str] = (),
        watched: Iterable[str] = (),
        version: int = 0,
    ) -> None:
        """A part that knows nobody.

        Args:
            program: a driver's `replica`.
            work: the source of its steps.
            needed: the hosts without which it does not begin.
            watched: the hosts whose replacement matters to it.
            version: of the state that it starts from.
        """
        self.version = version
        self.work: Final = work
        self.running: Final = RunningProgram(program)
        work.running = self.running
        self._carriers: Final[Mapping[type, Carrier]] = {
            kind: one for one in (work, *work.others) for kind in one.carries
        }
        self._validation: Final = PartValidation(work.shared)
        takers = work, *work.others, self._validation
        self._takers: Final[Mapping[type, Carrier]] = {kind: one for one in takers for kind in one.takes}
        self._needed: Final = frozenset(needed)
        self._watched: Final = sorted(watched)
        self._peers: Mapping[str, int] | None = None  # None until all needed hosts can be reached
        self._revision = 0
        self._finished_at: float | None = None  # Finished was sent, and nothing undone since
        self._stalls: Final = StallDetector()

    def receive(self, event: Any, now: float) -> list[Any]:
        """Returns the effects of an event, then those of the actions that are possible after it."""
        effects = [*self._follow(event, now)]
        if self._peers is not None and self.work.computing is None:
            self._go_on(effects, now)
        return effects

    def _follow(self, event: Any, now: float) -> Iterable[Any]:
        if isinstance(event, Received):
            return self._received(event, now)
        match event:
            case StepDone():
                return self._step_done(event, now)
            case Tick():
                return () if self._peers is None else self._tick(now)
            case PeersChanged():
                return self._peers_changed(event, now)
            case ValidationDone():
                return self._validation.receive(event, now)
            case StuckOn(number=step, waits=missing):
                waits = [(host, self.work.wording(what, step)) for host, what in missing]
                return self._report_waits(step, waits, now)
            case _:
                return self.work.receive(event, now)

    def _received(self, event: Received, now: float) -> Iterable[Any]:
        taker = self._takers.get(type(event.message))
        if taker is not None:
            return taker.receive(event, now)
        if isinstance(event.message, (Tensor, Credit)):
            taker = self._validation if is_of_validation(event) else self.work
            return taker.deliver(event)
        if isinstance(event.message, Heartbeat):
            return ()
        kind = type(event.message).__name__
        return (Refuse(event.sender, f"'{kind}', which is not for a part of this driver"),)

    def _peers_changed(self, event: PeersChanged, now: float) -> Iterator[Any]:
        known, self._revision = self._peers, event.revision
        yield from self.work.peers_changed(event, now)
        if known is None and not self._needed <= event.peers.keys():
            return
        self._peers = event.peers
        if known is None:
            yield from self.work.start(now)
            return
        for name in self._watched:
            if event.peers.get(name, 0) > known.get(name, 0):
                for one in self.work.others:
                    yield from one.receive(Replaced(name, event.peers[name]), now)

    # The program.

    def _go_on(self, effects: list[Any], now: float) -> None:
        """Carries out actions as far as possible, and adds their effects."""
        work, running = self.work, self.running
        effects += self._validation.advance()
        if not running.is_over:
            self._finished_at = None
        while True:
            effects += work.advance(now)
            if running.is_over or running.awaits is not None or not work.runs:
                break
            action = running.action
            if action is None:
                action = running.advance(work.me)
                effects += work.comes(action, now)
            elif not self._carry_out(action, effects, now):
                return
        if running.is_over:
            effects += self._finish(now)

    def _carry_out(self, action: Action, effects: list[Any], now: float) -> bool:
        """Begins or ends the action under way; returns whether the program goes on."""
        running, carrier = self.running, self._carriers.get(type(action))
        if carrier is None:
            raise TypeError(
                f"the driver's program yields {action}, which no part of it carries out: "
                f"there are {', '.join(sorted(kind.__name__ for kind in self._carriers))}"
            )
        if not running.has_begun:
            if not carrier.may_begin(action):
                return False
            running.has_begun = True
            effects += carrier.begin(action, now)
        if running.action is action:  # else another view has ended the program
            if not carrier.is_done(action):
                return False
            effects += carrier.end(action)
            running.action, running.awaits = None, carrier.awaits(action)
        return True

    def _step_done(self, done: StepDone, now: float) -> Iterable[Any]:
        if done.number != self.work.computing:
            return ()  # of a view that has ended
        self.work.computing = None
        return self.work.done(done, now)

    def _finish(self, now: float) -> Iterator[Send]:
        """Reports the end when all is acknowledged, and again until the coordinator ends the host."""
        if not self.work.is_complete:
            self._finished_at = None
        elif self._finished_at is None or now - self._finished_at >= RESEND_S:
            assert self.work.step is not None
            self._finished_at = now
            yield Send(COORDINATOR, Finished(self.work.step, self._revision))

    # Time.

    def _tick(self, now: float) -> Iterator[Any]:
        for one in (*self.work.others, self.work):
            yield from one.receive(Tick(), now)
        if self.work.computing is not None:
            yield LookForWaits()
        else:
            waits = [*self._validation.waits()] or self.work.waits()
            yield from self._report_waits(self.work.step, waits, now)

    def _report_waits(self, at: object, waits: Iterable[tuple[str, str]], now: float) -> list[Send]:
        """Reports long waits: where the part is, and (host, what) that it gets no further without."""
        return [Send(COORDINATOR, report) for report in self._stalls.look(at, tuple(waits), now)]

    @override
    def present_waits(self, now: float) -> tuple[PresentWait, ...]:
        return tuple(PresentWait(*wait) for wait in self._stalls.present(now, least_s=_SHOWN_S))

    @property
    @override
    def staleness(self) -> tuple[int, ...]:
        return self.work.staleness

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        running = self.running
        assert not running.is_over or running.action is None, running.action
        assert self.work.computing is None or isinstance(running.action, Compute), running.action
        assert self.work.computing is None or running.has_begun, running.action
        for one in (self.work, *self.work.others, self._validation):
            one.validate()
