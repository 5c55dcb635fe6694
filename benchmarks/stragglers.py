"""Four replicas, some of which are 10 and 100 times slower than the others: what a batch takes.

    python -m benchmarks.stragglers [--rounds N] [--json FILE]

A two-layer network of 38,410 parameters on 44,925 pictures of digits; every batch is one evaluation of all of
them, of which the first ones are not counted. Replicas are slowed by stopping their own processes (SIGSTOP,
SIGCONT) so that they have a tenth or a hundredth of a core's time. A stopped process leaves its core to
others, so "without them" is the same with as many replicas as are not slow. Each batch must have the same
loss, to the bit.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks._batch_problems import PROBLEMS, Problem
from benchmarks._batch_watched import SamePoint, Watched, plan_of, play
from benchmarks._harness import Row, in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe
from benchmarks._slowed import Slowed
from partita.partitioner import Plan

PROBLEM: Final = "large digits, two layers"
PORTION: Final = 256
UNIT_SIZE: Final = 4

REPLICAS: Final = 4

SKIPPED: Final = 2
"""Batches that are not counted: the first brings the data in, and slow replicas are still quick in it."""


@dataclass(frozen=True)
class Case:
    """Replicas that are slower.

    Args:
        factors: by how much, of the last replicas.
        gain: how many times as long a batch should take without backups. A replica that is 10 times slower
            and never has more than two small turns delays a batch by little.
        batches: counted ones, with backups and without.
    """

    factors: tuple[float, ...]
    gain: float
    batches: tuple[int, int] = (30, 8)


CASES: Final = {
    "one, 10 times slower": Case((10.0,), 1.0),
    "one, 100 times slower": Case((100.0,), 3.0),
    "two, 10 and 100 times slower": Case((10.0, 100.0), 3.0),
}


def main() -> None:
    """Measures, checks that all batches have the same loss, and reports."""
    asked = options(__doc__ or "", rounds=3)
    print(describe(), flush=True)
    problem = PROBLEMS[PROBLEM]()
    plan = plan_of(problem, PORTION)
    losses: set[float] = set()
    measured = in_turn(variants(problem, plan, losses), rounds=asked.rounds)
    if len(losses) > 1:
        raise SystemExit(f"batches of the same examples had losses {sorted(losses)}: not the same bits")
    print_table(
        f"a batch of {problem.examples} examples in portions of {PORTION}, median (min to max) of the rounds",
        ("replicas", "a batch"),
        [(name, readable_seconds(found)) for name, found in measured.items()],
    )
    print(f"load at the end {os.getloadavg()[0]:.1f}; above {REPLICAS}, others were at work")
    report("stragglers", rows(measured), file=asked.json)


def variants(problem: Problem, plan: Plan, losses: set[float]) -> dict[str, Callable[[], float]]:
    """Seconds of a batch: each case without its slow replicas, with them, and with them but no backups."""

    def turn(replicas: int, factors: tuple[float, ...], batches: int, *, backups: bool) -> float:
        first = replicas - len(factors)
        slowed = Slowed({f"part {first + n}.0": factor for n, factor in enumerate(factors)})
        with slowed:
            method = Watched(SamePoint(SKIPPED + batches), begun=slowed.begin, done=slowed.end)
            found = play(problem, plan, method, replicas=replicas, push_every=UNIT_SIZE, backups=backups)
        losses.update(iterated.loss for iterated, _ in found.method.iterated)
        return statistics.median(found.evaluation_s[SKIPPED:])

    found: dict[str, Callable[[], float]] = {}
    for name, case in CASES.items():
        fast = REPLICAS - len(case.factors)
        many, few = case.batches
        found[without(fast)] = lambda r=fast, n=many: turn(r, (), n, backups=True)
        found[name] = lambda f=case.factors, n=many: turn(REPLICAS, f, n, backups=True)
        found[f"{name}; no backups"] = lambda f=case.factors, n=few: turn(REPLICAS, f, n, backups=False)
    return found


def without(replicas: int) -> str:
    """Name of the variant without the slow replicas."""
    return f"{replicas} replicas"


def rows(measured: Mapping[str, list[float]]) -> list[Row]:
    """The comparisons: the first as the inverse of what a batch takes, so that more is better."""
    found = []
    for name, case in CASES.items():
        alone = measured[without(REPLICAS - len(case.factors))]
        backed, bare = measured[name], measured[f"{name}; no backups"]
        factor = statistics.median(ratios(backed, alone))
        found += [
            row(
                f"{name}: a batch without them over one with them",
                ratios(alone, backed),
                at_least=1 / 1.3,
                note=f"{factor:.2f} times as long; at most 1.3",
            ),
            row(
                f"{name}: a batch without backups over one with",
                ratios(bare, backed),
                at_least=case.gain,
                note=f"{readable_seconds(bare)} and {readable_seconds(backed)}",
            ),
        ]
    return found


if __name__ == "__main__":
    main()
