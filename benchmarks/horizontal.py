"""A horizontal cut over two machines of one thread each, against one part: the speech network, batch 128.

    python -m benchmarks.horizontal [--rounds N] [--json FILE]

Forward, backward and the SGD update of 41,777,152 parameters, float32, random data. The first machine has the
four hidden layers, the other the scores: about half of the operations each; how long each is busy is printed.
Since the first machine waits for errors while the other never waits long, it also takes some rows of the
scores in the uneven variants. Synchronous micro-batches learn what the whole batch does; overlapped
minibatches learn late, as Downpour lets them. PyTorch plays the same cut by its own one-forward-one-backward
schedule over gloo. The ceiling is what two independent 1-part processes reach side by side.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks._harness import Row, in_turn, options, print_table, ratios, report, row, spread
from benchmarks._machine import describe
from benchmarks._networks import WORKS, data, parameters, write
from benchmarks._parts import Parts
from benchmarks._recipe import Array
from benchmarks._table import Player
from benchmarks._worker import Worker, threads_of
from partita.engine import SGD
from partita.layers import Graph
from partita.partitioner import Cluster, Plan, RowSplit, Whole, partition

STEPS: Final = 3
"""Measured in each turn, after one that is not; the turn's figure is their median."""

OVERLAP: Final = 16
"""Minibatches of an overlapped step: what is lost at its beginning and end is a small part."""

AGREE: Final = 1e-4
"""By how much losses may differ, relatively, after the first steps."""

MICRO_BATCHES: Final = (1, 2, 4, 8)
UNEVEN_MICRO_BATCHES: Final = (2, 4)
UNEVEN_ROWS: Final = (1024, 7168)
"""Rows of the scores on each machine: the best split by the simulator, with measured kernels and messages."""

TORCH_MICRO_BATCHES: Final = (2, 4)

WORK, BATCH, CUT = WORKS["speech"], 128, 4

ONE, OTHER, OVERLAPPED, BOTH = "1 part", "another 1 part", f"{OVERLAP} overlapped", "two independent 1 parts"
EAGER = "torch eager, 1 thread"


def micro(n: int, *, uneven: bool = False) -> str:
    """Name of a variant."""
    return f"{n} micro-batch{'es' * (n > 1)}{', uneven' * uneven}"


SYNCHRONOUS: Final = (
    *map(micro, MICRO_BATCHES),
    *(micro(n, uneven=True) for n in UNEVEN_MICRO_BATCHES),
)


def of_torch(n: int) -> str:
    """Name of a variant of PyTorch."""
    return f"torch 1F1B, {micro(n)}"


