"""Training on threads of this process: steps, intervals, resuming."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest

from partita.engine import (
    SGD,
    Adagrad,
    Adam,
    Cosine,
    Downpour,
    Run,
    Session,
    SlowNodeWarning,
    evaluate,
    train,
)
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.run.metrics import Metrics
from partita.engine.runtime.feed import Sampler
from partita.layers import OneToOne, node
from partita.partitioner import Cluster, Plan, Whole, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

ALWAYS, NEVER = 1, 10**9


def plan_of_toy(*, machines: int = 2, batch: int = 16, precision: str = "float32") -> Plan:
    return partition(
        toy.network(), Cluster.local(machines=machines), batch=batch, precision=precision, strategy="balanced"
    )


def train_toy(plan: Plan, driver: Downpour, *, epochs: int, examples: int = 256, **more: object) -> Run:
    return train(plan, toy.data(examples), driver=driver, epochs=epochs, show="nothing", **more)  # type: ignore[arg-type]


def test_between_fetches_a_replica_does_plain_sgd(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    """Resumed at a step that fetches nothing, it is alone with its own steps, and pushes each of them."""
    plan, optimizer = plan_of_toy(), SGD(0.1)
    driver = Downpour(shards=2, optimizer=optimizer, fetch_every=NEVER, push_every=ALWAYS)
    first = train_toy(plan, driver, epochs=1, checkpoints=tmp_path)
    last = train_toy(plan, driver, epochs=5, checkpoints=tmp_path, resume=True)
    assert (first.steps, last.steps) == ((16,), (80,))

    data = toy.data()
    sampler = Sampler(examples=256, batch=16, seed=0)
    with Session(plan, first.parameters, train=True, optimizer=optimizer) as session:
        for step in range(16, 80):
            chosen = sampler.indices(step)
            found = session.step(
                {name: array[chosen] for name, array in data.items()}, collect=("parameters",)
            )
    for name, expected in found.vectors["parameters"].items():
        np.testing.assert_allclose(last.parameters[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("examples", "replicas", "overlap", "steps"),
    [
        (37, 1, 1, 5),  # four minibatches of eight, and one of five
        (5, 1, 1, 1),  # fewer than a minibatch
        (33, 2, 1, 5),
        (3, 4, 2, 1),  # three replicas have nothing
        (37, 2, 3, 2),
    ],
)
def test_every_example_is_trained_on_in_every_epoch(
    on_threads: list[WatchedThreads],
    monkeypatch: pytest.MonkeyPatch,
    examples: int,
    replicas: int,
    overlap: int,
    steps: int,
) -> None:
    counted: list[int] = []
    add = Metrics.add
    monkeypatch.setattr(
        Metrics, "add", lambda meter, effect: (counted.append(effect.examples), add(meter, effect))
    )
    plan = plan_of_toy(machines=2, batch=8)
    driver = Downpour(replicas=replicas, overlap=overlap, optimizer=SGD(0.05))
    run = train_toy(plan, driver, epochs=3, examples=examples)
    assert (len(run.steps), sum(run.steps)) == (replicas, 3 * steps)
    assert sum(counted) == 3 * examples


def test_a_minibatch_that_is_not_full_is_learnt_like_one_of_its_size(
    on_threads: list[WatchedThreads],
) -> None:
    """Five examples in a plan for sixteen, and in one for five."""
    driver, data = Downpour(optimizer=SGD(0.5)), toy.data(5)
    few, many = (
        train(plan_of_toy(machines=1, batch=batch), data, driver=driver, epochs=1, show="nothing")
        for batch in (5, 16)
    )
    for name, expected in few.parameters.items():
        np.testing.assert_allclose(many.parameters[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_overlapped_minibatches_are_steps_of_their_own(
    on_threads: list[WatchedThreads], tmp_path: Path
) -> None:
    """Four minibatches in a step of a plan of two pipeline stages give the same as a session's."""
    cuts = {"hidden": Whole(0), "scores": Whole(1), "softmax_cross_entropy": Whole(1)}
    plan, optimizer = partition(toy.network(), Cluster.local(2), batch=16, cuts=cuts), SGD(0.1)
    driver = Downpour(optimizer=optimizer, fetch_every=NEVER, push_every=ALWAYS, overlap=4)
    first = train_toy(plan, driver, epochs=1, checkpoints=tmp_path)
    last = train_toy(plan, driver, epochs=4, checkpoints=tmp_path, resume=True)
    assert (first.steps, last.steps) == ((4,), (16,))
    assert last.history[-1].examples == 12 * 64

    data = toy.data()
    sampler = Sampler(examples=256, batch=16, minibatches=4, seed=0)
    with Session(plan, first.parameters, train=True, optimizer=optimizer, overlap=4) as session:
        for step in range(4, 16):
            chosen = sampler.indices(step)
            found = session.step(
                {name: array[chosen] for name, array in data.items()}, collect=("parameters",)
            )
    for name, expected in found.vectors["parameters"].items():
        np.testing.assert_allclose(last.parameters[name], expected, rtol=2e-5, atol=2e-6, err_msg=name)
    plain = train_toy(plan, Downpour(optimizer=optimizer), epochs=5, checkpoints=tmp_path, resume=True)
    assert plain.steps == (80,), "an epoch done in overlapped steps is an epoch"


