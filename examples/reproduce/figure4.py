"""Figures 4 and 5 of the paper in small: methods race to an accuracy, by simulated time with real gradients.

    python -m examples.reproduce.figure4            (below two minutes)

prints a table and draws docs/pictures/figure4.svg. Two networks are behind it. Gradients and accuracies are
those of a small one on scikit-learn's digits, computed for real at the parameters that each replica has at
that moment; what takes time is the paper's speech network on machines of 2011 and 2012. `race` beside
this file holds both together. docs/figure4.md says what is assumed, and what comes out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

from examples.reproduce.race.contest import Contest
from examples.reproduce.race.digits import Digits
from examples.reproduce.race.machines import Times
from examples.reproduce.race.race import METHODS, Measured, Race
from examples.reproduce.race.setting import Setting
from partita.engine.view.curves import Curve, Panel, draw_curves, round_ticks
from partita.layers.text import counted

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEASURED = 3
"""Runs whose median counts, each from a start of its own."""


def table(race: Race, counts: Sequence[int]) -> Iterator[Measured]:
    """Every cell, printed as it comes."""
    print("machines" + "".join(f"{method.name:>28}" for method in METHODS), flush=True)
    for machines in counts:
        print(f"{machines:8}", end="", flush=True)
        for method in METHODS:
            found = race.measured(method, machines)
            print(f"{'-' if found is None else found!s:>28}", end="", flush=True)
            if found is not None:
                yield found
        print(flush=True)


def drawing(race: Race, cells: Sequence[Measured], counts: Sequence[int]) -> str:
    """Accuracy by time, and below it the time to the target by machines."""
    times = {
        method: tuple((c.machines, c.seconds) for c in cells if c.method is method and isfinite(c.seconds))
        for method in METHODS
    }
    below = Panel(
        tuple(Curve(method.name, points) for method, points in times.items() if points),
        ("machines, of 20 cores each", f"seconds to {race.contest.target:.0%} of the held-out pictures"),
        tuple(sorted({1, 2, *counts})),
        doubling=True,
    )
    about = f"gradients of a small network on digits · times of the paper's speech network · {race}"
    title = "Accuracy by time, and time by machines, simulated"
    return draw_curves(title, about, (courses(race, cells), below))


def courses(race: Race, cells: Sequence[Measured]) -> Panel:
    """Draws the rise of accuracy on the most machines, dashed on a quarter of them, until all have the
    target.
    """
    most = max(cell.machines for cell in cells)
    shown = {n: [cell for cell in cells if cell.machines == n] for n in (most, most // 4)}
    ticks = round_ticks(1.1 * max(cell.seconds for cell in shown[most] if isfinite(cell.seconds)))
    until_s = ticks[-1]
    curves = []
    for cell in shown[most]:
        curves.append(curve(race, cell, until_s))
        curves += [curve(race, c, until_s, dashed=True) for c in shown[most // 4] if is_other(cell, c)]
    target = 100 * race.contest.target
    curves.append(Curve(f"{target:g}%", ((0.0, target), (until_s, target)), dashed=True))
    return Panel(
        tuple(curves),
        ("seconds, simulated", "held-out pictures that are right, %; dashed: on a quarter of the machines"),
        ticks,
    )


def is_other(cell: Measured, fewer: Measured) -> bool:
    """Whether it is the same method with another course."""
    return cell.method is fewer.method and cell.choice != fewer.choice


def curve(race: Race, cell: Measured, until_s: float, *, dashed: bool = False) -> Curve:
    """One course; a dashed one goes with the one before."""
    points = tuple((now, 100 * accuracy) for now, accuracy in race.course(cell, until_s))
    machines = cell.choice.fleet.machines
    name = f"{cell.method.name}, {counted(machines, 'machine')}"
    return Curve("" if dashed else name, points, dashed=dashed, dots=False)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options of the command."""
    parser = argparse.ArgumentParser(prog="python -m examples.reproduce.figure4")
    whole = parser.add_argument
    whole("--machines", default=",".join(map(str, COUNTS)), help="numbers of machines, with commas between")
    whole("--target", type=float, default=0.93, help="the accuracy to be reached, from 0 to 1")
    whole("--frames", type=int, default=100, help="of speech that a picture stands for")
    whole("--seed", type=int, default=0, help="of starts, of the order of the data, and of times")
    whole("--out", type=Path, default=Path("docs/pictures/figure4.svg"), help="the picture")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Chooses, measures, prints and draws."""
    asked = arguments(given)
    counts = sorted({int(count) for count in asked.machines.split(",")})
    with Digits() as digits:
        contest = Contest(Setting(digits, Times(frames=asked.frames)), asked.target)
        race = Race(contest, seed=asked.seed, measured=MEASURED)
        print(race, flush=True)
        cells = list(table(race, counts))
        asked.out.write_text(drawing(race, cells, counts), encoding="utf-8")
    print(f"drawn: {asked.out}")


if __name__ == "__main__":
    main()
