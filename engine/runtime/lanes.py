"""Folds the times of a step's instructions into a lane: who did what when, in bounded size.

A lane is made on the host that played the step, before it is sent, and also of a prediction. The division of
a machine's time is that of `partitioner/predict/timeline.py`: kernels, messages, waiting for a message, idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from partita.engine.protocol.watch_messages import MOST_INTERVALS, Interval, Kind, Lane, Waited
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Program
from partita.partitioner.predict.timeline import KIND_OF, Timeline

Times = npt.NDArray[np.float64]
"""Seconds, one for each instruction of a program; NaN where there is none."""

_DIGITS: Final = 8
"""Decimal places of a time: tens of nanoseconds, below what a clock tells apart."""


class _Run(NamedTuple):
    """A span with one owner: an instruction's position, a missing message's minus the program's length, or
    `_IDLE`.
    """

    start_s: float
    stop_s: float
    owner: int

    @property
    def seconds(self) -> float:
        return self.stop_s - self.start_s


class LaneFolder:
    """Folds steps of one program, whose texts it keeps."""

    def __init__(self, program: Program, *, most: int = MOST_INTERVALS) -> None:
        """Prepares what is the same for all steps of a program.

        Args:
            program: of the machine.
            most: largest number of intervals of a lane, at least 3.
        """
        assert most >= 3, most
        self._machine, self._most = program.machine, most
        self._instructions: Final = program.instructions
        self._n: Final = len(program)
        self._idle: Final = -self._n - 1  # owner of what nothing covers
        ops = [instruction.op for instruction in program.instructions]
        self._computes: Final = [n for n, op in enumerate(ops) if op in COMPUTES]
        self._transfers: Final = [n for n, op in enumerate(ops) if op not in COMPUTES]
        self._receives: Final = [n for n, op in enumerate(ops) if op is Op.RECV]
        self._before: Final = [list(self._instructions[n].after) for n in self._receives]

    def fold(
        self,
        started: Times,
        stopped: Times,
        arrived: Times,
        *,
        began_s: float,
        over_s: float,
        ready: Times | None = None,
        between_s: float | None = None,
        uncertainty_s: float = 0.0,
    ) -> Lane:
        """Returns the lane of a step.

        Args:
            started: when each instruction began, in seconds of any clock.
            stopped: when it ended, likewise.
            arrived: when each message arrived, at its RECV, likewise.
            began_s: the beginning of the lane, likewise: of the step's first machine, or of its own.
            over_s: the end of the lane, likewise.
            ready: when the instructions that each one waits for were done, likewise; from `stopped` if not
                given.
            between_s: see `Lane`.
            uncertainty_s: see `Lane`.
        """
        times = started - began_s, stopped - began_s, arrived - began_s
        runs = self._runs(
            *times, self._wanted(times[1], None if ready is None else ready - began_s), over_s - began_s
        )
        sums = {"compute": 0.0, "transfer": 0.0, "wait": 0.0, "idle": 0.0}
        for run in runs:
            sums[self._group(run.owner)] += run.seconds
        return Lane(
            machine=self._machine,
            compute_s=round(sums["compute"], _DIGITS),
            transfer_s=round(sums["transfer"], _DIGITS),
            wait_s=round(sums["wait"], _DIGITS),
            idle_s=round(sums["idle"], _DIGITS),
            between_s=between_s,
            uncertainty_s=uncertainty_s,
            instructions=self._n,
            intervals=tuple(self._intervals(runs)),
            waited=self._waited(runs),
        )

    # The owner of each moment.

    def _wanted(self, stopped: Times, ready: Times | None) -> list[float]:
        """The time from which on each message could be used."""
        if ready is not None:
            return [float(ready[n]) for n in self._receives]
        return [max((float(stopped[k]) for k in before), default=0.0) for before in self._before]

    def _runs(
        self, started: Times, stopped: Times, arrived: Times, wanted: list[float], length: float
    ) -> list[_Run]:
        """Divides `[0, length]` into runs with one owner each, in order."""
        misses = [
            (arrived[n], ready, n)
            for n, ready in zip(self._receives, wanted, strict=True)
            if arrived[n] > ready
        ]
        edges = [started, stopped, [stop for stop, _, _ in misses], [start for _, start, _ in misses]]
        times = np.unique(np.clip(np.nan_to_num(np.concatenate([[0.0, length], *edges])), 0.0, length))
        owners = np.full(max(len(times) - 1, 0), self._idle)

        def paint(start: Any, stop: Any, owner: int) -> None:
            owners[np.searchsorted(times, start) : np.searchsorted(times, stop)] = owner

        for stop, start, n in sorted(misses, reverse=True):  # the first to arrive is painted last
            paint(max(start, 0.0), min(stop, length), n - self._n)
        clipped = np.clip(started, 0.0, length), np.clip(stopped, 0.0, length)
        firsts, lasts = (np.searchsorted(times, one) for one in clipped)
        for group in (self._transfers, self._computes):
            for n in sorted(group, key=started.__getitem__):
                if stopped[n] > started[n]:
                    owners[firsts[n] : lasts[n]] = n
        if not len(owners):
            return []
        changes = np.flatnonzero(np.diff(owners)) + 1
        cuts = [0, *changes.tolist(), len(owners)]
        return [_Run(float(times[a]), float(times[b]), int(owners[a])) for a, b in pairwise(cuts)]

    def _instruction(self, owner: int) -> Instruction:
        return self._instructions[owner if owner >= 0 else owner + self._n]

    def _kind(self, owner: int) -> Kind:
        return "wait" if owner < 0 else KIND_OF[self._instruction(owner).op]  # type: ignore[return-value]

    def _group(self, owner: int) -> str:
        if owner == self._idle:
            return "idle"
        if owner < 0:
            return "wait"
        return "compute" if self._instruction(owner).op in COMPUTES else "transfer"

    # Intervals in bounded number.

    def _intervals(self, runs: list[_Run]) -> Iterator[Interval]:
        for group in self._groups(runs):
            main = self._main(group)
            if main == self._idle:
                continue
            instruction = self._instruction(main)
            buffer = instruction.target.buffer
            yield Interval(
                round(group[0].start_s, _DIGITS),
                round(group[-1].stop_s, _DIGITS),
                self._kind(main),
                buffer.description if main < 0 else f"{instruction.op} {buffer}",
                buffer.layer or "",
                -1 if instruction.peer is None else instruction.peer,
                len(group),
            )

    def _groups(self, runs: list[_Run]) -> Iterator[list[_Run]]:
        """Joins neighbours where there are too many runs: those that are shorter than a share of the step,
        until they reach it together. There are twice as many shares as groups, so no more groups than
        allowed.
        """
        if sum(run.owner != self._idle for run in runs) <= self._most:
            yield from ([run] for run in runs)
            return
        least = 2.0 * (runs[-1].stop_s - runs[0].start_s) / (self._most - 2)
        group: list[_Run] = []
        gathered = 0.0
        for run in runs:
            if group and (run.seconds >= least or gathered >= least):
                yield group
                group, gathered = [], 0.0
            if run.seconds >= least:
                yield [run]
            else:
                group.append(run)
                gathered += run.seconds
        if group:
            yield group

    def _main(self, group: list[_Run]) -> int:
        """The owner of the longest run, among those of the kind that has the most time in a group."""
        if len(group) == 1:
            return group[0].owner
        by_kind: dict[str, float] = {}
        for run in group:
            kind = self._group(run.owner)
            by_kind[kind] = by_kind.get(kind, 0.0) + run.seconds
        most = max(by_kind, key=by_kind.__getitem__)
        return max(
            (run for run in group if self._group(run.owner) == most), key=lambda run: run.seconds
        ).owner

    def _waited(self, runs: list[_Run]) -> tuple[Waited, ...]:
        sums: dict[int, dict[str, float]] = {}
        for run in runs:
            if self._group(run.owner) == "wait":
                instruction = self._instruction(run.owner)
                assert instruction.peer is not None, instruction
                of_peer, what = sums.setdefault(instruction.peer, {}), instruction.target.buffer.description
                of_peer[what] = of_peer.get(what, 0.0) + run.seconds
        found = [
            Waited(peer, round(sum(of_peer.values()), _DIGITS), max(of_peer, key=of_peer.__getitem__))
            for peer, of_peer in sums.items()
        ]
        return tuple(sorted(found, key=lambda waited: (-waited.seconds, waited.peer)))


def lanes_of(timeline: Timeline, *, most: int = MOST_INTERVALS) -> tuple[Lane, ...]:
    """Returns the lanes of a timeline, of all machines: predicted, or measured by a session."""
    lanes = []
    for machine, (program, bars) in enumerate(zip(timeline.programs, timeline.parts, strict=True)):
        started, stopped, ready, arrived = (np.full(len(program), np.nan) for _ in range(4))
        for bar in bars:
            started[bar.position], stopped[bar.position] = bar.start_s, bar.stop_s
            ready[bar.position] = bar.ready_s
        for flight in timeline.flights:
            if flight.destination == machine:
                arrived[flight.receive] = flight.stop_s
        folder = LaneFolder(program, most=most)
        lanes.append(
            folder.fold(
                started,
                stopped,
                arrived,
                began_s=0.0,
                over_s=timeline.step_s,
                ready=ready,
                uncertainty_s=timeline.doubt_s[machine],
            )
        )
    return tuple(lanes)
