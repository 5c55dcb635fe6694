"""Elastic runs with real processes: replicas that come late, leave for good, or come back."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Downpour, GradientDescent, Run, Sandblaster, evaluate, train
from partita.engine.launch.processes import ProcessLauncher
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.coordinator_effects import Progress, Timeouts
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness, hosts_of

EPOCHS = 200
STEPS = EPOCHS * 32
DRIVER = Downpour(elastic=(1, 2), shards=2, optimizer=SGD(0.05))


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Hosts whose first message is not accepted: they say Hello again and again."""
    closed: set[str] = set()
    reach = ProcessLauncher.reach

    def reach_if_open(self: ProcessLauncher, name: str, incarnation: int, endpoint: str) -> None:
        if name in closed:
            raise ValueError("it comes too early")
        reach(self, name, incarnation, endpoint)

    monkeypatch.setattr(ProcessLauncher, "reach", reach_if_open)
    return closed


def train_toy(folder: Path) -> Run:
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    return train(plan, toy.data(), driver=DRIVER, epochs=EPOCHS, checkpoints=folder, checkpoint_every_s=0.5)


def assert_complete(run: Run, folder: Path) -> None:
    """Every unit was done once, and what the run says adds up."""
    newest = Checkpoints(folder).latest({name: values.shape for name, values in run.parameters.items()})
    assert newest is not None
    assert newest.manifest.done == ((0, STEPS),)
    assert newest.manifest.steps == run.steps and sum(run.steps) == STEPS
    assert run.lost_pushes == 0
    assert evaluate(run, toy.data()).accuracy > 0.9


def kill(name: str) -> None:
    hosts_of(os.getpid())[name].kill()


@pytest.mark.slow
def test_it_begins_with_the_least_one_joins_and_one_leaves_for_good(
    witness: Witness, doors: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = partial(Timeouts, deaths=1, wave_s=3600.0)
    monkeypatch.setattr(sys.modules["partita.engine.run.train"], "Timeouts", settings)
    doors.add("part 1.1")

    def is_at_work(progress: Progress, *, part: str) -> bool:
        return progress.source == part and progress.step > 50

    opened: list[int] = []  # how much the run had said before the second replica was let in

    def open_doors() -> None:
        opened.append(len(witness.seen))
        doors.clear()

    witness.when(partial(is_at_work, part="part 0.0"), open_doors)
    witness.when(partial(is_at_work, part="part 1.0"), partial(kill, "part 0.1"))
    run = train_toy(tmp_path)
    assert_complete(run, tmp_path)
    assert min(run.steps) > 0
    alone = witness.index("view 1: replica 0; replica 1 joins when it is ready")
    both = witness.index("view 2: replicas 0, 1")
    left = witness.index("which goes on with replica 1; it is tried again in 600 s")
    other = witness.index("view 3: replica 1")
    assert alone < both < left < other
    assert not witness.reports("part 1.0", stop=opened[0]), "it was not there"
    assert not witness.reports("part 0.0", start=other)
    assert witness.reports("part 1.0", start=other), "the run went on"


@pytest.mark.slow
def test_one_that_has_left_comes_back(
    witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = partial(Timeouts, deaths=1, wave_s=0.3)
    monkeypatch.setattr(sys.modules["partita.engine.run.train"], "Timeouts", settings)
    witness.when(
        lambda progress: progress.source == "part 1.0" and progress.step > 50, partial(kill, "part 1.0")
    )
    run = train_toy(tmp_path)
    assert_complete(run, tmp_path)
    left = witness.index("replica 1 leaves the run, which goes on with replica 0")
    again = witness.index("replica 1 is started again, to join the run")
    back = witness.index("replica 1 begins again at step")
    assert left < again < back
    assert witness.reports("part 1.1", start=back)


@pytest.mark.slow
def test_a_batch_method_has_the_same_bits_when_one_joins_and_one_leaves_for_good(
    witness: Witness, doors: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    method = GradientDescent(max_iterations=800, ftol=0)
    straight = train(plan, toy.data(), driver=Sandblaster(method, shards=2), show="nothing")
    settings = partial(Timeouts, deaths=1, wave_s=3600.0)
    monkeypatch.setattr(sys.modules["partita.engine.run.train"], "Timeouts", settings)
    doors.add("part 1.1")
    witness.when_done(5, doors.clear)
    both = "view 2: replicas 0, 1"
    witness.when(lambda progress: any(both in str(seen) for seen in witness.seen), partial(kill, "part 0.1"))
    run = train(plan, toy.data(), driver=Sandblaster(method, elastic=(1, 2), shards=2))
    alone = witness.index("view 1: replica 0; replica 1 joins when it is ready")
    left = witness.index("which goes on with replica 1")
    assert alone < witness.index(both) < left
    assert run.outcome == straight.outcome
    for name, values in straight.parameters.items():
        assert np.array_equal(run.parameters[name], values), name
