"""A step as bars of instructions, messages in flight and waits: simulated or traced, in one form.

Four numbers divide a machine's time and add up to the step. Its kernels compute; or they do not, but a
message is sent or received; or neither happens, and a message that it could use is missing: it waits; or
nothing is missing: it is idle, because it has not begun, is done, or is between two instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final

from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Operand, Program
from partita.partitioner.predict.spans import Span, joined, length, without
from partita.partitioner.text import readable_seconds

COMMUNICATION: Final = 0
"""The thread that receives messages, and in a simulation sends them; kernel threads are 1 and above."""
KERNEL: Final = 1
"""The first kernel thread; the only one of a simulated machine, which computes one instruction at a time."""

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
"""Kind of activity of each instruction: a colour in pictures, a category in trace files."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An instruction on a thread of a machine, in seconds from the start of the step.

    Args:
        machine: machine that carries it out.
        position: position in the machine's program.
        thread: 0 for the communication thread; kernel threads from 1.
        start_s, stop_s: beginning and end; of a RECV, of putting its message in its place.
        ready_s: end of the instructions that it waits for; messages do not count.
    """

    machine: int
    position: int
    thread: int
    start_s: float
    stop_s: float
    ready_s: float


@dataclass(frozen=True, slots=True)
class Flight:
    """A message in flight: from the end of its SEND until its arrival.

    Args:
        source, destination: machines.
        send, receive: positions of its SEND and its RECV in their programs.
        start_s, stop_s: beginning and end, with waiting for a link that is busy. In a trace the end may seem
            to lie before the beginning: by as much as clocks are uncertain, or where the first bytes left
            while the message was still being sent.
    """

    source: int
    destination: int
    send: int
    receive: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Time in which a machine has nothing to do until a message comes.

    Args:
        machine: machine that waits.
        start_s, stop_s: beginning and end.
        source: machine that sends.
        buffer: buffer that the message carries.
    """

    machine: int
    start_s: float
    stop_s: float
    source: int
    buffer: Buffer

    @property
    def seconds(self) -> float:
        """Duration of the wait, in seconds."""
        return self.stop_s - self.start_s

    def label(self, names: tuple[str, ...]) -> str:
        """Describes the wait in few words; `names` are the machines'."""
        return f"waits for {self.buffer.description} from {names[self.source]}"

    def __str__(self) -> str:
        return (
            f"machine {self.machine} waits {readable_seconds(self.seconds)} for {self.buffer.description} "
            f"from machine {self.source}"
        )


