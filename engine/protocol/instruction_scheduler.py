"""Schedules a part's program: starts what is ready, sends what others need, and places what they sent.

The scheduler knows what each instruction waits for, and not what it does. It must not know arrays, layers or
durations. There is no barrier: a step is over when its last instruction is, and the messages of the next step
may arrive before that; they wait until the rows that they fill are free.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from partita.engine.protocol.events import Received, Refuse, Send, payload_bytes
from partita.engine.protocol.messages import Credit, Rows, Tensor

AHEAD: Final = 2
"""Steps that a part may begin before a part that only receives from it has finished the first of them."""


class Kind(Enum):
    """The kinds of instructions."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, slots=True)
class ScheduledInstruction:
    """An instruction, as far as the scheduler must know it.

    Args:
        kind: of the instruction.
        after: positions of earlier instructions that must be done.
        peer: the host that a message goes to or comes from; "" for a computation.
        buffer, rows: the contents of the message.
        n_bytes: size of the payload that a RECV takes.
    """

    kind: Kind
    after: tuple[int, ...] = ()
    peer: str = ""
    buffer: str = ""
    rows: Rows = ()
    n_bytes: int = -1


@dataclass(frozen=True, slots=True)
class BeginStep:
    """Event: run the program, or a phase of it, once more, as this step. Only if `may_begin()`."""

    step: int
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """Event: the computation at this position is done, or its message has left."""

    position: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Effect: run the computation at this position, on any kernel thread."""

    position: int


@dataclass(frozen=True, slots=True)
class Place:
    """Effect: copy the payload into the rows of the RECV at this position, before the next effect."""

    position: int
    payload: object


@dataclass(frozen=True, slots=True)
class Transmit:
    """Effect: send this message with the rows of the SEND at this position.

    `Completed` once they may be overwritten.
    """

    to: str
    message: Tensor
    position: int


@dataclass(frozen=True, slots=True)
class StepOver:
    """Effect: every instruction of the step is done."""

    step: int


SchedulerEvent: TypeAlias = BeginStep | Completed | Received
SchedulerEffect: TypeAlias = Compute | Place | Transmit | StepOver | Send | Refuse


class InstructionScheduler:
    """Runs one program, step after step. Effects are to be carried out in order."""

    def __init__(
        self,
        works: Sequence[ScheduledInstruction],
        *,
        lanes: int = 1,
        first_step: int = 0,
        phases: Sequence[Sequence[int]] = (),
    ) -> None:
        """Creates a scheduler that has not begun.

        Args:
            works: the program.
            lanes: largest number of computations at a time.
            first_step: the number of the first step.
            phases: the positions that a step of each phase plays, ascending; none: each step plays all. An
                instruction is in one phase, and waits for none of a later one.
        """
        self._works: Final = tuple(works)
        self._lanes: Final = lanes
        self._phases: Final = tuple(map(tuple, phases)) or (tuple(range(len(self._works))),)
        phase_of = {n: k for k, phase in enumerate(self._phases) for n in phase}
        self._followers: Final[tuple[list[int], ...]] = tuple([] for _ in self._works)
        self._preceding: Final = [0] * len(self._works)  # in the same phase
        for n, work in enumerate(self._works):
            for k in work.after:
                if phase_of[k] == phase_of[n]:
                    self._followers[k].append(n)
                    self._preceding[n] += 1
        self._receives: Final = {
            (work.peer, work.buffer): n for n, work in enumerate(self._works) if work.kind is Kind.RECEIVE
        }
        senders = {work.peer for work in self._works if work.kind is Kind.RECEIVE}
        receivers = {work.peer for work in self._works if work.kind is Kind.SEND}
        self._grants: Final = tuple(sorted(senders - receivers))
        self._credit: Final = dict.fromkeys(sorted(receivers - senders), first_step - 1)
        self._missing: list[int] = []
        self._ready: list[int] = []
        self._computing: set[int] = set()
        self._sending: set[int] = set()
        self._left = 0
        self._open: set[int] = set()
        self._early: dict[tuple[str, str], dict[int, object]] = {key: {} for key in self._receives}
        self.step = first_step - 1
        self.playing = False

    def may_begin(self) -> bool:
        """Returns whether the next step can begin: the last one is over, and receivers keep up."""
        return not self.playing and all(done >= self.step + 1 - AHEAD for done in self._credit.values())

    @property
    def waits_for(self) -> tuple[tuple[str, str], ...]:
        """(host, buffer) of each missing message, or (host, "credit")."""
        if self.playing:
            return tuple((self._works[n].peer, self._works[n].buffer) for n in sorted(self._open))
        return tuple((peer, "credit") for peer, done in self._credit.items() if done < self.step + 1 - AHEAD)

    @property
    def stuck_on(self) -> tuple[tuple[str, str], ...]:
        """The same, if there is nothing else to do."""
        return () if self._computing or self._ready or self._sending else self.waits_for

    def receive(self, event: SchedulerEvent, now: float) -> list[SchedulerEffect]:
        """Returns the effects of an event, to be carried out in order."""
        effects: list[SchedulerEffect] = []
        match event:
            case Completed(position=position):
                under_way = self._computing if self._works[position].kind is Kind.COMPUTE else self._sending
                assert position in under_way, f"{position} was not under way"
                under_way.remove(position)
                self._done(position, effects)
            case Received(message=Tensor() as tensor):
                self._tensor(event, tensor, effects)
            case BeginStep(step=step, phase=phase):
                assert self.may_begin() and step == self.step + 1, (
                    f"step {step} cannot begin after {self.step}"
                )
                self._begin(step, self._phases[phase], effects)
            case Received(sender=sender, message=Credit(step=step)):
                if sender in self._credit and step <= self.step:
                    self._credit[sender] = max(self._credit[sender], step)
                elif sender in self._credit:
                    effects.append(Refuse(sender, f"it has finished step {step}, and this is {self.step}"))
                else:
                    effects.append(Refuse(sender, "its credit is not expected"))
            case Received(sender=sender, message=message):
                effects.append(Refuse(sender, f"a part does not take a {type(message).__name__}"))
        self._fill_lanes(effects)
        return effects

    def _begin(self, step: int, phase: Sequence[int], effects: list[SchedulerEffect]) -> None:
        self.step, self.playing = step, True
        self._missing = list(self._preceding)
        self._left = len(phase)
        for n in phase:
            if not self._preceding[n]:
                self._enable(n, effects)
        if not phase:
            self._over(effects)

    def _enable(self, n: int, effects: list[SchedulerEffect]) -> None:
        work = self._works[n]
        if work.kind is Kind.COMPUTE:
            heapq.heappush(self._ready, n)
        elif work.kind is Kind.SEND:
            self._sending.add(n)
            effects.append(Transmit(work.peer, Tensor(self.step, work.buffer, work.rows), n))
        elif self.step in self._early[work.peer, work.buffer]:
            effects.append(Place(n, self._early[work.peer, work.buffer].pop(self.step)))
            self._done(n, effects)
        else:
            self._open.add(n)

    def _tensor(self, event: Received, tensor: Tensor, effects: list[SchedulerEffect]) -> None:
        key = (event.sender, tensor.buffer)
        n = self._receives.get(key)
        if n is None or tensor.rows != self._works[n].rows:
            effects.append(
                Refuse(event.sender, f"no instruction receives {tensor.buffer}{list(tensor.rows)} from it")
            )
        elif (found := payload_bytes(event.payload)) != (expected := self._works[n].n_bytes):
            effects.append(Refuse(event.sender, f"{tensor.buffer} has {expected} bytes here, not {found}"))
        elif tensor.step == self.step and n in self._open:
            self._open.remove(n)
            effects.append(Place(n, event.payload))
            self._done(n, effects)
        elif self.step <= tensor.step <= self.step + AHEAD and tensor.step not in self._early[key]:
            self._early[key][tensor.step] = event.payload
        else:
            effects.append(Refuse(event.sender, f"{tensor.buffer} of step {tensor.step} in step {self.step}"))

    def _done(self, position: int, effects: list[SchedulerEffect]) -> None:
        self._left -= 1
        for follower in self._followers[position]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self._enable(follower, effects)
        if not self._left:
            self._over(effects)

    def _over(self, effects: list[SchedulerEffect]) -> None:
        self.playing = False
        effects.extend(Send(peer, Credit(self.step)) for peer in self._grants)
        effects.append(StepOver(self.step))

    def _fill_lanes(self, effects: list[SchedulerEffect]) -> None:
        while self._ready and len(self._computing) < self._lanes:
            n = heapq.heappop(self._ready)
            self._computing.add(n)
            effects.append(Compute(n))

    def validate(self) -> None:
        """Checks what must hold between two events. Raises AssertionError."""
        assert len(self._computing) <= self._lanes
        assert self.playing or not (
            self._ready or self._computing or self._sending or self._open or self._left
        )
        for early in self._early.values():
            assert len(early) <= AHEAD + 1, early
            assert all(self.step <= step <= self.step + AHEAD for step in early), (early, self.step)
