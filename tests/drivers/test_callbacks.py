"""Callbacks: what they receive, and what they do to a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import (
    LBFGS,
    SGD,
    AllReduce,
    Callback,
    Control,
    Downpour,
    EarlyStopping,
    ModelCheckpoint,
    Record,
    ReduceOnPlateau,
    Run,
    Sandblaster,
    evaluate,
    train,
)
from partita.engine.drivers.driver import Driver
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

DATA = toy.data(64)
HELD_OUT = {name: array[:19] for name, array in DATA.items()}
DRIVER = AllReduce(optimizer=SGD(0.1))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return partition(toy.network(), Cluster.local(1), batch=8)


def trained(
    plan: Plan, *callbacks: object, driver: Driver = DRIVER, epochs: int | None = 3, **more: Any
) -> Run:
    settings = {"callbacks": callbacks, "show": "nothing", **more}
    return train(plan, DATA, driver=driver, epochs=epochs, **settings)


class Notes(Callback):
    """Writes down what it receives; stops the run at an epoch, or with the first steps."""

    def __init__(self, *, stop_epoch: int = 0, stop_at_once: bool = False) -> None:
        self.seen = list[tuple[Any, ...]]()
        self.stop_epoch, self.stop_at_once = stop_epoch, stop_at_once

    def on_start(self, control: Control) -> None:
        self.seen.append(("start", control.run.plan.graph.name))

    def on_record(self, record: Record, control: Control) -> None:
        if self.stop_at_once:
            control.stop("enough")

    def on_validation(self, record: Record, control: Control) -> None:
        self.seen.append(("validation", record.step, sorted(record.metrics)))

    def on_epoch(self, epoch: int, metrics: Mapping[str, float], control: Control) -> None:
        self.seen.append(
            ("epoch", epoch, control.steps, control.epoch, "val_loss" in metrics and "loss" in metrics)
        )
        if epoch == self.stop_epoch:
            control.stop("as asked")

    def on_end(self, run: Run | None, control: Control) -> None:
        self.seen.append(("end", run is not None))


def test_a_callback_receives_the_life_of_a_run_in_order(on_threads: list[WatchedThreads], plan: Plan) -> None:
    notes = Notes()
    run = trained(plan, notes, validation=HELD_OUT, epochs=2)
    figures = ["val_accuracy", "val_loss"]
    assert notes.seen == [
        ("start", "toy"),
        ("validation", 8, figures),
        ("epoch", 1, 8, 1.0, True),
        ("validation", 16, figures),
        ("epoch", 2, 16, 2.0, True),
        ("end", True),
    ]
    assert run.stopped == "" and [one.step for one in run.validations] == [8, 16]


def test_a_run_that_a_callback_ends_goes_on_to_the_bits_of_one_that_was_not(
    on_threads: list[WatchedThreads], plan: Plan, tmp_path: Path
) -> None:
    run = trained(plan, Notes(stop_epoch=1), checkpoints=tmp_path)
    assert (run.stopped, run.steps) == ("as asked", (8,))
    soon = trained(plan, Notes(stop_at_once=True), checkpoints=tmp_path, resume=True)
    assert soon.stopped == "enough" and 8 <= sum(soon.steps) <= 24
    rest = trained(plan, checkpoints=tmp_path, resume=True)
    assert (rest.stopped, rest.steps) == ("", (24,))
    same(rest, trained(plan))


def same(one: Run, other: Run) -> None:
    for name, array in one.parameters.items():
        assert np.array_equal(array, other.parameters[name]), name


@pytest.mark.parametrize(
    ("driver", "most", "steps"),
    [
        (DRIVER, 11, 11),
        pytest.param(AllReduce(replicas=2), 10, 10, marks=pytest.mark.slow),
        pytest.param(Downpour(replicas=2), 13, 13, marks=pytest.mark.slow),
        pytest.param(Sandblaster(LBFGS(max_iterations=5)), 2, 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_ends_after_so_many_steps_and_goes_on(
    on_threads: list[WatchedThreads], plan: Plan, tmp_path: Path, driver: Driver, most: int, steps: int
) -> None:
    epochs = None if driver.ends else 3
    run = trained(plan, driver=driver, epochs=epochs, max_steps=most, checkpoints=tmp_path)
    assert run.stopped == f"max_steps={most} is reached" and (sum(run.steps) or run.iterations) == steps
    rest = trained(plan, driver=driver, epochs=epochs, checkpoints=tmp_path, resume=True)
    whole = trained(plan, driver=driver, epochs=epochs)
    assert not rest.stopped and (sum(rest.steps), rest.iterations) == (sum(whole.steps), whole.iterations)
    if not isinstance(driver, Downpour):
        same(rest, whole)


def test_a_run_ends_when_its_time_is_over(on_threads: list[WatchedThreads], plan: Plan) -> None:
    run = trained(plan, max_s=1e-4, epochs=10_000)
    assert run.stopped == "max_s=0.0001 is reached" and sum(run.steps) < 80_000


class Fails(Callback):
    def on_epoch(self, epoch: int, metrics: Mapping[str, float], control: Control) -> None:
        raise RuntimeError("no luck")


def test_an_error_of_a_callback_ends_the_run_behind_a_last_checkpoint(
    on_threads: list[WatchedThreads], plan: Plan, tmp_path: Path
) -> None:
    notes = Notes()
    with pytest.raises(RuntimeError, match="no luck") as raised:
        trained(plan, Fails(), notes, checkpoints=tmp_path)
    assert any("in on_epoch of the callback" in note for note in raised.value.__notes__)
    assert any("goes on from it" in note for note in raised.value.__notes__)
    assert [one[0] for one in notes.seen] == ["start", "end"]
    assert trained(plan, checkpoints=tmp_path, resume=True).steps == (24,)


def test_early_stopping_returns_the_best_parameters(on_threads: list[WatchedThreads], plan: Plan) -> None:
    """The loss falls, and more is called better: the first validation is the best one."""
    stops = EarlyStopping(mode="max", patience=2, restore_best=True)
    run = trained(plan, stops, validation=HELD_OUT, epochs=9)
    losses = [one.metrics["val_loss"] for one in run.validations]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)
    assert run.stopped.startswith("val_loss has not become better than ")
    assert evaluate(run, HELD_OUT, show="nothing", hosts="inline").loss == losses[0]


def test_the_best_models_are_kept_as_files(
    on_threads: list[WatchedThreads], plan: Plan, tmp_path: Path
) -> None:
    saves = ModelCheckpoint(folder=tmp_path / "best", keep=2)
    run = trained(plan, saves, validation=HELD_OUT, epochs=3)
    assert len(list((tmp_path / "best").iterdir())) == 2
    assert saves.best_file is not None and saves.best_file.name.startswith("step-000024.val_loss-")
    best = Run.load(saves.best_file, plan)
    assert (
        evaluate(best, HELD_OUT, show="nothing", hosts="inline").loss
        == run.validations[-1].metrics["val_loss"]
    )


def test_a_lowered_rate_and_the_patience_are_in_checkpoints(
    on_threads: list[WatchedThreads], plan: Plan, tmp_path: Path
) -> None:
    def lowers() -> ReduceOnPlateau:
        return ReduceOnPlateau(mode="max", patience=2, least=0.2)

    whole = trained(plan, lowers(), validation=HELD_OUT, epochs=7)
    trained(plan, lowers(), validation=HELD_OUT, epochs=4, checkpoints=tmp_path)
    same(trained(plan, lowers(), validation=HELD_OUT, epochs=7, checkpoints=tmp_path, resume=True), whole)
    plain = trained(plan, epochs=7)
    assert any(not np.array_equal(a, plain.parameters[name]) for name, a in whole.parameters.items())


class Stub:
    """The control of no run."""

    learning_rate_scale = 1.0

    def __init__(self) -> None:
        self.done = list[object]()

    def stop(self, reason: str) -> None:
        self.done.append("stop")

    def scale_learning_rate(self, factor: float) -> None:
        self.learning_rate_scale *= factor
        self.done.append(round(self.learning_rate_scale, 6))


def watch(callback: Any, name: str, values: list[float]) -> list[object]:
    control: Any = Stub()
    for epoch, value in enumerate(values):
        callback.on_epoch(epoch, {name: value}, control)
    return control.done


def test_patience_counts_from_the_best_value() -> None:
    losses = [3.0, 2.0, 2.5, 2.1, 1.9, 1.95, 1.99, 2.0]
    assert watch(EarlyStopping(metric="loss", patience=3), "loss", losses) == ["stop"]
    assert watch(EarlyStopping(metric="loss", patience=4), "loss", losses) == []
    assert watch(EarlyStopping(metric="loss", patience=2, min_delta=0.5), "loss", losses)[0] == "stop"
    assert watch(EarlyStopping(metric="accuracy", patience=2), "accuracy", [0.1, 0.3, 0.2, 0.2]) == ["stop"]
    lowers = ReduceOnPlateau(metric="loss", patience=1, factor=0.1, least=0.05)
    assert watch(lowers, "loss", [1.0, 1.0, 1.0, 1.0]) == [0.1, 0.05]
    with pytest.raises(ValueError, match="watches 'val_los', and there are loss"):
        EarlyStopping(metric="val_los").on_validation(Record(0.0, None, 1, 1, {"loss": 1.0}), Stub())  # type: ignore[arg-type]


def test_mistakes_are_said(plan: Plan) -> None:
    for more, text in (
        ({"callbacks": [object()]}, "is no callback; give an object with some of the methods on_start"),
        ({"callbacks": [EarlyStopping]}, "is no callback"),
        ({"validate_every": 5}, "validate_every is given, and there is nothing to validate"),
        ({"validation": 0.1, "validate_every": 5, "validate_every_s": 1.0}, "exclude each other"),
        ({"validation": 1.5}, "validation is 1.5; give validation data, or a fraction"),
        ({"validation": 0.001}, "holds out 0 of 64 examples"),
        ({"validation": {"picture": DATA["picture"]}}, "the data has no 'digit'"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_s": 0.0}, "max_s"),
    ):
        with pytest.raises(ValueError, match=text):
            train(plan, DATA, driver=DRIVER, epochs=1, show="nothing", **more)  # type: ignore[arg-type]
