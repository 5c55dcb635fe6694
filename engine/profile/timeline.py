"""A step as bars: measured or predicted, in one form, from which pictures, tables and traces are made.

Four numbers divide a machine's time and add up to the step. Its kernels compute; or they do not, but a
message is sent or received; or neither happens, and a message that it could use is missing: it waits; or
nothing is missing: it is idle, because it is done or the runtime is between two instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from partita.engine.profile.spans import Span, joined, length, without
from partita.engine.runtime.trace import COMMUNICATION, Delivery, PartTrace, StepTrace
from partita.partitioner.ir.program import COMPUTES, Instruction, Op
from partita.partitioner.plan import Plan
from partita.partitioner.predict.simulated_step import Times

MESSAGES = ("send", "receive")
"""Kinds of bars in which nothing is computed."""
KIND_OF: Final = {
    Op.MULTIPLY: "forward",
    Op.FORWARD: "forward",
    Op.SUMMARISE: "forward",
    Op.GRAD_PREACTIVATION: "backward",
    Op.GRAD_INPUT: "backward",
    Op.FUSED_UPDATE: "update",
    Op.GRADIENT: "update",
    Op.SQUARES: "update",
    Op.UPDATE: "update",
    Op.FEED: "other",
    Op.ADD: "other",
    Op.SEND: "send",
    Op.RECV: "receive",
}
"""Kind of bar of each instruction."""
KERNEL = COMMUNICATION + 1
"""Thread of predicted computations; a machine runs one at a time."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An activity of a thread, in seconds from the start of the step.

    Args:
        machine, thread: index of both; thread 0 is the communication thread, kernel threads are 1 and above.
        start_s, stop_s: start and end.
        kind: kind of activity, for a colour; one of `KIND_OF`.
        label: description in a few words.
        text: description in full.
    """

    machine: int
    thread: int
    start_s: float
    stop_s: float
    kind: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Flight:
    """A message in transit, in seconds from the start of the step.

    Args:
        source, destination: machines.
        sender, taker: threads that send it and put it in its place.
        begun_s: when its sender began to send it.
        sent_s: when its sender's transport had all of it.
        arrived_s: when it arrived. May seem to be before `sent_s`, by as much as clocks are uncertain, or
            where its first bytes left while it was still being sent.
        taken_s: when the destination began to put it in its place.
        label: description of its content.
    """

    source: int
    destination: int
    sender: int
    taker: int
    begun_s: float
    sent_s: float
    arrived_s: float
    taken_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A message that a machine could have used from `start_s` on, and that arrived at `stop_s`."""

    start_s: float
    stop_s: float
    what: str


