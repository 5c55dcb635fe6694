"""Plays many schedules of each driver and prints how fast; prints the first that breaks an invariant."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from partita.engine.testing.downpour import play_downpour
from partita.engine.testing.invariants import Outcome
from partita.engine.testing.program.drawn import play_all_reduce
from partita.engine.testing.sandblaster import play_sandblaster
from partita.engine.testing.storms import DRAWS, play_drawn

PLAYERS: Final[dict[str, Callable[..., Outcome]]] = {
    "downpour": partial(play_downpour, None),
    "downpour_log": partial(play_downpour, None, durability="log"),
    "downpour_replicated": partial(play_downpour, None, durability="replicated"),
    "sandblaster": partial(play_sandblaster, None),
    "sandblaster_log": partial(play_sandblaster, None, durability="log"),
    "sandblaster_replicated": partial(play_sandblaster, None, durability="replicated"),
    "all_reduce": play_all_reduce,
}
STORMS: Final[dict[str, Callable[..., Outcome]]] = {kind: partial(play_drawn, kind) for kind in DRAWS}
"""Drivers whose settings a seed draws, played by `--storms`."""

CHUNK: Final = 200
"""Schedules that a process plays at a time."""

REPORT_EVERY_S: Final = 10.0
"""Seconds between two reports of progress."""


def _play(driver: str, keep_all: bool, hostile: bool, seed: int) -> Outcome:
    return (PLAYERS | STORMS)[driver](seed, keep_all=keep_all, hostile=hostile)


def _outcomes(driver: str, options: argparse.Namespace) -> Iterator[Outcome]:
    """Yields the outcome of each seed in order, from as many processes as are asked for."""
    seeds, play = (
        range(options.first, options.first + options.schedules),
        partial(_play, driver, options.trace, options.hostile),
    )
    if options.jobs == 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        try:
            yield from pool.map(play, seeds, chunksize=CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)


def play_all(driver: str, options: argparse.Namespace) -> Outcome | None:
    """Plays all seeds, up to the first that breaks an invariant, which is returned."""
    began = reported_at = time.perf_counter()
    endings, events = Counter[str](), 0
    for n, outcome in enumerate(_outcomes(driver, options), 1):
        endings[outcome.ending] += 1
        events += outcome.events
        print("\n".join(outcome.trace), end="\n" if outcome.trace else "")
        if outcome.violation is not None:
            return outcome
        if time.perf_counter() - reported_at >= REPORT_EVERY_S:
            reported_at = time.perf_counter()
            print(f"{driver}: {n} of {options.schedules} schedules", file=sys.stderr, flush=True)
    seconds, played = time.perf_counter() - began, endings.total()
    how = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    print(
        f"{played} schedules of {driver} from seed {options.first}: every invariant held ({how}); "
        f"{played / seconds:.0f} schedules/s, {events / played:.0f} events each"
    )
    return None


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0 when every invariant held in every schedule."""
    parser = argparse.ArgumentParser(prog="python -m partita.engine.testing", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many seeds to play with each driver")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--driver", choices=[*PLAYERS, *STORMS], help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes play")
    parser.add_argument("--trace", action="store_true", help="print every event of each schedule")
    parser.add_argument("--hostile", action="store_true", help="some members send what no correct one does")
    parser.add_argument("--storms", action="store_true", help="the drivers whose settings a seed draws")
    options = parser.parse_args(arguments)
    for driver in [options.driver] if options.driver else STORMS if options.storms else PLAYERS:
        broken = play_all(driver, options)
        if broken is not None:
            print(f"seed {broken.seed} of {driver} breaks {broken.violation}", file=sys.stderr)
            hostile = " --hostile" if options.hostile else ""
            again = f"--driver {driver} --first {broken.seed} --schedules 1 --trace{hostile}"
            print(f"all of it: {parser.prog} {again}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