def main() -> None:
    """Measures, checks that all synchronous variants learn the same, and reports."""
    asked = options(__doc__ or "", rounds=7)
    graph = WORK.network().graph()
    print(describe(), flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write("speech", BATCH, folder)
        parts = {name: stack.enter_context(one) for name, one in parts_of(graph).items()}
        torch = {EAGER: stack.enter_context(Player("_torch_player", "eager").start(folder, 1))}
        for n in TORCH_MICRO_BATCHES:
            worker = Worker("_torch_pipeline", str(folder), str(CUT), str(n), environment=threads_of(1))
            torch[of_torch(n)] = stack.enter_context(worker)
        check_losses(parts, torch)
        for some in parts.values():
            some.played.clear()
        measured = in_turn(variants(parts, torch), rounds=asked.rounds)
    print(
        f"load at the end {os.getloadavg()[0]:.1f}; above the processes of one variant, others were at work"
    )
    print_seconds(measured)
    print_parts(parts)
    report("speech network cut horizontally, a training step", rows(measured), file=asked.json)


def parts_of(graph: Graph) -> dict[str, Parts]:
    """Partita's variants, by name."""
    names = [grid.name for grid in graph.computed]
    cuts: dict[str, Whole | RowSplit] = {name: Whole(0 if n < CUT else 1) for n, name in enumerate(names)}
    one = partition(graph, Cluster.local(1), batch=BATCH)
    two = partition(graph, Cluster.local(2), batch=BATCH, cuts=cuts, micro_batches=1)
    plans: dict[str, Plan] = {ONE: one, OTHER: one}
    plans |= {micro(n): two.with_micro_batches(n) for n in MICRO_BATCHES}
    shared = cuts | {"scores": RowSplit((0, 1), sizes=UNEVEN_ROWS)}
    other = partition(graph, Cluster.local(2), batch=BATCH, cuts=shared)
    plans |= {micro(n, uneven=True): other.with_micro_batches(n) for n in UNEVEN_MICRO_BATCHES}
    initial, batch, optimizer = parameters(graph), data(graph, BATCH), SGD(WORK.rate)
    found = {name: Parts(plan, initial, batch, optimizer) for name, plan in plans.items()}
    several: dict[str, Array] = {name: np.concatenate([array] * OVERLAP) for name, array in batch.items()}
    return found | {OVERLAPPED: Parts(two, initial, several, optimizer, overlap=OVERLAP)}


def variants(parts: Mapping[str, Parts], torch: Mapping[str, Worker]) -> dict[str, Callable[[], float]]:
    """The variants of a round: seconds of a minibatch, and the throughput of two at once."""

    def both() -> float:
        playing = [parts[name].begin(1 + STEPS) for name in (ONE, OTHER)]
        return sum(1.0 / statistics.median(future.result()[0][1:]) for future in playing)

    def step(name: str) -> Callable[[], float]:
        if name in torch:
            return lambda: statistics.median(torch[name].call("play", 1 + STEPS)["seconds"][1:])
        steps = 1 if name == OVERLAPPED else STEPS
        overlap = parts[name].overlap
        return lambda: statistics.median(parts[name].begin(1 + steps).result()[0][1:]) / overlap

    return {**{name: step(name) for name in (*parts, *torch) if name != OTHER}, BOTH: both}


def check_losses(parts: Mapping[str, Parts], torch: Mapping[str, Worker]) -> None:
    """All began with the same parameters and saw the same batch, so all but the overlapped learn the same."""
    losses = {name: p.begin(STEPS).result()[1] for name, p in parts.items() if name != OVERLAPPED}
    losses |= {name: worker.call("play", STEPS)["losses"] for name, worker in torch.items()}
    expected = losses[EAGER]
    for name, found in losses.items():
        if not all(math.isclose(a, b, rel_tol=AGREE) for a, b in zip(found, expected, strict=True)):
            raise SystemExit(
                f"the losses of '{name}' are {found}, those of '{EAGER}' {expected}: not the same network"
            )
    (late,) = parts[OVERLAPPED].begin(1).result()[1]
    if not late < expected[0]:
        raise SystemExit(f"the mean loss of {OVERLAPPED} minibatches is {late}; the first's is {expected[0]}")
    written = ", ".join(f"{loss:.6f}" for loss in expected)
    print(f"losses of the first {STEPS} steps agree: {written}; the mean over {OVERLAPPED}: {late:.6f}")


def print_seconds(measured: Mapping[str, list[float]]) -> None:
    """Times of a minibatch, with their spread over the rounds."""
    lines = [
        (name, spread([1e3 * s for s in found], unit="ms"))
        for name, found in measured.items()
        if name != BOTH
    ]
    lines.append((BOTH, spread(measured[BOTH], unit="steps/s", digits=2)))
    print_table("a minibatch, median (min to max) of the rounds", ("what", "figure"), lines)


def print_parts(parts: Mapping[str, Parts]) -> None:
    """Prints the parts of the time; idle parts wait for a message or for the processor."""
    lines = []
    for name in (*SYNCHRONOUS, OVERLAPPED):
        part = parts[name]
        for machine in range(len(part.plan.cluster)):
            scale = 1e3 / part.overlap
            busy = [scale * step.busy_s[machine] for step in part.played]
            waits = [scale * (step.step_s - step.busy_s[machine]) for step in part.played]
            lines.append((f"{name}, part {machine}", spread(busy), spread(waits)))
    heads = ("a minibatch", "busy in kernels (ms)", "waits (ms)")
    print_table("where the time goes, over all steps", heads, lines)


def rows(measured: Mapping[str, list[float]]) -> list[Row]:
    """Returns the comparisons as rows."""
    one, eager = measured[ONE], measured[EAGER]
    ceiling = spread([a * b for a, b in zip(one, measured[BOTH], strict=True)], digits=2)
    best = min(SYNCHRONOUS, key=lambda name: statistics.median(measured[name]))
    theirs = min(TORCH_MICRO_BATCHES, key=lambda n: statistics.median(measured[of_torch(n)]))
    synchronous, late = measured[best], measured[OVERLAPPED]
    gain, pipelined = ratios(one, synchronous), measured[of_torch(theirs)]
    return [
        row("micro-batches over 1 part", gain, at_least=1.35, note=f"aim 1.35; {best}"),
        row("overlapped over 1 part", ratios(one, late), at_least=1.75, note=f"aim 1.75; ceiling {ceiling}"),
        row(
            "torch 1F1B over torch eager, 1 thread",
            ratios(eager, pipelined),
            at_least=0.0,
            note=f"theirs, for comparison; {micro(theirs)}",
        ),
        row("micro-batches over torch 1F1B", ratios(pipelined, synchronous), at_least=1.0, note="same cut"),
    ]


if __name__ == "__main__":
    main()
