"""L-BFGS by Sandblaster over processes, against PyTorch's and SciPy's: time to the same loss.

    python -m benchmarks.batch_methods [--rounds N] [--rows NAME[,NAME]] [--json FILE]

All begin with the same parameters, keep ten pairs and compute in float32 (SciPy in float64, by PyTorch's
gradients). The loss to reach is what SciPy's L-BFGS-B has: of a convex problem the minimum and a
ten-thousandth of it, else where it is after some iterations, before the ways of the methods part. PyTorch has
one thread, is eager or compiled, whichever is faster on the problem, and keeps freed memory (otherwise it
asks the system for pages at each evaluation). Its clock stops at the evaluation that has the loss, ours at
the end of the iteration. Ours is one replica, two, and one in the process of the call (`inline="all"`), with
the same settings otherwise. Time is counted from the end of the first evaluation on: what starting our
processes takes has a column of its own, and what compiling takes is not shown.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from benchmarks._batch_problems import PROBLEMS, Problem
from benchmarks._batch_references import Found, Reference, by_scipy
from benchmarks._batch_watched import Watched, plan_of, play
from benchmarks._harness import (
    Options,
    Row,
    in_turn,
    options,
    print_table,
    ratios,
    readable_seconds,
    report,
    row,
    spread,
)
from benchmarks._machine import describe
from benchmarks._table import TUNED
from benchmarks._worker import Worker, threads_of
from partita.engine import LBFGS
from partita.engine.parameters import initialise

HISTORY: Final = 10
ONE, TWO, INLINE = "1 replica", "2 replicas", "1 replica, inline"
OURS: Final = {ONE: {"replicas": 1}, TWO: {"replicas": 2}, INLINE: {"replicas": 1, "inline": "all"}}
"""Settings of our contenders."""

EAGER, COMPILED, EAGER_2 = "torch eager", "torch compile", "torch eager, 2 threads"


@dataclass(frozen=True)
class Case:
    """A problem and how it is played.

    Args:
        problem: its name.
        portion: examples in one.
        push_every: portions of a work unit.
        after: iterations of SciPy after which the loss is the one to reach; None: the minimum.
        one, two, inline: how many times as fast as PyTorch: one replica, two, one in the call's process.
        gain: that two replicas should have over one, in evaluations per second.
    """

    problem: str
    portion: int
    push_every: int
    after: int | None = None
    one: float = 1 / 1.1
    two: float = 1.0
    inline: float = 1.0
    gain: float = 0.97


CASES: Final = {
    "digits": Case("digits", 1797, 1),
    "digits-2": Case("digits, two layers", 1797, 1, after=100),
    "large": Case("large digits, two layers", 512, 22, after=25, gain=1.8),
    "rosenbrock": Case("rosenbrock 100", 4, 1, after=200, one=0.0, two=0.0, inline=0.0),
}
"""By the name that `--rows` takes. Rosenbrock's function computes next to nothing and shows messages."""


@dataclass
class Seen:
    """The figures of a contender in all rounds."""

    iterations: list[int] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)

    @property
    def counted(self) -> str:
        """Iterations and evaluations, by the median."""
        return f"{statistics.median(self.iterations):.0f} / {statistics.median(self.evaluations):.0f}"


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=5, rows=tuple(CASES))
    print(describe(), flush=True)
    found = [line for name in asked.rows for line in _measured(CASES[name], asked)]
    print(
        f"load at the end {os.getloadavg()[0]:.1f}; above the processes of one contender, others were at work"
    )
    report("batch methods", found, file=asked.json)


def _measured(case: Case, asked: Options) -> list[Row]:
    problem = PROBLEMS[case.problem]()
    goal, theirs = goal_of(case, problem)
    limit = 3 * theirs.evaluations
    seen = {name: Seen() for name in (EAGER, COMPILED, EAGER_2, ONE, TWO, INLINE)}
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for name, form, threads in ((EAGER, "eager", 1), (COMPILED, "compile", 1), (EAGER_2, "eager", 2)):
            worker = stack.enter_context(
                Worker(
                    "_torch_lbfgs",
                    case.problem,
                    form,
                    "float32",
                    str(threads),
                    environment=TUNED | threads_of(threads),
                )
            )
            contenders[name] = torch(worker, goal, limit, seen[name])
        for name, settings in OURS.items():
            contenders[name] = ours(case, problem, settings, goal, limit, seen[name])
        measured = in_turn(contenders, rounds=asked.rounds)
    print_case(case, goal, theirs, seen, measured)
    return rows(case, theirs, seen, measured)