def test_what_overlap_delays_counts_as_staleness(
    on_threads: list[WatchedThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two machines is 0, 1, 1, 1 updates late, the other never; the rest are whole pushes."""
    reports: list[Progress] = []
    add = Metrics.add
    monkeypatch.setattr(Metrics, "add", lambda meter, report: (reports.append(report), add(meter, report)))
    cuts = {"hidden": Whole(0), "scores": Whole(1), "softmax_cross_entropy": Whole(1)}
    plan = partition(toy.network(), Cluster.local(2), batch=16, cuts=cuts)
    train_toy(plan, Downpour(overlap=4), epochs=8)
    for progress in reports:
        late = 3 / 4 if progress.source == "part 0.0" else 0.0
        rest = progress.counters["staleness"] - late * progress.counters["pushes"]
        assert rest >= 0 and rest == int(rest), progress
    assert {progress.source for progress in reports if progress.counters["pushes"]} == {
        "part 0.0",
        "part 0.1",
    }


@pytest.mark.parametrize(("fetch_every", "push_every"), [(NEVER, NEVER), (8, 4), (1, 1)])
def test_the_intervals_are_kept(on_threads: list[WatchedThreads], fetch_every: int, push_every: int) -> None:
    """One fetch before the first step. An answer that is late makes the next ones fewer, never more."""
    driver = Downpour(
        replicas=2, shards=1, optimizer=SGD(0.1), fetch_every=fetch_every, push_every=push_every
    )
    run = train_toy(plan_of_toy(), driver, epochs=6)
    counters = on_threads[0].boxes["shard 0"].counters
    for replica, steps in enumerate(run.steps):
        part = f"part {replica}.0"
        assert 1 <= counters.received[part, "Fetch"].messages <= 1 + -(-steps // fetch_every)
        assert (steps > 0) <= counters.received[part, "Push"].messages <= -(-steps // push_every)
        assert counters.sent[part, "PushAck"].messages == counters.received[part, "Push"].messages


def test_replicas_learn_together_and_say_how(on_threads: list[WatchedThreads]) -> None:
    run = train_toy(plan_of_toy(), Downpour(replicas=2, shards=3, optimizer=Adagrad(0.1)), epochs=20)
    assert sum(run.steps) == 320 and min(run.steps) > 0 and run.lost_pushes == 0 and run.checkpoint is None
    assert evaluate(run, toy.data()).accuracy > 0.9
    assert run.history[-1].examples == 2 * 160 * 16
    assert not any(moment.metrics for moment in run.history), "one loss, and no metrics were asked for"
    numbers = [dataclasses.astuple(dataclasses.replace(moment, metrics=0.0)) for moment in run.history]  # type: ignore[type-var]
    assert np.isfinite(numbers).all()


def test_a_complete_run_has_nothing_left_to_do(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    driver = Downpour(replicas=2, optimizer=SGD(0.1))
    done = train_toy(plan_of_toy(), driver, epochs=2, checkpoints=tmp_path)
    again = train_toy(plan_of_toy(), driver, epochs=2, checkpoints=tmp_path, resume=True)
    assert sum(again.steps) == sum(done.steps) == 32
    assert all((again.parameters[name] == values).all() for name, values in done.parameters.items())
    assert not on_threads[1].boxes, "there was no work, and hosts were started"


@pytest.mark.parametrize(("epochs", "batch", "total"), [(2, 16, 32), (1, 16, 16), (2, 64, 8)])
def test_a_run_without_anything_to_do_says_so(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    epochs: int,
    batch: int,
    total: int,
) -> None:
    train_toy(plan_of_toy(), Downpour(), epochs=2, checkpoints=tmp_path)
    plan = plan_of_toy(batch=batch)
    train(plan, toy.data(), driver=Downpour(), epochs=epochs, checkpoints=tmp_path, resume=True, show="lines")
    said = capsys.readouterr().err
    assert f"the checkpoint has all {total} steps already; ask for more epochs" in said


def test_another_plan_goes_on_from_a_checkpoint(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    driver = Downpour(replicas=2, shards=2, optimizer=Adagrad(0.1))
    train_toy(plan_of_toy(machines=2), driver, epochs=4, checkpoints=tmp_path)
    other = dataclasses.replace(driver, replicas=1, shards=5)
    run = train_toy(plan_of_toy(machines=3), other, epochs=6, checkpoints=tmp_path, resume=True)
    assert run.steps == (96,)
    newest = Checkpoints(tmp_path).latest({name: values.shape for name, values in run.parameters.items()})
    assert newest is not None
    assert (len(newest.manifest.entries), newest.state_names) == (5, ("sum",))


def test_a_schedule_goes_on_from_a_checkpoint(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    def updates(run: Run) -> list[int]:
        newest = Checkpoints(tmp_path).latest({name: array.shape for name, array in run.parameters.items()})
        assert newest is not None
        return [record.updates for record in newest.records.values()]

    driver = Downpour(replicas=2, shards=2, optimizer=Adam(Cosine(0.01, 1000)))
    before = updates(train_toy(plan_of_toy(machines=2), driver, epochs=2, checkpoints=tmp_path))
    assert min(before) > 0 and max(before) <= 2 * 16
    other = dataclasses.replace(driver, replicas=1, shards=1)
    run = train_toy(plan_of_toy(machines=1), other, epochs=4, checkpoints=tmp_path, resume=True)
    (after,) = updates(run)
    assert max(before) < after <= max(before) + 32
    assert evaluate(run, toy.data()).accuracy > 0.5


@pytest.mark.parametrize(("before", "after"), [("float32", "float64"), ("float64", "float32")])
def test_another_precision_goes_on_from_a_checkpoint(
    on_threads: list[WatchedThreads], tmp_path: Path, before: str, after: str
) -> None:
    driver = Downpour(optimizer=Adagrad(0.1))
    train_toy(plan_of_toy(precision=before), driver, epochs=1, checkpoints=tmp_path)
    run = train_toy(plan_of_toy(precision=after), driver, epochs=2, checkpoints=tmp_path, resume=True)
    assert run.steps == (32,) and {values.dtype for values in run.parameters.values()} == {np.dtype(after)}


@pytest.mark.parametrize(
    ("batch", "examples", "replicas", "begins", "ends"),
    [(16, 256, 1, 32, 48), (64, 256, 1, 8, 12), (8, 256, 2, 32, 48), (16, 128, 1, 16, 24)],
)
def test_epochs_stay_epochs_when_the_batch_or_the_data_changes(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    batch: int,
    examples: int,
    replicas: int,
    begins: int,
    ends: int,
) -> None:
    train_toy(plan_of_toy(), Downpour(), epochs=2, checkpoints=tmp_path)
    other, driver = plan_of_toy(batch=batch), Downpour(replicas=replicas)
    data = toy.data(examples)
    run = train(other, data, driver=driver, epochs=3, checkpoints=tmp_path, resume=True, show="lines")
    said = capsys.readouterr().err
    assert f"resumed from checkpoint 1 at step {begins * replicas}" in said
    assert sum(run.steps) == ends * replicas


def test_first_parameters_may_be_given(on_threads: list[WatchedThreads], tmp_path: Path) -> None:
    driver, plan = Downpour(optimizer=SGD(1e-30)), plan_of_toy()
    drawn = train_toy(plan, driver, epochs=1, seed=3).parameters
    path = Run(plan, drawn).save(tmp_path / "drawn.safetensors")
    for initial in (drawn, path):
        found = train_toy(plan, driver, epochs=1, initial=initial).parameters
        assert all(np.allclose(found[name], values, atol=1e-25) for name, values in drawn.items())
    with pytest.raises(ValueError, match=r"the initial parameters do not fit the network: .*hidden\.weight"):
        train_toy(plan, driver, epochs=1, initial={n: v for n, v in drawn.items() if n != "hidden.weight"})


def test_a_function_that_cannot_travel_is_named(on_threads: list[WatchedThreads]) -> None:
    lock = threading.Lock()

    def locked(incoming):  # type: ignore[no-untyped-def]
        with lock:
            return incoming[0]

    plan = partition(
        toy.with_node(node(OneToOne())(locked)), Cluster.local(machines=1), batch=16, strategy="balanced"
    )
    message = r"cannot be sent to its hosts \(cannot pickle '_thread.lock' object\)"
    with pytest.warns(SlowNodeWarning, match="with lock:"), pytest.raises(ValueError, match=message):
        train_toy(plan, Downpour(), epochs=1)
