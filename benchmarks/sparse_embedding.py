"""Steps that look up 12 rows for each of 128 examples, in tables of 10,000 to 1,000,000 rows of 64 numbers.

    python -m benchmarks.sparse_embedding [--rounds N] [--rows NAME[,NAME]] [--json FILE]

The network is an embedding and a dense layer of 10 classes; each step gets other examples, and one thread.
PyTorch's has `nn.Embedding(sparse=True)`, whose table SGD, Adagrad or SparseAdam updates, while the
optimizer of the same name (Adam beside SparseAdam) updates the dense layer. A ratio is that of steps per
second. Below the table: the bytes of a push and of a fetch under Downpour, counted in a run of two replicas
whose hosts are threads, and the time of a step without `sparse`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from benchmarks._harness import Row, in_turn, options, ratios, report, row, spread
from benchmarks._machine import describe
from partita.engine import SGD, Adagrad, Downpour, Optimizer, Session, train
from partita.engine.launch import ThreadLauncher
from partita.engine.transport import Mailbox
from partita.layers import Dense, Embedding, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition

TABLES: Final = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000}
BATCH, POSITIONS, UNITS, LABELS = 128, 12, 64, 10
BATCHES: Final = 16
STEPS: Final = {True: 60, False: 4}
"""Steps of a turn, with and without `sparse`."""

OPTIMIZERS: Final[dict[str, Optimizer]] = {"SGD": SGD(0.05), "Adagrad": Adagrad(0.05)}


def plan_of(rows: int, *, sparse: bool = True) -> Plan:
    """The network on one machine."""
    net = Network("words")
    words = net.input("words", shape=POSITIONS, classes=rows)
    table = Embedding(rows, UNITS, sparse=sparse, initialiser="zeros", name="table")(words)
    net.loss = SoftmaxCrossEntropy()(Dense(LABELS, name="scores")(table), net.target("label"))
    return partition(net, Cluster.local(machines=1, threads=1), batch=BATCH)


def batches(rows: int, count: int = BATCHES) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Examples of all rows alike."""
    draw = np.random.default_rng(0)
    return [
        {
            "words": draw.integers(0, rows, (BATCH, POSITIONS)),
            "label": draw.integers(0, LABELS, (BATCH, 1)),
        }
        for _ in range(count)
    ]


def ours(rows: int, optimizer: Optimizer, *, sparse: bool = True) -> Callable[[], float]:
    """Steps per second of a session in this thread."""
    session = Session(plan_of(rows, sparse=sparse), 0, train=True, optimizer=optimizer, hosts="inline")
    given = batches(rows)
    for batch in given[:2]:
        session.step(batch)
    return lambda: steps_per_s(session.step, given, STEPS[sparse])


def theirs(rows: int, name: str) -> Callable[[], float]:
    """Steps per second of PyTorch's eager training."""
    torch.set_num_threads(1)
    table, scores = torch.nn.Embedding(rows, UNITS, sparse=True), torch.nn.Linear(POSITIONS * UNITS, LABELS)
    torch.nn.init.zeros_(table.weight)
    kinds: dict[str, tuple[Any, Any]] = {
        "SGD": (torch.optim.SGD, torch.optim.SGD),
        "Adagrad": (torch.optim.Adagrad, torch.optim.Adagrad),
        "SparseAdam": (torch.optim.SparseAdam, torch.optim.Adam),
    }
    of_table, of_scores = kinds[name]
    optimizers = [of_table(table.parameters(), lr=0.05), of_scores(scores.parameters(), lr=0.05)]

    def step(batch: dict[str, torch.Tensor]) -> None:
        for one in optimizers:
            one.zero_grad()
        found = scores(table(batch["words"]).flatten(1))
        torch.nn.functional.cross_entropy(found, batch["label"][:, 0]).backward()
        for one in optimizers:
            one.step()

    given = [{key: torch.from_numpy(array) for key, array in batch.items()} for batch in batches(rows)]
    for batch in given[:2]:
        step(batch)
    return lambda: steps_per_s(step, given, STEPS[True])


def steps_per_s(step: Callable[[Any], object], given: list[Any], steps: int) -> float:
    """Plays steps, each with the next batch."""
    began = time.perf_counter()
    for n in range(steps):
        step(given[n % len(given)])
    return steps / (time.perf_counter() - began)


class _Counted(ThreadLauncher):
    """Hosts as threads, whose messages are counted."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.boxes: list[Mailbox] = []
        make = self._network.mailbox

        def recorded(name: str, **bounds: Any) -> Mailbox:
            self.boxes.append(make(name, **bounds))
            return self.boxes[-1]

        self._network.mailbox = recorded  # type: ignore[assignment,method-assign]


def bytes_of_a_step(rows: int, *, sparse: bool, steps: int = 40) -> tuple[float, float]:
    """Bytes of a push and of a fetch of two replicas, after the first fetch, which has the whole table."""
    launchers: list[_Counted] = []

    def launcher(**arguments: object) -> _Counted:
        launchers.append(_Counted(**arguments))
        return launchers[-1]

    module = sys.modules["partita.engine.run.train"]
    real, module.ProcessLauncher = module.ProcessLauncher, launcher  # type: ignore[attr-defined]
    try:
        data = {key: np.concatenate([one[key] for one in batches(rows, steps)]) for key in ("words", "label")}
        driver = Downpour(replicas=2, optimizer=Adagrad(0.05))
        train(plan_of(rows, sparse=sparse), data, driver=driver, epochs=1, show="nothing")
    finally:
        module.ProcessLauncher = real  # type: ignore[attr-defined]
    pushed, fetched = [0, 0], [0, 0]
    for box in launchers[-1].boxes:
        for (_, kind), count in list(box.counters.sent.items()):
            for name, total in (("Push", pushed), ("Parameters", fetched)):
                if kind == name:
                    total[0] += count.messages
                    total[1] += count.payload_bytes
    first = 2 * 4 * plan_of(rows).graph.n_parameters
    return pushed[1] / max(pushed[0], 1), (fetched[1] - first) / max(fetched[0] - 2, 1)


def main() -> None:
    """Measures, prints and writes."""
    asked = options(__doc__ or "", rounds=5, rows=tuple(TABLES))
    print(describe())
    rows: list[Row] = []
    for size in asked.rows:
        variants = {f"ours {name}": ours(TABLES[size], one) for name, one in OPTIMIZERS.items()}
        variants |= {name: theirs(TABLES[size], name) for name in (*OPTIMIZERS, "SparseAdam")}
        variants["not sparse"] = ours(TABLES[size], OPTIMIZERS["Adagrad"], sparse=False)
        found = in_turn(variants, rounds=asked.rounds)
        for name in OPTIMIZERS:
            note = f"{spread(found[f'ours {name}'])} against {spread(found[name])} steps/s"
            rows.append(
                row(f"{size}, {name}", ratios(found[f"ours {name}"], found[name]), at_least=1.0, note=note)
            )
        print(
            f"{size}: SparseAdam of PyTorch {spread(found['SparseAdam'])} steps/s; ours with Adagrad", end=" "
        )
        print(f"and without sparse {spread(found['not sparse'])} steps/s")
        for sparse in (True, False) if TABLES[size] <= TABLES["100k"] else (True,):
            push, fetch = bytes_of_a_step(TABLES[size], sparse=sparse)
            print(
                f"{size}, sparse={sparse}: {push:,.0f} bytes a push, {fetch:,.0f} a later fetch", flush=True
            )
    report("Steps with a sparse embedding, 128 examples", rows, file=asked.json)


if __name__ == "__main__":
    main()
