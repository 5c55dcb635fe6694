"""The common parts of all benchmarks: alternating variants, ratios by round, rows, a table, a file.

Without `--rounds` a benchmark ends within five minutes; where figures of a variant differ by more than a
factor of `WIDE`, all variants are measured again, and a line says so (`in_turn`).

A machine that other people use changes its speed from one second to the next, so a ratio is taken between
figures of the same round only, and what counts is the median of these ratios. Nothing here knows a network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks._rounds import Rounds

REST_S: Final = 0.3
"""Seconds of rest between two variants."""

WIDE: Final = 1.5
"""The largest figure of a variant over its smallest, above which it is measured again."""


@dataclass(frozen=True)
class Row:
    """The result of one comparison. It holds if `ratio >= at_least`.

    Args:
        row: name of the comparison.
        ratio: median over the rounds.
        at_least: the ratio aimed at.
        min, max: smallest and largest ratio of a round.
        note: the figures, and the limit.
    """

    row: str
    ratio: float
    at_least: float
    min: float
    max: float
    note: str

    @property
    def holds(self) -> bool:
        """Returns whether the ratio reaches `at_least`."""
        return self.ratio >= self.at_least

    @property
    def rounds(self) -> str:
        """`min to max`, and whether that is a wide spread."""
        return f"{self.min:.2f} to {self.max:.2f}" + (", wide" if self.max > WIDE * self.min else "")


@dataclass(frozen=True)
class Options:
    """The command line of a benchmark."""

    rounds: Rounds
    json: Path | None
    rows: tuple[str, ...]


def options(description: str, *, rounds: int, rows: tuple[str, ...] = (), measurements: int = 1) -> Options:
    """Reads the command line.

    Args:
        description: what `--help` says.
        rounds: how many there are at most if nobody asks for a number: as many as fit into five minutes.
        rows: the groups of rows that can be chosen, if there is a choice; all if nobody does.
        measurements: of each group of rows.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help=f"how often every variant has its turn, however long it takes; else up to {rounds} times, as "
        "far as five minutes allow",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    if rows:
        parser.add_argument("--rows", default=",".join(rows), metavar="NAME[,NAME]", help="only these")
    found = parser.parse_args()
    if found.rounds is not None and found.rounds < 1:
        parser.error(f"{found.rounds} rounds measure nothing; ask for at least 1")
    chosen = tuple(found.rows.split(",")) if rows else ()
    for name in chosen:
        if name not in rows:
            parser.error(f"there are no rows {name!r}; choose some of {', '.join(rows)}")
    shared = Rounds(found.rounds or rounds, exactly=found.rounds is not None)
    shared.expect(max(len(chosen), 1) * measurements)
    return Options(shared, found.json, chosen)


def in_turn(
    variants: Mapping[str, Callable[[], float]], *, rounds: Rounds, rest_s: float = REST_S
) -> dict[str, list[float]]:
    """Measures A B C A B C ...; one variant at a time. Each gives one figure for each round.

    Between two turns the machine rests: OpenMP's and OpenBLAS's threads go on spinning for up to 0.2 seconds
    after their last work, and whoever comes next would share the cores with them. If the figures of a variant
    differ by more than `WIDE`, all are measured again: the new figures count, and a line says so.

    Args:
        variants: by name; each returns a figure.
        rounds: how often.
        rest_s: seconds of rest before each turn.
    """
    found = _turns(variants, rounds, rest_s)
    wide = _wide(found)
    if not wide:
        return found
    again = _turns(variants, rounds.again(), rest_s)
    if not any(again.values()):
        print(f"wide, and no time is left to measure again: {wide}", flush=True)
        return found
    print(f"measured again: {wide}; then {_wide(again) or 'none'}", flush=True)
    return again


def _turns(
    variants: Mapping[str, Callable[[], float]], rounds: Iterable[int], rest_s: float
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in rounds:
        for name, measure in variants.items():
            time.sleep(rest_s)
            found[name].append(measure())
    return found


def _wide(found: Mapping[str, Sequence[float]]) -> str:
    """The variants whose figures differ much, and by what factors; "" if none."""
    factors = {name: max(figures) / min(figures) for name, figures in found.items() if min(figures) > 0}
    return ", ".join(f"{name} ({factor:.2f} times)" for name, factor in factors.items() if factor > WIDE)


def row(name: str, ratios: Sequence[float], *, at_least: float, note: str) -> Row:
    """A row from the ratios of all rounds."""
    return Row(name, statistics.median(ratios), at_least, min(ratios), max(ratios), note)


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """The ratio of two variants in each round."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def spread(figures: Sequence[float], *, unit: str = "", digits: int = 1) -> str:
    """`median (min to max) unit`."""
    low, middle, high = (f"{f(figures):.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high}) {unit}".strip()


def readable_seconds(figures: Sequence[float]) -> str:
    """`median (min to max) ms`, or in microseconds below one millisecond, in seconds above ten."""
    if statistics.median(figures) > 10.0:
        return spread(figures, unit="s")
    if statistics.median(figures) < 1e-3:
        return spread([1e6 * seconds for seconds in figures], unit="us")
    return spread([1e3 * seconds for seconds in figures], unit="ms")


def print_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A table on standard output; the first column holds names, the others figures."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    Console(width=None if Console().is_terminal else 130).print(table)


def report(title: str, rows: Sequence[Row], *, file: Path | None) -> None:
    """Prints the rows, and writes them where the command line asked for them."""
    lines = [
        (
            r.row,
            f"{r.ratio:.2f}",
            f"{r.at_least:.2f}",
            r.rounds,
            "yes" if r.holds else "no",
            r.note,
        )
        for r in rows
    ]
    print_table(title, ("row", "ratio", "at least", "rounds", "holds", "note"), lines)
    if file is not None:
        file.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")
