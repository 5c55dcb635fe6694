"""Training at one resolution after the other: each stage is a training that begins with the one before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import Adam, AllReduce, Run, shrink_pictures, train, train_by_resolution
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


def test_each_stage_begins_with_the_parameters_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, ...]] = []

    def trained(plan: Plan, data: Any, **settings: Any) -> Run:
        called.append((plan.graph["picture"].shape[0], data["picture"].shape[1], settings))
        return Run(plan, {"scores.weight": np.full(1, len(called))}, steps=(len(called),), seconds=1.5)

    monkeypatch.setattr(resolution, "train", trained)
    found = train_by_resolution(
        plan, data, resolutions=(2 + 2, 8), epochs=(3, 1), validation=data, initial="begun", seed=7
    )
    assert [one[:2] for one in called] == [(4, 4), (8, 8)]
    (first, second) = (settings for *_, settings in called)
    assert (first["initial"], first["epochs"], first["seed"]) == ("begun", 3, 7)
    np.testing.assert_array_equal(second["initial"]["scores.weight"], [1])
    assert (second["epochs"], second["validation"]["picture"].shape) == (1, (24, 8, 8, 2))
    assert found.plan.graph["picture"].shape == (8, 8, 2)
    assert found.seconds == 3.0


@pytest.mark.slow
def test_it_has_the_bits_of_trainings_by_hand() -> None:
    settings: dict[str, Any] = {"driver": AllReduce(optimizer=Adam(0.01)), "seed": 2, "show": "nothing"}
    found = train_by_resolution(plan, data, resolutions=(4, 8), epochs=(2, 3), **settings)
    first = train(plan(4), data(4), epochs=2, **settings)
    second = train(plan(8), data(8), epochs=3, initial=first.parameters, **settings)
    for name, parameter in second.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], parameter)
    assert len(found.history) == len(first.history) + len(second.history)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"resolutions": (), "epochs": ()}, r"resolutions are \(\) .*; give one or more resolutions"),
        ({"resolutions": (4, 8), "epochs": (1,)}, "and a number of epochs for each"),
        ({"resolutions": (4, 0), "epochs": (1, 1)}, "a resolution is 0"),
    ],
)
def test_wrong_stages_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        train_by_resolution(plan, data, **given)


def test_parameters_that_depend_on_the_resolution_are_refused() -> None:
    def unpooled(size: int) -> Plan:
        return partition(network(size, pooled=False), Cluster.local(), batch=8)

    with pytest.raises(
        ValueError, match=r"at 8 pixels are not those at 4: 'scores.weight' .*; share weights"
    ):
        train_by_resolution(unpooled, data, resolutions=(4, 8), epochs=(1, 1))
    with pytest.raises(ValueError, match="have no equal squares for 3 x 3; give a divisor"):
        shrink_pictures(PICTURES, 3)
    with pytest.raises(ValueError, match=r"give an array \[example, height, width, channels\]"):
        shrink_pictures(PICTURES[0], 4)
