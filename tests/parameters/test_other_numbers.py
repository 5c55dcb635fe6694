"""Runs that go on under another plan, another driver, and other numbers of shards and replicas."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from partita.engine import LBFGS, SGD, Adagrad, Adam, AllReduce, Downpour, InverseTime, Optimizer, Sandblaster
from partita.engine.parameters import Checkpoints
from tests.drivers.conftest import run_on_threads
from tests.parameters.kept_runs import (
    DATA,
    EXAMPLES,
    METHOD,
    RUNS,
    numbers_of,
    plan_of_run,
    shapes_of_run,
    train_run,
)

STEPS = 3
"""Of each driver: an epoch has one step, so that the order of the examples does not matter."""


@pytest.fixture(autouse=True)
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are threads."""
    run_on_threads(monkeypatch)


def drivers(optimizer: Optimizer) -> list[tuple[Any, int, int]]:
    """Drivers that compute one step of all examples, with the machines and the batch of each."""
    return [
        (Downpour(shards=2, optimizer=optimizer), 2, EXAMPLES),
        (AllReduce(replicas=2, optimizer=optimizer), 1, EXAMPLES // 2),
        (AllReduce(replicas=3, optimizer=optimizer, shard_optimizer=True), 2, EXAMPLES // 3),
        (AllReduce(optimizer=optimizer), 3, EXAMPLES),
        (Downpour(shards=5, optimizer=optimizer), 1, EXAMPLES),
        (AllReduce(replicas=4, optimizer=optimizer, shard_optimizer=True), 1, EXAMPLES // 4),
    ]


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(SGD(0.1), id="sgd", marks=pytest.mark.slow),
        pytest.param(Adagrad(0.05), id="adagrad", marks=pytest.mark.slow),
        pytest.param(Adam(InverseTime(0.02, steps=10)), id="adam"),
    ],
)
def test_a_run_goes_on_under_each_driver_in_turn_as_if_under_one(
    tmp_path: Path, optimizer: Optimizer
) -> None:
    one = AllReduce(optimizer=optimizer)
    for n, (driver, machines, batch) in enumerate(drivers(optimizer), 1):
        plan = plan_of_run(machines=machines).with_batch(batch)
        train_run(driver, tmp_path / "each", plan=plan, epochs=STEPS * n, resume=n > 1)
    alone = plan_of_run(machines=1).with_batch(EXAMPLES)
    train_run(one, tmp_path / "one", plan=alone, epochs=STEPS * n)
    each, straight = (
        numbers_of(Checkpoints(tmp_path / name).latest(shapes_of_run()))  # type: ignore[arg-type]
        for name in ("each", "one")
    )
    assert each.keys() == straight.keys()
    for name, array in straight.items():
        np.testing.assert_allclose(each[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("shards", "replicas", "machines"),
    [(3, 2, 1), *(pytest.param(*numbers, marks=pytest.mark.slow) for numbers in ((1, 2, 1), (5, 2, 3)))],
)
def test_a_method_goes_on_with_its_history_on_other_shards(
    tmp_path: Path, shards: int, replicas: int, machines: int
) -> None:
    kept = next(DATA.glob("format-*/sandblaster-lbfgs"))
    folder = shutil.copytree(kept, tmp_path / "copy")
    driver = replace(RUNS["sandblaster-lbfgs"], shards=shards, replicas=replicas)
    run = train_run(driver, folder, plan=plan_of_run(machines=machines), resume=True)
    expected = safetensors.numpy.load_file(kept / "numbers.safetensors")
    for name, array in run.parameters.items():
        np.testing.assert_allclose(array, expected[f"resumed/{name}"], rtol=2e-3, atol=2e-4)


LATER = Sandblaster(replace(METHOD, history=4), shards=2, portion=6, l2=0.01)


@pytest.mark.parametrize(
    ("name", "driver", "says"),
    [
        (
            "downpour-adagrad",
            Downpour(),
            "with Adagrad.* state SGD.* cannot go on with; resume with the same",
        ),
        ("all-reduce-adam", AllReduce(optimizer=Adagrad(0.1)), "with Adam.*; resume with the same optimizer"),
        ("downpour-sgd", Sandblaster(LBFGS()), "a batch method goes on from a journal; give warm_start"),
        ("sandblaster-lbfgs", Downpour(), "by Sandblaster with LBFGS.*; resume with Sandblaster, or give"),
        ("sandblaster-lbfgs", LATER, r"is of a run with the method LBFGS.*history=3\), and this one has"),
    ],
)
def test_what_cannot_go_on_is_refused_by_a_sentence(
    tmp_path: Path, name: str, driver: Any, says: str
) -> None:
    kept = next(DATA.glob(f"format-*/{name}"))
    folder = shutil.copytree(kept, tmp_path / "copy")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=says):
        train_run(driver, folder, epochs=3, resume=True)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if not path.name.startswith(".partita")} == before
