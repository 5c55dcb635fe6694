"""Steps in bfloat16, over any cut, lose what float32 loses, within the rounding of states."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import Momentum, Session
from partita.layers import (
    Conv2D,
    Dense,
    Graph,
    LocalContrastNormalisation2D,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, partition

BATCH, STEPS = 16, 8


def network() -> Graph:
    net = Network("mixed")
    picture = net.input("picture", shape=(12, 12, 2))
    filters = Conv2D(6, 3, activation="relu", padding="same")(picture)
    places = LocallyConnected2D(4, 3, stride=2, activation="tanh")(LocalContrastNormalisation2D(3)(filters))
    pooled = MaxPool2D(2)(places)
    net.loss = SoftmaxCrossEntropy()(Dense(8)(Dense(20, activation="sigmoid")(pooled)), net.target("label"))
    return net.graph()


def losses(precision: str, machines: int) -> list[float]:
    draw = np.random.default_rng(3)
    batch = {"picture": draw.normal(size=(BATCH, 12, 12, 2)), "label": draw.integers(0, 8, BATCH)}
    plan = partition(
        network(), Cluster.local(machines), batch=BATCH, precision=precision, strategy="balanced"
    )
    with Session(plan, 5, train=True, optimizer=Momentum(0.2)) as session:
        return [session.step(batch).loss for _ in range(STEPS)]


@pytest.fixture(scope="module")
def wide() -> list[float]:
    return losses("float32", 1)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 3])
def test_any_cut_learns_what_float32_learns(machines: int, wide: list[float]) -> None:
    found = losses("bfloat16", machines)
    assert found == pytest.approx(wide, rel=0.02)
    assert found[-1] < 0.9 * found[0]
