"""One part against PyTorch: training steps of the networks that this engine is for, on one thread and two.

    python -m benchmarks.single_part [--rows NAME[,NAME]] [--rounds N] [--json FILE]

Every player is a process of its own and has its turn in every round. All start from the same parameters and
see the same random data; a row is refused where losses disagree, or where a player keeps more cores busy than
it was given threads. Steps are whole: up, down, SGD, and the loss read. What PyTorch's forms of unshared
filters are stands in `_torch_forms.py`; a "tuned" one keeps freed memory instead of giving pages back.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks._harness import Row, options, print_table, ratios, readable_seconds, report, row, spread
from benchmarks._machine import describe
from benchmarks._measure import CONVOLUTIONS, LAYER, MEMORY, Measured, Players, products
from benchmarks._memory import Peak
from benchmarks._networks import WORKS, bytes_moved, flops, write
from benchmarks._table import GROUPS, Group

THREADS: Final = (1, 2)
"""In turn. Peaks of memory are of the first, and hold what compiles kernels where no cache has them."""

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}


def main() -> None:
    """Measures, checks that all players learn the same, and reports."""
    asked = options(__doc__ or "", rounds=5, rows=tuple(GROUPS), measurements=len(THREADS))
    print(describe(), flush=True)
    rows: list[Row] = []
    refused: list[str] = []
    for group in (GROUPS[name] for name in asked.rows):
        with tempfile.TemporaryDirectory() as folder:
            write(group.network, group.batch, Path(folder))
            with Players(group, Path(folder), THREADS) as players:
                found = [players.measure(threads, asked.rounds) for threads in THREADS]
        for measured in found:
            print_figures(group, measured)
            refused += [f"{name} of {group.title}: {why}" for name, why in measured.refused.items()]
            rows += speed_rows(group, measured)
            rows += layer_rows(group, measured)
        rows += two_threads_rows(group, *found)
        rows += memory_rows(group, found[0])
    print(
        f"load at the end {os.getloadavg()[0]:.1f}; players with fewer cores than threads had to share them"
    )
    report("one part over PyTorch", rows, file=asked.json)
    if refused:
        raise SystemExit("rows are missing:\n" + "\n".join(refused))


def print_figures(group: Group, measured: Measured) -> None:
    """Step times, rates and peaks, with their spread over the rounds."""
    lines = [
        (name, readable_seconds(seconds), f"{measured.cores[name]:.2f}", *_peak(measured.peaks[name]))
        for name, seconds in measured.seconds.items()
    ]
    for name, rates in measured.rates.items():
        unit = "GB/s" if name == MEMORY else "GFLOP/s"
        lines.append((f"rate: {name}", spread(rates, unit=unit, digits=0), "", "", "", ""))
    heads = ("player", "a step", "cores", "peak MiB", "without imports", "in steps")
    print_table(f"{group.title}, {_threads(measured.threads)}", heads, lines)


def speed_rows(group: Group, measured: Measured) -> Iterator[Row]:
    """Ours over each of PyTorch's forms that something is claimed of."""
    for claim in group.claims:
        if claim.ours in measured.refused or claim.theirs in measured.refused:
            continue
        ours, theirs = measured.seconds[claim.ours], measured.seconds[claim.theirs]
        yield row(
            f"{group.title}, {_threads(measured.threads)}: {claim.ours} over {claim.theirs}",
            ratios(theirs, ours),
            at_least=claim.at_least,
            note=f"{readable_seconds(ours)} against {readable_seconds(theirs)}; in processor time "
            f"{spread(ratios(measured.busy[claim.theirs], measured.busy[claim.ours]), digits=2)}; "
            + _limit(group, measured, claim.ours),
        )


def _limit(group: Group, measured: Measured, precision: str) -> str:
    """The shortest possible step at this run's rates, and the ratio of ours to it."""
    graph = WORKS[group.network].network().graph()
    best = measured.rates[products(precision)]
    if precision == "float32":  # convolutions may have faster libraries than products
        best = [max(pair) for pair in zip(best, measured.rates[CONVOLUTIONS], strict=True)]
    arithmetic = [1e-9 * flops(graph, group.batch) / rate for rate in best]
    traffic = [1e-9 * bytes_moved(graph, ITEM_BYTES[precision]) / rate for rate in measured.rates[MEMORY]]
    least = [max(pair) for pair in zip(arithmetic, traffic, strict=True)]
    return (
        f"limit: arithmetic {_about(arithmetic)} at {statistics.median(best):.0f} GFLOP/s, parameters "
        f"through memory {_about(traffic)}; ours takes "
        f"{spread(ratios(measured.seconds[precision], least), digits=2)} times the longer"
    )


def _about(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.3g} ms"


def two_threads_rows(group: Group, one: Measured, two: Measured) -> Iterator[Row]:
    """Our time with one thread over that with two."""
    for ours in dict.fromkeys(claim.ours for claim in group.claims):
        if ours in one.refused or ours in two.refused:
            continue
        alone, both = one.seconds[ours], two.seconds[ours]
        middle = [statistics.median(alone) / seconds for seconds in both]
        yield row(
            f"{group.title}: {ours}, two threads over one",
            middle,
            at_least=1.0,
            note=f"{readable_seconds(both)} against {readable_seconds(alone)}, measured one after the other",
        )


def layer_rows(group: Group, measured: Measured) -> Iterator[Row]:
    """The share of the machine's rate inside the first layer."""
    if group.layer is None:
        return
    own, machine = measured.rates[LAYER], measured.rates[products("float32")]
    yield row(
        f"{group.title}, {_threads(measured.threads)}: share of the machine's rate inside the layer",
        ratios(own, machine),
        at_least=group.layer,
        note=f"up and gradient reach {spread(own, unit='GFLOP/s', digits=0)}, a matrix product "
        f"{spread(machine, unit='GFLOP/s', digits=0)}",
    )


def memory_rows(group: Group, measured: Measured) -> Iterator[Row]:
    """PyTorch's peak over ours."""
    for ours, theirs in group.memory:
        if ours in measured.refused or theirs in measured.refused:
            continue
        own, other = measured.peaks[ours], measured.peaks[theirs]
        yield row(
            f"{group.title}, {_threads(measured.threads)}: peak memory of {theirs} over {ours}",
            [other.whole / own.whole],
            at_least=1.0,
            note=f"{_mib(own.whole)} against {_mib(other.whole)} MiB; without interpreter and imports "
            f"{_mib(own.net)} against {_mib(other.net)}; in steps {_mib(own.steps)} against "
            f"{_mib(other.steps)}",
        )


def _peak(peak: Peak) -> tuple[str, str, str]:
    return _mib(peak.whole), _mib(peak.net), _mib(peak.steps)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f}"


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


if __name__ == "__main__":
    main()
