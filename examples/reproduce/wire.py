"""What Parallel SGD, ADMM and Downpour send between processes, counted on the wire, beside their formulas.

    python -m examples.reproduce.wire            (half a minute)

Each driver trains a small network on digits in real processes, over sockets. The mailbox of every process
counts the messages with numbers that it sends and receives, and the bytes of the numbers; a process reports
its counts once more when its work is done, and `train(watch=...)` writes them to a file, which is read here.
The formulas are those of `partita.engine.drivers.traffic`. The program ends with an error where a count of
any part is another one.

The formulas leave out what is sent again: a replica that has waited a second for a message asks for it. On a
busy machine that happens, or the last report comes too late; such a run is done again, twice at most.

Downpour's formula holds where no push finds another one under way. Here that is certain: a replica pushes
after two steps, fetches after four, and begins the second step after a push when that is acknowledged
(`run_ahead=1`); the answer to a fetch comes before the acknowledgement of a later push. As an ablation, it
runs without waiting: gradients are then added to those that wait, and the formula is only an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from examples.reproduce.two_functions import HIDDEN, pictures
from partita.engine import ADMM, SGD, Downpour, ParameterAveraging, train
from partita.engine.drivers import Driver
from partita.engine.drivers.traffic import Traffic, shard_traffic, traffic
from partita.engine.watch.file import read_stream
from partita.engine.watch.records import HostTraffic
from partita.engine.watch.state import State
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition

REPLICAS, BATCH, EXAMPLES, EPOCHS = 4, 20, 640, 10
BASE: dict[str, Any] = {"replicas": REPLICAS, "optimizer": SGD(0.1)}
DRIVERS: Mapping[str, Driver] = {
    "Parallel SGD": ParameterAveraging(**BASE),
    "ADMM, rounds of 4": ADMM(every=4, absolute=0.0, relative=0.0, **BASE),
    "Downpour": Downpour(shards=2, push_every=2, fetch_every=4, run_ahead=1, **BASE),
}
NEVER_WAITS = Downpour(shards=2, **BASE)


@dataclass(frozen=True)
class Counted:
    """What a part has sent, and received from shards.

    Args:
        steps: minibatches that it has computed.
        by_formula: as its driver's formula says for so many steps.
        measured: as the mailboxes of the processes have counted.
    """

    steps: int
    by_formula: Traffic
    measured: Traffic


def plan() -> Plan:
    """Plans a layer of `HIDDEN` nodes and ten scores on one machine."""
    net = Network("digits")
    hidden = Dense(HIDDEN, activation="relu", name="hidden")(net.input("image", shape=(64,)))
    net.loss = SoftmaxCrossEntropy()(Dense(10, name="scores")(hidden), net.target("digit"))
    return partition(net, Cluster.local(), batch=BATCH)


def counted(driver: Driver) -> list[Counted]:
    """Trains, and returns the counts of each replica's part."""
    cut, digits = plan(), {name: values[:EXAMPLES] for name, values in pictures()[0].items()}
    state = State()
    with TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        train(cut, digits, driver=driver, epochs=EPOCHS, watch=records, show="nothing")
        for record in read_stream(records):
            state.add(record)
    size = cut.graph.n_parameters
    halves = [(0, size // 2), (0, size - size // 2)]  # of the one fragment, on two shards
    found = []
    for replica in range(REPLICAS):
        row = state.traffic.get(f"part {replica}.0", HostTraffic(host="none"))  # not asked: too short a run
        if driver.shards:
            by_formula = shard_traffic(driver, steps=row.steps, sizes=halves)
            measured = Traffic(row.pushes + row.pulls, row.push_bytes + row.pull_bytes)
        else:
            run: dict[str, Any] = {"examples": EXAMPLES, "batch": BATCH, "epochs": EPOCHS, "sizes": [size]}
            by_formula = traffic(driver, replica=replica, **run)
            measured = Traffic(row.replica_messages, row.replica_bytes)
        found.append(Counted(row.steps, by_formula, measured))
    return found


def equal(parts: list[Counted]) -> bool:
    """Returns whether every part has sent what its formula says, and all minibatches are done."""
    same = all(one.by_formula == one.measured for one in parts)
    return same and sum(one.steps for one in parts) == EXAMPLES // BATCH * EPOCHS


def counted_again(driver: Driver) -> list[Counted]:
    """Returns the counts of the first of three runs in which they are equal, or of the third."""
    for _ in range(3):
        if equal(parts := counted(driver)):
            break
    return parts


def print_row(name: str, parts: list[Counted]) -> None:
    """Prints the sums over all parts."""
    print(f"{name:24}", end="")
    for kind in ("messages", "n_bytes"):
        formula, measured = (
            sum(getattr(getattr(one, which), kind) for one in parts) for which in ("by_formula", "measured")
        )
        print(f"  {formula:12,d} {measured:9,d}", end="")
    print(f"  {EXAMPLES // BATCH * EPOCHS:19d} {sum(one.steps for one in parts):6d}", flush=True)


def main() -> None:
    """Prints the table and every claim; ends with an error where one does not hold."""
    heads = "messages: formula, wire", "bytes: formula, wire", "minibatches: formula, wire"
    print(f"{REPLICAS} replicas{'':12}  {heads[0]}  {heads[1]:>22}  {heads[2]}")
    checks = {}
    for name, driver in DRIVERS.items():
        parts = counted_again(driver)
        print_row(name, parts)
        checks[f"{name}: every part sends what its formula says"] = equal(parts)
    never = counted(NEVER_WAITS)
    print_row("Downpour, never waits", never)
    checks["Downpour, never waits: no part sends more, and one sends less"] = all(
        one.measured.messages <= one.by_formula.messages for one in never
    ) and any(one.measured.messages < one.by_formula.messages for one in never)
    for name, holds in checks.items():
        print(f"{name}: {'yes' if holds else 'NO'}")
    if not all(checks.values()):
        raise SystemExit("a claim does not hold")


if __name__ == "__main__":
    main()
