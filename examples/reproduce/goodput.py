"""Goodput at one kill a minute: useful replica-seconds over all, in virtual time, driver by driver.

    python -m examples.reproduce.goodput [--seeds N] [--replicas N] [--launch SECONDS ...]

The simulator plays the real machines of every host, with all invariants checked; a step takes a second, a
round has four. Every minute a process of a random replica is killed, and after so many seconds there is
another one. The decoupled form of DiLoCo is to reach 85 %, and replicas that wait for one another less.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from partita.engine.drivers import AllReduce, DecoupledDiLoCo, DiLoCo, Downpour, Driver
from partita.engine.testing.goodput import Kills, goodput

WANTED = 0.85
STEPS = 180


def contenders(replicas: int) -> dict[str, Driver]:
    """The drivers, by what they are called here."""
    return {
        "decoupled DiLoCo": DecoupledDiLoCo(replicas=replicas, shards=2, every=4),
        "decoupled DiLoCo, quorum of half": DecoupledDiLoCo(
            replicas=replicas, shards=2, every=4, quorum=max(1, replicas // 2)
        ),
        "Downpour": Downpour(replicas=replicas, shards=2),
        "DiLoCo": DiLoCo(replicas=replicas, every=4),
        "all-reduce": AllReduce(replicas=replicas),
        "all-reduce, elastic": AllReduce(elastic=(1, replicas)),
    }


def main() -> None:
    """Plays, prints a line for each driver, and fails where the decoupled form misses what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--launch", type=float, nargs="+", default=[5.0, 15.0])
    given = parser.parse_args()
    means: dict[str, list[float]] = {}
    print(f"{given.replicas} replicas, a kill a minute, another process after")
    print(f"{'':34s}" + "".join(f"{launch_s:>14g} s" for launch_s in given.launch))
    for name, driver in contenders(given.replicas).items():
        texts = []
        for launch_s in given.launch:
            kills = Kills(every_s=60.0, launch_s=launch_s)
            shares = [
                goodput(driver, seed, steps=STEPS, step_s=2.0, kills=kills).share
                for seed in range(given.seeds)
            ]
            mean, spread = statistics.mean(shares), statistics.stdev(shares) if len(shares) > 1 else 0.0
            means.setdefault(name, []).append(mean)
            texts.append(f"{mean:9.1%} +- {spread:.1%}")
        print(f"{name:34s}" + "".join(f"{text:>16s}" for text in texts), flush=True)
    decoupled, waiting = means["decoupled DiLoCo"], means["all-reduce"]
    if min(decoupled) < WANTED or any(one <= other for one, other in zip(decoupled, waiting, strict=True)):
        sys.exit(f"decoupled DiLoCo is to reach {WANTED:.0%}, and more than all-reduce")


if __name__ == "__main__":
    main()
