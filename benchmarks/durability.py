"""The cost of each durability: Downpour steps with push and fetch, a small network and one of 42M parameters;
iterations of Sandblaster ("digits batch").

    python -m benchmarks.durability [--rounds N] [--rows NAME[,NAME]] [--json FILE]

Two replicas of one machine each, so that a fetch brings what another one has pushed, and two shards with
Adagrad, each a process; in a round each mode has a run of its own. Steps of both replicas are counted from
the first ones, which are not, to the last; the checkpoint at the end is not in them. In each step a replica
pushes, waits until that is acknowledged, and fetches; with "ahead" it goes on meanwhile, as Downpour does.
Then "pushes" of a step are fewer than 1 where a shard acknowledges more slowly than steps are computed: a
replica adds up gradients until it can push again. "On cores" is for how long all processes were on a core in
a step, which other load hardly changes. "Memory" is that of the shards and of what keeps their records
(proportional set size: shared pages count once), after the last step.

Bytes are counted, not measured, in a run whose hosts are threads: payloads that hosts send each other, and
what is written to files, between the same steps. Hosts of one machine share payloads in memory; between
machines these are the bytes on the wire.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import psutil

from benchmarks._harness import (
    Row,
    in_turn,
    options,
    print_table,
    ratios,
    readable_seconds,
    report,
    row,
    spread,
)
from benchmarks._machine import describe
from benchmarks._networks import speech
from benchmarks._rounds import Rounds
from benchmarks._slowed import on_core_s
from examples import digits
from partita.engine import LBFGS, Adagrad, Downpour, Sandblaster, train
from partita.engine.drivers import Driver
from partita.engine.launch import ThreadLauncher
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.actions import Compute, Drain, Install, Program, Pull, Room
from partita.engine.protocol.durability import Durability, Log, durability_of
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.run.metrics import Record
from partita.engine.transport import Mailbox
from partita.layers import Network
from partita.partitioner import Cluster, Plan, partition

REPLICAS: Final = 2
SHARDS: Final = 2
MODES: Final[dict[str, str | Durability]] = {
    "checkpoint": "checkpoint",
    "replicated": "replicated",
    "log, sync disk": Log(sync="disk"),
    "log, sync process": Log(sync="process"),
}
ITERATIONS: Final = 50
LEAST: Final = 1 / 1.3
"""The aim for `replicated`: a step takes at most 30% more."""


@dataclass(frozen=True)
class StepByStep(Downpour):
    """Downpour whose steps wait until a push is acknowledged, and fetch what it led to."""

    def replica(self, me: HasSteps) -> Program:
        """Each step as the one before it."""
        yield Pull()
        for step in me.steps():
            yield Room(self.run_ahead)
            yield Install()
            yield Compute(step)
            yield Drain()
            yield Pull()


def batch_method(replicas: int, shards: int, *, optimizer: object, durability: Any) -> Sandblaster:
    """Returns the driver whose steps are iterations of L-BFGS, and whose pushes are records of a shard."""
    method = LBFGS(max_iterations=ITERATIONS, ftol=0.0, gtol=0.0)
    return Sandblaster(method, replicas=replicas, shards=shards, inline="none", durability=durability)


@dataclass(frozen=True)
class Work:
    """A network to train.

    Args:
        network: declares it.
        data: makes its examples.
        batch: examples of a step.
        skipped, steps: how many are not counted, and all.
        driver: whose replicas train it.
    """

    network: Callable[[], Network]
    data: Callable[[], dict[str, np.ndarray]]
    batch: int
    skipped: int
    steps: int
    driver: Callable[..., Driver] = StepByStep

    def plan(self) -> Plan:
        """One replica of one machine."""
        return partition(self.network(), Cluster.local(1), batch=self.batch)


def frames() -> dict[str, np.ndarray]:
    """Examples of the speech network."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 8192, 256)
    return {"frames": draw.normal(size=(256, 440)).astype(np.float32), "label": labels}


