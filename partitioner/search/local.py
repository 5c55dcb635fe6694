"""Improves a plan by playing what moves make of it, until none helps or the effort is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from partita.partitioner.cuts import Cut
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.moves import Plan, other_layouts, runs_of, shifted, swapped
from partita.partitioner.search.rehearsal import Score
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Trials

PATIENCE = 20_000
"""Layers of moves that are ranked in a round: of a large network, fewer moves are looked at."""

WORTHWHILE: Final = 0.997
"""What is gained of a step must be more than this leaves, for another round of moves."""
DEARER: Final = 1.1
"""A move is played if the additive model finds the plan not dearer than this ..."""
RELIEVED: Final = 0.98
"""... or if the busiest threads have so much less to do."""


def improve(
    task: Task, trials: Trials, choices: Mapping[str, Sequence[Choice]], *, enough: Callable[[], bool]
) -> None:
    """Takes a move that helps, and begins again, until a round of moves gains less than is worth it.

    Args:
        task: what is decided.
        trials: with a best plan to begin with, and with the effort that is left.
        choices: the layouts of each layer.
        enough: whether the best is good enough.
    """
    while trials.left > 0 and not enough():
        before = trials.score
        for candidate in _ranked(task, trials, choices):
            trials.try_out(candidate)
            if trials.left <= 0 or _gains(before, trials.score):
                break
        else:
            return


def _gains(before: Score | None, now: Score | None) -> bool:
    """Whether a score is better by more than a trifle."""
    if before is None or now is None or before.excess_bytes != now.excess_bytes:
        return before != now
    return now.step_s < WORTHWHILE * before.step_s


def _ranked(task: Task, trials: Trials, choices: Mapping[str, Sequence[Choice]]) -> Iterator[Plan]:
    """The moves of the best plan, the best by the additive model first."""
    assert trials.best is not None
    plan: Plan = {layer: trials.best.get(layer) for layer in choices}
    free = [layer for layer in choices if layer not in task.by_hand]
    lengths = [n for n in (1, 2, 3, 4, 8, 16, 32) if n <= len(free)]
    machines = range(min(len(task.cluster), 8))
    moves = chain(
        *(other_layouts(plan, choices, runs_of(task.graph, free, n)) for n in lengths),
        shifted(plan, free),
        swapped(plan, free, machines),
    )
    additive = trials.additive
    cost_s, lanes_s = additive.cost_s(plan), additive.lanes_s(_cuts(plan))
    candidates = [move for move, _ in zip(moves, range(PATIENCE // len(choices)), strict=False)]
    costs = [additive.cost_s(move) for move in candidates]
    for n in sorted(range(len(candidates)), key=lambda n: costs[n]):
        move = candidates[n]
        if costs[n] <= DEARER * cost_s or additive.lanes_s(_cuts(move)) < RELIEVED * lanes_s:
            yield move


def _cuts(plan: Plan) -> dict[str, Cut]:
    return {layer: cut for layer, cut in plan.items() if cut is not None}
