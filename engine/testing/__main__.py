"""Plays many schedules of each driver and prints how fast; prints the first that breaks an invariant."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

from partita.engine.testing import downpour, sandblaster
from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program.drawn import play_all_reduce


class Player(Protocol):
    """Plays the schedule of a seed."""

    def __call__(self, seed: int, *, keep_all: bool = False) -> Outcome:
        """See `downpour.play` and `sandblaster.play`."""
        ...


PLAYERS: Final[dict[str, Player]] = {
    "downpour": downpour.play,
    "sandblaster": sandblaster.play,
    "all_reduce": play_all_reduce,
}
CHUNK: Final = 200
"""Schedules that a process plays at a time."""

REPORT_EVERY_S: Final = 10.0
"""Seconds between two reports of progress."""


@dataclass(slots=True)
class Tally:
    """The outcomes of some schedules."""

    played: int = 0
    events: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    traces: list[str] = field(default_factory=list)
    broken: Outcome | None = None

    def add(self, other: Tally) -> None:
        """Adds the outcomes of others."""
        self.played += other.played
        self.events += other.events
        self.endings += other.endings
        self.traces += other.traces
        self.broken = self.broken or other.broken


def play_some(driver: str, first: int, count: int, keep_all: bool) -> Tally:
    """Plays these seeds one after the other, up to the first that breaks an invariant."""
    tally = Tally()
    for seed in range(first, first + count):
        outcome = PLAYERS[driver](seed, keep_all=keep_all)
        tally.add(Tally(1, outcome.events, Counter([outcome.ending]), list(outcome.trace)))
        if outcome.violation is not None:
            tally.broken = outcome
            break
    return tally


def play_all(driver: str, options: argparse.Namespace) -> Tally:
    """Plays all seeds, in as many processes as are asked for."""
    whole, reported_at = Tally(), time.perf_counter()
    for tally in _tallies(driver, options):
        whole.add(tally)
        if time.perf_counter() - reported_at >= REPORT_EVERY_S:
            reported_at = time.perf_counter()
            print(f"{driver}: {whole.played} of {options.schedules} schedules", file=sys.stderr, flush=True)
        print("\n".join(tally.traces), end="\n" if tally.traces else "")
        if whole.broken is not None:
            break
    return whole


def _tallies(driver: str, options: argparse.Namespace) -> Iterator[Tally]:
    stop = options.first + options.schedules
    firsts = range(options.first, stop, CHUNK)
    counts = [min(CHUNK, stop - first) for first in firsts]
    n = len(firsts)
    if options.jobs == 1:
        yield from map(play_some, [driver] * n, firsts, counts, [options.trace] * n)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        yield from pool.map(play_some, [driver] * n, firsts, counts, [options.trace] * n)
        pool.shutdown(cancel_futures=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0 when every invariant held in every schedule."""
    parser = argparse.ArgumentParser(prog="python -m partita.engine.testing", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many seeds to play with each driver")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--driver", choices=[*PLAYERS], help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes play")
    parser.add_argument("--trace", action="store_true", help="print every event of each schedule")
    options = parser.parse_args(arguments)
    for driver in [options.driver] if options.driver else PLAYERS:
        began = time.perf_counter()
        tally = play_all(driver, options)
        if tally.broken is not None:
            seed = tally.broken.seed
            print(f"seed {seed} of {driver} breaks {tally.broken.violation}", file=sys.stderr)
            again = f"--driver {driver} --first {seed} --schedules 1 --trace"
            print(f"all of it: {parser.prog} {again}", file=sys.stderr)
            return 1
        seconds = time.perf_counter() - began
        how = ", ".join(f"{count} {ending}" for ending, count in sorted(tally.endings.items()))
        print(
            f"{tally.played} schedules of {driver} from seed {options.first}: every invariant held ({how}); "
            f"{tally.played / seconds:.0f} schedules/s, {tally.events / tally.played:.0f} events each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