def goal_of(case: Case, problem: Problem) -> tuple[float, Found]:
    """The loss to reach, and SciPy's way to it."""
    reference = Reference(problem, initialise(problem.graph.parameters.values(), 0))
    start = reference.point
    if case.after is not None:
        found = by_scipy(reference.at, start, gtol=0.0, ftol=0.0, history=HISTORY, max_iterations=case.after)
        return found.loss, found
    minimum = by_scipy(reference.at, start, gtol=1e-10, ftol=0.0, history=HISTORY).loss
    goal = minimum * (1.0 + 1e-4)
    return goal, by_scipy(reference.at, start, gtol=0.0, ftol=0.0, history=HISTORY, until=goal)


def torch(worker: Worker, goal: float, limit: int, seen: Seen) -> Callable[[], float]:
    """PyTorch's turn: seconds until the loss is reached."""

    def turn() -> float:
        found = worker.call("minimise", goal, HISTORY, limit)
        losses, seconds = found["losses"], found["seconds"]
        if losses[-1] > goal:
            raise SystemExit(f"PyTorch is at a loss of {losses[-1]} after {limit} evaluations, not {goal}")
        seen.iterations.append(found["iterations"])
        seen.evaluations.append(len(losses))
        seen.per_s.append((len(losses) - 1) / (seconds[-1] - seconds[0]))
        return float(seconds[-1] - seconds[0])

    return turn


def ours(
    case: Case, problem: Problem, settings: Mapping[str, object], goal: float, limit: int, seen: Seen
) -> Callable[[], float]:
    """Runs Partita until the loss is reached."""
    plan = plan_of(problem, case.portion)

    def turn() -> float:
        method = LBFGS(history=HISTORY, gtol=0.0, ftol=0.0, max_iterations=limit)
        found = play(problem, plan, Watched(method, until=goal), push_every=case.push_every, **settings)
        last = found.method.iterated[-1][0]
        if last.loss > goal:
            raise SystemExit(
                f"{case.problem}: with {settings} the loss is {last.loss} after {last.iteration} iterations, "
                f"not {goal}"
            )
        seen.iterations.append(last.iteration)
        seen.evaluations.append(len(found.method.answered))
        seen.per_s.append(found.evaluations_per_s)
        seen.start_s.append(found.start_s)
        return found.seconds

    return turn


def print_case(
    case: Case, goal: float, theirs: Found, seen: Mapping[str, Seen], measured: Mapping[str, list[float]]
) -> None:
    """Times, counts and speeds of everybody."""
    lines = [
        (
            name,
            readable_seconds(measured[name]),
            of.counted,
            spread(of.per_s, digits=1),
            readable_seconds(of.start_s) if of.start_s else "",
        )
        for name, of in seen.items()
    ]
    lines.append(("SciPy, float64", "", f"{theirs.iterations} / {theirs.evaluations}", "", ""))
    heads = ("contender", "time to the loss", "iterations / evaluations", "evaluations/s", "start")
    print_table(f"{case.problem}: to a loss of {goal:.6f}", heads, lines)


def rows(
    case: Case, theirs: Found, seen: Mapping[str, Seen], measured: Mapping[str, list[float]]
) -> list[Row]:
    """Returns the comparisons of one case."""
    best = min((EAGER, COMPILED), key=lambda name: statistics.median(measured[name]))
    note = f"{best}: {readable_seconds(measured[best])}"
    counts = f"iterations: ours {seen[ONE].counted}, torch {seen[best].counted}, SciPy {theirs.iterations}"
    return [
        row(
            f"{case.problem}: 1 replica over torch, 1 thread",
            ratios(measured[best], measured[ONE]),
            at_least=case.one,
            note=note,
        ),
        row(
            f"{case.problem}: 2 replicas over torch, 1 thread",
            ratios(measured[best], measured[TWO]),
            at_least=case.two,
            note=counts,
        ),
        row(
            f"{case.problem}: 1 replica, inline, over torch, 1 thread",
            ratios(measured[best], measured[INLINE]),
            at_least=case.inline,
            note=readable_seconds(measured[INLINE]),
        ),
        row(
            f"{case.problem}: 2 replicas over 1, evaluations/s",
            ratios(seen[TWO].per_s, seen[ONE].per_s),
            at_least=case.gain,
            note=f"{spread(seen[ONE].per_s)} and {spread(seen[TWO].per_s)} evaluations/s",
        ),
    ]


if __name__ == "__main__":
    main()
