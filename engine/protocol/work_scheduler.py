"""Assigns the work units of an evaluation: idle replicas get the next one, and stragglers get backups.

Which is the next one for a replica stands in `waiting.py`. When nothing is left that nobody has, a replica
without work gets a work unit that another one is late with; the first result counts, and both have the same
bits. What is late follows from how long turns take of late: a backup that comes too early keeps a replica
from the next evaluation. There may be thousands of replicas, so what a message brings about looks at one of
them, and all are looked at only now and then.

Source: DistBelief, section 4.2 (load balancing, and backup tasks as in MapReduce).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, TypeAlias

from partita.engine.protocol.commands import Evaluate, Scalars, WorkUnit, added
from partita.engine.protocol.messages import Assignment, AssignmentResult
from partita.engine.protocol.work_queue import WorkQueue

OPEN_ASSIGNMENTS: Final = 2
"""Turns that a replica may owe at a time: while it computes one, the next is there already."""

STRAGGLER_FACTOR: Final = 1.5
"""Times what a turn usually takes."""

REMEMBERED: Final = 15
"""Turns whose median is what one usually takes."""

UNKNOWN_S: Final = 1.0
"""When the first turn of all is late, seconds: nobody knows yet how long one takes."""

LOOK: Final = 0.1
"""Who is late is looked for after so much of a usual turn, not sooner."""

Dispatch: TypeAlias = tuple[int, Assignment]
"""(replica, what all of its parts are told)."""


@dataclass(slots=True, eq=False)
class _OpenAssignment:
    """A turn that a replica has not finished: which of its parts still owe it, and when it was last told."""

    order: Assignment
    owed: set[int]
    sent_at: float


@dataclass(slots=True, eq=False)
class _Worker:
    """The present processes of a replica."""

    machines: int
    progress_at: float  # when the first of its turns became the first
    next_sequence: int = 0
    assignments: dict[int, _OpenAssignment] = field(default_factory=dict)
    had_share_in: int = 0  # the last evaluation for which it computed something

    def owes(self, evaluation: int, unit: int) -> bool:
        return any(
            (t.order.evaluation, t.order.unit) == (evaluation, unit) for t in self.assignments.values()
        )


@dataclass(slots=True, eq=False)
class _Progress:
    """A work unit of the evaluation under way."""

    unit: WorkUnit
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)  # by machine; the first counts
    given: int = 0  # how often it was handed out
    computed_by: list[_Worker] = field(default_factory=list)


class WorkScheduler:
    """The portions of one evaluation after another.

    Attributes:
        redone: portions that were handed out more than once, in all evaluations.
        busy: replicas of today that computed something for the last evaluation that was completed.
    """

    def __init__(self, machines: int, *, backups: bool = True) -> None:
        """Nobody computes yet.

        Args:
            machines: parts of each replica.
            backups: whether work units are handed out again at the end of an evaluation.
        """
        self.redone = 0
        self.busy = 0
        self._machines: Final = machines
        self._backups: Final = backups
        self._workers: dict[int, _Worker] = {}
        self._evaluation = 0
        self._progress: list[_Progress] = []
        self._waiting: Final = WorkQueue()
        self._hungry: dict[int, None] = {}  # replicas that may be given another turn, ...
        self._idle: dict[int, None] = {}  # ... and those of them that owe none
        self._left = 0  # work units that are not computed
        self._shares = 0  # replicas that have computed something
        self._look_at = math.inf  # when to look for who is late
        self._took: deque[float] = deque(maxlen=REMEMBERED)  # seconds for a portion, in turns of late

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return len(self._workers)

    @property
    def complete(self) -> bool:
        """Whether every work unit of the evaluation was computed, by all machines of some replica."""
        return not self._left

    def losses(self, evaluate: Evaluate) -> Scalars:
        """The scalars of an evaluation that is complete: losses and right examples of each segment."""
        found: list[float] = []
        for n in range(len(evaluate.segments)):
            pieces = [p.losses[m] for p in self._progress if p.unit.segment == n for m in sorted(p.losses)]
            found += [added([loss for loss, _ in pieces]), float(sum(correct for _, correct in pieces))]
        return tuple(found)

    # Replicas come and go.

    def has(self, replica: int) -> bool:
        """Whether the replica's present processes are known."""
        return replica in self._workers

    def add(self, replica: int, now: float) -> None:
        """All parts of a replica are ready."""
        self._workers[replica] = _Worker(self._machines, now)
        self._hungry[replica] = self._idle[replica] = None

    def remove(self, replica: int) -> None:
        """A part of it has died: what it owes is anybody's again."""
        worker = self._workers.pop(replica, None)
        if worker is None:
            return
        self._hungry.pop(replica, None)
        self._idle.pop(replica, None)
        self._waiting.leave(replica)
        for assignment in worker.assignments.values():
            number = assignment.order.unit
            if assignment.order.evaluation == self._evaluation and not self._is_computed(number):
                self._free(number)

    def stalled(self, now: float, after_s: Mapping[int, float]) -> list[int]:
        """The replicas that owe something and have finished no turn for so long."""
        return [
            replica
            for replica, worker in self._workers.items()
            if worker.assignments and now - worker.progress_at >= after_s[replica]
        ]

    # An evaluation.

    def begin(self, evaluation: int, units: Sequence[WorkUnit]) -> None:
        """The next evaluation, of these work units."""
        self._evaluation, self._shares = evaluation, 0
        self._progress = [_Progress(unit) for unit in units]
        self._left = len(units)
        self._waiting.begin(len(units), list(self._workers))
        self._look_at = -math.inf

    def end(self) -> None:
        """It is over, or was given up; what is still computed for it counts for nothing."""
        if self._progress and self.complete:
            self.busy = self._shares
        self._evaluation = 0
        self._progress, self._left = [], 0
        self._waiting.clear()

    def schedule(self, now: float) -> list[Dispatch]:
        """Assigns work units round-robin, so that no replica is idle."""
        dispatched: list[Dispatch] = []
        for _ in range(OPEN_ASSIGNMENTS):
            for replica in list(self._hungry) if self._waiting else ():
                number = self._waiting.take(replica)
                if number is None:
                    break
                dispatched.append((replica, self._assign(replica, number, now)))
        if now >= self.next_backup_at:
            dispatched += self._backups_for_idle(now)
        return dispatched

    def was_assigned(self, replica: int, machine: int, message: AssignmentResult) -> bool:
        """Whether a result is of a turn as it was handed out, or of one that nobody waits for any more."""
        worker = self._workers.get(replica)
        assignment = None if worker is None else worker.assignments.get(message.sequence)
        if worker is None or assignment is None:
            return worker is None or message.sequence < worker.next_sequence
        given = assignment.order.evaluation, assignment.order.unit
        return machine < self._machines and (message.evaluation, message.unit) == given

    def are_ranges(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether these are ascending ranges of the work units of the evaluation under way."""
        ends = [0, *(number for each in ranges for number in each), len(self._progress)]
        return all(a <= b for a, b in itertools.pairwise(ends))

    def computed(self, replica: int, machine: int, message: AssignmentResult, now: float) -> None:
        """A part of the present processes is through with a turn."""
        worker = self._workers.get(replica)
        assignment = None if worker is None else worker.assignments.get(message.sequence)
        if worker is None or assignment is None or message.evaluation != assignment.order.evaluation:
            return  # a repeat
        assignment.owed.discard(machine)
        if not assignment.owed:
            del worker.assignments[message.sequence]
            self._hungry[replica] = None
            if not worker.assignments:
                self._idle[replica] = None
            self._took.append((now - worker.progress_at) / assignment.order.count)
            worker.progress_at = now
        if message.evaluation == self._evaluation:
            self._count(worker, machine, message)

    def _count(self, worker: _Worker, machine: int, message: AssignmentResult) -> None:
        progress = self._progress[message.unit]
        self._shares += worker.had_share_in != self._evaluation
        worker.had_share_in = self._evaluation
        if worker not in progress.computed_by:
            progress.computed_by.append(worker)
        if machine not in progress.losses:
            progress.losses[machine] = (message.loss, message.correct)
            self._left -= len(progress.losses) == self._machines

    def missing(self, ranges: Iterable[tuple[int, int]]) -> None:
        """A shard says which work units it lacks: who has computed one sends it, unless it has died since."""
        alive = list(self._workers.values())
        for start, stop in ranges:
            for number in range(start, min(stop, len(self._progress))):
                if not any(worker in alive for worker in self._progress[number].computed_by):
                    self._free(number)

    def resend(self, now: float, retry_s: float) -> list[Dispatch]:
        """What was told so long ago that it may have been lost."""
        dispatched: list[Dispatch] = []
        for replica, worker in self._workers.items():
            for assignment in worker.assignments.values():
                if now - assignment.sent_at >= retry_s:
                    assignment.sent_at = now
                    dispatched.append((replica, assignment.order))
        return dispatched

    def _free(self, number: int) -> None:
        """Anybody may have it, unless somebody has it or will."""
        if number not in self._waiting and not self._is_owed(number):
            self._waiting.add(number)

    def _is_owed(self, number: int) -> bool:
        return any(worker.owes(self._evaluation, number) for worker in self._workers.values())

    def _is_computed(self, number: int) -> bool:
        return len(self._progress[number].losses) == self._machines

    # Backups.

    @property
    def next_backup_at(self) -> float:
        """When `schedule` may have something new to say although nothing was heard (seconds; inf: never)."""
        wanted = self._backups and self._idle and self._left and not self._waiting
        return self._look_at if wanted else math.inf

    def _backups_for_idle(self, now: float) -> list[Dispatch]:
        """For each replica without work the work unit that was given least often, and of those the first."""
        self._look_at = math.inf
        deadlines = self._straggler_deadlines()
        stragglers = sorted(
            (number for number, at in deadlines.items() if at <= now),
            key=lambda number: (self._progress[number].given, number),
        )
        dispatched: list[Dispatch] = []
        for replica in list(self._idle):
            by = self._workers[replica]
            number = next((one for one in stragglers if by not in self._progress[one].computed_by), None)
            if number is not None:
                stragglers.remove(number)
                dispatched.append((replica, self._assign(replica, number, now)))
        soonest = now if stragglers else min((at for at in deadlines.values() if at > now), default=math.inf)
        self._look_at = min(self._look_at, max(soonest, now + LOOK * self._usual_s))
        return dispatched

    def _straggler_deadlines(self) -> dict[int, float]:
        """Open work units, and when the first of their replicas becomes a straggler."""
        found: dict[int, float] = {}
        for worker in self._workers.values():
            for assignment in worker.assignments.values():
                number = assignment.order.unit
                if assignment.order.evaluation == self._evaluation and not self._is_computed(number):
                    first = next(iter(worker.assignments.values())).order
                    at = worker.progress_at + STRAGGLER_FACTOR * self._usual_s * first.count
                    found[number] = min(at, found.get(number, math.inf))
        return found

    @property
    def _usual_s(self) -> float:
        """What a portion takes of late."""
        return median(self._took) if self._took else UNKNOWN_S / STRAGGLER_FACTOR

    def _assign(self, replica: int, number: int, now: float) -> Assignment:
        worker, progress = self._workers[replica], self._progress[number]
        unit = progress.unit
        order = Assignment(self._evaluation, worker.next_sequence, number, unit.first, unit.count)
        if not worker.assignments:
            worker.progress_at = now
        worker.assignments[worker.next_sequence] = _OpenAssignment(order, set(range(worker.machines)), now)
        worker.next_sequence += 1
        self._look_at = min(self._look_at, now + STRAGGLER_FACTOR * self._usual_s * unit.count)
        self._idle.pop(replica, None)
        if len(worker.assignments) == OPEN_ASSIGNMENTS:
            del self._hungry[replica]
        self.redone += unit.count if progress.given else 0
        progress.given += 1
        return order

    def validate(self) -> None:
        """Its invariants. Raises AssertionError."""
        waiting = list(self._waiting)
        assert len(waiting) == len(set(waiting)) == len(self._waiting), waiting
        assert self._left == sum(not self._is_computed(number) for number in range(len(self._progress)))
        for replica, worker in self._workers.items():
            assert len(worker.assignments) <= OPEN_ASSIGNMENTS, worker
            assert (replica in self._hungry) == (len(worker.assignments) < OPEN_ASSIGNMENTS), worker
            assert (replica in self._idle) == (not worker.assignments), worker
            assert all(assignment.owed for assignment in worker.assignments.values()), worker
        for number in range(len(self._progress)):
            has = self._is_computed(number) or self._is_owed(number) or number in waiting
            assert has, f"work unit {number} is lost"
