"""Dropout through whole runs: the same masks for any cut and micro-batches, none in an evaluation."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import SGD, AllReduce, Downpour, evaluate, predict, train
from partita.layers import Activation, Dense, Dropout, LayerNorm, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition


def network(rate: float = 0.4) -> Network:
    net = Network("dropped")
    hidden = Dense(12, name="hidden")(net.input("x", shape=5))
    dropped = Dropout(rate, name="drop")(Activation("gelu")(LayerNorm()(hidden)))
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(dropped), net.target("y"))
    return net


@pytest.mark.parametrize("driver", [Downpour(optimizer=SGD(0.5)), AllReduce(optimizer=SGD(0.5))])
def test_runs_of_any_cut_and_micro_batches_are_one_run(
    driver: Downpour | AllReduce, on_threads: object
) -> None:
    draw = np.random.default_rng(5)
    x = draw.normal(size=(40, 5))
    data = {"x": x, "y": x[:, :3].argmax(1)}
    runs = []
    for machines, micro_batches in ((1, 1), (3, 2)):
        plan = partition(
            network(),
            Cluster.local(machines=machines),
            batch=10,
            micro_batches=micro_batches,
            precision="float64",
            strategy="balanced",
        )
        runs.append(train(plan, data, driver=driver, epochs=2, show="nothing"))
    one, other = runs
    for name, values in one.parameters.items():
        np.testing.assert_allclose(other.parameters[name], values, rtol=1e-9, atol=1e-12)
    assert evaluate(one, data).loss == pytest.approx(evaluate(other, data).loss, rel=1e-12)
    plain = predict(one, {"x": x})
    np.testing.assert_array_equal(predict(one, {"x": x}), plain)
    np.testing.assert_allclose(predict(other, {"x": x}), plain, rtol=1e-9, atol=1e-12)
