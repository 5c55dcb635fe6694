"""The automatic plan: layouts by dynamic programming, then changes that make the played step shorter.

Candidates are what the additive model likes best, the whole network over each group of machines, equal pieces
over all of them, and whole layers in order; the best by playing its programs is improved move by move. So no
plan of it is slower than equal splits or whole layers in order, as far as the virtual clock tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from partita.partitioner.bound import lower_bound_s
from partita.partitioner.cuts import Cuts
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.elimination import minimum
from partita.partitioner.search.fitting import by_memory
from partita.partitioner.search.groups import groups
from partita.partitioner.search.layers import in_order
from partita.partitioner.search.layouts import Choice, choices, equal, over
from partita.partitioner.search.local import improve
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Trials
from partita.partitioner.strategies.balanced import balanced

EFFORT: Final = 25_000
"""So many instructions are made for plans to play, besides those of the promised candidates."""
ALL_PLANS: Final = 256
"""Up to so many combinations of layouts, all are tried."""
CLOSE: Final = 1.005
"""A plan so near to the bound is not improved."""
EXCHANGES: Final = (1.0, 0.5, 0.2)
"""How much exchanges count in the additive model: some of them are hidden behind kernels."""


def automatic(task: Task) -> Cuts:
    """A cut for every layer: that of the best plan found.

    Raises:
        ValueError: a cut by hand that cannot be.
    """
    additive = Additive(task)
    trials = Trials(task, additive, effort=EFFORT)
    sets = groups(task)
    available = choices(task, sets)
    for candidate, is_promised in _first(task, additive, sets, available):
        if is_promised or trials.score is None or additive.size(candidate) <= trials.left:
            trials.try_out(candidate)
    if trials.best is None:
        assert trials.mistake is not None
        raise trials.mistake
    bound_s = lower_bound_s(task.costs)
    if math.prod(len(found) for found in available.values()) <= ALL_PLANS:
        for combination in product(*available.values()):
            if trials.score is not None and _is_proven(trials, bound_s):
                break
            trials.try_out(dict(zip(available, combination, strict=True)))
    improve(task, trials, available, enough=lambda: _is_proven(trials, bound_s))
    return trials.best


def _is_proven(trials: Trials, bound_s: float) -> bool:
    """Whether no plan can be better by more than is worth a search."""
    score = trials.score
    return score is not None and not score.excess_bytes and score.step_s <= bound_s * CLOSE


def _first(
    task: Task,
    additive: Additive,
    sets: Sequence[tuple[int, ...]],
    available: Mapping[str, Sequence[Choice]],
) -> list[tuple[Mapping[str, Choice], bool]]:
    """Candidates to begin with, those with the least cost by the additive model first.

    With each, whether it is promised that the plan found is no slower than this one.
    """
    found: list[tuple[Mapping[str, Choice], bool]] = [(over(task, group), False) for group in sets]
    for exchange in EXCHANGES:
        best = minimum(additive.tables(available, exchange=exchange))
        found.append(({layer: available[layer][n] for layer, n in best.choices.items()}, False))
    machines = range(len(task.cluster))
    ranked = sorted(machines, key=lambda m: (-task.speeds[m], m))
    promised = (balanced(task), equal(task), in_order(task, machines), in_order(task, ranked))
    found += [(candidate, True) for candidate in promised]
    if task.limits:
        found.append((by_memory(task), True))
    return sorted(found, key=lambda pair: additive.cost_s(pair[0]))
