"""Folds the times of a step's instructions into a lane: who did what when, in bounded size.

A lane is made on the host that played the step, before it is sent, and also of a prediction. The division of
a machine's time is that of `partitioner/predict/timeline.py`: kernels, messages, waiting for a message, idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from partita.engine.protocol.watch_messages import MOST_INTERVALS, Interval, Kind, Lane, Waited
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Program
from partita.partitioner.predict.timeline import KIND_OF, Timeline

Times = npt.NDArray[np.float64]
"""Seconds, one for each instruction of a program; NaN where there is none."""

_DIGITS: Final = 8
"""Decimal places of a time: tens of nanoseconds, below what a clock tells apart."""

_LEAST_S: Final = 1e-9
"""Length of a step that seems to take no time."""

_GROUPS: Final = ("compute", "transfer", "wait", "idle")
_COMPUTE, _TRANSFER, _WAIT, _IDLE = range(4)


class _Runs(NamedTuple):
    """Spans that follow one another, with one owner each, in order of time.

    An owner is the position of an instruction; the position of a RECV minus the length of the program where
    its message is missing; or one less than all of these where nothing happens.
    """

    starts: Times
    stops: Times
    owners: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]  # numbers in `_GROUPS`

    @property
    def seconds(self) -> Times:
        """The length of each."""
        return self.stops - self.starts


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
        n = self._n = len(program)
        computes = np.array([i.op in COMPUTES for i in program.instructions], bool)
        self._computes: Final = np.flatnonzero(computes)
        self._transfers: Final = np.flatnonzero(~computes)
        self._receives: Final = [n for n, i in enumerate(program.instructions) if i.op is Op.RECV]
        self._before: Final = [list(self._instructions[n].after) for n in self._receives]
        of_instructions = np.where(computes, _COMPUTE, _TRANSFER)
        # The group of each owner, at its number plus the length of the program plus one.
        self._group_of: Final = np.concatenate([[_IDLE], np.full(n, _WAIT), of_instructions])

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
        wanted = self._wanted(times[1], None if ready is None else ready - began_s)
        runs = self._runs(*times, wanted, max(over_s - began_s, _LEAST_S))
        sums = np.bincount(runs.groups, weights=runs.seconds, minlength=len(_GROUPS)).round(_DIGITS).tolist()
        return Lane(
            machine=self._machine,
            compute_s=sums[_COMPUTE],
            transfer_s=sums[_TRANSFER],
            wait_s=sums[_WAIT],
            idle_s=sums[_IDLE],
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
    ) -> _Runs:
        """Divides `[0, length]` into runs with one owner each."""
        came = arrived[self._receives].tolist()
        misses = sorted(
            (
                (stop, start, n)
                for n, start, stop in zip(self._receives, wanted, came, strict=True)
                if stop > start
            ),
            reverse=True,
        )
        waits = np.array([(start, stop) for stop, start, _ in misses]).reshape(-1, 2)
        edges = np.concatenate([[0.0, length], started, stopped, waits.ravel()])
        times = np.unique(np.clip(np.nan_to_num(edges), 0.0, length))
        owners = np.full(len(times) - 1, -self._n - 1)
        firsts, lasts = self._places(times, waits[:, 0], waits[:, 1])
        for (_, _, n), first, last in zip(misses, firsts, lasts, strict=True):  # the first to arrive is last
            owners[first:last] = n - self._n
        for group in (self._transfers, self._computes):
            order = group[np.argsort(started[group], kind="stable")]
            places = self._places(times, started[order], stopped[order])
            for n, first, last in zip(order.tolist(), *places, strict=True):
                owners[first:last] = n
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(owners)) + 1, [len(owners)]])
        owners = owners[cuts[:-1]]
        return _Runs(times[cuts[:-1]], times[cuts[1:]], owners, self._group_of[owners + self._n + 1])

    @staticmethod
    def _places(times: Times, starts: Times, stops: Times) -> tuple[list[int], list[int]]:
        """The first moment of each span among the edges, and the one after its last; NaN: an empty span."""
        known = np.nan_to_num(starts), np.nan_to_num(stops)
        firsts, lasts = (np.searchsorted(times, np.clip(one, 0.0, times[-1])).tolist() for one in known)
        return firsts, lasts

    def _instruction(self, owner: int) -> Instruction:
        return self._instructions[owner if owner >= 0 else owner + self._n]

    # Intervals in bounded number.

    def _intervals(self, runs: _Runs) -> Iterator[Interval]:
        seconds, cuts = runs.seconds, self._cuts(runs)
        for first, stop in pairwise(cuts):
            main = first if stop == first + 1 else self._main(runs, seconds, first, stop)
            if runs.groups[main] == _IDLE:
                continue
            owner = int(runs.owners[main])
            instruction = self._instruction(owner)
            buffer = instruction.target.buffer
            kind: Kind = "wait" if owner < 0 else KIND_OF[instruction.op]  # type: ignore[assignment]
            yield Interval(
                round(float(runs.starts[first]), _DIGITS),
                round(float(runs.stops[stop - 1]), _DIGITS),
                kind,
                buffer.description if owner < 0 else f"{instruction.op} {buffer}",
                buffer.layer or "",
                -1 if instruction.peer is None else instruction.peer,
                stop - first,
            )

    def _cuts(self, runs: _Runs) -> list[int]:
        """Joins neighbours where there are too many runs: those that are shorter than a share of the step,
        until they reach it together. There are half as many shares as groups may be, so there are never more.
        """
        n = len(runs.owners)
        if np.count_nonzero(runs.groups != _IDLE) <= self._most:
            return list(range(n + 1))
        seconds = runs.seconds
        least = 2.0 * float(runs.stops[-1] - runs.starts[0]) / (self._most - 2)
        is_long = seconds >= least
        gathered = np.cumsum(np.where(is_long, 0.0, seconds)) // least
        joins = ~is_long[1:] & ~is_long[:-1] & (gathered[1:] == gathered[:-1])
        return [0, *(np.flatnonzero(~joins) + 1).tolist(), n]

    @staticmethod
    def _main(runs: _Runs, seconds: Times, first: int, stop: int) -> int:
        """The longest run, among those of the group that has the most time in `[first, stop)`."""
        groups, lengths = runs.groups[first:stop], seconds[first:stop]
        most = int(np.argmax(np.bincount(groups, weights=lengths)))
        return first + int(np.argmax(np.where(groups == most, lengths, -1.0)))

    def _waited(self, runs: _Runs) -> tuple[Waited, ...]:
        sums: dict[int, dict[str, float]] = {}
        chosen = runs.groups == _WAIT
        for owner, seconds in zip(runs.owners[chosen].tolist(), runs.seconds[chosen].tolist(), strict=True):
            instruction = self._instruction(owner)
            assert instruction.peer is not None, instruction
            of_peer, what = sums.setdefault(instruction.peer, {}), instruction.target.buffer.description
            of_peer[what] = of_peer.get(what, 0.0) + seconds
        found = [
            Waited(peer, round(sum(of_peer.values()), _DIGITS), max(of_peer, key=of_peer.__getitem__))
            for peer, of_peer in sums.items()
        ]
        return tuple(sorted(found, key=lambda waited: (-waited.seconds, waited.peer)))


def lanes_of(timeline: Timeline, *, most: int = MOST_INTERVALS) -> tuple[Lane, ...]:
    """Returns the lanes of a timeline, of all machines: predicted, or measured by a session."""
    lanes, arrivals = [], [np.full(len(program), np.nan) for program in timeline.programs]
    for flight in timeline.flights:
        arrivals[flight.destination][flight.receive] = flight.stop_s
    for machine, (program, bars) in enumerate(zip(timeline.programs, timeline.parts, strict=True)):
        started, stopped, ready = (np.full(len(program), np.nan) for _ in range(3))
        for bar in bars:
            started[bar.position], stopped[bar.position] = bar.start_s, bar.stop_s
            ready[bar.position] = bar.ready_s
        folder = LaneFolder(program, most=most)
        lanes.append(
            folder.fold(
                started,
                stopped,
                arrivals[machine],
                began_s=0.0,
                over_s=timeline.step_s,
                ready=ready,
                uncertainty_s=timeline.doubt_s[machine],
            )
        )
    return tuple(lanes)
