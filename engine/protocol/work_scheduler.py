"""Who computes which stretch of an evaluation: free replicas get the next one, the last ones are given twice.

Which is the next one for a replica stands in `waiting.py`. When nothing is left that nobody has, a replica
without work gets a stretch that another one is late with; the first result counts, and both have the same
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

OPEN_TURNS: Final = 2
"""Turns that a replica may owe at a time: while it computes one, the next is there already."""

LATE: Final = 1.5
"""Times what a turn usually takes."""

REMEMBERED: Final = 15
"""Turns whose median is what one usually takes."""

UNKNOWN_S: Final = 1.0
"""When the first turn of all is late, seconds: nobody knows yet how long one takes."""

LOOK: Final = 0.1
"""Who is late is looked for after so much of a usual turn, not sooner."""

Handed: TypeAlias = tuple[int, Assignment]
"""(replica, what all of its parts are told)."""


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn that a replica has not finished: which of its parts still owe it, and when it was last told."""

    order: Assignment
    owed: set[int]
    told_at: float


@dataclass(slots=True, eq=False)
class _Crew:
    """The present processes of a replica."""

    machines: int
    progress_at: float  # when the first of its turns became the first
    next_turn: int = 0
    turns: dict[int, _Turn] = field(default_factory=dict)
    had_share_in: int = 0  # the last evaluation for which it computed something

    def owes(self, evaluation: int, stretch: int) -> bool:
        return any(
            (t.order.evaluation, t.order.stretch) == (evaluation, stretch) for t in self.turns.values()
        )


