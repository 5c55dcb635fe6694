"""Assigns the work units of an evaluation: idle replicas get the next one, and stragglers get backups.

`work_book.py` has the units, and chooses the next one of a replica. When none is free, an idle replica gets
a unit of a straggler; the first result counts, and both have the same bits. Recent assignments show who is a
straggler: a backup that comes too early keeps a replica from the next evaluation. There may be thousands of
replicas, so a message costs a look at one of them, and all are looked at only now and then.

Source: DistBelief, section 4.2 (load balancing, and backup tasks as in MapReduce).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, TypeAlias

from partita.engine.protocol.batch_messages import Assignment, AssignmentResult
from partita.engine.protocol.commands import Evaluate, Scalars, WorkUnit, exact_sum
from partita.engine.protocol.program_reports import added
from partita.engine.protocol.work_book import Held, Holder, WorkBook
from partita.engine.protocol.worthwhile import chosen, replicas_worth

OPEN_ASSIGNMENTS: Final = 2
"""Open assignments of a replica: while it computes one, the next is there already."""

STRAGGLER_FACTOR: Final = 1.5
"""Multiple of an assignment's usual duration after which its replica is a straggler."""

REMEMBERED: Final = 15
"""Assignments whose median duration is the usual one."""

KNOWN: Final = 5
"""Assignments after which it is known how long an evaluation takes."""

SOONEST_S: Final = 2e-3
"""Smallest number of seconds after which a replica is a straggler: a process may be off its core for as long,
and a backup costs messages.
"""

UNKNOWN_S: Final = 1.0
"""Seconds after which the first assignment of all is late: its duration is unknown."""

LOOK: Final = 0.1
"""Smallest interval between two searches for stragglers, as a part of a usual duration."""

Dispatch: TypeAlias = tuple[int, Assignment]
"""(replica, the assignment of all of its parts)."""


@dataclass(slots=True, eq=False)
class _Worker(Holder):
    """The present processes of a replica."""

    progress_at: float = 0.0  # when the first of its open assignments became the first
    last_evaluation: int = 0  # for which it computed something


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """The time at which an assignment was last sent."""

    at: float
    replica: int
    worker: _Worker
    held: Held


@dataclass(slots=True, eq=False)
class _Progress:
    """A work unit of the evaluation under way."""

    unit: WorkUnit
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)  # by machine; the first counts
    sums: dict[int, tuple[float, ...]] = field(default_factory=dict)  # likewise
    assigned: int = 0  # times
    given: dict[_Worker, float] = field(default_factory=dict)  # when, to whom, last
    computed_by: list[_Worker] = field(default_factory=list)


