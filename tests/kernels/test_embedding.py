"""Embedding: equal to PyTorch's in float64 whatever the cut; what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from partita.engine import Session
from partita.engine.parameters import initialise
from partita.layers import Dense, Embedding, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, RowSplit, partition
from tests.truth.interleaved import play_with


def network(padding_idx: int | None) -> Network:
    net = Network("words")
    words = net.input("words", shape=6, classes=5)
    embedded = Embedding(5, 3, padding_idx=padding_idx, name="table")(words)
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(embedded), net.target("label"))
    return net


@pytest.mark.parametrize("machines", range(1, 7))
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_equals_pytorch_over_any_number_of_machines(machines: int, padding_idx: int | None) -> None:
    """Repeated numbers too: 24 positions share 5 rows."""
    cluster = Cluster.local(machines=machines)
    cuts = {"table": RowSplit(machines), "scores": RowSplit(min(machines, 4))}
    plan = partition(network(padding_idx), cluster, batch=4, precision="float64", cuts=cuts)
    parameters = initialise(plan.graph.parameters.values(), 7, dtype="float64")
    draw = np.random.default_rng(3)
    batch = {"words": draw.integers(0, 5, (4, 6)), "label": draw.integers(0, 4, (4, 1))}
    found = play_with(plan, parameters, batch)
    table = torch.nn.Embedding(5, 3, padding_idx=padding_idx, dtype=torch.float64)
    table.weight.data = torch.from_numpy(parameters["table.weight"].copy())
    if padding_idx is not None:
        table.weight.data[padding_idx] = 0  # PyTorch's begins at zero; ours gives zero whatever the row
    weight = torch.from_numpy(parameters["scores.weight"])
    scores = table(torch.from_numpy(batch["words"])).flatten(1) @ weight.T
    labels = torch.from_numpy(batch["label"][:, 0])
    torch.nn.functional.cross_entropy(scores, labels).backward()
    np.testing.assert_allclose(found.states["scores"], scores.detach().T, rtol=1e-11, atol=1e-13)
    gradient = table.weight.grad
    assert gradient is not None
    np.testing.assert_allclose(found.gradients["table.weight"], gradient, rtol=1e-11, atol=1e-13)


def test_a_step_of_a_session_takes_whole_numbers_and_refuses_others() -> None:
    plan = partition(network(None), Cluster.local(machines=2), batch=4)
    parameters = initialise(plan.graph.parameters.values(), 7)
    words, label = np.arange(24).reshape(4, 6) % 5, np.zeros(4, np.int64)
    with Session(plan, parameters, train=True) as session:
        step = session.step({"words": words, "label": label}, collect=("table",))
        row = parameters["table.weight"][words[1, 0]]
        np.testing.assert_array_equal(step.collected["table"][0, :, 1], row)
        with pytest.raises(ValueError, match="'words' names a class that is none in example 2"):
            session.step({"words": words + 5 * (np.arange(4) == 2)[:, None], "label": label})
        with pytest.raises(ValueError, match=r"'words' holds .*whole, from 0 to 4"):
            session.step({"words": words.astype(float), "label": label})


def test_numbers_of_classes_are_looked_up_and_others_are_not() -> None:
    net = Network("wrong")
    words, x = net.input("words", shape=6, classes=5), net.input("x", shape=6)
    with pytest.raises(ValueError, match=r"Dense 'dense' computes with 'words'.*Embedding\(5, units\)"):
        Dense(2)(words)
    with pytest.raises(ValueError, match=r"reads 'x', which holds no numbers of classes; declare them"):
        Embedding(5, 2)(x)
    with pytest.raises(ValueError, match="has 4 classes, but 'words' has 5; give it 5"):
        Embedding(4, 2)(words)
    with pytest.raises(ValueError, match="padding_idx is 5; write a class from 0 to 4"):
        Embedding(5, 2, padding_idx=5)
    with pytest.raises(ValueError, match=r"shape \(6, 2\); give it a row of positions"):
        Embedding(5, 2)(net.input("grid", shape=(6, 2), classes=5))
