"""Dropout and embeddings through whole runs: the same masks for any cut, none in an evaluation; whole
numbers."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, AllReduce, Downpour, evaluate, predict, train
from partita.layers import (
    Activation,
    Dense,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    Network,
    PaddingMask,
    PositionEmbedding,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, RowSplit, partition


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


@pytest.mark.parametrize("driver", [Downpour(optimizer=SGD(0.5)), AllReduce(optimizer=SGD(0.5))])
def test_numbers_of_words_are_fed_and_looked_up(driver: Downpour | AllReduce, on_threads: object) -> None:
    """The class is that of the first word, which a table can learn and nothing else can."""
    net = Network("words")
    embedded = Embedding(9, 4, initialiser="he", name="table")(net.input("words", shape=3, classes=9))
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(embedded), net.target("y"))
    words = np.random.default_rng(5).integers(0, 9, (60, 3))
    data = {"words": words, "y": words[:, 0] % 3}
    plan = partition(net, Cluster.local(machines=2), batch=10, cuts={"table": RowSplit(2)})
    run = train(plan, data, driver=driver, epochs=20, show="nothing")
    assert evaluate(run, data).accuracy > 0.9
    assert predict(run, {"words": words[:7]}).shape == (7, 3)


def test_a_small_language_model_learns_over_two_machines(on_threads: object) -> None:
    """The next word is the first of all, which attention finds; padding is left out by a mask. The table in
    which words are looked up also scores them.
    """
    net = Network("language")
    words = net.input("words", shape=4, classes=6)
    table = Embedding(6, 8, initialiser="he", name="table")
    x = PositionEmbedding()(table(words))
    attended = MultiHeadAttention(2, name="attention")(x, mask=PaddingMask(0)(words))
    scores = Linear(6, weight=table.weight, name="scores")(attended)
    net.loss = SoftmaxCrossEntropy()(scores, net.target("next"))
    drawn = np.random.default_rng(5).integers(1, 6, (60, 4))
    drawn[::3, 3] = 0
    data = {"words": drawn, "next": np.repeat(drawn[:, :1], 4, axis=1)}
    layers = ("table", "attention_query", "attention_key_value", "attention_heads", "attention", "scores")
    plan = partition(net, Cluster.local(machines=2), batch=10, cuts={name: RowSplit(2) for name in layers})
    run = train(plan, data, driver=Downpour(optimizer=Adagrad(0.2)), epochs=15, show="nothing")
    assert evaluate(run, data).accuracy > 0.9
