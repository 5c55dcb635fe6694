"""A simulated step: bars, messages in flight, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.partitioner.ir.program import Instruction, Program
from partita.partitioner.predict.timed_program import COMPUTE, SEND


@dataclass(frozen=True, slots=True)
class Bar:
    """An instruction on the timeline of a machine, in seconds from the start of the step.

    A SEND and a RECV are on the communication thread, all others on the kernel threads.
    """

    machine: int
    position: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Flight:
    """A message in flight: from the end of its SEND until its arrival.

    Args:
        source, destination: machines.
        send, receive: positions of its SEND and its RECV in their programs.
        start_s, stop_s: beginning and end, with waiting for a link that is busy.
    """

    source: int
    destination: int
    send: int
    receive: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Times:
    """The parts of a machine's step, in seconds; the four add up to the step.

    Args:
        computing_s: kernel threads are busy.
        sending_s: only the communication thread is busy.
        waiting_s: neither is busy, and messages of others are still needed.
        idle_s: the step has not begun here, or the machine is done and others are not.
    """

    computing_s: float
    sending_s: float
    waiting_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Record:
    """A simulation in plain numbers; an instruction's number counts through all programs.

    Args:
        firsts: number of each machine's first instruction.
        start, stop: of each instruction; of a RECV, beginning and end of receiving its message.
        ready: end of the last predecessor of each instruction.
        kinds: kind of each instruction, see `timed_program`.
        matching_receives: the RECV of each SEND.
        arrived: arrival of each SEND's message.
        begins: beginning of each machine, after the runtime's own time.
    """

    firsts: Sequence[int]
    start: Sequence[float]
    stop: Sequence[float]
    ready: Sequence[float]
    kinds: Sequence[int]
    matching_receives: Mapping[int, int]
    arrived: Mapping[int, float]
    begins: Sequence[float]

    @property
    def step_s(self) -> float:
        """End of the last machine, in seconds."""
        return max(self.stop, default=0.0)


@dataclass(frozen=True)
class SimulatedStep:
    """A step on the virtual clock.

    Args:
        programs: the programs that were simulated.
        record: their times.
        seconds: time of each instruction on its thread.
    """

    programs: tuple[Program, ...]
    record: Record
    seconds: Sequence[float]

    @property
    def step_s(self) -> float:
        """End of the last machine, in seconds."""
        return self.record.step_s

    def instruction(self, bar: Bar) -> Instruction:
        """The instruction of a bar."""
        return self.programs[bar.machine].instructions[bar.position]

    @cached_property
    def bars(self) -> tuple[Bar, ...]:
        """All instructions, by start."""
        record = self.record
        found = [
            Bar(m, n - record.firsts[m], record.start[n], record.start[n] + self.seconds[n])
            for m in range(len(self.programs))
            for n in range(record.firsts[m], record.firsts[m + 1])
        ]
        return tuple(sorted(found, key=lambda bar: (bar.start_s, bar.machine, bar.position)))

    @cached_property
    def flights(self) -> tuple[Flight, ...]:
        """All messages, by departure."""
        record = self.record
        machine = [m for m, program in enumerate(self.programs) for _ in program.instructions]
        found = []
        for send, receive in record.matching_receives.items():
            source, destination = machine[send], machine[receive]
            found.append(
                Flight(
                    source,
                    destination,
                    send - record.firsts[source],
                    receive - record.firsts[destination],
                    record.stop[send],
                    record.arrived[send],
                )
            )
        return tuple(sorted(found, key=lambda flight: (flight.start_s, flight.source, flight.send)))

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds of each machine in kernels."""
        return tuple(times.computing_s for times in self.times)

    @cached_property
    def times(self) -> tuple[Times, ...]:
        """The parts of each machine's step."""
        return tuple(self._times(m) for m in range(len(self.programs)))

    def _times(self, machine: int) -> Times:
        record, numbers = self.record, self._numbers(machine)
        computing = sum(self.seconds[n] for n in numbers if record.kinds[n] == COMPUTE)
        occupied = _covered((record.start[n], record.start[n] + self.seconds[n]) for n in numbers)
        begun = record.begins[machine]
        done = max((record.stop[n] for n in numbers), default=begun)
        sending, waiting = max(occupied - computing, 0.0), max(done - begun - occupied, 0.0)
        return Times(computing, sending, waiting, max(self.step_s - computing - sending - waiting, 0.0))

    def _numbers(self, machine: int) -> range:
        return range(self.record.firsts[machine], self.record.firsts[machine + 1])

    @cached_property
    def critical_path(self) -> tuple[Bar | Flight, ...]:
        """The chain of instructions and messages that ends last, from the start of the step on.

        Each link begins when the one before it ends: because it needs that, or because the same thread or
        link was busy with it.
        """
        return tuple(reversed(list(_Backwards(self).path())))


def _covered(spans: Iterator[tuple[float, float]]) -> float:
    """Measures the union of spans."""
    total, reached = 0.0, 0.0
    for start, stop in sorted(spans):
        total += max(stop - max(start, reached), 0.0)
        reached = max(reached, stop)
    return total


class _Backwards:
    """Follows a simulation from its end to its start."""

    def __init__(self, simulated_step: SimulatedStep) -> None:
        self.simulated_step, self.record = simulated_step, simulated_step.record
        self.machine = [m for m, program in enumerate(simulated_step.programs) for _ in program.instructions]
        self.sends = {receive: send for send, receive in self.record.matching_receives.items()}
        self.before = self._before()

    def _before(self) -> dict[int, int]:
        """Finds the instruction before each one on the same thread."""
        found: dict[int, int] = {}
        last: dict[tuple[int, bool], int] = {}
        for n in sorted(range(len(self.machine)), key=lambda n: (self.record.start[n], self.record.stop[n])):
            thread = self.machine[n], self.record.kinds[n] == COMPUTE
            if thread in last:
                found[n] = last[thread]
            last[thread] = n
        return found

    def path(self) -> Iterator[Bar | Flight]:
        """Walks from the last instruction to the first."""
        record, stop = self.record, self.record.stop
        n: int | None = max(range(len(stop)), key=lambda n: stop[n], default=None)
        while n is not None:
            m = self.machine[n]
            position = n - record.firsts[m]
            if record.kinds[n] in (COMPUTE, SEND):
                yield Bar(m, position, record.start[n], stop[n])
                n = self.before.get(n) if record.start[n] > record.ready[n] else self._last_needed(n)
                continue
            taken = record.start[n] + self.simulated_step.seconds[n]
            if stop[n] > taken:  # it was there, but had no place to go
                n = self._last_needed(n)
                continue
            yield Bar(m, position, record.start[n], taken)
            send = self.sends[n]
            if record.start[n] > record.arrived[send]:
                n = self.before.get(n)
                continue
            source = self.machine[send]
            yield Flight(source, m, send - record.firsts[source], position, stop[send], record.arrived[send])
            n = send

    def _last_needed(self, n: int) -> int | None:
        """The predecessor that ended last."""
        m = self.machine[n]
        first = self.record.firsts[m]
        after = self.simulated_step.programs[m].instructions[n - first].after
        return max((first + k for k in after), key=lambda k: self.record.stop[k], default=None)
