"""Two parts of one thread each, against one part and PyTorch eager: a training step of the speech network.

    python -m benchmarks.two_parts [--rounds N] [--json FILE]

Forward, backward and the SGD update of 41,777,152 parameters, batch 128, float32, random data. Parts are
processes that share memory. The ceiling is what two independent 1-part processes
reach side by side, against one alone: no cut can do better on this machine.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks._harness import Row, in_turn, options, print_table, ratios, report, row, spread
from benchmarks._limits import limits
from benchmarks._machine import describe
from benchmarks._networks import WORKS, data, flops, parameters, write
from benchmarks._parts import Parts
from benchmarks._table import Player
from benchmarks._worker import Worker
from partita.engine.parameters.rules import SGD
from partita.partitioner import Cluster, partition

STEPS: Final = 3
"""Measured in each turn, after one that is not; the turn's figure is their median."""

AGREE: Final = 1e-4
"""By how much losses may differ, relatively, after the first steps."""

WORK, BATCH = WORKS["speech"], 128

ONE, OTHER, TWO, BOTH = "1 part", "another 1 part", "2 parts", "two independent 1 parts"
EAGER_1, EAGER_2 = "torch eager, 1 thread", "torch eager, 2 threads"


def main() -> None:
    """Measures, checks that all networks learn the same, and reports."""
    asked = options(__doc__ or "", rounds=7)
    graph = WORK.network().graph()
    initial = parameters(graph)
    plans = [partition(graph, Cluster.local(machines=n), batch=BATCH) for n in (1, 1, 2)]
    print(describe(), flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write("speech", BATCH, folder)
        parts = {
            name: stack.enter_context(Parts(plan, initial, data(graph, BATCH), SGD(WORK.rate)))
            for name, plan in zip((ONE, OTHER, TWO), plans, strict=True)
        }
        eager = {
            name: stack.enter_context(Player("_torch_player", "eager").start(folder, threads))
            for name, threads in ((EAGER_1, 1), (EAGER_2, 2))
        }
        check_losses(
            {name: p.begin(STEPS).result()[1] for name, p in parts.items()}
            | {name: e.call("play", STEPS)["losses"] for name, e in eager.items()}
        )
        for some in parts.values():
            some.played.clear()
        machine = stack.enter_context(limits(1))
        measured = in_turn(variants(parts, eager, machine), rounds=asked.rounds)
    print(
        f"load at the end {os.getloadavg()[0]:.1f}; above the processes of one variant, others were at work"
    )
    print_seconds(measured)
    print_parts(parts[TWO])
    report("speech network, a training step, batch 128", rows(measured), file=asked.json)


def variants(
    parts: Mapping[str, Parts], eager: Mapping[str, Worker], machine: Worker
) -> dict[str, Callable[[], float]]:
    """What has its turn in a round: seconds of a step, throughput of two at once, and the limits."""

    def both() -> float:
        playing = [parts[name].begin(1 + STEPS) for name in (ONE, OTHER)]
        return sum(1.0 / statistics.median(future.result()[0][1:]) for future in playing)

    def step(name: str) -> Callable[[], float]:
        if name in eager:
            return lambda: statistics.median(eager[name].call("play", 1 + STEPS)["seconds"][1:])
        return lambda: statistics.median(parts[name].begin(1 + STEPS).result()[0][1:])

    steps = {name: step(name) for name in (ONE, TWO, EAGER_1, EAGER_2)}
    rates = {"GFLOP/s": partial(machine.call, "gemm", "float32"), "GB/s": partial(machine.call, "memory")}
    return {**steps, BOTH: both, **rates}


def check_losses(losses: Mapping[str, list[float]]) -> None:
    """All networks began with the same parameters and saw the same batch, so they must learn the same."""
    expected = losses[EAGER_1]
    for name, found in losses.items():
        if not all(math.isclose(a, b, rel_tol=AGREE) for a, b in zip(found, expected, strict=True)):
            raise SystemExit(
                f"the losses of '{name}' are {found}, those of '{EAGER_1}' {expected}: not the same network"
            )
    print(
        f"losses of the first {STEPS} steps agree: "
        + "; ".join(f"{name} {', '.join(f'{loss:.6f}' for loss in found)}" for name, found in losses.items())
    )


def print_seconds(measured: Mapping[str, list[float]]) -> None:
    """Step times and limits, with their spread over the rounds."""
    lines = [
        (name, spread([1e3 * s for s in measured[name]], unit="ms")) for name in (ONE, TWO, EAGER_1, EAGER_2)
    ]
    lines.append((BOTH, spread(measured[BOTH], unit="steps/s", digits=2)))
    lines.append(("limit: matrix products, 1 thread", spread(measured["GFLOP/s"], unit="GFLOP/s", digits=0)))
    lines.append(("limit: memory, 1 thread", spread(measured["GB/s"], unit="GB/s")))
    print_table("median (min to max) of the rounds", ("what", "figure"), lines)


def print_parts(parts: Parts) -> None:
    """Where the time of the 2-part step goes; who is not busy waits for a message or for the processor."""
    lines = []
    for machine in range(len(parts.plan.cluster)):
        busy = [1e3 * step.busy_s[machine] for step in parts.played]
        waits = [1e3 * (step.step_s - step.busy_s[machine]) for step in parts.played]
        sent = [message.n_bytes for message in parts.plan.messages if message.source == machine]
        lines.append(
            (f"part {machine}", spread(busy), spread(waits), f"{len(sent)}", f"{sum(sent) / 2**20:.2f}")
        )
    heads = ("2 parts, a step", "busy in kernels (ms)", "waits (ms)", "messages sent", "MiB sent")
    print_table("where the time goes, over all steps", heads, lines)


def rows(measured: Mapping[str, list[float]]) -> list[Row]:
    """The comparisons."""
    one, two, both = measured[ONE], measured[TWO], measured[BOTH]
    ceiling = [a * b for a, b in zip(one, both, strict=True)]
    gain = ratios(one, two)
    work = 1e-9 * flops(WORK.network().graph(), BATCH)
    gemm = [s * rate / work for s, rate in zip(one, measured["GFLOP/s"], strict=True)]
    limit = f"a step takes {statistics.median(gemm):.2f}x its matrix products at this machine's rate"
    return [
        row("2 parts over 1 part", gain, at_least=1.0, note=f"aim 1.85; ceiling {spread(ceiling, digits=2)}"),
        row("2 parts: share of the ceiling", ratios(gain, ceiling), at_least=0.8, note="aim 0.97"),
        row(
            "1 part over torch eager, 1 thread",
            ratios(measured[EAGER_1], one),
            at_least=1.0,
            note=f"aim 1.15; {limit}",
        ),
        row(
            "2 parts over torch eager, 2 threads",
            ratios(measured[EAGER_2], two),
            at_least=1.0,
            note="aim 1.15",
        ),
    ]


if __name__ == "__main__":
    main()
