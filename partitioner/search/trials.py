"""Plays candidates, remembers what they took, and knows the best of them.

Effort is counted in instructions played, never in seconds: the same search finds the same plan everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from partita.partitioner.assign.cuts import Cut
from partita.partitioner.assign.piece import Piece
from partita.partitioner.ir.program import Program
from partita.partitioner.plan import Plan
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.evaluator import Evaluator, Score
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.task import Task


class Trials:
    """Candidates of one task."""

    def __init__(self, task: Task, additive: Additive, *, effort: int, to_beat: Score | None = None) -> None:
        """Nothing tried yet.

        Args:
            task: what is decided.
            additive: the model that tells which candidates cannot be the best.
            effort: how many instructions may be played.
            to_beat: what a plan must be better than to be the best.
        """
        self.task, self.additive = task, additive
        self.effort: float = effort
        self.evaluator = Evaluator(task)
        self.best: Mapping[str, Cut] | None = None
        self.programs: tuple[Program, ...] = ()
        """Of the best."""
        self.score = to_beat
        self.plans: list[Mapping[str, Cut]] = []
        """All that were played."""
        self._scores: list[Score] = []
        self._known: dict[tuple[Piece, ...], Score | None] = {}
        self.mistake: ValueError | None = None

    def try_out(self, choices: Mapping[str, Choice]) -> Score | None:
        """Plays a candidate, unless it cannot be better than the best, or cannot be at all."""
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
    def left(self) -> float:
        """How much of the effort is left."""
        return self.effort - self.evaluator.spent

    def nearest(self, tried: Collection[int], *, within: float) -> int | None:
        """The number of the best plan but for those that were tried, if its step is not longer than that."""
        assert self.score is not None
        left = [n for n in range(len(self.plans)) if n not in tried]
        found = min(left, key=lambda n: self._scores[n], default=None)
        if found is None or self._scores[found] > replace(self.score, step_s=within * self.score.step_s):
            return None
        return found

    def size(self, number: int) -> int:
        """About how many instructions a plan has that was played."""
        return self.additive.size(self.plans[number]) * self.task.portions

    def _score(self, plan: Plan, cuts: Mapping[str, Cut]) -> Score | None:
        fits = self.score is not None and not self.score.excess_bytes
        if fits and self.score is not None and self.additive.lanes_s(cuts) >= self.score.step_s:
            return None
        limit_s = self.score.step_s if fits and self.score is not None else math.inf
        found = self.evaluator.score(plan, limit_s=limit_s)
        self.plans.append(cuts)
        self._scores.append(found)
        if self.score is None or found < self.score:
            self.best, self.score, self.programs = cuts, found, self.evaluator.programs
        return found
