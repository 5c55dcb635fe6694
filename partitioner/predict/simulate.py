"""Simulation of programs on a virtual clock: time of a step, waits, and freedom from deadlock.

These are the programs that the engine runs. A machine computes one instruction at a time (its kernels use all
of its threads), the first in the list among those that are ready. Its communication thread sends and receives
messages one after another as they come. Between hosts a message occupies the way out of its sender's host and
the way in of its receiver's, each first come, first served; within a host it does not.

Instructions have numbers that count through all programs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from partita.partitioner.ir.program import Program
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.predict.cost import Costs
from partita.partitioner.predict.timed_program import (
    COMPUTE,
    SEND,
    TimedProgram,
    matching_receives_of,
    timed_program,
)
from partita.partitioner.predict.timeline import COMMUNICATION, KERNEL, Bar, Flight, Timeline

COMPUTED: Final = 0
SENT: Final = 1
AT_HOST: Final = 2
ARRIVED: Final = 3
TAKEN: Final = 4
BEGIN: Final = 5
"""Events: a computation ends; a message has been handed over, begins to come in at its receiver's host, is
there, and has been received; a machine begins (the number is the machine's)."""


NOTHING: Final = -1


class Deadlock(RuntimeError):
    """Programs that wait for one another forever, or for a message that no machine sends."""


def simulate(
    programs: Sequence[Program], costs: Costs, sizes: Sizes, *, hosts: Sequence[str] | None = None
) -> Timeline:
    """Simulates one step.

    Args:
        programs: one program for each machine.
        costs: costs of instructions and messages.
        sizes: sizes of the buffers, in bytes.
        hosts: the name of each machine's host; None: each has its own.

    Raises:
        Deadlock: some instructions can never start; the error lists the first of each machine.
    """
    return simulate_programs([timed_program(program, costs, sizes) for program in programs], hosts).timeline()


def simulate_programs(programs: Sequence[TimedProgram], hosts: Sequence[str] | None = None) -> Simulation:
    """Simulates one step of programs whose costs are known.

    Raises:
        Deadlock: some instructions can never start.
    """
    simulation = Simulation(programs, tuple(map(str, range(len(programs)))) if hosts is None else hosts)
    simulation.run()
    if simulation.left:
        raise Deadlock(simulation.stuck())
    return simulation


@dataclass(slots=True)
class _Lanes:
    """Queues of a machine: computations by position, messages as they come (`~send` to receive)."""

    ready: list[int]
    post: deque[int]
    interrupts: bool
    computing: int = NOTHING
    posting: bool = False
    computed_at: float = 0.0
    posted_at: float = 0.0


class Simulation:
    """All programs end to end, and the events so far."""

    def __init__(self, programs: Sequence[TimedProgram], hosts: Sequence[str]) -> None:
        self.programs, self.hosts = programs, hosts
        self.firsts = list(accumulate((len(timed.kinds) for timed in programs), initial=0))
        self.kinds = [kind for timed in programs for kind in timed.kinds]
        self.seconds = [took for timed in programs for took in timed.seconds]
        self.missing = [count for timed in programs for count in timed.missing]
        self.wires = [wire for timed in programs for wire in timed.wires]
        self.latencies = [latency for timed in programs for latency in timed.latencies]
        self.machine = [m for m, timed in enumerate(programs) for _ in timed.kinds]
        self.matching_receives = matching_receives_of(programs, self.firsts)
        self.left = len(self.kinds)
        self.start, self.stop, self.ready = ([0.0] * self.left for _ in range(3))
        self.arrived: dict[int, float] = {}
        self.enabled = [False] * self.left
        self.taken = [False] * self.left
        self.lanes = [_Lanes([], deque(), timed.interrupts) for timed in programs]
        self.one_way = {self.firsts[m] + n for m, timed in enumerate(programs) for n in timed.one_way}
        self.way_out: dict[str, float] = {}
        self.way_in: dict[str, float] = {}
        self.events: list[tuple[float, int, int, int]] = []
        self.counter = 0

    def run(self) -> None:
        """Processes events until none is left."""
        events, machine, lanes = self.events, self.machine, self.lanes
        for m, timed in enumerate(self.programs):
            self._at(timed.step_s, BEGIN, m)
        while events:
            now, _, what, n = heapq.heappop(events)
            if what == AT_HOST:
                self._come_in(n, now)
                continue
            if what == BEGIN:
                self._begin(n, now)
                continue
            m = machine[n]
            if what == COMPUTED:
                if lanes[m].computed_at > now:  # it was held up meanwhile
                    self._at(lanes[m].computed_at, COMPUTED, n)
                    continue
                lanes[m].computing = NOTHING
                self._finish(n, now)
            elif what == SENT:
                lanes[m].posting = False
                self._travel(n, now)
                self._finish(n, now)
            elif what == ARRIVED:
                m = machine[self.matching_receives[n]]
                self.arrived[n] = now
                lanes[m].post.append(~n)
            else:
                m = self._take(self.matching_receives[n], now)
            self._start(m, now)

    @property
    def step_s(self) -> float:
        """End of the last machine, in seconds."""
        return max(self.stop, default=0.0)

    def timeline(self) -> Timeline:
        """Returns the timeline of a simulation that has ended."""
        bars, busy = [], [0.0] * len(self.programs)
        for n, (m, kind, start) in enumerate(zip(self.machine, self.kinds, self.start, strict=True)):
            thread, stop = COMMUNICATION, start + self.seconds[n]
            if kind == COMPUTE:
                thread, stop = KERNEL, self.stop[n]
                busy[m] += self.seconds[n]
            bars.append(Bar(m, n - self.firsts[m], thread, start, stop, self.ready[n]))
        flights = []
        for send, receive in self.matching_receives.items():
            a, b = bars[send], bars[receive]
            times = self.stop[send], self.arrived[send]
            flights.append(Flight(a.machine, b.machine, a.position, b.position, *times))
        return Timeline(
            tuple(timed.program for timed in self.programs),
            tuple(tuple(bars[first:end]) for first, end in pairwise(self.firsts)),
            tuple(sorted(flights, key=lambda flight: (flight.start_s, flight.source, flight.send))),
            self.step_s,
            tuple(busy),
            (0.0,) * len(self.programs),
        )

    def stuck(self) -> str:
        """Lists messages for which each machine waits in vain."""
        lines = ["these programs never end:"]
        for m, timed in enumerate(self.programs):
            first = self.firsts[m]
            waiting = [
                n for n in range(len(timed.kinds)) if self.enabled[first + n] and not self.taken[first + n]
            ]
            for n in waiting[:3]:
                found = timed.program.instructions[n]
                buffer = found.target.buffer.sent
                lines.append(f"  machine {m} waits for {buffer} from machine {found.peer}: {n} {found}")
        return "\n".join(lines)

    def _at(self, time: float, what: int, n: int) -> None:
        self.counter += 1
        heapq.heappush(self.events, (time, self.counter, what, n))

    def _begin(self, m: int, now: float) -> None:
        for n in [n for n in range(self.firsts[m], self.firsts[m + 1]) if not self.missing[n]]:
            self._enable(n, now)
        self._start(m, now)

    def _enable(self, n: int, now: float) -> None:
        self.ready[n] = now
        kind, lanes = self.kinds[n], self.lanes[self.machine[n]]
        if kind == COMPUTE:
            heapq.heappush(lanes.ready, n)
        elif kind == SEND:
            lanes.post.append(n)
        elif self.taken[n]:
            self._finish(n, now)
        else:
            self.enabled[n] = True

    def _start(self, m: int, now: float) -> None:
        lanes = self.lanes[m]
        if lanes.ready and lanes.computing == NOTHING:
            lanes.computing = n = heapq.heappop(lanes.ready)
            self.start[n] = now
            if lanes.interrupts and lanes.posting:
                self.seconds[n] += lanes.posted_at - now
            lanes.computed_at = now + self.seconds[n]
            self._at(lanes.computed_at, COMPUTED, n)
        if lanes.post and not lanes.posting:
            lanes.posting = True
            n = lanes.post.popleft()
            what = SENT if n >= 0 else TAKEN
            n = max(n, ~n)
            own = n if what == SENT else self.matching_receives[n]
            self.start[own] = now
            lanes.posted_at = now + self.seconds[own]
            self._at(lanes.posted_at, what, n)
            if lanes.interrupts and lanes.computing != NOTHING:
                self.seconds[lanes.computing] += self.seconds[own]
                lanes.computed_at += self.seconds[own]

    def _travel(self, n: int, now: float) -> None:
        """Occupies the link, which carries one message at a time; within a host there is none."""
        if n not in self.matching_receives:
            return
        host = self.hosts[self.machine[n]]
        if host == self.hosts[self.machine[self.matching_receives[n]]]:
            self._at(now + self.latencies[n] + self.wires[n], ARRIVED, n)
            return
        begun = max(now, self.way_out.get(host, 0.0))
        if n in self.one_way:
            begun = max(begun, self.way_in.get(host, 0.0))
            self.way_in[host] = begun + self.wires[n]
        self.way_out[host] = begun + self.wires[n]
        self._at(begun + self.latencies[n], AT_HOST, n)

    def _come_in(self, n: int, now: float) -> None:
        host = self.hosts[self.machine[self.matching_receives[n]]]
        self.way_in[host] = max(now, self.way_in.get(host, 0.0)) + self.wires[n]
        self._at(self.way_in[host], ARRIVED, n)

    def _take(self, receive: int, now: float) -> int:
        m = self.machine[receive]
        self.lanes[m].posting = False
        self.taken[receive] = True
        if self.enabled[receive]:
            self._finish(receive, now)
        return m

    def _finish(self, n: int, now: float) -> None:
        self.stop[n] = now
        self.left -= 1
        first, missing = self.firsts[self.machine[n]], self.missing
        for follower in self.programs[self.machine[n]].followers[n - first]:
            missing[first + follower] -= 1
            if not missing[first + follower]:
                self._enable(first + follower, now)
