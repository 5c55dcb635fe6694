"""Quality of automatic plans, and the time of the search for one.

    python -m benchmarks.search [--rounds N] [--rows small,uneven,large] [--json FILE]

All times of steps are predicted ones: programs played on the virtual clock. `small`: random networks so small
that every possible plan can be played, N of them. `uneven`: one machine four times as fast as three others,
against equal pieces and whole layers in order. `large`: seconds of searching, 100 layers over 64 and 1,000
machines.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks._every_plan import every_plan, n_plans, small
from benchmarks._harness import Options, Row, options, report
from benchmarks._machine import describe
from benchmarks._networks import WORKS
from partita.layers import Add, Dense, Graph, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Machine, Plan, partition
from partita.partitioner.search.spread import equal
from partita.partitioner.search.task import Task
from partita.partitioner.search.trials import Evaluator

FAST_AND_SLOW: Final = Cluster(tuple(Machine(f"m{n}", speed=4.0 if n == 0 else 1.0) for n in range(4)))
BATCH: Final = 32


def main() -> None:
    """Searches, compares, and reports."""
    asked = options(__doc__ or "", rounds=50, rows=tuple(GROUPS))
    print(describe(), flush=True)
    rows = []
    for name in asked.rows:
        for row in GROUPS[name](asked):
            print(f"{row.row}: {row.ratio:.3f} ({row.note})", flush=True)
            rows.append(row)
    report("searching plans", rows, file=asked.json)


def _small(asked: Options) -> Iterator[Row]:
    """The best of all plans, over the plan found; and over its bound."""
    found, bounds, plans, spent = [], [], 0, 0.0
    for seed in asked.rounds:
        graph, cluster = small(random.Random(seed))
        began = time.perf_counter()
        plan = partition(graph, cluster, batch=BATCH, micro_batches=1)
        spent += time.perf_counter() - began
        evaluator = Evaluator(Task(graph, cluster, BATCH))
        task = evaluator.task
        best = min(evaluator.score(task.plan(cuts)).step_s for cuts in every_plan(graph, cluster))
        plans += n_plans(graph, cluster)
        found.append(best / plan.predicted_step_s)
        bounds.append(best / plan.lower_bound_s)
    note = f"{plans:,} plans of {len(found)} networks; search {1e3 * spent / len(found):.0f} ms each"
    exact = sum(ratio > 1 - 1e-9 for ratio in found)
    yield _row(
        "best of all plans / automatic plan, the worst", min(found), 0.98, found, f"{note}; {exact} exact"
    )
    yield _row("best of all plans / lower bound, the least", min(bounds), 1.0, bounds, note)


def _uneven(asked: Options) -> Iterator[Row]:
    """One machine four times as fast as three others."""
    for name in ("speech", "first", "image"):
        graph = WORKS[name].network().graph()
        plan = partition(graph, FAST_AND_SLOW, batch=128)
        task = Task(graph, FAST_AND_SLOW, 128)
        others = {
            "equal pieces": task.plan(equal(task)).predicted_step_s,
            "whole layers in order": partition(
                graph, FAST_AND_SLOW, batch=128, strategy="layers"
            ).predicted_step_s,
        }
        for other, step_s in others.items():
            predicted = f"{1e3 * plan.predicted_step_s:.1f} ms against {1e3 * step_s:.1f}"
            note = f"{predicted}; bound {1e3 * plan.lower_bound_s:.1f}"
            ratio = step_s / plan.predicted_step_s
            yield _row(f"{name}, one fast and three slow: {other} / automatic", ratio, 1.5, [ratio], note)


def _large(asked: Options) -> Iterator[Row]:
    """The time that may be taken over the time that the search takes."""
    for machines, allowed_s in ((64, 10.0), (1000, 60.0)):
        for name, network in (("dense", dense), ("picture", picture)):
            graph = network().graph()
            began = time.perf_counter()
            plan = partition(graph, Cluster.local(machines), batch=128)
            took = time.perf_counter() - began
            used = sum(bool(plan.ownership.of_machine(m)) for m in range(machines))
            note = (
                f"{took:.1f} s of {allowed_s:.0f}; step {1e3 * plan.predicted_step_s:.0f} ms on {used}, "
                f"{_best_simple(graph, plan)}, bound {1e3 * plan.lower_bound_s:.0f} ms"
            )
            row = f"{name}, {len(graph.computed)} layers on {machines:,} machines: time allowed / taken"
            yield _row(row, allowed_s / took, 1.0, [allowed_s / took], note)


def _best_simple(graph: Graph, plan: Plan) -> str:
    layers = partition(graph, plan.cluster, batch=plan.batch, strategy="layers")
    return f"whole layers in order {1e3 * layers.predicted_step_s:.0f} ms"


def dense() -> Network:
    """A hundred layers of 2,048."""
    net = Network("dense")
    states = net.input("x", shape=512)
    for n in range(98):
        states = Dense(2048, activation="relu", name=f"hidden{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(1000, name="scores")(states), net.target("y"))
    return net


def picture() -> Network:
    """A hundred layers over a picture of 128 x 128, half of them sums with the layer before (skips)."""
    net = Network("picture")
    states = LocallyConnected2D(8, 3, padding="same", name="local")(net.input("x", shape=(128, 128, 3)))
    for n in range(48):
        above = LocallyConnected2D(8, 3, padding="same", activation="relu", name=f"local{n}")(states)
        states = Add(name=f"sum{n}")(above, states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(1000, name="scores")(states), net.target("y"))
    return net


def _row(name: str, ratio: float, at_least: float, of: list[float], note: str) -> Row:
    return Row(name, ratio, at_least, min(of), max(of), f"{note}; median {statistics.median(of):.3f}")


GROUPS: Final[dict[str, Callable[[Options], Iterator[Row]]]] = {
    "small": _small,
    "uneven": _uneven,
    "large": _large,
}
"""The groups of rows."""

if __name__ == "__main__":
    main()
