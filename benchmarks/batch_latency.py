"""Time of an evaluation with almost no arithmetic, by its parts: one replica, one shard.

    python -m benchmarks.batch_latency [--rounds N] [--json FILE]

"Evaluation" is what it takes from when a method asks for one until it has the loss and all gradients are at
the shard: with each host in a process, with the shard in the coordinator's, and with both there. "product"
is the same for a dot product, which only coordinator and shard have to do with. Beside them stand what the
arithmetic takes in one process, and for how long the threads of each process were on a core in an evaluation.
Processes wait for one another all the while: what none was busy with is waking them up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks._batch_problems import PROBLEMS, Problem
from benchmarks._batch_watched import SamePoint, Watched, data_of, plan_of, play
from benchmarks._harness import Row, in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe
from benchmarks._slowed import hosts, on_core_s
from partita.engine import Session

EVALUATIONS: Final = 1000
PRODUCTS: Final = 1000
SKIPPED: Final = 50
"""Evaluations that are not counted."""

NAMES: Final = ("rosenbrock 2", "iris", "digits")

INLINE: Final = {"none": "processes", "shard": "shard inline", "all": "all inline"}
"""By the setting `inline` of Sandblaster."""


@dataclass
class Busy:
    """Time that the processes of a run were on a core, from `begin` to `end`.

    Attributes:
        seconds: by process, or by process and thread.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Records the processor times at the start."""
        self._before = self._read()

    def end(self) -> None:
        """Records the processor times at the end."""
        self.seconds = {name: now - self._before.get(name, 0.0) for name, now in self._read().items()}

    @staticmethod
    def _read() -> dict[str, float]:
        processes = {"coordinator": "self", **hosts()}
        return {name: on_core_s(pid) for name, pid in processes.items()}


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=3, rows=NAMES)
    print(describe(), flush=True)
    found: list[Row] = []
    for name in asked.rows:
        problem, busy = PROBLEMS[name](), {inline: Busy() for inline in INLINE}
        measured = in_turn(variants(problem, busy), rounds=asked.rounds)
        print_busy(name, measured, busy)
        found.append(
            row(
                f"{name}: arithmetic's share of an evaluation",
                ratios(measured["arithmetic"], measured[f"evaluation, {INLINE['none']}"]),
                at_least=0.0,
                note=readable_seconds(measured[f"evaluation, {INLINE['none']}"]),
            )
        )
    report("an evaluation over processes", found, file=asked.json)


def variants(problem: Problem, busy: Mapping[str, Busy]) -> dict[str, Callable[[], float]]:
    """Seconds of an evaluation and of a product over processes, and of the arithmetic in this one."""
    plan = plan_of(problem, problem.examples)

    def evaluation(inline: str) -> float:
        method = Watched(SamePoint(EVALUATIONS), begun=busy[inline].begin, done=busy[inline].end)
        return statistics.median(play(problem, plan, method, inline=inline).evaluation_s[SKIPPED:])

    def product() -> float:
        method = play(problem, plan, Watched(SamePoint(1, PRODUCTS)), inline="none").method
        return (method.ended - method.answered[0]) / PRODUCTS

    def arithmetic() -> float:
        with Session(plan, 0, train=True, hosts="inline") as session:
            session.step(data_of(problem))
            seconds = []
            for _ in range(200):
                began = time.perf_counter()
                session.step()
                seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)

    evaluations = {f"evaluation, {what}": partial(evaluation, inline) for inline, what in INLINE.items()}
    return {**evaluations, "product, processes": product, "arithmetic": arithmetic}


def print_busy(name: str, measured: Mapping[str, list[float]], busy: Mapping[str, Busy]) -> None:
    """Medians, and who was busy in the last round."""
    lines = [(what, readable_seconds(seconds)) for what, seconds in measured.items()]
    lines += [
        (f"of it, {INLINE[inline]}: {who} on a core", readable_seconds([seconds / EVALUATIONS]))
        for inline, of in busy.items()
        for who, seconds in of.seconds.items()
    ]
    print_table(name, ("what", "median (min to max) of the rounds"), lines)


if __name__ == "__main__":
    main()