@dataclass(slots=True, eq=False)
class _Progress:
    """A stretch of the evaluation under way."""

    stretch: WorkUnit
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)  # by machine; the first counts
    given: int = 0  # how often it was handed out
    computed_by: list[_Crew] = field(default_factory=list)


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
            backups: whether stretches are handed out again at the end of an evaluation.
        """
        self.redone = 0
        self.busy = 0
        self._machines: Final = machines
        self._backups: Final = backups
        self._crews: dict[int, _Crew] = {}
        self._evaluation = 0
        self._progress: list[_Progress] = []
        self._waiting: Final = WorkQueue()
        self._hungry: dict[int, None] = {}  # replicas that may be given another turn, ...
        self._idle: dict[int, None] = {}  # ... and those of them that owe none
        self._left = 0  # stretches that are not computed
        self._shares = 0  # replicas that have computed something
        self._look_at = math.inf  # when to look for who is late
        self._took: deque[float] = deque(maxlen=REMEMBERED)  # seconds for a portion, in turns of late

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return len(self._crews)

    @property
    def complete(self) -> bool:
        """Whether every stretch of the evaluation was computed, by all machines of some replica."""
        return not self._left

    def losses(self, evaluate: Evaluate) -> Scalars:
        """The scalars of an evaluation that is complete: losses and right examples of each segment."""
        found: list[float] = []
        for n in range(len(evaluate.segments)):
            pieces = [p.losses[m] for p in self._progress if p.stretch.segment == n for m in sorted(p.losses)]
            found += [added([loss for loss, _ in pieces]), float(sum(correct for _, correct in pieces))]
        return tuple(found)

    # Replicas come and go.

    def has(self, replica: int) -> bool:
        """Whether the replica's present processes are known."""
        return replica in self._crews

    def add(self, replica: int, now: float) -> None:
        """All parts of a replica are ready."""
        self._crews[replica] = _Crew(self._machines, now)
        self._hungry[replica] = self._idle[replica] = None

    def remove(self, replica: int) -> None:
        """A part of it has died: what it owes is anybody's again."""
        crew = self._crews.pop(replica, None)
        if crew is None:
            return
        self._hungry.pop(replica, None)
        self._idle.pop(replica, None)
        self._waiting.leave(replica)
        for turn in crew.turns.values():
            number = turn.order.stretch
            if turn.order.evaluation == self._evaluation and not self._is_computed(number):
                self._free(number)

    def stalled(self, now: float, after_s: Mapping[int, float]) -> list[int]:
        """The replicas that owe something and have finished no turn for so long."""
        return [
            replica
            for replica, crew in self._crews.items()
            if crew.turns and now - crew.progress_at >= after_s[replica]
        ]

    # An evaluation.

    def begin(self, evaluation: int, stretches: Sequence[WorkUnit]) -> None:
        """The next evaluation, of these stretches."""
        self._evaluation, self._shares = evaluation, 0
        self._progress = [_Progress(stretch) for stretch in stretches]
        self._left = len(stretches)
        self._waiting.begin(len(stretches), list(self._crews))
        self._look_at = -math.inf

    def end(self) -> None:
        """It is over, or was given up; what is still computed for it counts for nothing."""
        if self._progress and self.complete:
            self.busy = self._shares
        self._evaluation = 0
        self._progress, self._left = [], 0
        self._waiting.clear()

    def hand_out(self, now: float) -> list[Handed]:
        """What is to be told now, so that nobody is without work: the replicas by turns, one stretch each."""
        handed: list[Handed] = []
        for _ in range(OPEN_TURNS):
            for replica in list(self._hungry) if self._waiting else ():
                number = self._waiting.take(replica)
                if number is None:
                    break
                handed.append((replica, self._give(replica, number, now)))
        if now >= self.next_backup_at:
            handed += self._backups_for_idle(now)
        return handed

    def was_handed(self, replica: int, machine: int, message: AssignmentResult) -> bool:
        """Whether a result is of a turn as it was handed out, or of one that nobody waits for any more."""
        crew = self._crews.get(replica)
        turn = None if crew is None else crew.turns.get(message.turn)
        if crew is None or turn is None:
            return crew is None or message.turn < crew.next_turn
        given = turn.order.evaluation, turn.order.stretch
        return machine < self._machines and (message.evaluation, message.stretch) == given

    def are_ranges(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Whether these are ascending ranges of the stretches of the evaluation under way."""
        ends = [0, *(number for each in ranges for number in each), len(self._progress)]
        return all(a <= b for a, b in itertools.pairwise(ends))

    def computed(self, replica: int, machine: int, message: AssignmentResult, now: float) -> None:
        """A part of the present processes is through with a turn."""
        crew = self._crews.get(replica)
        turn = None if crew is None else crew.turns.get(message.turn)
        if crew is None or turn is None or message.evaluation != turn.order.evaluation:
            return  # a repeat
        turn.owed.discard(machine)
        if not turn.owed:
            del crew.turns[message.turn]
            self._hungry[replica] = None
            if not crew.turns:
                self._idle[replica] = None
            self._took.append((now - crew.progress_at) / turn.order.count)
            crew.progress_at = now
        if message.evaluation == self._evaluation:
            self._count(crew, machine, message)

    def _count(self, crew: _Crew, machine: int, message: AssignmentResult) -> None:
        progress = self._progress[message.stretch]
        self._shares += crew.had_share_in != self._evaluation
        crew.had_share_in = self._evaluation
        if crew not in progress.computed_by:
            progress.computed_by.append(crew)
        if machine not in progress.losses:
            progress.losses[machine] = (message.loss, message.correct)
            self._left -= len(progress.losses) == self._machines

    def lacking(self, ranges: Iterable[tuple[int, int]]) -> None:
        """A shard says which stretches it lacks: who has computed one sends it, unless it has died since."""
        alive = list(self._crews.values())
        for start, stop in ranges:
            for number in range(start, min(stop, len(self._progress))):
                if not any(crew in alive for crew in self._progress[number].computed_by):
                    self._free(number)

    def again(self, now: float, retry_s: float) -> list[Handed]:
        """What was told so long ago that it may have been lost."""
        handed: list[Handed] = []
        for replica, crew in self._crews.items():
            for turn in crew.turns.values():
                if now - turn.told_at >= retry_s:
                    turn.told_at = now
                    handed.append((replica, turn.order))
        return handed

    def _free(self, number: int) -> None:
        """Anybody may have it, unless somebody has it or will."""
        if number not in self._waiting and not self._is_owed(number):
            self._waiting.add(number)

    def _is_owed(self, number: int) -> bool:
        return any(crew.owes(self._evaluation, number) for crew in self._crews.values())

    def _is_computed(self, number: int) -> bool:
        return len(self._progress[number].losses) == self._machines

    # Backups.

    @property
    def next_backup_at(self) -> float:
        """When `hand_out` may have something new to say although nothing was heard (seconds; inf: never)."""
        wanted = self._backups and self._idle and self._left and not self._waiting
        return self._look_at if wanted else math.inf

    def _backups_for_idle(self, now: float) -> list[Handed]:
        """For each replica without work the stretch that was given least often, and of those the first."""
        self._look_at = math.inf
        late_at = self._late_at()
        late = sorted(
            (number for number, at in late_at.items() if at <= now),
            key=lambda number: (self._progress[number].given, number),
        )
        handed: list[Handed] = []
        for replica in list(self._idle):
            by = self._crews[replica]
            number = next((one for one in late if by not in self._progress[one].computed_by), None)
            if number is not None:
                late.remove(number)
                handed.append((replica, self._give(replica, number, now)))
        soonest = now if late else min((at for at in late_at.values() if at > now), default=math.inf)
        self._look_at = min(self._look_at, max(soonest, now + LOOK * self._usual_s))
        return handed

    def _late_at(self) -> dict[int, float]:
        """The stretches that somebody owes, and when the first of their replicas is late with all it owes."""
        found: dict[int, float] = {}
        for crew in self._crews.values():
            for turn in crew.turns.values():
                number = turn.order.stretch
                if turn.order.evaluation == self._evaluation and not self._is_computed(number):
                    first = next(iter(crew.turns.values())).order
                    at = crew.progress_at + LATE * self._usual_s * first.count
                    found[number] = min(at, found.get(number, math.inf))
        return found

    @property
    def _usual_s(self) -> float:
        """What a portion takes of late."""
        return median(self._took) if self._took else UNKNOWN_S / LATE

    def _give(self, replica: int, number: int, now: float) -> Assignment:
        crew, progress = self._crews[replica], self._progress[number]
        stretch = progress.stretch
        order = Assignment(self._evaluation, crew.next_turn, number, stretch.first, stretch.count)
        if not crew.turns:
            crew.progress_at = now
        crew.turns[crew.next_turn] = _Turn(order, set(range(crew.machines)), now)
        crew.next_turn += 1
        self._look_at = min(self._look_at, now + LATE * self._usual_s * stretch.count)
        self._idle.pop(replica, None)
        if len(crew.turns) == OPEN_TURNS:
            del self._hungry[replica]
        self.redone += stretch.count if progress.given else 0
        progress.given += 1
        return order

    def validate(self) -> None:
        """Its invariants. Raises AssertionError."""
        waiting = list(self._waiting)
        assert len(waiting) == len(set(waiting)) == len(self._waiting), waiting
        assert self._left == sum(not self._is_computed(number) for number in range(len(self._progress)))
        for replica, crew in self._crews.items():
            assert len(crew.turns) <= OPEN_TURNS, crew
            assert (replica in self._hungry) == (len(crew.turns) < OPEN_TURNS), crew
            assert (replica in self._idle) == (not crew.turns), crew
            assert all(turn.owed for turn in crew.turns.values()), crew
        for number in range(len(self._progress)):
            has = self._is_computed(number) or self._is_owed(number) or number in waiting
            assert has, f"stretch {number} is lost"
