"""A step as bars: measured or predicted, in one form, from which pictures, tables and traces are made.

Where a machine's time goes is told by four numbers that add up to the step. Its kernels compute; or they do
not, but its messenger sends or takes in; or neither does, and a message that it could use is missing: it
waits; or nothing is missing: it is idle, because it has done all or the runtime is between two instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from partita.engine.runtime.trace import MESSENGER, Delivery, PartTrace, StepTrace
from partita.partitioner.buffer_names import layer_of
from partita.partitioner.plan import Plan
from partita.partitioner.program import COMPUTES, Instruction, Op
from partita.partitioner.simulate import Playback

KERNEL: Final = 1
"""The thread of predicted computations; a machine runs one at a time."""


class Kind(StrEnum):
    """What a bar shows."""

    UP = "up"
    DOWN = "down"
    LEARN = "learn"
    OTHER = "other"
    SEND = "send"
    RECEIVE = "receive"
    WAIT = "wait"


KINDS: Final = {
    Op.MULTIPLY: Kind.UP,
    Op.UP: Kind.UP,
    Op.SUMMARISE: Kind.UP,
    Op.DELTA: Kind.DOWN,
    Op.ERRORS: Kind.DOWN,
    Op.LEARN: Kind.LEARN,
    Op.GRADIENT: Kind.LEARN,
    Op.UPDATE: Kind.LEARN,
    Op.SQUARES: Kind.LEARN,
    Op.SEND: Kind.SEND,
    Op.RECV: Kind.RECEIVE,
}
"""Of each operation; all others are OTHER."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that a thread of a machine did, in seconds from the start of the step.

    Args:
        machine, thread: whose; thread 0 is the messenger, kernel threads are 1 and above.
        start_s, stop_s: when.
        kind: what, for a colour.
        label: what, in two words.
        text: what, in full.
    """

    machine: int
    thread: int
    start_s: float
    stop_s: float
    kind: Kind
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Flight:
    """A message on its way, in seconds from the start of the step.

    Args:
        source, destination: machines.
        taker: the thread that puts it in its place; the messenger has sent it.
        begun_s: when its sender began to hand it over.
        sent_s: when its sender's transport had it.
        arrived_s: when it was there. May seem to be before `sent_s`, by as much as clocks are uncertain, or
            where its first bytes left while it was still being handed over.
        taken_s: when the destination began to put it in its place.
        label: what it carries.
    """

    source: int
    destination: int
    taker: int
    begun_s: float
    sent_s: float
    arrived_s: float
    taken_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Times:
    """Where a machine's step goes, in seconds; see the head of this module. They add up to the step."""

    computing_s: float
    sending_s: float
    waiting_s: float
    idle_s: float

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.computing_s + self.sending_s + self.waiting_s + self.idle_s


Span = tuple[float, float]