@dataclass(frozen=True)
class Timeline:
    """One step of all machines.

    Args:
        machines: names of the machines.
        step_s: from the start of the first machine until the end of the last.
        bars: activities of threads, by start.
        flights: messages between them, where they are known.
        missing: for each machine, the messages that it waited for.
        doubt_s: for each machine, uncertainty of its bars against the others'.
    """

    machines: tuple[str, ...]
    step_s: float
    bars: tuple[Bar, ...]
    flights: tuple[Flight, ...]
    missing: tuple[tuple[Missing, ...], ...]
    doubt_s: tuple[float, ...]

    @classmethod
    def of_trace(cls, plan: Plan, trace: StepTrace) -> Timeline:
        """The timeline of a step that was played."""
        zero, names = trace.began_s, _names(plan)
        bars = [bar for m, part in enumerate(trace.parts) for bar in _bars_of(part, m, names, zero)]
        flights = []
        missing: list[list[Missing]] = [[] for _ in trace.parts]
        for d in trace.deliveries():
            flights.append(_flight(trace, d, zero))
            if d.arrived_s > d.wanted_s:
                buffer = trace.parts[d.source].program.instructions[d.send].target.buffer
                what = f"{buffer.description} from {names[d.source]}"
                missing[d.destination].append(Missing(d.wanted_s - zero, d.arrived_s - zero, what))
        return cls(
            names,
            trace.over_s - zero,
            tuple(sorted(bars, key=lambda bar: (bar.start_s, bar.machine, bar.thread))),
            tuple(sorted(flights, key=lambda flight: flight.sent_s)),
            tuple(tuple(spans) for spans in missing),
            tuple(part.uncertainty_s for part in trace.parts),
        )

    @classmethod
    def of_simulated_step(cls, plan: Plan) -> Timeline:
        """The timeline of the predicted step. On the virtual clock a machine that has begun pauses for
        messages alone.
        """
        simulated_step, names = plan.simulated_step, _names(plan)
        bars, ends = [], [0.0] * len(names)
        starts = {(bar.machine, bar.position): bar.start_s for bar in simulated_step.bars}
        for bar in simulated_step.bars:
            instruction = simulated_step.instruction(bar)
            thread = KERNEL if instruction.op in COMPUTES else COMMUNICATION
            bars.append(_bar(bar.machine, thread, bar.start_s, bar.stop_s, instruction, names))
            ends[bar.machine] = max(ends[bar.machine], bar.stop_s)
        flights = tuple(
            Flight(
                f.source,
                f.destination,
                COMMUNICATION,
                COMMUNICATION,
                starts[f.source, f.send],
                f.start_s,
                f.stop_s,
                starts[f.destination, f.receive],
                str(simulated_step.programs[f.source].instructions[f.send].target),
            )
            for f in simulated_step.flights
        )
        missing = tuple(
            (Missing(begun, max(begun, end), "a message"),)
            for begun, end in zip(simulated_step.record.begins, ends, strict=True)
        )
        return cls(names, simulated_step.step_s, tuple(bars), flights, missing, (0.0,) * len(names))

    @cached_property
    def times(self) -> tuple[Times, ...]:
        """Where each machine's step goes."""
        return tuple(self._times(m) for m in range(len(self.machines)))

    def waits(self, machine: int) -> tuple[Missing, ...]:
        """Spans in which a machine did nothing and missed a message: the message that arrived at the end."""
        missing = self.missing[machine]
        spans = without(joined((m.start_s, m.stop_s) for m in missing), self._busy(machine))
        found = []
        for start_s, stop_s in spans:
            last = min((m for m in missing if m.start_s < stop_s <= m.stop_s), key=lambda m: m.stop_s)
            found.append(Missing(start_s, stop_s, last.what))
        return tuple(found)

    def _times(self, machine: int) -> Times:
        computing = length(self._busy(machine, messages=False))
        busy = length(self._busy(machine))
        waiting = length((wait.start_s, wait.stop_s) for wait in self.waits(machine))
        return Times(computing, busy - computing, waiting, max(self.step_s - busy - waiting, 0.0))

    def _busy(self, machine: int, *, messages: bool = True) -> tuple[Span, ...]:
        return joined(
            (bar.start_s, bar.stop_s)
            for bar in self.bars
            if bar.machine == machine and (messages or bar.kind not in MESSAGES)
        )


def label_of(instruction: Instruction, names: tuple[str, ...]) -> str:
    """Describes an instruction in few words: `FORWARD h1`, `SEND h1 to b`."""
    what = f"{instruction.op} {instruction.target.buffer}"
    if instruction.peer is None:
        return what
    return f"{what} {'to' if instruction.op is Op.SEND else 'from'} {names[instruction.peer]}"


def _names(plan: Plan) -> tuple[str, ...]:
    return tuple(machine.name for machine in plan.cluster.machines)


def _bars_of(part: PartTrace, machine: int, names: tuple[str, ...], zero: float) -> Iterator[Bar]:
    for n, instruction in enumerate(part.program.instructions):
        start, stop = float(part.started_s[n]) - zero, float(part.stopped_s[n]) - zero
        yield _bar(machine, int(part.thread[n]), start, stop, instruction, names)


def _flight(trace: StepTrace, d: Delivery, zero: float) -> Flight:
    sender, receiver = trace.parts[d.source], trace.parts[d.destination]
    return Flight(
        d.source,
        d.destination,
        int(sender.thread[d.send]),
        int(receiver.thread[d.receive]),
        float(sender.started_s[d.send]) - zero,
        d.handed_over_s - zero,
        d.arrived_s - zero,
        float(receiver.started_s[d.receive]) - zero,
        str(sender.program.instructions[d.send].target),
    )


def _bar(
    machine: int, thread: int, start_s: float, stop_s: float, instruction: Instruction, names: tuple[str, ...]
) -> Bar:
    kind, label = KIND_OF[instruction.op], label_of(instruction, names)
    return Bar(machine, thread, start_s, stop_s, kind, label, str(instruction))
