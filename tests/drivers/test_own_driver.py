"""Drivers that are not ours on the machines of the frame: steps, checkpoints, resuming, the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, AllReduce, Optimizer, Ring, Run, RunFailed, Tree, evaluate, train
from partita.engine.drivers import Driver
from partita.engine.protocol.actions import AllReduce as Sum
from partita.engine.protocol.actions import Apply, Checkpoint, Compute, Plan, Program, SafePoint, Work
from partita.engine.protocol.views import Member, Outline
from partita.partitioner import Cluster, partition
from partita.partitioner import Plan as Cut
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy


@dataclass(frozen=True)
class Synchronous(Driver):
    """Sums by a tree, a checkpoint after each epoch."""

    replicas: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))

    def coordinator(self, run: Outline) -> Plan:
        for _ in range(run.epochs):
            yield Work(epochs=1)
            yield Checkpoint()

    def replica(self, me: Member) -> Program:
        for step in me.steps():
            yield Compute(step)
            yield Sum("gradient", by=Tree())
            yield Apply(self.optimizer)
            yield SafePoint()


@dataclass(frozen=True)
class LocalSGD(Driver):
    """Some steps of each replica alone, then the mean of the parameters."""

    replicas: int = 1
    optimizer: Optimizer = field(default=SGD(0.05))
    local_steps: int = 4

    def replica(self, me: Member) -> Program:
        for step in me.steps():
            yield Compute(step, alone=True)
            yield Apply(self.optimizer)
            yield SafePoint()
            if (step + 1) % self.local_steps == 0 or me.is_last:
                yield Sum("parameters", by=Ring(), mean=True)
                yield SafePoint()


def plan_of(machines: int) -> Cut:
    return partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")


def assert_close(one: Run, other: Run) -> None:
    for name, numbers in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], numbers, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_driver_of_a_users_own_is_like_any_other(tmp_path: Path, on_threads: object) -> None:
    """Steps, checkpoints, resuming and the history; the same numbers as with our own driver."""
    plan, data = plan_of(2), toy.data(100)
    ours = train(plan, data, driver=AllReduce(replicas=3, optimizer=Adagrad(0.1)), epochs=4, show="nothing")
    driver = Synchronous(replicas=3, optimizer=Adagrad(0.1))
    train(plan, data, driver=driver, epochs=2, checkpoints=tmp_path, show="nothing")
    theirs = train(plan, data, driver=driver, epochs=4, checkpoints=tmp_path, resume=True, show="nothing")
    assert_close(ours, theirs)
    assert theirs.steps == ours.steps == (20, 20, 20)


@pytest.mark.parametrize("machines", [1, 2])
def test_local_steps_of_one_are_synchronous(machines: int, on_threads: object) -> None:
    """The mean of parameters that each took a step is one step by the mean gradient: SGD is linear."""
    plan, data = plan_of(machines), toy.data(96)
    ours = train(plan, data, driver=AllReduce(replicas=2, optimizer=SGD(0.2)), epochs=3, show="nothing")
    local = LocalSGD(replicas=2, optimizer=SGD(0.2), local_steps=1)
    assert_close(ours, train(plan, data, driver=local, epochs=3, show="nothing"))


def test_local_steps_learn_with_fewer_exchanges(on_threads: list[WatchedThreads]) -> None:
    local = LocalSGD(replicas=2, optimizer=Adagrad(0.2), local_steps=4)
    run = train(plan_of(1), toy.data(256), driver=local, epochs=15, show="nothing")
    assert evaluate(run, toy.data(256)).accuracy > 0.9
    counters = on_threads[0].boxes["part 0.0"].counters
    steps = run.steps[0]
    assert counters.sent_of("FinalChunk").messages == steps // 4


@dataclass(frozen=True)
class Faulty(Synchronous):
    """Divides by zero at the third step."""

    def replica(self, me: Member) -> Program:
        for step in me.steps():
            yield Compute(step // (2 - step))
            yield SafePoint()


def test_an_error_in_a_drivers_program_is_shown_with_its_lines(on_threads: list[WatchedThreads]) -> None:
    with pytest.raises(RunFailed, match="ZeroDivisionError") as failure:
        train(plan_of(2), toy.data(), driver=Faulty(replicas=2), epochs=3, show="nothing")
    assert "test_own_driver.py" in "".join(failure.value.__notes__)


def test_what_a_driver_of_ones_own_lacks_is_one_sentence() -> None:
    class Empty(Driver):
        replicas = 1

    class Alone(Driver):
        optimizer: Optimizer = SGD(0.05)

    class Idle(Empty, Alone):
        pass

    for kind, lacks in (
        (Empty, "has no 'optimizer'"),
        (Alone, "has no 'replicas'"),
        (Idle, "has no program"),
    ):
        with pytest.raises(ValueError, match=f"the driver {kind.__name__} {lacks}; "):
            train(plan_of(1), toy.data(), driver=kind(), epochs=1, show="nothing")
