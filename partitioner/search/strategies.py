"""Strategies: the automatic plan, and two that follow one rule.

The automatic plan takes layouts by dynamic programming, then moves that shorten the simulated step.

Candidates are the best of the additive model, the whole network over each group of machines, equal pieces
over all of them, and whole layers in order. The best in simulation is improved move by move, so the result is
no slower in simulation than equal splits or whole layers in order, unless these take too long to simulate (a
hundred dense layers over hundreds of machines). Where layers lie on consecutive machines, several
micro-batches are tried, unless their number is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from partita.partitioner.plan import Plan
from partita.partitioner.search.additive import Additive
from partita.partitioner.search.elimination import minimum
from partita.partitioner.search.fitting import by_memory
from partita.partitioner.search.groups import FEWEST, groups
from partita.partitioner.search.layers import in_order, in_stages
from partita.partitioner.search.layouts import Choice, choices
from partita.partitioner.search.local import improve
from partita.partitioner.search.spread import balanced, equal, over
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Score, Trials

EFFORT: Final = 25_000
"""Instructions made for plans to simulate when the best of the first candidates is improved."""
FIRST: Final = 150_000
"""Instructions made for first candidates; promised ones are simulated beyond that ..."""
PROMISED: Final = 300_000
"""... up to this number."""
EXCHANGED: Final = 20_000
"""Exchanges priced before layers get fewer layouts."""
ALL_PLANS: Final = 256
"""Combinations of layouts up to which all are tried."""
EXCHANGES: Final = (1.0, 0.5, 0.2)
"""Weights of exchanges in the additive model: some are hidden behind kernels."""
WORTH: Final = 0.97
"""More micro-batches are used if they bring the step below this share."""
MICRO_BATCHES: Final = (2, 4, 8, 16)
"""Numbers of micro-batches that are tried."""


def automatic(task: Task) -> Plan:
    """Searches for the plan with the shortest simulated step.

    Raises:
        ValueError: a cut by hand is impossible.
    """
    whole = replace(task, micro_batches=task.micro_batches or 1)
    best = _search(whole)
    for count in () if task.micro_batches is not None or len(task.cluster) == 1 else MICRO_BATCHES:
        if task.batch % count or best.score.is_near(whole.bound_s):
            break
        trials = _divided(replace(task, micro_batches=count), best)
        if not _is_worth_it(trials.score, best.score):
            break
        best = trials
    assert best.best is not None
    return best.best


def _search(task: Task) -> Trials:
    """Searches for the best plan with a fixed number of micro-batches."""
    additive = Additive(task)
    trials = Trials(task, additive, effort=0)
    sets, available = _affordable(task, additive)
    _begin(trials, _first(task, additive, sets, available))
    if trials.score.excess_bytes and additive.size(spread_by_memory := by_memory(task)) <= PROMISED:
        trials.try_out(spread_by_memory)
    trials.effort = trials.evaluator.spent + EFFORT
    if trials.best is None:
        assert trials.mistake is not None
        raise trials.mistake
    if math.prod(len(found) for found in available.values()) <= ALL_PLANS:
        for combination in product(*available.values()):
            if trials.is_near:
                break
            trials.try_out(dict(zip(available, combination, strict=True)))
    improve(task, trials, available)
    return trials


def _affordable(
    task: Task, additive: Additive
) -> tuple[tuple[tuple[int, ...], ...], Mapping[str, Sequence[Choice]]]:
    """Chooses groups of machines and layouts over them, as many as can be compared in a search."""
    for thinned in range(FEWEST + 1):
        sets = groups(task, thinned=thinned)
        available = choices(task, sets)
        if additive.effort(available) <= EXCHANGED:
            break
    return sets, available


def _begin(trials: Trials, first: Sequence[tuple[Mapping[str, Choice], bool]]) -> None:
    """Simulates the first candidates but for very large ones; of the large, the smaller first."""
    sizes = [trials.additive.size(candidate) for candidate, _ in first]
    for n in sorted(range(len(first)), key=lambda n: max(sizes[n], FIRST)):
        candidate, is_promised = first[n]
        if trials.evaluator.spent + sizes[n] <= (PROMISED if is_promised else FIRST):
            trials.try_out(candidate)
    if trials.best is None:  # cuts by hand are large or impossible
        trials.try_out(first[min(range(len(first)), key=lambda n: sizes[n])][0])


def _divided(task: Task, whole: Trials) -> Trials:
    """Tries more micro-batches for consecutive stages and for the best plan so far."""
    trials = Trials(task, Additive(task), effort=EFFORT, to_beat=whole.score)
    for candidate in (whole.best_cuts, *_stages(task)):
        if trials.additive.size(candidate) * task.n_micro_batches <= trials.left:
            trials.try_out(candidate)
    if trials.best is not None:
        improve(task, trials, _affordable(task, trials.additive)[1])
    return trials


def _is_worth_it(divided: Score, whole: Score) -> bool:
    """Returns whether the gain exceeds the doubt about times of smaller products."""
    if divided.excess_bytes or whole.excess_bytes:
        return divided < whole
    return divided.step_s <= WORTH * whole.step_s


def _first(
    task: Task, additive: Additive, sets: Sequence[tuple[int, ...]], available: Mapping[str, Sequence[Choice]]
) -> list[tuple[Mapping[str, Choice], bool]]:
    """Lists first candidates, cheapest first, each with whether the plan found must be no slower."""
    found: list[Mapping[str, Choice]] = [over(task, group) for group in sets]
    for exchange in EXCHANGES:
        best = minimum(additive.tables(available, exchange=exchange))
        found.append({layer: available[layer][n] for layer, n in best.choices.items()})
    promised = (balanced(task), equal(task), in_order(task))
    pairs = [*((cuts, False) for cuts in (*found, *_stages(task))), *((cuts, True) for cuts in promised)]
    return sorted(pairs, key=lambda pair: additive.cost_s(pair[0]))


def _stages(task: Task) -> Iterator[Mapping[str, Choice]]:
    """Places layers in order on machines, on pairs, on fours ..., fastest machines first."""
    ranked = sorted(range(len(task.cluster)), key=lambda m: (-task.speeds[m], m))
    most, size = len(task.graph.computed), 1
    while 2 * size <= len(ranked):
        for count in dict.fromkeys((2, 4, min(len(ranked) // size, most))):
            if count * size <= len(ranked):
                yield in_stages(task, [sorted(ranked[n * size : (n + 1) * size]) for n in range(count)])
        size *= 2


STRATEGIES: Final[Mapping[str, Callable[[Task], Plan]]] = {
    "automatic": automatic,
    "balanced": lambda task: task.plan(balanced(task)),
    "layers": lambda task: task.plan(in_order(task)),
}
"""Strategies by the names that `partition` takes; cuts by hand stand."""
