"""A step of Downpour over TCP with payloads encrypted and not, in one run.

    python -m benchmarks.encryption [--rounds N] [--rows NAME[,NAME]] [--json FILE]

One replica and two shards of this machine that use TCP over loopback, as hosts of several machines do. The
part pushes its gradient and fetches parameters with every step, while it computes. A ratio is the time of a
step without encryption by that with it: 0.9 and more is aimed at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks._harness import Row, in_turn, options, print_table, ratios, readable_seconds, report, row
from benchmarks._machine import describe
from benchmarks._networks import data, speech
from benchmarks._rounds import Rounds
from examples.digits import network as digits
from partita.engine import Adagrad, Downpour, train
from partita.engine.launch import Placement
from partita.engine.run.metrics import Record
from partita.layers.network import Network
from partita.partitioner import Cluster, partition

SHARDS: Final = 2


@dataclass(frozen=True)
class Case:
    """A network, the examples of a step, and the steps of a turn, of which the first third is not counted."""

    network: Callable[[], Network]
    batch: int
    steps: int


CASES: Final = {"digits": Case(digits, 64, 1500), "speech": Case(speech, 128, 12)}


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=3, rows=tuple(CASES))
    print(describe(), flush=True)
    found = [compared(name, CASES[name], rounds=asked.rounds) for name in asked.rows]
    report("a step of Downpour over TCP", found, file=asked.json)


def compared(name: str, case: Case, *, rounds: Rounds) -> Row:
    """The row of one network."""
    turns = {
        "encrypted": functools.partial(step_s, case, encrypt=True),
        "not encrypted": functools.partial(step_s, case, encrypt=False),
    }
    measured = in_turn(turns, rounds=rounds)
    lines = [(what, readable_seconds(seconds)) for what, seconds in measured.items()]
    print_table(f"{name}, {case.batch} examples", ("payloads", "a step"), lines)
    return row(
        f"{name}: a step not encrypted over one encrypted",
        ratios(measured["not encrypted"], measured["encrypted"]),
        at_least=0.9,
        note=" and ".join(readable_seconds(measured[what]) for what in turns),
    )


def step_s(case: Case, *, encrypt: bool) -> float:
    """Seconds of a step."""
    plan = partition(case.network(), Cluster.local(machines=1, threads=1), batch=case.batch)
    arrays = data(plan.graph, case.batch)
    times = max(1, -(-4 * case.batch // len(next(iter(arrays.values())))))
    examples = {name: np.concatenate([array] * times) for name, array in arrays.items()}
    steps = len(next(iter(examples.values()))) // case.batch
    records: list[Record] = []
    train(
        plan,
        examples,
        driver=Downpour(shards=SHARDS, optimizer=Adagrad(0.001)),
        epochs=-(-case.steps // steps),
        show="nothing",
        places={name: Placement(machine=name) for name in ("part 0.0", "shard 0", "shard 1")},
        encrypt_payloads=encrypt,
        on_record=records.append,
    )
    counted = [one for one in records if one.step >= case.steps // 3]
    first, last = counted[0], counted[-1]
    return (last.seconds - first.seconds) / (last.step - first.step)


if __name__ == "__main__":
    main()
