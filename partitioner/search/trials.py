"""Plays candidates, remembers what they took, and knows the best of them.

Effort is counted in instructions played, never in seconds: the same search finds the same plan everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.cuts import Cut
from partita.partitioner.ownership import Piece
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.task import Task, excess_bytes


@dataclass(frozen=True, order=True)
class Score:
    """How good a plan is: what does not fit into memory (bytes) counts before its step (seconds)."""

    excess_bytes: int
    step_s: float


class Trials:
    """Candidates of one task."""

    def __init__(self, task: Task, additive: Additive, *, effort: int) -> None:
        """Nothing tried yet.

        Args:
            task: what is decided.
            additive: the model that tells which candidates cannot be the best.
            effort: how many instructions may be played.
        """
        self.task, self.additive, self.left = task, additive, effort
        self.best: Mapping[str, Cut] | None = None
        self.score: Score | None = None
        self.played = 0
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

    def size(self, choices: Mapping[str, Choice]) -> int:
        """About how many instructions a candidate has."""
        graph, found = self.task.graph, 0.0
        for grid in graph.computed:
            cut = choices.get(grid.name)
            found += 5 * (1 if cut is None else len(self.additive.pieces(grid, cut)))
            listeners = dict.fromkeys(name for name, _ in graph.consumers(grid.name))
            if listeners:
                up, down = self.additive.moved(grid, {n: choices.get(n) for n in (grid.name, *listeners)})
                found += 3 * float(up.sent.sum() + down.sent.sum())
        return int(found)

    def _score(self, plan: BarePlan, cuts: Mapping[str, Cut]) -> Score | None:
        fits = self.score is not None and not self.score.excess_bytes
        if fits and self.score is not None and self.additive.lanes_s(cuts) >= self.score.step_s:
            return None
        excess = excess_bytes(plan) if self.task.limits else 0
        if fits and excess:
            return None
        found = Score(excess, plan.playback.step_s)
        self.played += 1
        self.left -= sum(map(len, plan.programs))
        if self.score is None or found < self.score:
            self.best, self.score = cuts, found
        return found
