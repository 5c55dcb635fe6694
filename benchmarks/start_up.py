"""The costs of starting: importing the three rooms, and the digits example's first and second start.

    python -m benchmarks.start_up [--rounds N] [--json FILE]

Every figure is of a fresh process. The first start finds empty folders for what is kept on disk (compiled
kernels, measurements of kernels), the second what the first has left there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks._harness import Row, in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe

NOTHING: Final = "the interpreter alone"

IMPORTS: Final = {
    NOTHING: "pass",
    "numpy": "import numpy",
    "numba": "import numba",
    "torch": "import torch",
    "partita.layers": "import partita.layers",
    "partita.partitioner": "import partita.partitioner",
    "partita.engine": "import partita.engine",
}
"""The code of a process, by the name of its row."""

ROOMS: Final = tuple(name for name in IMPORTS if name.startswith("partita"))


@dataclass(frozen=True)
class Start:
    """One start of a session of the digits network.

    Args:
        whole_s: from nothing until the process is over.
        imports_s, session_s, step_s: of it: imports (scikit-learn too, whose pictures the example takes),
            opening the session, and its first step.
        compiled: compiled functions that it has added to those on disk.
        kept: how many there are then.
    """

    whole_s: float
    imports_s: float
    session_s: float
    step_s: float
    compiled: int
    kept: int


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=3, measurements=2)
    print(describe(), flush=True)
    imports = in_turn(
        {name: partial(_seconds_of, code) for name, code in IMPORTS.items()}, rounds=asked.rounds
    )
    pairs = [_first_and_second() for _ in asked.rounds]
    print_imports(imports)
    print_starts(pairs)
    report("start-up", [*import_rows(imports), *start_rows(pairs)], file=asked.json)


def _seconds_of(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def _first_and_second() -> tuple[Start, Start]:
    """Two starts after another, over a folder that is empty at first."""
    with tempfile.TemporaryDirectory() as folder:
        return _start(Path(folder)), _start(Path(folder))


def _start(folder: Path) -> Start:
    before = _kept(folder)
    began = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks._digits_session"],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
    )
    whole_s = time.perf_counter() - began
    kept = _kept(folder)
    return Start(whole_s=whole_s, compiled=len(kept - before), kept=len(kept), **json.loads(run.stdout))


def _kept(folder: Path) -> set[Path]:
    """The files of machine code: one for each function and combination of types."""
    return set(folder.rglob("*.nbc"))


def print_imports(imports: Mapping[str, Sequence[float]]) -> None:
    """Seconds of each process, and what is left without the interpreter."""
    lines = [
        (name, readable_seconds(seconds), readable_seconds(_without_interpreter(imports, name)))
        for name, seconds in imports.items()
    ]
    print_table("importing, in a fresh process", ("what", "a process", "without the interpreter"), lines)


def _without_interpreter(imports: Mapping[str, Sequence[float]], name: str) -> list[float]:
    return [max(a - b, 0.0) for a, b in zip(imports[name], imports[NOTHING], strict=True)]


def print_starts(pairs: Sequence[tuple[Start, Start]]) -> None:
    """Prints the parts of the time of a start."""
    lines = []
    for name, starts in zip(("first", "second"), zip(*pairs, strict=True), strict=True):
        figures = [
            readable_seconds([getattr(start, field) for start in starts])
            for field in ("whole_s", "imports_s", "session_s", "step_s")
        ]
        lines.append((name, *figures, f"{statistics.median(start.compiled for start in starts):.0f}"))
    heads = ("start", "whole process", "imports", "session", "first step", "functions compiled")
    print_table("a session of the digits network", heads, lines)


def import_rows(imports: Mapping[str, Sequence[float]]) -> list[Row]:
    """Our rooms against torch."""
    return [
        row(
            f"importing torch over {name}",
            ratios(_without_interpreter(imports, "torch"), _without_interpreter(imports, name)),
            at_least=1.0,
            note=readable_seconds(_without_interpreter(imports, name)),
        )
        for name in ROOMS
    ]


def start_rows(pairs: Sequence[tuple[Start, Start]]) -> list[Row]:
    """Rows: the gain of a second start, and that it compiles nothing."""
    first, second = zip(*pairs, strict=True)
    return [
        row(
            "digits: first start over second",
            [a.whole_s / b.whole_s for a, b in pairs],
            at_least=1.0,
            note=f"{readable_seconds([s.whole_s for s in first])} against "
            f"{readable_seconds([s.whole_s for s in second])}",
        ),
        row(
            "digits: share of functions that a second start finds on disk",
            [1.0 - start.compiled / start.kept for start in second],
            at_least=1.0,
            note=f"{first[0].compiled} compiled at the first start, {second[0].compiled} at the second",
        ),
    ]


if __name__ == "__main__":
    main()
