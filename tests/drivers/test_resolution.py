"""Training at one resolution after the other: each stage is a training that begins with the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import SGD, Adam, AllReduce, Run, shrink_pictures, train, train_by_resolution
from partita.engine.files.stores import CheckpointStore, SharedFolder, UrlStore
from partita.engine.run import resolution
from partita.layers import Conv2D, Dense, GlobalAveragePool, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition

DRAW = np.random.default_rng(3)
LABELS = DRAW.integers(0, 2, 24)
PICTURES = DRAW.normal(size=(24, 8, 8, 2)) + LABELS[:, None, None, None]


def network(size: int, *, pooled: bool = True) -> Network:
    net = Network("sizes")
    maps = Conv2D(3, 3, activation="relu", name="maps")(net.input("picture", shape=(size, size, 2)))
    last = GlobalAveragePool(name="pooled")(maps) if pooled else maps
    net.loss = SoftmaxCrossEntropy()(Dense(2, name="scores")(last), net.target("label"))
    return net


def plan(size: int) -> Plan:
    return partition(network(size), Cluster.local(), batch=8)


def data(size: int) -> dict[str, np.ndarray]:
    return {"picture": shrink_pictures(PICTURES, size), "label": LABELS}


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_shrunk_pictures_equal_the_means_of_pytorch(size: int) -> None:
    given = torch.from_numpy(PICTURES).permute(0, 3, 1, 2)
    expected = torch.nn.functional.avg_pool2d(given, 8 // size).permute(0, 2, 3, 1)
    np.testing.assert_allclose(shrink_pictures(PICTURES, size), expected, rtol=1e-12, atol=1e-14)


def test_types_of_shrunk_pictures() -> None:
    assert shrink_pictures(PICTURES.astype(np.float32), 4).dtype == np.float32
    whole = shrink_pictures(np.full((1, 2, 2, 1), 255, np.uint8), 1)
    assert whole.dtype == np.float32
    assert whole.item() == 255


class Trained:
    """Takes the place of `train`: keeps what it is called with, and returns the number of the call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.given: list[dict[str, Any]] = []
        monkeypatch.setattr(resolution, "train", self)

    def __call__(self, plan: Plan, data: Any, **given: Any) -> Run:
        self.sizes.append((plan.graph["picture"].shape[0], data["picture"].shape[1]))
        self.given.append(given)
        number = len(self.given)
        return Run(plan, {"scores.weight": np.full(1, number)}, steps=(number,), seconds=1.5)


SLOW, FAST = AllReduce(optimizer=SGD(0.01)), AllReduce(optimizer=SGD(0.1))


def test_each_phase_begins_with_the_parameters_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trained(monkeypatch)
    found = train_by_resolution(
        plan,
        data,
        resolutions=(4, 8),
        epochs=(3, 1),
        driver=lambda size: FAST if size < 8 else SLOW,
        validation=data,
        initial="begun",
        seed=7,
    )
    assert trained.sizes == [(4, 4), (8, 8)]
    first, second = trained.given
    assert (first["initial"], first["epochs"], first["seed"], first["driver"]) == ("begun", 3, 7, FAST)
    np.testing.assert_array_equal(second["initial"]["scores.weight"], [1])
    assert (second["epochs"], second["validation"]["picture"].shape) == (1, (24, 8, 8, 2))
    assert (second["driver"], second["checkpoints"], second["resume"]) == (SLOW, None, False)
    assert found.plan.graph["picture"].shape == (8, 8, 2)
    assert found.seconds == 3.0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", batch 8 on 1 machine, ")[0] for line in lines] == [
        "phase 1 of 2: 4 x 4 pixels, 3 epochs",
        "phase 2 of 2: 8 x 8 pixels, 1 epoch",
    ]