WORKS: Final = {
    "digits": Work(digits.network, lambda: digits.data()[0], 32, 200, 1800),
    "digits ahead": Work(digits.network, lambda: digits.data()[0], 32, 200, 3600, Downpour),
    "digits batch": Work(
        digits.network, lambda: digits.data()[0], 32, ITERATIONS // 5, ITERATIONS, batch_method
    ),
    "42M": Work(speech, frames, 32, 2, 8),
}


@dataclass
class Turn:
    """The figures of one run.

    Attributes:
        steps_per_s: of the counted steps.
        on_cores_s: seconds for which all processes were on a core, of a step.
        pushes: of a step.
        memory: bytes of the shards and of what keeps their records.
    """

    steps_per_s: float = 0.0
    on_cores_s: float = 0.0
    pushes: float = 0.0
    memory: int = 0


@dataclass
class Mode:
    """A mode of durability, and its figures."""

    setting: str | Durability
    turns: list[Turn] = field(default_factory=list)
    sent: float = 0.0
    written: float = 0.0


def main() -> None:
    """Measures and reports."""
    asked = options(__doc__ or "", rounds=3, rows=tuple(WORKS))
    print(describe(), flush=True)
    report(
        "durability", [one for name in asked.rows for one in compared(name, asked.rounds)], file=asked.json
    )


def compared(name: str, rounds: Rounds) -> list[Row]:
    """Measures a network with every mode that there is."""
    work, modes = WORKS[name], {what: Mode(setting) for what, setting in MODES.items() if exists(setting)}
    measured = in_turn({what: partial(timed, work, mode) for what, mode in modes.items()}, rounds=rounds)
    for mode in modes.values():
        mode.sent, mode.written = counted(work, mode)
    alone = measured["checkpoint"]
    lines = [
        (
            what,
            spread(measured[what], digits=2),
            spread(ratios(measured[what], alone), digits=2),
            readable_seconds([turn.on_cores_s for turn in mode.turns]),
            f"{statistics.median(turn.pushes for turn in mode.turns):.2f}",
            readable_bytes(mode.sent),
            readable_bytes(mode.written),
            readable_bytes(statistics.median(turn.memory for turn in mode.turns)),
        )
        for what, mode in modes.items()
    ]
    heads = ("mode", "steps/s", "ratio", "on cores", "pushes", "sent", "written", "memory")
    size = sum(math.prod(one.shape) for one in work.plan().graph.parameters.values())
    print_table(f"{name}: {size:,} parameters", heads, lines)
    return [
        row(
            f"{name}: {what} over checkpoint, steps per second",
            ratios(measured[what], alone),
            at_least=LEAST if what == "replicated" and work.driver is not batch_method else 0.0,
            note=f"{spread(measured[what], digits=2)} steps/s",
        )
        for what in modes
        if what != "checkpoint"
    ]


def exists(setting: str | Durability) -> bool:
    """Returns whether this version has a mode; prints why not."""
    try:
        durability_of(setting)
    except ValueError as error:
        print(f"no row: {error}", flush=True)
        return False
    return True