@dataclass(frozen=True)
class Timeline:
    """One step of all machines.

    Args:
        machines: their names.
        step_s: from the start of the first until the end of the last.
        bars: what threads did, by start.
        flights: messages between them, where they are known.
        missing: for each machine, spans in which a message that it could use was not there.
        doubt_s: for each machine, by how much its bars may be shifted against the others'.
    """

    machines: tuple[str, ...]
    step_s: float
    bars: tuple[Bar, ...]
    flights: tuple[Flight, ...]
    missing: tuple[tuple[Span, ...], ...]
    doubt_s: tuple[float, ...]

    @classmethod
    def of_trace(cls, plan: Plan, trace: StepTrace) -> Timeline:
        """A step that was played."""
        zero = trace.began_s
        bars = [bar for m, part in enumerate(trace.parts) for bar in _bars_of(part, m, zero)]
        flights = []
        missing: list[list[Span]] = [[] for _ in trace.parts]
        for d in trace.deliveries():
            flights.append(_flight(trace, d, zero))
            if d.arrived_s > d.wanted_s:
                missing[d.destination].append((d.wanted_s - zero, d.arrived_s - zero))
        return cls(
            tuple(machine.name for machine in plan.cluster.machines),
            trace.over_s - zero,
            tuple(sorted(bars, key=lambda bar: (bar.start_s, bar.machine, bar.thread))),
            tuple(sorted(flights, key=lambda flight: flight.sent_s)),
            tuple(tuple(spans) for spans in missing),
            tuple(part.uncertainty_s for part in trace.parts),
        )

    @classmethod
    def of_playback(cls, plan: Plan, playback: Playback) -> Timeline:
        """A predicted step. On the virtual clock nothing pauses before a machine's end but for a message."""
        bars = []
        ends = [0.0] * len(plan.cluster)
        for bar in playback.bars:
            instruction = plan.programs[bar.machine].instructions[bar.position]
            thread = KERNEL if instruction.op in COMPUTES else MESSENGER
            bars.append(_bar(bar.machine, thread, bar.start_s, bar.stop_s, instruction))
            ends[bar.machine] = max(ends[bar.machine], bar.stop_s)
        names = tuple(machine.name for machine in plan.cluster.machines)
        missing = tuple(((0.0, end),) for end in ends)
        return cls(names, playback.step_s, tuple(bars), (), missing, (0.0,) * len(names))

    @cached_property
    def times(self) -> tuple[Times, ...]:
        """For each machine, where its step goes."""
        return tuple(self._times(m) for m in range(len(self.machines)))

    def waits(self, machine: int) -> tuple[Span, ...]:
        """When a machine did nothing and missed a message."""
        return _without(_joined(self.missing[machine]), self._busy(machine))

    def _times(self, machine: int) -> Times:
        computing = _length(self._busy(machine, messenger=False))
        busy = _length(self._busy(machine))
        waiting = _length(self.waits(machine))
        return Times(computing, busy - computing, waiting, max(self.step_s - busy - waiting, 0.0))

    def _busy(self, machine: int, *, messenger: bool = True) -> tuple[Span, ...]:
        return _joined(
            (bar.start_s, bar.stop_s)
            for bar in self.bars
            if bar.machine == machine and (messenger or bar.thread != MESSENGER)
        )


def _bars_of(part: PartTrace, machine: int, zero: float) -> Iterator[Bar]:
    for n, instruction in enumerate(part.program.instructions):
        start, stop = float(part.started_s[n]) - zero, float(part.stopped_s[n]) - zero
        yield _bar(machine, int(part.thread[n]), start, stop, instruction)


def _flight(trace: StepTrace, d: Delivery, zero: float) -> Flight:
    sender, receiver = trace.parts[d.source], trace.parts[d.destination]
    return Flight(
        d.source,
        d.destination,
        int(receiver.thread[d.receive]),
        float(sender.started_s[d.send]) - zero,
        d.handed_over_s - zero,
        d.arrived_s - zero,
        float(receiver.started_s[d.receive]) - zero,
        str(sender.program.instructions[d.send].target),
    )


def _bar(machine: int, thread: int, start_s: float, stop_s: float, instruction: Instruction) -> Bar:
    kind = KINDS.get(instruction.op, Kind.OTHER)
    label = f"{instruction.op.value} {layer_of(instruction.target.buffer)}"
    return Bar(machine, thread, start_s, stop_s, kind, label, str(instruction))


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same times as disjoint spans in order."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def _without(spans: tuple[Span, ...], others: tuple[Span, ...]) -> tuple[Span, ...]:
    """What of the first is in none of the others; both disjoint and in order."""
    found: list[Span] = []
    for start, stop in spans:
        for a, b in others:
            if b <= start or a >= stop:
                continue
            if a > start:
                found.append((start, a))
            start = max(start, b)
        if start < stop:
            found.append((start, stop))
    return tuple(found)


def _length(spans: Iterable[Span]) -> float:
    return sum(stop - start for start, stop in spans)
