"""LSTM and GRU: equal to PyTorch's modules, over sequences of one length and of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from partita.layers import GRU, LSTM, Dense, Layer, Network, PaddingMask, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Whole, partition
from tests.kernels.cases import case, play
from tests.truth.interleaved import draw_batch, play_with

CLOSE: Any = {"rtol": 1e-10, "atol": 1e-12}
KINDS: Any = [(LSTM, torch.nn.LSTM), (GRU, torch.nn.GRU)]
LENGTHS = [6, 1, 4, 3]


def in_torch(kind: Any, given_case: Any, lengths: list[int] | None, *, backwards: bool) -> tuple[Any, Any]:
    """PyTorch's module on our arrays: outputs `[position, unit, example]` and the last state; the module."""
    x = torch.from_numpy(given_case.inputs[0]).permute(2, 0, 1).requires_grad_()
    layer = given_case.grid.layer
    module = kind(x.shape[2], layer.units, batch_first=True, bias=layer.use_bias, dtype=torch.float64)
    for parameter, array in zip(module.parameters(), given_case.parameters, strict=True):
        parameter.data = torch.from_numpy(array)
    fed = x
    if backwards:
        ends = lengths or [x.shape[1]] * len(x)
        fed = torch.stack([torch.cat([one[:n].flip(0), one[n:]]) for one, n in zip(x, ends, strict=True)])
    if lengths is None:
        outputs, last = module(fed)
    else:
        packed, last = module(pack_padded_sequence(fed, lengths, batch_first=True, enforce_sorted=False))
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
    if backwards:
        ends = lengths or [x.shape[1]] * len(x)
        pairs = zip(outputs, ends, strict=True)
        outputs = torch.stack([torch.cat([one[:n].flip(0), one[n:]]) for one, n in pairs])
    last = last[0] if isinstance(last, tuple) else last
    found = outputs.permute(1, 2, 0) if layer.return_sequences else last[0].T
    return found, (x, module)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("kinds", KINDS)
def test_equals_the_module_of_pytorch(
    kinds: Any, sequences: bool, backwards: bool, lengths: list[int] | None
) -> None:
    """Outputs, the input's gradient and those of all weights; padding is skipped as in a packed sequence."""
    ours, theirs = kinds
    layer = ours(5, return_sequences=sequences, go_backwards=backwards, use_bias=not backwards)
    shapes = [(6, 3)] if lengths is None else [(6, 3), (6,)]
    given_case = case(layer, *shapes, batch=4, seed=2)
    if lengths is not None:
        given_case.inputs[1][:] = np.arange(6)[:, None] < np.array(lengths)
    expected, (x, module) = in_torch(theirs, given_case, lengths, backwards=backwards)
    expected.backward(torch.from_numpy(given_case.error))
    found = play(given_case)
    np.testing.assert_allclose(found.state, expected.detach(), **CLOSE)
    np.testing.assert_allclose(found.errors[0], x.grad.permute(1, 2, 0), **CLOSE) if x.is_leaf else None
    for gradient, parameter in zip(found.gradients, module.parameters(), strict=True):
        np.testing.assert_allclose(gradient, parameter.grad, **CLOSE)
    assert not any(found.errors[1].any() for _ in shapes[1:])


@pytest.mark.parametrize("kind", [LSTM, GRU])
def test_padding_may_stand_anywhere_and_an_example_may_be_empty(kind: Any) -> None:
    """Equal to the sequence without its padding; an example of padding alone gives 0."""
    mask = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]).T
    for sequences in (False, True):
        layer: Layer = kind(3, return_sequences=sequences)
        padded = case(layer, (5, 2), (5,), batch=2)
        padded.inputs[1][:] = mask
        short = case(layer, (3, 2), batch=2)
        kept = mask[:, 0] == 1
        short.inputs[0][:] = padded.inputs[0][kept]
        for target, source in zip(short.parameters, padded.parameters, strict=True):
            target[...] = source
        found, expected = play(padded), play(short)
        rows = found.state[kept] if sequences else found.state
        np.testing.assert_allclose(rows[..., 0], expected.state[..., 0], **CLOSE)
        assert not found.state[..., 1].any()
        assert not found.errors[0][..., 1].any()


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_stacked_layers_on_several_machines_in_micro_batches_are_one_network(machines: int) -> None:
    net = Network("stacked")
    mask = PaddingMask(0)(net.input("words", shape=6, classes=3))
    first = LSTM(4, return_sequences=True, name="first")(net.input("x", shape=(6, 3)), mask)
    last = GRU(5, name="last")(first, mask)
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(last), net.target("label"))
    graph, found = net.graph(), []
    draw = np.random.default_rng(5)
    parameters = {name: draw.normal(size=p.shape) / 2 for name, p in graph.parameters.items()}
    for count, micro_batches in ((1, 1), (machines, 2)):
        cuts = {"first": Whole(0), "last": Whole(count - 1)}
        cluster = Cluster.local(machines=count)
        plan = partition(graph, cluster, batch=4, precision="float64", cuts=cuts, micro_batches=micro_batches)
        found.append(play_with(plan, parameters, draw_batch(graph, 4, 3)))
    for name, gradient in found[0].gradients.items():
        np.testing.assert_allclose(found[1].gradients[name], gradient, err_msg=name, **CLOSE)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, net: LSTM(0), "LSTM: the number of units is 0; write"),
        (lambda x, net: GRU(3, go_backwards=1), "GRU: go_backwards is 1; write True or False"),
        (lambda x, net: LSTM(3)(net.input("row", shape=4)), r"has the shape \(4,\); a sequence is"),
        (lambda x, net: GRU(3)(x, x), r"called on \(7, 12\); give it at most a mask \(7,\)"),
    ],
)
def test_mistakes_are_refused(call: Any, sentence: str) -> None:
    net = Network("wrong")
    x = net.input("x", shape=(7, 12))
    with pytest.raises(ValueError, match=sentence):
        call(x, net)
