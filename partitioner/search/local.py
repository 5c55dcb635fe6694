"""Local search: simulates the moves of a plan until none helps or the effort is spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from partita.partitioner.assign.cuts import Cut, Tiles
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.moves import Candidate, other_layouts, runs_of, shifted, swapped
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Score, Trials

PATIENCE = 20_000
"""Layers times moves that are ranked in a round; large networks get fewer moves."""

WORTHWHILE: Final = 0.997
"""Another round of moves follows if the step shrinks below this share."""
NEARLY: Final = 1.1
"""Plans whose steps are longer than the best by up to this factor have their moves tried too."""
ASIDE: Final = 1_500
"""Instructions made for moves of plans that are not the best."""
DEARER: Final = 1.1
"""A move is simulated if the additive model prices it below this factor ..."""
RELIEVED: Final = 0.98
"""... or if the busiest threads are relieved below this share."""


def improve(task: Task, trials: Trials, choices: Mapping[str, Sequence[Choice]]) -> None:
    """Takes a move that helps and starts again, until a round of moves gains too little.

    Then the moves of nearly as good plans are tried too, because a better plan may be two changes away; this
    stops where it would cost much, as in large networks.
    """
    tried: set[int] = set()
    aside = 0.0
    while trials.left > 0 and not trials.is_near:
        number = trials.nearest(tried, within=NEARLY)
        if number is None or aside > ASIDE or (tried and trials.size(number) > ASIDE):
            return
        before, begun = trials.score, trials.left
        for candidate in _ranked(task, trials, trials.plans[number], choices):
            trials.try_out(candidate)
            if trials.left <= 0 or _gains(before, trials.score):
                break
        else:
            tried.add(number)
        aside += (begun - trials.left) * bool(tried)


def _gains(before: Score, now: Score) -> bool:
    """Returns whether a score is clearly better."""
    return before.excess_bytes != now.excess_bytes or now.step_s < WORTHWHILE * before.step_s


def _ranked(
    task: Task, trials: Trials, begin: Mapping[str, Cut], choices: Mapping[str, Sequence[Choice]]
) -> Iterator[Candidate]:
    """Orders the affordable moves of a plan by the additive model."""
    plan: Candidate = {layer: begin.get(layer) for layer in choices}
    free = [layer for layer in choices if layer not in task.by_hand]
    lengths = [n for n in (1, 2, 3, 4, 8, 16, 32) if n <= len(free)]
    machines = range(min(len(task.cluster), 8))
    moves = chain(
        *(other_layouts(plan, choices, runs_of(task.graph, free, n)) for n in lengths),
        shifted(plan, free),
        swapped(plan, free, machines),
    )
    additive, anew = trials.additive, _Anew(trials.additive, plan)
    size = additive.size(plan) * task.n_micro_batches
    some = (move for move, _ in zip(moves, range(PATIENCE // len(choices)), strict=False))
    candidates = [move for move in some if anew.share(move) * size <= trials.left]
    cost_s, lanes_s = additive.cost_s(plan), additive.lanes_s(plan)
    costs = [additive.cost_s(move) for move in candidates]
    for n in sorted(range(len(candidates)), key=lambda n: costs[n]):
        move = candidates[n]
        if anew.share(move) * size > trials.left:
            continue
        if costs[n] <= DEARER * cost_s or additive.lanes_s(move) < RELIEVED * lanes_s:
            yield move


class _Anew:
    """The share of programs that a change of a plan makes anew: those of machines whose layers change."""

    def __init__(self, additive: Additive, plan: Candidate) -> None:
        self.additive, self.plan, self.tiled = additive, plan, _has_tiles(plan)
        self.used: set[int] = set()
        for layer, cut in plan.items():
            self.used |= self._machines(layer, cut)

    def share(self, move: Candidate) -> float:
        if _has_tiles(move) != self.tiled:  # then all pictures have boxes, or none has
            return 1.0
        changed: set[int] = set()
        for layer, cut in move.items():
            old = self.plan[layer]
            if cut is not old and cut != old:
                changed |= self._machines(layer, cut) | self._machines(layer, old)
        return len(changed) / len(changed | self.used)

    def _machines(self, layer: str, cut: Choice) -> set[int]:
        pieces = () if cut is None else self.additive.pieces(self.additive.graph[layer], cut)
        return {piece.machine for piece in pieces}


def _has_tiles(plan: Candidate) -> bool:
    return any(isinstance(cut, Tiles) for cut in plan.values())
