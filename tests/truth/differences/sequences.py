"""Checks of layers of sequences: embeddings, attention and recurrent layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from partita.engine import Session
from partita.engine.parameters.initial_values import initial_range
from partita.layers import (
    GRU,
    LSTM,
    Attention,
    Embedding,
    MultiHeadAttention,
    Network,
    PaddingMask,
    PositionEmbedding,
)
from partita.partitioner import Cluster, partition
from tests.kernels.cases import case, play
from tests.truth.differences.rows import drawn, is_bound, row


def table(**settings: Any) -> Network:
    """A network of one embedding over three words of 300 classes."""
    net = Network("words")
    Embedding(300, 40, name="table", **settings)(net.input("words", shape=3, classes=300))
    return net


@row("first weights of `Embedding`")
def _() -> bool:
    weight = table().graph().parameters["table.weight"]
    ours = initial_range(weight, 0, start=0, stop=weight.size)
    theirs = torch.nn.Embedding(300, 40).weight.detach().numpy()
    np.testing.assert_allclose([ours.std(), theirs.std()], [0.05, 1], rtol=0.03)
    return bool(np.isclose(ours.std(), theirs.std(), rtol=0.03))


@row("output of the class `padding_idx` of `Embedding`")
def _() -> bool:
    theirs = torch.nn.Embedding(9, 4, padding_idx=2)
    assert not theirs(torch.tensor([2])).any()
    theirs.weight.data[:] = 1
    plan = partition(table(padding_idx=2), Cluster.local(machines=1), batch=1)
    ones = {"table.weight": np.ones((300, 40), np.float32)}
    with Session(plan, ones, hosts="inline") as session:
        found = session.step({"words": [[2, 3, 2]]}, collect=("table",)).collected["table"]
    assert not found[[0, 2]].any() and found[1].all()
    return bool(theirs(torch.tensor([2])).detach().any()) is bool(found[0].any())


@row("form of `LSTM` and `GRU`")
def _() -> bool:
    same = []
    for kind, theirs in ((LSTM, torch.nn.LSTM), (GRU, torch.nn.GRU)):
        given_case = case(kind(5, return_sequences=True), (6, 3), batch=2)
        module = theirs(3, 5, batch_first=True, dtype=torch.float64)
        for parameter, array in zip(module.parameters(), given_case.parameters, strict=True):
            parameter.data = torch.from_numpy(array)
        expected, _ = module(torch.from_numpy(given_case.inputs[0].transpose(2, 0, 1).copy()))
        found = play(given_case).state.transpose(2, 0, 1)
        same.append(np.allclose(found, expected.detach(), rtol=1e-10, atol=1e-12))
    return all(same)


@row("first weights and biases of `LSTM` and `GRU`")
def _() -> bool:
    module, bound = torch.nn.LSTM(60, 50), 1 / math.sqrt(50)
    assert all(is_bound(one.detach().numpy(), bound) for one in module.parameters())
    weight, bias = drawn(LSTM(50), (3, 60), 0), drawn(GRU(50), (3, 60), 2)
    assert is_bound(weight, math.sqrt(6 / 110)) and not bias.any()
    return is_bound(weight, bound)


@row("mask of `MultiHeadAttention`, `Attention`, `LSTM` and `GRU`")
def _() -> bool:
    words = torch.tensor([[3, 4, 0]])
    ours = PaddingMask(0).forward(None, (words.T,), ())[:, 0]  # type: ignore[arg-type]
    attention = torch.nn.MultiheadAttention(2, 1, batch_first=True)
    x = torch.randn(1, 3, 2)
    _, weights = attention(x, x, x, key_padding_mask=words == 0)
    assert ours.tolist() == [1, 1, 0] and not weights[..., 2].any()
    return torch.equal(ours.bool(), (words == 0)[0])


@row("`Attention` where all positions are masked")
def _() -> bool:
    given_case = case(Attention(1, 2, masked=True), (3, 2), (3, 4), (3,), batch=1)
    given_case.inputs[2][...] = 0
    assert not play(given_case).state.any()
    x, nothing = torch.ones(1, 3, 2), torch.zeros(3, 3)
    scores = torch.where(nothing.bool(), x @ x.mT, -math.inf)
    assert scores.softmax(-1).isnan().all()
    return False


@row("first weights of `MultiHeadAttention`")
def _() -> bool:
    theirs = torch.nn.MultiheadAttention(60, 4).in_proj_weight.detach().numpy()
    assert is_bound(theirs, math.sqrt(6 / 240))
    net = Network("attention")
    MultiHeadAttention(4, name="heads")(net.input("x", shape=(5, 60)))
    query = net.graph().parameters["heads_query.weight"]
    ours = initial_range(query, 0, start=0, stop=query.size)
    assert is_bound(ours, math.sqrt(6 / 120))
    return is_bound(ours, math.sqrt(6 / 240))


@row("`PositionEmbedding`")
def _() -> bool:
    assert drawn(PositionEmbedding(), (5, 4), 0).shape == (20,)
    return hasattr(torch.nn, "PositionEmbedding")
