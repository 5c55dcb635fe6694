"""All-reduce of float32 vectors among processes of this machine: this engine's exchanges, and gloo.

    python -m benchmarks.all_reduce [--rounds N] [--rows 2,4] [--json FILE]

1,000, 100,000 and 10 million numbers among 2 and 4 processes, again and again; a figure is the time of one.
Ours is the machine of an exchange over mailboxes: by shared memory, as hosts of one machine send, and over
encrypted loopback TCP; the ring, and for the smallest vector the tree, too. Gloo is `torch.distributed`, over
TCP without encryption. Ratios are gloo's time by ours. Results are checked first, against float64.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks._harness import Row, in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe
from benchmarks._rounds import Rounds
from benchmarks._worker import Worker, threads_of

TIMES: Final = {1_000: 200, 100_000: 100, 10_000_000: 3}
"""All-reduces of a turn, by the length of the vector."""

GROUPS: Final = ("2", "4")
GLOO: Final = "gloo"
SHARED, TCP = "shared memory", "encrypted TCP"
WITHIN: Final = 4.0
"""Largest error of a sum, in units of the last place of the largest."""

AIMS: Final = {(SHARED, 10_000_000): 1.0}
"""Ratios to be reached; the others are shown as they are."""


class Members:
    """The processes of one group; each call goes to all of them at once."""

    def __init__(
        self, workers: Sequence[Worker], pool: ThreadPoolExecutor, times: Mapping[int, int] = TIMES
    ) -> None:
        """Members that run `times` all-reduces in a turn, by the length of the vector."""
        self._workers, self._pool, self._times = workers, pool, times

    def call(self, method: str, *arguments: object) -> list[object]:
        """The answers of all, in the order of ranks."""
        return list(self._pool.map(lambda worker: worker.call(method, *arguments), self._workers))

    def prepare(self, algorithm: str, length: int) -> None:
        """Has all allocate their vectors."""
        self.call("prepare", algorithm, length)

    def seconds(self, algorithm: str, length: int) -> float:
        """The time of one all-reduce: that of the slowest member."""
        self.prepare(algorithm, length)
        return max(float(str(seconds)) for seconds in self.call("run", self._times[length]))

    def check(self, algorithm: str, length: int) -> None:
        """Compares a result on every member."""
        self.prepare(algorithm, length)
        errors = [float(str(error)) for error in self.call("check")]
        assert max(errors) < WITHIN, f"{algorithm} over {length} numbers is off by {errors} units"


@contextmanager
def gloo(members: int) -> Iterator[Members]:
    """The group of gloo."""
    with ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "meeting"
        pool = stack.enter_context(ThreadPoolExecutor(members))
        arguments = [(str(rank), str(members), str(meeting)) for rank in range(members)]
        workers = [
            stack.enter_context(Worker("_all_reduce_gloo", *one, environment=threads_of(1)))
            for one in arguments
        ]
        yield Members(workers, pool)


@contextmanager
def ours(members: int, label: str) -> Iterator[Members]:
    """A group over this engine's transport; members with a label share memory."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(members))
        workers = [
            stack.enter_context(Worker("_all_reduce_member", label, environment=threads_of(1)))
            for _ in range(members)
        ]
        found = Members(workers, pool)
        addresses = found.call("address")
        list(pool.map(lambda n: workers[n].call("meet", n, addresses), range(members)))
        yield found


def measure(members: int, rounds: Rounds) -> list[Row]:
    """The rows of a group of this size."""
    rows: list[Row] = []
    with gloo(members) as reference, ours(members, "here") as near, ours(members, "") as far:
        for length in TIMES:
            algorithms = ("ring", "tree") if length == min(TIMES) else ("ring",)
            variants = {GLOO: partial(reference.seconds, "", length)}
            for algorithm in algorithms:
                for path, group in ((SHARED, near), (TCP, far)):
                    group.check(algorithm, length)
                    variants[f"{algorithm}, {path}"] = partial(group.seconds, algorithm, length)
            measured = in_turn(variants, rounds=rounds)
            title = f"{length:,} numbers, {members} processes"
            print_table(
                title,
                ("all-reduce", "median (min to max) of the rounds"),
                [(name, readable_seconds(seconds)) for name, seconds in measured.items()],
            )
            rows += [
                row(
                    f"{title}: {name} / gloo",
                    ratios(measured[GLOO], seconds),
                    at_least=AIMS.get((name.partition(", ")[2], length), 0.0),
                    note=readable_seconds(seconds),
                )
                for name, seconds in measured.items()
                if name != GLOO
            ]
    return rows


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=3, rows=GROUPS)
    print(describe(), flush=True)
    rows = [found for members in asked.rows for found in measure(int(members), asked.rounds)]
    report("speed of an all-reduce, by gloo's", rows, file=asked.json)


if __name__ == "__main__":
    main()
