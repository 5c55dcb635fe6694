"""A step finds everything in place: it allocates no array."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from partita.engine import SGD, Session
from partita.engine.parameters import initialise
from partita.layers import (
    Activation,
    Add,
    Dense,
    HalfSquaredError,
    L2Pool2D,
    LocallyConnected2D,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
    SymbolicTensor,
)
from partita.partitioner import Cluster, partition

BATCH = 64
PYTHON_OBJECTS = 32 << 10
"""Bytes of small objects that a step may make; every array of the networks below is larger."""


def pictures(picture: SymbolicTensor) -> SymbolicTensor:
    filters = LocallyConnected2D(8, 3, activation="relu", padding="same")(picture)
    pooled = Add()(L2Pool2D(2)(filters), MaxPool2D(2)(filters))
    return Activation("tanh")(pooled)


def dense(picture: SymbolicTensor) -> SymbolicTensor:
    return Dense(256, activation="sigmoid")(Dense(256, activation="relu")(picture))


@pytest.mark.parametrize("body", [pictures, dense])
@pytest.mark.parametrize("labels", [True, False])
def test_a_step_allocates_nothing(body: Callable[[SymbolicTensor], SymbolicTensor], labels: bool) -> None:
    net = Network("steady")
    scores = Dense(10)(body(net.input("picture", shape=(16, 16, 2))))
    net.loss = (SoftmaxCrossEntropy() if labels else HalfSquaredError())(scores, net.target("target"))
    plan = partition(net, Cluster.local(1), batch=BATCH)
    draw = np.random.default_rng(0)
    batch = {
        "picture": draw.normal(size=(BATCH, 16, 16, 2)),
        "target": draw.integers(0, 10, BATCH) if labels else draw.normal(size=(BATCH, 10)),
    }
    parameters = initialise(plan.graph.parameters.values(), 0)
    with Session(plan, parameters, train=True, optimizer=SGD(0.1), hosts="inline") as session:
        session.step(batch)
        session.step()
        assert peak_of(session.step) < PYTHON_OBJECTS


def peak_of(act: Callable[[], object]) -> int:
    """Bytes that Python and NumPy have allocated at most at a time while it acts."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