class WorkScheduler:
    """The work units of one evaluation after another.

    Attributes:
        redone: portions that were assigned more than once, in all evaluations.
        busy: present replicas that computed something for the last evaluation that was completed.
    """

    def __init__(self, machines: int, *, backups: bool = True) -> None:
        """Creates a scheduler without replicas.

        Args:
            machines: parts of each replica.
            backups: whether units of stragglers are assigned again.
        """
        self.redone = 0
        self.busy = 0
        self._machines: Final = machines
        self._backups: Final = backups
        self._book: Final = WorkBook[_Worker]()
        self._workers: Final = self._book.holders
        self._evaluation = 0
        self._first = 0  # the number of its first unit in the book
        self._progress: list[_Progress] = []
        self._available: dict[int, None] = {}  # replicas that may get another assignment, ...
        self._idle: dict[int, None] = {}  # ... and those of them that have none
        self._left = 0  # units that are not computed
        self._shares = 0  # replicas that have computed something
        self._look_at = math.inf  # when to look for stragglers
        self._sent: Final[deque[_Sent]] = deque()  # ascending, also of assignments that are done
        self._late: Final[dict[int, None]] = {}  # replicas with an assignment that was sent again
        self._durations: deque[float] = deque(maxlen=REMEMBERED)  # seconds for a portion
        self._chosen: tuple[int, ...] | None = None  # replicas that compute the evaluation; None: all
        self._last_chosen: tuple[int, ...] = ()
        self._read: tuple[float, ...] = ()

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return len(self._workers)

    @property
    def complete(self) -> bool:
        """Returns whether every unit of the evaluation was computed, by all machines of some replica."""
        return not self._left

    def losses(self, evaluate: Evaluate) -> Scalars:
        """Returns the scalars of a complete evaluation: each segment's loss and right examples."""
        found: list[float] = []
        for n in range(len(evaluate.segments)):
            pieces = [p.losses[m] for p in self._progress if p.unit.segment == n for m in sorted(p.losses)]
            found += [exact_sum([loss for loss, _ in pieces]), float(sum(correct for _, correct in pieces))]
        return tuple(found)

    @property
    def sums(self) -> tuple[float, ...]:
        """The further sums of a complete evaluation, in the order in which parts report them."""
        rows = [p.sums[m] for p in self._progress for m in sorted(p.sums) if p.sums[m]]
        return tuple(map(exact_sum, map(list, zip(*rows, strict=True))))

    def take_read(self) -> tuple[float, ...]:
        """Returns the sums of reading the data, of all parts, since the last call."""
        read, self._read = self._read, ()
        return read

    # Replicas come and go.

    def has(self, replica: int) -> bool:
        """Returns whether the replica's present processes are known."""
        return replica in self._workers

    def add(self, replica: int, now: float) -> None:
        """Adds a replica whose parts are all ready."""
        self._workers[replica] = _Worker(progress_at=now)
        self._available[replica] = self._idle[replica] = None

    def remove(self, replica: int) -> None:
        """Removes a replica of which a part has died; its units wait again."""
        worker = self._workers.pop(replica, None)
        if worker is None:
            return
        self._available.pop(replica, None)
        self._idle.pop(replica, None)
        self._book.release(replica)
        self._chosen = None  # whoever is left may take what it had
        for unit in self._open_units(worker):
            self._book.add(self._first + unit)

    def stalled(self, now: float, after_s: Callable[[int], float]) -> list[int]:
        """Returns the replicas that have finished none of their open assignments for so long.

        Only those are looked at that have an assignment which was sent again.
        """
        stalled = []
        for replica in list(self._late):
            worker = self._workers.get(replica)
            if worker is None or not worker.open:
                del self._late[replica]
            elif now - worker.progress_at >= after_s(replica):
                stalled.append(replica)
        return stalled

    # An evaluation.

    def begin(self, evaluation: int, units: Sequence[WorkUnit]) -> None:
        """Begins the next evaluation, of these units."""
        self._evaluation, self._shares = evaluation, 0
        self._progress = [_Progress(unit) for unit in units]
        self._left = len(units)
        work_s = self._known_s * sum(unit.count for unit in units)
        number = replicas_worth(work_s, len(self._workers))
        self._chosen = None
        if number < len(self._workers):
            self._chosen = chosen(number, self._last_chosen, self._workers)
            self._last_chosen = self._chosen
        self._first = self._book.units
        self._book.extend(self._first + len(units), among=self._chosen or list(self._workers))
        self._look_at = -math.inf

    def end(self) -> None:
        """Ends or gives up the evaluation; later results for it are ignored."""
        if self._progress and self.complete:
            self.busy = self._shares
        self._evaluation = 0
        self._progress, self._left = [], 0
        self._book.withdraw()

    def schedule(self, now: float) -> list[Dispatch]:
        """Assigns units round-robin, so that no replica is idle."""
        dispatched: list[Dispatch] = []
        for _ in range(OPEN_ASSIGNMENTS):
            for replica in self._free_replicas() if self._book.free else ():
                held = self._book.next_unit(replica)
                if held is None:
                    break
                dispatched.append((replica, self._assign(replica, held, now)))
        if now >= self.next_backup_at:
            dispatched += self._assign_backups(now)
        return dispatched

    def _free_replicas(self) -> list[int]:
        """The replicas that may get another assignment of the evaluation."""
        if self._chosen is None:
            return list(self._available)
        return [replica for replica in self._chosen if replica in self._available]

    def was_assigned(self, replica: int, machine: int, result: AssignmentResult) -> bool:
        """Returns whether a result is of an assignment as it was sent, or of one that is no longer open."""
        worker = self._workers.get(replica)
        given = None if worker is None else worker.open.get(result.sequence)
        if worker is None or given is None:
            return worker is None or result.sequence < worker.next
        expected = given.order.evaluation, given.order.unit
        return machine < self._machines and (result.evaluation, result.unit) == expected

    def are_ranges(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Returns whether these are ascending ranges of units of the evaluation under way."""
        ends = [0, *(number for each in ranges for number in each), len(self._progress)]
        return all(a <= b for a, b in itertools.pairwise(ends))

    def computed(self, replica: int, machine: int, result: AssignmentResult, now: float) -> None:
        """Takes the result of a part of the present processes."""
        worker = self._workers.get(replica)
        given = None if worker is None else worker.open.get(result.sequence)
        if worker is None or given is None or result.evaluation != given.order.evaluation:
            return  # a duplicate
        if machine in given.unfinished:
            self._read = added(self._read, result.read)
        given.unfinished.discard(machine)
        if not given.unfinished:
            del worker.open[result.sequence]
            self._available[replica] = None
            if not worker.open:
                self._idle[replica] = None
            self._durations.append((now - worker.progress_at) / given.order.count)
            worker.progress_at = now
            self._late.pop(replica, None)
        if result.evaluation == self._evaluation:
            self._count(worker, machine, result)

    def _count(self, worker: _Worker, machine: int, result: AssignmentResult) -> None:
        progress = self._progress[result.unit]
        self._shares += worker.last_evaluation != self._evaluation
        worker.last_evaluation = self._evaluation
        if worker not in progress.computed_by:
            progress.computed_by.append(worker)
        if machine not in progress.losses:
            progress.losses[machine], progress.sums[machine] = (result.loss, result.correct), result.sums
            self._left -= len(progress.losses) == self._machines

    def missing(self, ranges: Iterable[tuple[int, int]], since: float = -math.inf) -> None:
        """Frees the units that a shard lacks, unless a replica that is alive has computed and sends them.

        One that was given a unit before `since` (seconds) may have sent it to the shard's process before.
        """
        alive = list(self._workers.values())
        for start, stop in ranges:
            for unit in range(start, min(stop, len(self._progress))):
                progress = self._progress[unit]
                sent = (worker for worker in progress.computed_by if progress.given[worker] >= since)
                if not any(worker in alive for worker in sent):
                    self._book.add(self._first + unit)

    def resend(self, now: float, retry_s: float) -> list[Dispatch]:
        """Repeats assignments that were sent so long ago that they may have been lost."""
        dispatched: list[Dispatch] = []
        while self._sent and now - self._sent[0].at >= retry_s:
            sent = self._sent.popleft()
            if self._is_open(sent):
                dispatched.append((sent.replica, sent.held.order))
                self._sent.append(replace(sent, at=now))
                self._late[sent.replica] = None
        return dispatched

    def _is_open(self, sent: _Sent) -> bool:
        return self._workers.get(sent.replica) is sent.worker and sent.held.step in sent.worker.open

    def _open_units(self, worker: _Worker) -> list[int]:
        """Open units of a replica that are of this evaluation and not computed."""
        units = (held.start - self._first for held in worker.open.values()) if self._progress else ()
        return [unit for unit in units if unit >= 0 and not self._is_computed(unit)]

    def _is_computed(self, unit: int) -> bool:
        return len(self._progress[unit].losses) == self._machines

    # Backups.

    @property
    def next_backup_at(self) -> float:
        """Time from which `schedule` may assign something without a message (seconds; inf: never)."""
        wanted = self._backups and self._idle and self._left and not self._book.free
        return self._look_at if wanted else math.inf

    def _assign_backups(self, now: float) -> list[Dispatch]:
        """Assigns each idle replica the straggler's unit that was assigned least often, the first of them."""
        self._look_at = math.inf
        deadlines = self._straggler_deadlines()
        late = sorted(
            (unit for unit, at in deadlines.items() if at <= now),
            key=lambda unit: (self._progress[unit].assigned, unit),
        )
        dispatched: list[Dispatch] = []
        for replica in list(self._idle):
            by = self._workers[replica]
            unit = next((one for one in late if by not in self._progress[one].computed_by), None)
            if unit is not None:
                late.remove(unit)
                held = self._book.lease(replica, self._first + unit, self._first + unit + 1)
                dispatched.append((replica, self._assign(replica, held, now)))
        soonest = now if late else min((at for at in deadlines.values() if at > now), default=math.inf)
        self._look_at = min(self._look_at, max(soonest, now + LOOK * self._usual_s))
        return dispatched

    def _straggler_deadlines(self) -> dict[int, float]:
        """Open units, and when the first of their replicas becomes a straggler."""
        found: dict[int, float] = {}
        for worker in self._workers.values():
            for unit in self._open_units(worker):
                first = next(iter(worker.open.values())).order
                at = worker.progress_at + self._late_s(first.count)
                found[unit] = min(at, found.get(unit, math.inf))
        return found

    @property
    def _usual_s(self) -> float:
        """Seconds of a portion in recent assignments; a guess where none is known."""
        return median(self._durations) if self._durations else UNKNOWN_S / STRAGGLER_FACTOR

    def _late_s(self, count: int) -> float:
        """Seconds after which an assignment of so many portions is late."""
        return max(STRAGGLER_FACTOR * self._usual_s * count, SOONEST_S)

    @property
    def _known_s(self) -> float:
        """Seconds of a portion in recent assignments; NaN: too few are known."""
        return median(self._durations) if len(self._durations) >= KNOWN else math.nan

    def _assign(self, replica: int, held: Held, now: float) -> Assignment:
        worker, unit = self._workers[replica], held.start - self._first
        progress = self._progress[unit]
        first, count = progress.unit.first, progress.unit.count
        held.order = assignment = Assignment(self._evaluation, held.step, unit, first, count)
        held.unfinished = set(range(self._machines))
        if len(worker.open) == 1:
            worker.progress_at = now
        while self._sent and not self._is_open(self._sent[0]):
            self._sent.popleft()
        self._sent.append(_Sent(now, replica, worker, held))
        self._look_at = min(self._look_at, now + self._late_s(count))
        self._idle.pop(replica, None)
        if len(worker.open) == OPEN_ASSIGNMENTS:
            del self._available[replica]
        self.redone += count if progress.assigned else 0
        progress.assigned += 1
        progress.given[worker] = now
        return assignment

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._book.validate(once=False)
        assert self._left == sum(not self._is_computed(unit) for unit in range(len(self._progress)))
        for replica, worker in self._workers.items():
            assert len(worker.open) <= OPEN_ASSIGNMENTS, worker
            assert (replica in self._available) == (len(worker.open) < OPEN_ASSIGNMENTS), worker
            assert (replica in self._idle) == (not worker.open), worker
            assert all(held.unfinished for held in worker.open.values()), worker
        for unit in range(len(self._progress)):
            number = self._first + unit
            known = self._is_computed(unit) or self._book.has(number) or self._book.is_free(number)
            assert known, f"work unit {unit} is lost"
