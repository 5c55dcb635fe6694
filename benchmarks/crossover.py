"""Size from which a ring is faster than a tree, measured on links of 50 Mbit/s, beside the alpha-beta model.

    python -m benchmarks.crossover [--rounds N] [--rows 4,8] [--json FILE]

Each member of an all-reduce is a process in a network namespace of its own (`_namespaces`: root, `ip` and
`tc`). Latency and seconds for each byte are measured first, by a ring of two members, whose time is
`2 alpha + S beta`. The model predicts the others from these two numbers alone: it knows nothing of the cores
that all processes share. Figures are the least of the rounds. A ratio is the measured size of the crossover
by the predicted one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Final

from benchmarks._harness import Row, options, print_table, report, row
from benchmarks._machine import describe
from benchmarks._namespaces import MBIT, network, why_not
from benchmarks._worker import Worker, threads_of
from benchmarks.all_reduce import Members
from partita.engine.protocol.exchange import Algorithm, Link, Ring, Tree, crossover_bytes

BITS_PER_S: Final = 50 * MBIT
BURST_BYTES: Final = 2_000
"""Little more than a packet, so that a small message takes its time on the link, too."""

LENGTHS: Final = (64, 256, 1_024, 4_096, 16_384, 65_536)
"""Numbers in a vector, of 4 bytes each."""

TIMES: Final = 20
"""All-reduces of a turn."""

ALGORITHMS: Final[Mapping[str, Algorithm]] = {"ring": Ring(), "tree": Tree()}
GROUPS: Final = ("4", "8")


@contextmanager
def members_of(n: int) -> Iterator[Members]:
    """A group of members with links of their own."""
    with ExitStack() as stack:
        places = stack.enter_context(network(n, bits_per_s=BITS_PER_S, burst_bytes=BURST_BYTES)).places
        pool = stack.enter_context(ThreadPoolExecutor(n))
        workers = [
            stack.enter_context(
                Worker(
                    "_all_reduce_member", "", place.address, environment=threads_of(1), within=place.command
                )
            )
            for place in places
        ]
        found = Members(workers, pool, times=dict.fromkeys(LENGTHS, TIMES))
        addresses = found.call("address")
        list(pool.map(lambda rank: workers[rank].call("meet", rank, addresses), range(n)))
        yield found


def least_seconds(group: Members, names: Iterable[str], rounds: int) -> dict[tuple[str, int], float]:
    """Returns the least time of each algorithm and length; the others were held up by other processes."""
    turns = [(name, length) for length in LENGTHS for name in names]
    found = [{turn: group.seconds(*turn) for turn in turns} for _ in range(rounds)]
    return {turn: min(one[turn] for one in found) for turn in turns}


def link_of(rounds: int) -> Link:
    """Measures latency and seconds for each byte between two members."""
    with members_of(2) as pair:
        found = least_seconds(pair, ("ring",), rounds)
    seconds = [found["ring", length] for length in LENGTHS]
    s_per_byte = (seconds[-1] - seconds[0]) / (4 * (LENGTHS[-1] - LENGTHS[0]))
    return Link((seconds[0] - 4 * LENGTHS[0] * s_per_byte) / 2, s_per_byte)


def crossing(ratios: Sequence[float]) -> float:
    """Returns the bytes at which a ring's time by a tree's falls to 1, between lengths on a log scale; NaN
    where it does not.
    """
    for (one, other), (short, long) in zip(pairwise(ratios), pairwise(LENGTHS), strict=True):
        if one > 1.0 >= other:
            share = math.log(one) / math.log(one / other)
            return 4 * short * math.exp(share * math.log(long / short))
    return math.nan


def measure(members: int, link: Link, rounds: int) -> Row:
    """The row of a group of this size."""
    with members_of(members) as group:
        for name in ALGORITHMS:
            group.check(name, LENGTHS[0])
        measured = least_seconds(group, ALGORITHMS, rounds)
    labels = [str(rank) for rank in range(members)]
    lines = []
    for length in LENGTHS:
        model = [one.seconds(labels, 4 * length, link) for one in ALGORITHMS.values()]
        figures = (*(measured[name, length] for name in ALGORITHMS), *model)
        lines.append((f"{4 * length:,}", *(f"{seconds * 1e3:.2f} ms" for seconds in figures)))
    titles = ("bytes", "ring", "tree", "ring, predicted", "tree, predicted")
    print_table(f"{members} members", titles, lines)
    predicted = crossover_bytes(members, link)
    found = crossing([measured["ring", n] / measured["tree", n] for n in LENGTHS])
    note = f"measured {found:,.0f} bytes, predicted {predicted:,.0f}"
    return row(f"{members} members: crossover / predicted", [found / predicted], at_least=0.0, note=note)


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=5, rows=GROUPS)
    if (reason := why_not()) is not None:
        sys.exit(f"there are no network namespaces: {reason}")
    print(describe(), flush=True)
    link = link_of(asked.rounds.most)
    print(f"a message: {link.latency_s * 1e6:.0f} us and {link.s_per_byte * 1e9:.0f} ns for each byte")
    rows = [measure(int(members), link, asked.rounds.most) for members in asked.rows]
    report("size at which a ring overtakes a tree, by the model's", rows, file=asked.json)


if __name__ == "__main__":
    main()