@pytest.mark.parametrize(
    ("left", "sizes"), [((), [4, 8, 4]), ((1,), [4, 8, 4]), ((1, 2), [8, 4]), ((1, 2, 3), [4])]
)
def test_a_run_goes_on_in_the_last_phase_that_has_left_something(
    left: tuple[int, ...], sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, resolutions = Trained(monkeypatch), (4, 8, 4)
    for number in left:
        (tmp_path / f"phase-{number}-{resolutions[number - 1]}-pixels" / "log-00000001-0123abcd").mkdir(
            parents=True
        )
    settings: dict[str, Any] = {"resolutions": resolutions, "epochs": (1, 1, 1), "driver": SLOW}
    train_by_resolution(
        plan, data, **settings, checkpoints=tmp_path, resume=True, initial="begun", show="nothing"
    )
    assert [size for size, _ in trained.sizes] == sizes
    assert all(given["resume"] for given in trained.given)
    assert trained.given[0]["initial"] == "begun"
    kept = [Path(str(given["checkpoints"])).name for given in trained.given]
    assert kept == ["phase-1-4-pixels", "phase-2-8-pixels", "phase-3-4-pixels"][-len(sizes) :]


def test_stores_of_phases() -> None:
    assert SharedFolder("runs").within("one") == SharedFolder(Path("runs/one"))
    assert str(UrlStore("memory://bucket/runs/").within("one")) == "memory://bucket/runs/one"

    class Own(CheckpointStore):
        def folder(self, temporary: Path) -> Path:
            return temporary

    with pytest.raises(ValueError, match=r"Own has no folders in it; give it a method `within\(name\)`"):
        Own().within("one")


@pytest.mark.slow
def test_it_has_the_bits_of_trainings_by_hand() -> None:
    settings: dict[str, Any] = {"driver": AllReduce(optimizer=Adam(0.01)), "seed": 2, "show": "nothing"}
    found = train_by_resolution(plan, data, resolutions=(4, 8), epochs=(2, 3), **settings)
    first = train(plan(4), data(4), epochs=2, **settings)
    second = train(plan(8), data(8), epochs=3, initial=first.parameters, **settings)
    for name, parameter in second.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], parameter)
    assert len(found.history) == len(first.history) + len(second.history)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [(2, 0), (2, 1)])
def test_a_run_that_goes_on_in_mid_phase_has_the_bits_of_one_that_was_not_stopped(
    epochs: tuple[int, int], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "driver": AllReduce(optimizer=Adam(0.01)),
        "seed": 2,
        "show": "nothing",
        "resolutions": (4, 8),
    }
    whole = train_by_resolution(plan, data, epochs=(2, 3), **settings)
    sizes, counts = ((4,), (2,)) if not epochs[1] else ((4, 8), epochs)
    train_by_resolution(plan, data, **{**settings, "resolutions": sizes}, epochs=counts, checkpoints=tmp_path)
    with pytest.raises(ValueError, match=r"phase-1-4-pixels holds checkpoint .*resume=True"):
        train_by_resolution(plan, data, epochs=(2, 3), checkpoints=tmp_path, **settings)
    found = train_by_resolution(plan, data, epochs=(2, 3), checkpoints=tmp_path, resume=True, **settings)
    for name, parameter in whole.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], parameter)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"resolutions": (), "epochs": ()}, r"resolutions are \(\) .*; give one or more resolutions"),
        ({"resolutions": (4, 8), "epochs": (1,)}, "and a number of epochs for each"),
        ({"resolutions": (4, 0), "epochs": (1, 1)}, "a resolution is 0"),
        ({"resolutions": (4, 8), "epochs": (1, 0)}, "epochs are 0"),
        ({"resolutions": (4,), "epochs": (1,), "driver": "sgd"}, "the driver at 4 pixels is 'sgd'; give a"),
        ({"resolutions": (4,), "epochs": (1,), "driver": str}, "is '4'; give a driver, or a function"),
    ],
)
def test_wrong_stages_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train_by_resolution(plan, data, **{"driver": SLOW, **given})


def test_parameters_that_depend_on_the_resolution_are_refused() -> None:
    def unpooled(size: int) -> Plan:
        return partition(network(size, pooled=False), Cluster.local(), batch=8)

    with pytest.raises(
        ValueError, match=r"at 8 pixels are not those at 4: 'scores.weight' .*; share weights"
    ):
        train_by_resolution(unpooled, data, resolutions=(4, 8), epochs=(1, 1), driver=SLOW)
    with pytest.raises(ValueError, match="have no equal squares for 3 x 3; give a divisor"):
        shrink_pictures(PICTURES, 3)
    with pytest.raises(ValueError, match=r"give an array \[example, height, width, channels\]"):
        shrink_pictures(PICTURES[0], 4)