def played(work: Work, mode: Mode, on_step: Callable[[int], object]) -> float:
    """Trains so many steps; returns the pushes of a step."""
    setting: Any = mode.setting
    driver = work.driver(REPLICAS, SHARDS, optimizer=Adagrad(0.01), durability=setting)
    data, plan, done = work.data(), work.plan(), [0] * REPLICAS

    def on_record(record: Record) -> None:
        done[record.replica or 0] = record.step
        on_step(sum(done))

    examples = len(next(iter(data.values())))
    epochs = None if driver.evaluates else -(-work.steps // -(-examples // work.batch))
    with tempfile.TemporaryDirectory() as folder:
        train(
            plan,
            data,
            driver=driver,
            epochs=epochs,
            show="nothing",
            checkpoints=folder,
            checkpoint_every_s=3600.0,
            on_record=on_record,
        )
        found = Checkpoints(folder).latest({name: p.shape for name, p in plan.graph.parameters.items()})
    assert found is not None
    return statistics.mean(one.version for one in found.records.values()) / sum(found.manifest.steps)


def timed(work: Work, mode: Mode) -> float:
    """Steps per second of a run over processes."""
    turn = Turn()
    marks: list[tuple[int, float, float]] = []

    def on_step(step: int) -> None:
        if len(marks) < 2 and step >= (work.steps if marks else work.skipped):
            marks.append((step, time.perf_counter(), busy_s()))
        if step >= work.steps and not turn.memory:
            turn.memory = memory_of_shards()

    turn.pushes = played(work, mode, on_step)
    (first, began_s, busy_before_s), (last, ended_s, busy_after_s) = marks
    turn.steps_per_s = (last - first) / (ended_s - began_s)
    turn.on_cores_s = (busy_after_s - busy_before_s) / (last - first)
    mode.turns.append(turn)
    return turn.steps_per_s


def busy_s() -> float:
    """Seconds for which this process and all hosts have been on a core."""
    return sum(on_core_s(pid) for pid in (os.getpid(), *(one.pid for one in hosts())))


def hosts() -> list[psutil.Process]:
    """The processes of the run."""
    return psutil.Process().children(recursive=True)


def memory_of_shards() -> int:
    """Bytes of the processes of shards and their keepers."""
    total = 0
    for child in hosts():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if child.name().startswith(("shard ", "backup ")):
                total += child.memory_full_info().pss
    return total


class Counted(ThreadLauncher):
    """Hosts as threads, whose messages are counted."""

    def __init__(self, **_: object) -> None:
        super().__init__()
        self.boxes: list[Mailbox] = []
        make = self._network.mailbox

        def recorded(name: str, **bounds: Any) -> Mailbox:
            self.boxes.append(make(name, **bounds))
            return self.boxes[-1]

        self._network.mailbox = recorded  # type: ignore[assignment,method-assign]

    @property
    def sent(self) -> int:
        """Bytes of all payloads so far."""
        return sum(count.payload_bytes for box in self.boxes for count in list(box.counters.sent.values()))


def counted(work: Work, mode: Mode) -> tuple[float, float]:
    """Bytes that a step sends, and that it writes to files, of a run over threads, of fewer steps."""
    work = replace(work, steps=work.skipped + max(2, (work.steps - work.skipped) // 8))
    launchers: list[Counted] = []
    marks: list[tuple[int, int, int]] = []

    def launcher(**arguments: object) -> Counted:
        launchers.append(Counted(**arguments))
        return launchers[-1]

    module = sys.modules["partita.engine.run.train"]
    real, module.ProcessLauncher = module.ProcessLauncher, launcher  # type: ignore[attr-defined]
    try:
        with writes_counted() as written:
            played(work, mode, lambda step: marks.append((step, launchers[-1].sent, written())))
    finally:
        module.ProcessLauncher = real  # type: ignore[attr-defined]
    first, last = (next(mark for mark in marks if mark[0] >= n) for n in (work.skipped, work.steps))
    steps = last[0] - first[0]
    return (last[1] - first[1]) / steps, (last[2] - first[2]) / steps


@contextlib.contextmanager
def writes_counted() -> Iterator[Callable[[], int]]:
    """Counts the bytes that this process writes to plain files."""
    names = ("write", "writev", "pwrite", "pwritev")
    real, total = {name: getattr(os, name) for name in names}, [0]

    def call(name: str, descriptor: int, *arguments: Any) -> int:
        n_bytes: int = real[name](descriptor, *arguments)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            total[0] += n_bytes
        return n_bytes

    for name in names:
        setattr(os, name, partial(call, name))
    try:
        yield lambda: total[0]
    finally:
        for name in names:
            setattr(os, name, real[name])


def readable_bytes(n: float) -> str:
    """Writes a number with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1000 or unit == "GiB":
            return f"{n:.3g} {unit}"
        n /= 1024
    raise AssertionError(n)


if __name__ == "__main__":
    main()
