"""Plays many schedules and says how fast; tells the story of the first that breaks an invariant."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from partita.engine.runtime.simulation.downpour import play


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit status: 0 when every invariant held in every schedule."""
    parser = argparse.ArgumentParser(prog="python -m partita.engine.runtime.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--story", action="store_true", help="tell every event of each schedule")
    options = parser.parse_args(arguments)
    endings: Counter[str] = Counter()
    events, began = 0, time.perf_counter()
    for seed in range(options.first, options.first + options.schedules):
        outcome = play(seed, keep_all=options.story)
        endings[outcome.ending] += 1
        events += outcome.events
        if outcome.story:
            print("\n".join(outcome.story))
        if outcome.violation is not None:
            print(f"seed {seed} breaks {outcome.violation}", file=sys.stderr)
            print(f"all of it: {parser.prog} --first {seed} --schedules 1 --story", file=sys.stderr)
            return 1
    seconds = time.perf_counter() - began
    how = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    print(
        f"{options.schedules} schedules from seed {options.first}: every invariant held ({how}); "
        f"{options.schedules / seconds:.0f} schedules/s, {events / options.schedules:.0f} events each"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
