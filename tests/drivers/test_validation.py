"""Validations during a run: the figures of `evaluate`, at stops that change no step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import (
    LBFGS,
    Adagrad,
    AllReduce,
    Callback,
    Control,
    Downpour,
    Record,
    Run,
    Sandblaster,
    TopK,
    evaluate,
    train,
)
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.paced import Pacing
from partita.engine.protocol.actions import Decision, Validate, Work
from partita.engine.protocol.views import Outline
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

DRIVERS = [
    Downpour(replicas=2, shards=2),
    AllReduce(replicas=2),
    Sandblaster(LBFGS(max_iterations=3), replicas=2),
]


def plan_of(machines: int = 2, batch: int = 8) -> Plan:
    return partition(toy.network(), Cluster.local(machines), batch=batch)


def some(start: int, stop: int) -> dict[str, Any]:
    return {name: array[start:stop] for name, array in toy.data(stop).items()}


class Saves(Callback):
    """Keeps the parameters that each validation was of."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.figures, self.waits = folder, list[Mapping[str, float]](), False

    def on_validation(self, record: Record, control: Control) -> None:
        self.figures.append(record.metrics)
        self.waits = True
        control.checkpoint()

    def on_checkpoint(self, checkpoint: int, control: Control) -> None:
        if self.waits:
            self.waits = False
            control.save(checkpoint, self.folder / f"{len(self.figures)}.safetensors")


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda one: type(one).__name__)
def test_each_validation_has_the_bits_of_evaluate_on_the_checkpoint_of_that_moment(
    on_threads: list[WatchedThreads], driver: Driver, tmp_path: Path
) -> None:
    plan, saves, held_out = plan_of(), Saves(tmp_path), some(64, 101)
    epochs = None if driver.ends else 3
    settings: dict[str, Any] = {"validation": held_out, "callbacks": [saves], "show": "nothing"}
    run = train(plan, some(0, 64), driver=driver, epochs=epochs, metrics=[TopK(2)], **settings)
    assert len(saves.figures) == 3 == len(run.validations)
    for n, figures in enumerate(saves.figures, 1):
        found = evaluate(
            Run.load(tmp_path / f"{n}.safetensors", plan), held_out, show="nothing", metrics=[TopK(2)]
        )
        assert (found.loss, found.accuracy) == (figures["val_loss"], figures["val_accuracy"])
        assert found.metrics["top_2"] == pytest.approx(figures["val_top_2"], rel=1e-12)
    assert {one["val_loss"] for one in saves.figures} == {one.metrics["val_loss"] for one in run.validations}


class Scales(Callback):
    """Halves the learning rate behind an epoch."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_epoch(self, epoch: int, metrics: Mapping[str, float], control: Control) -> None:
        if epoch == self.after:
            control.scale_learning_rate(0.5)


@pytest.mark.parametrize(
    "driver",
    [
        pytest.param(Downpour(optimizer=Adagrad(0.1)), marks=pytest.mark.slow),
        AllReduce(replicas=2, optimizer=Adagrad(0.1)),
        pytest.param(
            AllReduce(replicas=2, optimizer=Adagrad(0.1), shard_optimizer=True), marks=pytest.mark.slow
        ),
    ],
    ids=["downpour", "all-reduce", "sharded"],
)
def test_a_scaled_rate_has_the_bits_of_a_run_that_goes_on_with_another_rate(
    on_threads: list[WatchedThreads], driver: Driver, tmp_path: Path
) -> None:
    """The optimizer with half the rate goes on from the checkpoint, with the same state."""
    plan, data = plan_of(), some(0, 64)
    settings: dict[str, Any] = {"checkpoints": tmp_path / "parts", "show": "nothing"}
    train(plan, data, driver=driver, epochs=2, **settings)
    half = replace(driver, optimizer=replace(driver.optimizer, learning_rate=0.05))
    expected = train(plan, data, driver=half, epochs=4, resume=True, **settings)
    found = train(plan, data, driver=driver, epochs=4, show="nothing", callbacks=[Scales(2)])
    for name, array in expected.parameters.items():
        assert np.array_equal(array, found.parameters[name]), name


def test_a_fraction_is_held_out_by_the_seed_and_never_trained(on_threads: list[WatchedThreads]) -> None:
    plan, data = plan_of(machines=1), some(0, 64)
    asked: dict[str, Any] = {"driver": AllReduce(), "epochs": 1, "show": "nothing"}
    run = train(plan, data, validation=0.25, seed=3, **asked)
    held = np.zeros(64, bool)
    held[np.random.default_rng([3, 2]).permutation(64)[:16]] = True
    rest, kept = ({name: a[some] for name, a in data.items()} for some in (~held, held))
    by_hand = train(plan, rest, validation=kept, seed=3, **asked)
    assert run.steps == by_hand.steps == (6,)
    assert run.validations[0].metrics == by_hand.validations[0].metrics
    for name, array in run.parameters.items():
        assert np.array_equal(array, by_hand.parameters[name]), name


def stops_of(pacing: Pacing, *, epochs: int, replicas: int = 1, clock: float = 0.0) -> list[tuple[int, int]]:
    """Plays a program of all epochs, 20 examples each in batches of 6; returns (position, minibatches)."""

    def schedule(run: Outline) -> Any:
        yield Work(epochs=run.epochs)

    outline = Outline(epochs, 20, 6, replicas)
    program = pacing.around(schedule, works=True, replicas=replicas)(outline)
    found, position, decision = list[tuple[int, int]](), 0, None
    while True:
        try:
            action = program.send(decision)
        except StopIteration:
            return [*found, (position, -1)]
        decision = None
        if isinstance(action, Work):
            assert action.examples or action.epochs
            position += (action.examples or 0) + 20 * (action.epochs or 0)
        elif isinstance(action, Validate):
            assert action.at == position
            found.append((position, action.minibatches))
            decision = Decision(seconds=clock * position)


def test_stops_lie_between_two_steps_at_the_times_that_are_asked_for() -> None:
    assert stops_of(Pacing(), epochs=2) == [(40, -1)]
    assert stops_of(Pacing(minibatches=3), epochs=2) == [(20, 3), (40, 3), (40, -1)]
    assert stops_of(Pacing(asks=True), epochs=2) == [(20, 0), (40, 0), (40, -1)]
    # Steps end at 6, 12, 18, 20, 26, 32, 38, 40.
    every = Pacing(minibatches=3, every=3)
    assert stops_of(every, epochs=2) == [(18, 3), (32, 3), (40, -1)]
    both = Pacing(minibatches=3, every=3, asks=True)
    assert stops_of(both, epochs=2) == [(18, 3), (20, 0), (32, 3), (40, 0), (40, -1)]
    # With two replicas, joined steps end at 12, 20, 32, 40.
    assert stops_of(Pacing(minibatches=3, every=4), epochs=2, replicas=2) == [(20, 3), (40, 3), (40, -1)]
    assert stops_of(Pacing(most=5), epochs=2) == [(26, -1)]
    assert stops_of(Pacing(minibatches=1, most=5), epochs=2) == [(20, 1), (26, 1), (26, -1)]
    # A second for each example, a validation every 10: the clock is looked at in between.
    timed = stops_of(Pacing(minibatches=2, every_s=10.0), epochs=3, clock=1.0)
    at = [position for position, minibatches in timed if minibatches > 0]
    assert len(at) >= 3 and all(later - before >= 10 for before, later in zip([0, *at], at, strict=False))
