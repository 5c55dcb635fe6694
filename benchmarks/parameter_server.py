"""Push, Adagrad and pull between one part and two shards of one machine, beside gloo, gRPC and Ray.

    python -m benchmarks.parameter_server [--rounds N] [--rows NAME[,NAME]] [--json FILE]

A step sends each shard its half of a gradient, updates that half of the parameters there by Adagrad, and
brings it back. "Shared memory" is how hosts of one machine exchange payloads, "TCP" how those of several do,
here over loopback, with payloads encrypted and not. gloo's step is `isend`, torch's fused Adagrad and
`irecv`, over loopback and not encrypted. gRPC streams chunks to shards that are servers, and Ray gives
gradients to shards that are actors, through its object store; their shards have torch's fused Adagrad too.
These two run where `grpcio` and `ray` are installed (`pip install -e ".[benchmarks]"`), and are left out
elsewhere.

"Typical" is the median of a round's steps, "sustained" their mean; "on cores" is for how long all threads of
the processes were on a core in a step, which other load hardly changes.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from importlib.util import find_spec
from typing import Final

import psutil

from benchmarks._harness import Row, in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe
from benchmarks._rounds import Rounds
from benchmarks._slowed import on_core_s
from benchmarks._worker import Worker, WorkerEnded, threads_of

SIZES: Final = {"1M": 1_000_000, "10M": 10_000_000, "42M": 42_000_000}
STEPS: Final = {"1M": 40, "10M": 15, "42M": 6}
"""In a round."""

OTHERS: Final = (("gRPC", "grpc", "_grpc_shards"), ("Ray", "ray", "_ray_shards"))
"""Contenders by name, with the package that each needs, and its module."""


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=5, rows=tuple(SIZES))
    print(describe(), flush=True)
    found = [one for name in asked.rows for one in compared(name, rounds=asked.rounds)]
    report("push, Adagrad and pull", found, file=asked.json)


def compared(name: str, *, rounds: Rounds) -> list[Row]:
    """The rows of one size."""
    steps = STEPS[name]
    with contextlib.ExitStack() as stack:
        workers = opened(stack, SIZES[name])
        typical: dict[str, list[float]] = {what: [] for what in workers}
        on_cores: dict[str, list[float]] = {what: [] for what in workers}

        def sustained(what: str) -> float:
            before = busy_s(workers[what])
            seconds = workers[what].call("play", steps)
            on_cores[what].append((busy_s(workers[what]) - before) / steps)
            typical[what].append(statistics.median(seconds))
            return statistics.mean(seconds)

        measured = in_turn(
            {what: lambda what=what: sustained(what) for what in workers},  # type: ignore[misc]
            rounds=rounds,
        )
    lines = [
        (what, *(readable_seconds(figures[what]) for figures in (typical, measured, on_cores)))
        for what in measured
    ]
    print_table(f"{SIZES[name]:,} parameters, float32", ("what", "typical", "sustained", "on cores"), lines)
    return [
        row(
            f"{name}: {what}: gloo's time over Partita's",
            ratios(measured["gloo"], measured[what]),
            at_least=at_least,
            note=readable_seconds(measured[what]),
        )
        for what, at_least in (("shared memory", 2.5), ("TCP, encrypted", 1.3), ("TCP, not encrypted", 1.3))
    ]


def opened(stack: contextlib.ExitStack, size: int) -> dict[str, Worker]:
    """Starts the contenders, which all compute the same, and prints who cannot take part."""

    def worker(module: str, *arguments: str) -> Worker:
        return stack.enter_context(Worker(module, *arguments, environment=threads_of(1)))

    workers = {
        "shared memory": worker("_partita_shards", json.dumps([size, "here", True])),
        "TCP, encrypted": worker("_partita_shards", json.dumps([size, "", True])),
        "TCP, not encrypted": worker("_partita_shards", json.dumps([size, "", False])),
        "gloo": worker("_gloo_shards", str(size)),
    }
    for what, package, module in OTHERS:
        if find_spec(package) is None:
            print(f"{what} has no row: the package '{package}' is not installed", flush=True)
            continue
        try:
            workers[what] = worker(module, str(size))
            workers[what].call("first")
        except WorkerEnded as error:
            print(f"{what} has no row: {error}", flush=True)
            del workers[what]
    firsts = [one.call("first") for one in workers.values()]
    assert max(firsts) - min(firsts) < 1e-6, dict(zip(workers, firsts, strict=True))
    return workers


def busy_s(worker: Worker) -> float:
    """Seconds for which a contender's processes have been on a core."""
    processes = psutil.Process(worker.pid).children(recursive=True)
    return on_core_s(worker.pid) + sum(on_core_s(one.pid) for one in processes)


if __name__ == "__main__":
    main()
