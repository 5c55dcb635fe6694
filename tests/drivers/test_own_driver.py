"""Drivers that are not ours on the machines of the frame: steps, checkpoints, resuming, the history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from partita.engine import (
    SGD,
    Adagrad,
    AllReduce,
    Downpour,
    Optimizer,
    Ring,
    Run,
    RunFailed,
    Tree,
    evaluate,
    train,
)
from partita.engine.drivers import Driver
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.actions import AllReduce as Sum
from partita.engine.protocol.actions import (
    Apply,
    Checkpoint,
    Compute,
    Drain,
    Install,
    Plan,
    Program,
    Pull,
    Push,
    Room,
    SafePoint,
    Work,
)
from partita.engine.protocol.commands import Evaluate, Iterated, Outcome, Segment, axpy, copy, dot
from partita.engine.protocol.leased_work import HasSteps
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
class Shared(Driver):
    """Replicas on their own against shards, a checkpoint after each epoch."""

    replicas: int = 1
    shards: int = 2
    optimizer: Optimizer = field(default=SGD(0.05))

    def coordinator(self, run: Outline) -> Plan:
        for _ in range(run.epochs):
            yield Work(epochs=1)
            number = yield Checkpoint()
            assert number >= 1

    def replica(self, me: HasSteps) -> Program:
        yield Pull()
        for step in me.steps():
            yield Room(ahead=8)
            yield Install()
            yield Compute(step)
            yield Push()
            yield Pull()
        yield Drain()


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_driver_of_ones_own_with_shards(tmp_path: Path, on_threads: object, replicas: int) -> None:
    """Each epoch is done by all before the next begins, and its state is on disk; a run goes on from it."""
    plan, data, driver = plan_of(2), toy.data(128), Shared(replicas=replicas, optimizer=Adagrad(0.2))
    train(plan, data, driver=driver, epochs=6, checkpoints=tmp_path, show="nothing")
    run = train(plan, data, driver=driver, epochs=12, checkpoints=tmp_path, resume=True, show="nothing")
    assert sum(run.steps) == 12 * 16
    assert evaluate(run, data).accuracy > 0.9


def test_a_run_that_goes_on_counts_what_was_lost_before(tmp_path: Path, on_threads: object) -> None:
    plan, data = plan_of(1), toy.data(64)
    train(plan, data, driver=Shared(), epochs=1, checkpoints=tmp_path, show="nothing")
    store = Checkpoints(tmp_path)
    shapes = {name: one.shape for name, one in plan.graph.parameters.items()}
    (newest, *_) = store.complete()
    manifest = store.open(newest, shapes).manifest
    Checkpoints(tmp_path, run=manifest.run).commit(msgspec.structs.replace(manifest, lost=3))
    run = train(plan, data, driver=Shared(), epochs=2, checkpoints=tmp_path, resume=True, show="nothing")
    assert (store.open(store.complete()[0], shapes).manifest.lost, run.lost_pushes) == (3, 0)


def test_one_replica_with_shards_of_ones_own_is_sequential(on_threads: object) -> None:
    """As Downpour is: what is pushed is applied once, and in order."""
    plan, data = plan_of(1), toy.data(64)
    ours = train(plan, data, driver=Downpour(optimizer=SGD(0.2)), epochs=3, show="nothing")
    theirs = train(plan, data, driver=Shared(optimizer=SGD(0.2)), epochs=3, show="nothing")
    assert_close(ours, theirs)


@dataclass(frozen=True)
class Halving(Driver):
    """Gradient descent that halves its step where the loss has grown: requests over shards, and no Method."""

    replicas: int = 1
    shards: int = 2
    rate: float = 4.0
    max_iterations: int = 30

    evaluates = True
    ends = "it has max_iterations"

    def replica(self, me: HasSteps) -> Program:
        yield Pull()
        for unit in me.steps():
            yield Room()
            yield Install()
            yield Compute(unit)
            yield Push()

    def coordinator(self, run: Outline) -> Plan:
        objective = self.objective(plan_batch=run.batch, examples=run.examples)
        everything = Evaluate((Segment("g", 0, objective.portions.per_epoch),))
        scale = objective.portions.size / run.examples
        sums = yield (everything, dot("g", "g"))
        loss, rate = sums[0], self.rate
        for n in range(self.max_iterations):
            sums = yield (copy("before", "x"), copy("old", "g"), axpy("x", -rate * scale, "g"), everything)
            if sums[0] > loss:
                rate /= 2
                yield (copy("x", "before"), copy("g", "old"))
            else:
                loss = sums[0]
            yield Iterated(n + 1, loss / run.examples, 0.0, rate, n + 2)
        return Outcome("stopped", "all iterations are done")


def test_requests_of_ones_own_over_shards(tmp_path: Path, on_threads: object) -> None:
    """The same bits with any number of replicas, and after a run that was left off and resumed."""
    plan, data = plan_of(2), toy.data(128)
    one = train(plan, data, driver=Halving(), show="nothing")
    driver = Halving(replicas=2)
    train(plan, data, driver=replace(driver, max_iterations=11), checkpoints=tmp_path, show="nothing")
    two = train(plan, data, driver=driver, checkpoints=tmp_path, resume=True, show="nothing")
    assert (one.iterations, two.iterations) == (30, 30)
    for name, numbers in one.parameters.items():
        np.testing.assert_array_equal(two.parameters[name], numbers, err_msg=name)
    assert evaluate(two, data).accuracy > 0.9


@dataclass(frozen=True)
class Confused(Shared):
    """Has replicas that do steps, and asks for vectors."""

    def coordinator(self, run: Outline) -> Plan:
        yield (dot("x", "x"),)


@dataclass(frozen=True)
class Lazy(Halving):
    """Has replicas that evaluate, and yields work for them."""

    def coordinator(self, run: Outline) -> Plan:
        yield Work(examples=8)


@pytest.mark.parametrize(
    ("driver", "epochs", "sentence"),
    [
        (Confused(), 1, "the replicas do steps; yield Work or Checkpoint"),
        (Lazy(), None, r"the replicas evaluate; yield requests on vectors, or leave out"),
    ],
)
def test_an_action_that_replicas_cannot_do_is_one_sentence(
    driver: Driver, epochs: int | None, sentence: str, on_threads: object
) -> None:
    with pytest.raises(ValueError, match=sentence):
        train(plan_of(1), toy.data(), driver=driver, epochs=epochs, show="nothing")


@dataclass(frozen=True)
class Stumbling(Synchronous):
    """Divides by zero after the first epoch."""

    def coordinator(self, run: Outline) -> Plan:
        yield Work(epochs=1)
        yield Work(epochs=1 // (run.epochs - 2))


def test_an_error_in_a_program_of_the_coordinator_is_shown_with_its_lines(on_threads: object) -> None:
    with pytest.raises(RunFailed, match=r"coordinator\(run\) failed: ZeroDivisionError") as failure:
        train(plan_of(1), toy.data(), driver=Stumbling(), epochs=2, show="nothing")
    assert "test_own_driver.py" in "".join(failure.value.__notes__)


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


@dataclass(frozen=True)
class Interrupted(Synchronous):
    """Ends after two thirds of an epoch."""

    def coordinator(self, run: Outline) -> Plan:
        yield Work(examples=64)


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_a_run_goes_on_in_mid_epoch_with_other_replicas(
    replicas: int, tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    """The examples of an epoch are each done once: as many as are left, by whoever does them."""
    plan, data = plan_of(1), toy.data(96)
    train(plan, data, driver=Interrupted(replicas=2), epochs=1, checkpoints=tmp_path, show="nothing")
    done: list[int] = []
    driver = AllReduce(replicas=replicas)
    train(
        plan,
        data,
        driver=driver,
        epochs=2,
        checkpoints=tmp_path,
        resume=True,
        show="nothing",
        on_record=lambda record: done.append(record.examples),
    )
    assert sum(done) == 32 + 96
