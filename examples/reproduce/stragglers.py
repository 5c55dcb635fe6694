"""Time to an accuracy against the variance of stragglers, for every driver, in virtual time.

    python -m examples.reproduce.stragglers         (two processes, below three minutes)

prints a table and draws docs/pictures/stragglers.svg. Gradients are real, and each driver's own program is
played (`virtual`); a minibatch takes a time that is drawn, with the same mean and more and more spread. Each
driver has the learning rate that was fastest in the median of three trials. docs/staleness.md says what comes
out; the program ends with an error where one of its claims does not hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from statistics import median

from examples.reproduce.contenders import CONTENDERS, REPLICAS, in_processes, measured, rate_of
from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import Hosts
from partita.engine.view.curves import Curve, Panel, draw_curves

SPREADS = (0.0, 0.5, 1.0, 1.5)
SEEDS = 5


def times(name: str, *, spreads: Sequence[float], seeds: int, target: float) -> list[float]:
    """Returns the median time to the target for each spread, in mean times of a minibatch."""
    problem, make, hosts = Problem(), CONTENDERS[name], Hosts(spread=0.5)
    driver, found = make(rate_of(make, problem, hosts, target=target)), []
    for spread in spreads:
        hosts = Hosts(spread=spread)
        runs = [measured(driver, problem, hosts, seed=seed, target=target) for seed in range(seeds)]
        found.append(median(run.reached_s(target) for run in runs) / hosts.step_s)
    return found


def claims(found: Mapping[str, Sequence[float]]) -> dict[str, bool]:
    """Returns which claims about the times by driver hold, from no spread to the largest."""
    longer = {name: times[-1] / times[0] for name, times in found.items()}
    return {
        "every driver gets there at every spread": max(map(max, found.values())) < inf,
        "an all-reduce takes twice as long with the largest spread": longer["AllReduce"] > 2,
        "with backup workers it does not": longer["AllReduce, 2 backup workers"] < 1.2,
        "and who waits for nobody does not": max(longer["Downpour"], longer["EASGD(every=8)"]) < 1.2,
        "an all-reduce every 8 steps takes less longer": longer["LocalSGD(every=8)"] < longer["AllReduce"],
    }


def main(given: Sequence[str] | None = None) -> None:
    """Measures, prints and draws."""
    parser = argparse.ArgumentParser(prog="python -m examples.reproduce.stragglers")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs whose median counts")
    parser.add_argument("--target", type=float, default=0.93, help="the accuracy to be reached, from 0 to 1")
    parser.add_argument("--spreads", default=",".join(map(str, SPREADS)), help="with commas between")
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), help="names of drivers")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/stragglers.svg"), help="the picture")
    asked = parser.parse_args(given)
    spreads = [float(spread) for spread in asked.spreads.split(",")]
    print(f"{'spread of the time of a minibatch':34}" + "".join(f"{spread:8g}" for spread in spreads))
    curves, of = list[Curve](), dict[str, list[float]]()
    work = partial(times, spreads=spreads, seeds=asked.seeds, target=asked.target)
    for name, found in zip(asked.only, in_processes(work, asked.only), strict=True):
        of[name] = found
        print(f"{name:34}" + "".join(f"{one:8.0f}" if one < inf else "       -" for one in found), flush=True)
        points = tuple((x, y) for x, y in zip(spreads, found, strict=True) if y < inf)
        curves += [Curve(name, points)] if points else []
    if not curves:
        raise SystemExit("nothing is drawn: no driver has reached the accuracy")
    axes = ("spread: standard deviation of the logarithm of a minibatch's time", "mean times of a minibatch")
    title = f"Time to {asked.target:.0%} against the variance of stragglers, simulated"
    about = f"{REPLICAS} replicas · real gradients on digits · median of {asked.seeds} starts"
    asked.out.write_text(draw_curves(title, about, [Panel(tuple(curves), axes, tuple(spreads))]), "utf-8")
    print(f"drawn: {asked.out}")
    if (*spreads,) != SPREADS or not {*CONTENDERS} <= {*of}:
        return  # the claims are about all drivers
    checks = claims(of)
    for claim, holds in checks.items():
        print(f"{claim}: {'yes' if holds else 'NO'}")
    if not all(checks.values()):
        raise SystemExit("a claim does not hold")


if __name__ == "__main__":
    main()
