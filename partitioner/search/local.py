"""Improves a plan by playing what moves make of it, until none helps or the effort is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.moves import Plan, other_layouts, runs_of, shifted, swapped
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Trials

PATIENCE = 20_000
"""Layers of moves that are ranked in a round: of a large network, fewer moves are looked at."""


def improve(
    task: Task, trials: Trials, choices: Mapping[str, Sequence[Choice]], *, enough: Callable[[], bool]
) -> None:
    """Takes the first move that helps, and begins again.

    Args:
        task: what is decided.
        trials: with a best plan to begin with, and with the effort that is left.
        choices: the layouts of each layer.
        enough: whether the best is good enough.
    """
    while trials.left > 0 and not enough():
        before = trials.score
        for candidate in _ranked(task, trials, choices):
            if trials.left <= 0:
                return
            trials.try_out(candidate)
            if trials.score != before:
                break
        else:
            return


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
    candidates = [move for move, _ in zip(moves, range(PATIENCE // len(choices)), strict=False)]
    yield from sorted(candidates, key=trials.additive.cost_s)