@dataclass(frozen=True, slots=True)
class Times:
    """The parts of a machine's step, in seconds; the four add up to the step.

    Args:
        computing_s: kernel threads are busy.
        sending_s: only the communication thread is busy.
        waiting_s: neither is busy, and a message that could be used is missing.
        idle_s: neither is busy, and no message is missing.
    """

    computing_s: float
    sending_s: float
    waiting_s: float
    idle_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step of all machines, as `Plan.simulated_step` or the trace of a session's step shows it.

    Args:
        programs: programs of the machines.
        parts: a bar for each instruction of each program.
        flights: messages, by departure.
        step_s: seconds from the start of the first machine until the end of the last.
        busy_s: for each machine, seconds in kernels, summed over its threads.
        doubt_s: for each machine, uncertainty of its times against the others'.
    """

    programs: tuple[Program, ...]
    parts: tuple[tuple[Bar, ...], ...]
    flights: tuple[Flight, ...]
    step_s: float
    busy_s: tuple[float, ...]
    doubt_s: tuple[float, ...]

    def instruction(self, bar: Bar) -> Instruction:
        """Returns the instruction of a bar."""
        return self.programs[bar.machine].instructions[bar.position]

    def computes(self, bar: Bar) -> bool:
        """Returns whether a bar is a computation: neither a SEND nor a RECV."""
        return self.instruction(bar).op in COMPUTES

    def kind(self, bar: Bar) -> str:
        """Returns the kind of activity of a bar, one of `KIND_OF`."""
        return KIND_OF[self.instruction(bar).op]

    def operand(self, flight: Flight) -> Operand:
        """Returns the rows that a message carries."""
        return self.programs[flight.source].instructions[flight.send].target

    def label(self, bar: Bar, names: tuple[str, ...]) -> str:
        """Describes a bar in few words: `FORWARD h1`, `SEND h1 to b`; `names` are the machines'."""
        instruction = self.instruction(bar)
        what = f"{instruction.op} {instruction.target.buffer}"
        if instruction.peer is None:
            return what
        return f"{what} {'to' if instruction.op is Op.SEND else 'from'} {names[instruction.peer]}"

    @cached_property
    def bars(self) -> tuple[Bar, ...]:
        """All instructions, by start."""
        return tuple(sorted(chain(*self.parts), key=lambda bar: bar.start_s))

    @cached_property
    def times(self) -> tuple[Times, ...]:
        """The parts of each machine's step."""
        return tuple(self._times(m) for m in range(len(self.parts)))

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Spans in which a machine did nothing and missed a message: the first of those to arrive."""
        missing: list[list[Wait]] = [[] for _ in self.parts]
        for flight in self.flights:
            wanted_s = self.parts[flight.destination][flight.receive].ready_s
            if flight.stop_s > wanted_s:
                missing[flight.destination].append(self._wait(flight, wanted_s, flight.stop_s))
        return tuple(wait for m, found in enumerate(missing) for wait in self._waits(m, found))

    def _wait(self, flight: Flight, start_s: float, stop_s: float) -> Wait:
        return Wait(flight.destination, start_s, stop_s, flight.source, self.operand(flight).buffer)

    def _waits(self, machine: int, missing: list[Wait]) -> Iterator[Wait]:
        for start_s, stop_s in without(joined((m.start_s, m.stop_s) for m in missing), self._busy(machine)):
            first = min((m for m in missing if m.start_s < stop_s <= m.stop_s), key=lambda m: m.stop_s)
            yield Wait(machine, start_s, stop_s, first.source, first.buffer)

    def _times(self, machine: int) -> Times:
        computing, busy = length(self._busy(machine, messages=False)), length(self._busy(machine))
        waiting = sum(wait.seconds for wait in self.waits if wait.machine == machine)
        return Times(computing, busy - computing, waiting, max(self.step_s - busy - waiting, 0.0))

    def _busy(self, machine: int, *, messages: bool = True) -> tuple[Span, ...]:
        return joined(
            (bar.start_s, bar.stop_s) for bar in self.parts[machine] if messages or self.computes(bar)
        )

    @cached_property
    def critical_path(self) -> tuple[Bar | Flight, ...]:
        """The chain of instructions and messages that ends last, from the start of a simulated step on.

        Each link begins when the one before it ends: because it needs that, or because the same thread or
        link was busy with it.
        """
        return tuple(reversed(list(self._backwards())))

    def _backwards(self) -> Iterator[Bar | Flight]:
        """Follows a simulation from its last instruction to the first."""
        before = self._before()
        flights = {(flight.destination, flight.receive): flight for flight in self.flights}
        bar = max(chain(*self.parts), key=_done_s, default=None)
        while bar is not None:
            flight = flights.get((bar.machine, bar.position))
            if flight and bar.ready_s > bar.stop_s:  # it was there, but had no place to go
                bar = self._last_needed(bar)
                continue
            yield bar
            if bar.start_s > (flight.stop_s if flight else bar.ready_s):
                bar = before[bar.machine, bar.position]
            elif flight:
                yield flight
                bar = self.parts[flight.source][flight.send]
            else:
                bar = self._last_needed(bar)

    def _before(self) -> dict[tuple[int, int], Bar | None]:
        """Finds the bar before each one on the same thread."""
        last: dict[tuple[int, int], Bar] = {}
        found = {}
        for bar in sorted(chain(*self.parts), key=lambda bar: (bar.start_s, _done_s(bar))):
            found[bar.machine, bar.position] = last.get((bar.machine, bar.thread))
            last[bar.machine, bar.thread] = bar
        return found

    def _last_needed(self, bar: Bar) -> Bar | None:
        """The predecessor that ended last."""
        part = self.parts[bar.machine]
        return max((part[k] for k in self.instruction(bar).after), key=_done_s, default=None)


def _done_s(bar: Bar) -> float:
    """A RECV is done when its message is received and has a place."""
    return max(bar.stop_s, bar.ready_s)
