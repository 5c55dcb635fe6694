"""Trials: candidate plans are simulated; their scores and the best plan are kept.

A machine's program follows from its own pieces, messages and sums, so a change of some layers leaves the
programs of other machines. Effort is counted in instructions, never in seconds, so that a search finds the
same plan everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from partita.partitioner.assign.cuts import Cut
from partita.partitioner.assign.piece import Piece
from partita.partitioner.ir.program import Program
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.lower import ProgramInputs
from partita.partitioner.plan import Plan
from partita.partitioner.predict.simulate import simulate_programs
from partita.partitioner.predict.timed_program import TimedProgram, timed_program
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.task import Task

CLOSE: Final = 1.005
"""A plan within this factor of the bound is not improved."""


@dataclass(frozen=True, order=True)
class Score:
    """Quality of a plan: bytes that exceed memory count before the step's seconds."""

    excess_bytes: int
    step_s: float

    def is_near(self, bound_s: float) -> bool:
        """Returns whether the plan fits, and is so near a bound that no search is worthwhile."""
        return not self.excess_bytes and self.step_s <= bound_s * CLOSE


WORST: Final = Score(1 << 62, math.inf)
"""The score to beat where there is none."""


@dataclass
class _Part:
    """A machine's timed program, and its memory where that was asked for."""

    timed: TimedProgram
    n_bytes: int | None = None


class Evaluator:
    """Simulates plans of a task."""

    def __init__(self, task: Task) -> None:
        self.task, self.hosts, self.kind = task, task.cluster.hosts, StepKind().of(task.graph)
        self.spent = 0.0
        """Instructions made so far; simulating one counts as an eighth."""
        self.programs: tuple[Program, ...] = ()
        """Programs of the last plan simulated."""
        self._parts: dict[Hashable, _Part] = {}

    def score(self, plan: Plan, *, limit_s: float = math.inf) -> Score:
        """Simulates a plan's step; checks memory only if the step is shorter than the limit."""
        parts = [self._part(share) for share in plan.lowering.program_inputs(self.kind)]
        self.spent += sum(len(part.timed.kinds) for part in parts) / 8
        self.programs = tuple(part.timed.program for part in parts)
        record = simulate_programs([part.timed for part in parts], self.hosts)
        excess = 0
        for machine, limit in self.task.tight_limits.items() if record.step_s < limit_s else ():
            part = parts[machine]
            if part.n_bytes is None:
                part.n_bytes = plan.program_bytes(part.timed.program)
                self.spent += len(part.timed.program)
            excess += max(part.n_bytes - limit, 0)
        return Score(excess, record.step_s)

    def _part(self, share: ProgramInputs) -> _Part:
        key = share.key
        if key not in self._parts:
            program = share.program()
            self.spent += len(program)
            self._parts[key] = _Part(timed_program(program, self.task.costs, self.task.costs.sizes))
        return self._parts[key]


class Trials:
    """Candidates of one task."""

    def __init__(self, task: Task, additive: Additive, *, effort: int, to_beat: Score = WORST) -> None:
        """Begins without a best plan; the effort is the number of instructions that may be simulated."""
        self.task, self.additive, self.score = task, additive, to_beat
        self.effort: float = effort
        self.evaluator = Evaluator(task)
        self.best: Plan | None = None
        self.best_cuts: Mapping[str, Cut] = {}
        self.plans: list[Mapping[str, Cut]] = []
        """Cuts of all plans simulated."""
        self._scores: list[Score] = []
        self._known: dict[tuple[Piece, ...], Score | None] = {}
        self.mistake: ValueError | None = None

    def try_out(self, choices: Mapping[str, Choice]) -> Score | None:
        """Simulates a candidate, unless it is impossible or cannot be the best."""
        cuts = {layer: cut for layer, cut in choices.items() if cut is not None}
        try:
            plan = self.task.plan(cuts)
        except ValueError as mistake:
            self.mistake = mistake
            return None
        key = plan.ownership.pieces
        if key not in self._known:
            self._known[key] = self._score(plan, cuts)
        return self._known[key]

    @property
    def is_near(self) -> bool:
        """Returns whether the best plan is so near the bound that no search is worthwhile."""
        return self.score.is_near(self.task.bound_s)

    @property
    def left(self) -> float:
        """Effort left, in instructions."""
        return self.effort - self.evaluator.spent

    def nearest(self, tried: Collection[int], *, within: float) -> int | None:
        """Finds the best plan not tried yet, if its step is within this factor of the best."""
        left = [n for n in range(len(self.plans)) if n not in tried]
        found = min(left, key=lambda n: self._scores[n], default=None)
        if found is None or self._scores[found] > replace(self.score, step_s=within * self.score.step_s):
            return None
        return found

    def size(self, number: int) -> int:
        """Estimates the instructions of a plan that was simulated."""
        return self.additive.size(self.plans[number]) * self.task.n_micro_batches

    def _score(self, plan: Plan, cuts: Mapping[str, Cut]) -> Score | None:
        fits = not self.score.excess_bytes
        if fits and self.additive.lanes_s(cuts) >= self.score.step_s:
            return None
        found = self.evaluator.score(plan, limit_s=self.score.step_s if fits else math.inf)
        self.plans.append(cuts)
        self._scores.append(found)
        if found < self.score:
            made = replace(plan.lowering, made=self.evaluator.programs)
            self.best, self.best_cuts, self.score = replace(plan, lowered=made), cuts, found
        return found
