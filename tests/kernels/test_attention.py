"""Attention: equal to its definition and to PyTorch's module, cut by positions and by heads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import (
    Attention,
    Dense,
    MultiHeadAttention,
    Network,
    PaddingMask,
    PositionEmbedding,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, Plan, RowSplit, partition
from tests.draws import examples
from tests.kernels.cases import batches, case, cut_points, play, seeds
from tests.properties.kernels import assert_true
from tests.truth.interleaved import draw_batch, play_with

Arrays = dict[str, Any]
CLOSE: Any = {"rtol": 1e-10, "atol": 1e-12}


SHARED = st.sampled_from([(1, 1), (2, 2), (3, 3), (2, 1), (4, 2), (6, 3)])


@given(st.data(), SHARED, st.integers(1, 3), st.booleans(), st.booleans(), batches, seeds)
@settings(max_examples=examples(12))
def test_equals_its_node_definition(
    data: st.DataObject,
    shared: tuple[int, int],
    key_dim: int,
    causal: bool,
    masked: bool,
    batch: int,
    seed: int,
) -> None:
    heads, pairs = shared
    queries, width = data.draw(st.integers(1, 5)), heads * key_dim
    keys = queries if causal else data.draw(st.integers(1, 5))
    fewer = None if pairs == heads else pairs
    layer = Attention(heads, key_dim, causal=causal, masked=masked, num_key_value_heads=fewer)
    given_case = case(
        layer, (queries, width), (keys, 2 * pairs * key_dim), *[(keys,)] * masked, batch=batch, seed=seed
    )
    cuts = data.draw(cut_points(queries))
    assert_true(given_case, play(given_case, *cuts, extra=data.draw(st.integers(0, 2))))


def test_each_of_its_inputs_has_a_wiring_of_its_own() -> None:
    """Three positions of two heads of two columns."""
    layer = Attention(2, 2, causal=True, masked=True)
    (queries, attended, mask), rows = layer.wirings(((3, 4), (3, 8), (3,))), (1, 2)
    offsets, senders = queries.edges(rows, (3, 4), (3, 4))
    assert (offsets.tolist(), senders.tolist()) == ([0, 2, 4, 6, 8], [4, 5, 4, 5, 6, 7, 6, 7])
    offsets, senders = attended.edges(rows, (3, 4), (3, 8))
    assert senders[:6].tolist() == [0, 1, 4, 8, 9, 12]
    assert senders[offsets[3] :].tolist() == [2, 3, 7, 10, 11, 15]
    assert mask.edges(rows, (3, 4), (3,))[1].tolist() == [0, 1] * 4


def network(rows: str, *, causal: bool, masked: bool) -> Network:
    net = Network("attentive")
    x = PositionEmbedding(name="positions")(net.input("x", shape=(7, 12)))
    mask = PaddingMask(0, name="mask")(net.input("words", shape=7, classes=3)) if masked else None
    attended = MultiHeadAttention(6, causal=causal, rows=rows, name="attention")(x, mask=mask)
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(attended), net.target("label"))
    return net


def drawn(plan: Plan) -> tuple[Arrays, Arrays]:
    draw = np.random.default_rng(7)
    parameters = {name: draw.normal(size=p.shape) / 3 for name, p in plan.graph.parameters.items()}
    batch = draw_batch(plan.graph, plan.batch, 3)
    if "words" in batch:
        batch["words"][0] = (1, 2, 0, 1, 0, 0, 0)
        batch["words"][1:, 0] = 1  # PyTorch has no numbers for a query that may attend to nothing
    return parameters, batch


def in_torch(rows: str, parameters: Arrays, batch: Arrays, *, causal: bool) -> tuple[Any, Arrays]:
    """The result of `torch.nn.MultiheadAttention`, and its gradients under our names."""
    module = torch.nn.MultiheadAttention(12, 6, batch_first=True, dtype=torch.float64)
    ours = {name: torch.from_numpy(array).requires_grad_() for name, array in parameters.items()}
    if rows == "positions":
        weights = [ours["attention_query.weight"], ours["attention_key_value.weight"]]
        biases = [ours["attention_query.bias"], ours["attention_key_value.bias"]]
    else:  # a block for each head: its keys, then its values
        pair = ours["attention_heads.key_value_weight"].unflatten(1, (2, 2)).transpose(0, 1)
        weights = [ours["attention_heads.query_weight"].flatten(0, 1), pair.flatten(0, 2)]
        pair = ours["attention_heads.key_value_bias"].unflatten(1, (2, 2)).transpose(0, 1)
        biases = [ours["attention_heads.query_bias"].flatten(), pair.flatten()]
    state = {
        "in_proj_weight": torch.cat(weights),
        "in_proj_bias": torch.cat(biases),
        "out_proj.weight": ours["attention.weight"],
        "out_proj.bias": ours["attention.bias"],
    }
    x = torch.from_numpy(batch["x"]) + ours["positions.weight"]
    masks: Any = {"key_padding_mask": torch.from_numpy(batch["words"] == 0)} if "words" in batch else {}
    if causal:
        masks["attn_mask"] = torch.ones(7, 7, dtype=torch.bool).triu(1)
    given = (x, x, x)
    attended, _ = torch.func.functional_call(module, state, given, {**masks, "need_weights": False})
    scores = attended.flatten(1) @ ours["scores.weight"].T + ours["scores.bias"]
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch["label"][:, 0])).backward()
    gradients = {name: tensor.grad.numpy() for name, tensor in ours.items() if tensor.grad is not None}
    return attended.detach().permute(1, 2, 0).numpy(), gradients


USUAL = (("positions", True, True, 3), ("heads", False, False, 3))
ANY_CUT = [
    pytest.param(*one, marks=() if one in USUAL else pytest.mark.slow)
    for one in itertools.product(("positions", "heads"), (True, False), (True, False), range(1, 7))
]


@pytest.mark.parametrize(("rows", "causal", "masked", "machines"), ANY_CUT)
def test_equals_the_module_of_pytorch_cut_any_way(
    rows: str, causal: bool, masked: bool, machines: int
) -> None:
    """State and gradients in float64, all layers of the attention over all machines."""
    net, cluster = network(rows, causal=causal, masked=masked), Cluster.local(machines=machines)
    graph = net.graph()
    layers = [grid.name for grid in graph.computed if grid.name not in ("scores", *graph.losses)]
    cuts = {name: RowSplit(machines) for name in layers}
    plan = partition(graph, cluster, batch=5, precision="float64", cuts=cuts)
    parameters, batch = drawn(plan)
    found = play_with(plan, parameters, batch)
    expected, gradients = in_torch(rows, parameters, batch, causal=causal)
    np.testing.assert_allclose(found.states["attention"], expected, **CLOSE)
    assert gradients.keys() == found.gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, err_msg=name, **CLOSE)


GROUPED = [
    *((3, "heads"), pytest.param(3, "positions", marks=pytest.mark.slow)),
    *(pytest.param(m, rows, marks=pytest.mark.slow) for m in (1, 2, 4) for rows in ("heads", "positions")),
]


@pytest.mark.parametrize(("machines", "rows"), GROUPED)
def test_heads_that_share_keys_and_values_are_those_of_pytorch(machines: int, rows: str) -> None:
    """Grouped-query attention with its projections, by `enable_gqa`; cut by heads, a row is a group."""
    net = Network("grouped")
    attended = MultiHeadAttention(6, 2, causal=True, num_key_value_heads=3, rows=rows, name="attention")
    found = attended(net.input("x", shape=(7, 12)))
    net.loss = SoftmaxCrossEntropy()(Dense(3, name="scores")(found), net.target("label"))
    plan = partition(net, Cluster.local(machines=machines), batch=4, precision="float64", strategy="balanced")
    parameters, batch = drawn(plan)
    played = play_with(plan, parameters, batch)
    ours = {name: torch.from_numpy(array).requires_grad_() for name, array in parameters.items()}
    x = torch.from_numpy(batch["x"])
    if rows == "positions":
        queries = x @ ours["attention_query.weight"].T + ours["attention_query.bias"]
        pairs = x @ ours["attention_key_value.weight"].T + ours["attention_key_value.bias"]
        pairs = pairs.unflatten(-1, (2, 3, 2))
    else:
        weight, bias = (ours[f"attention_heads.key_value_{one}"] for one in ("weight", "bias"))
        pairs = (x @ weight.flatten(0, 1).T + bias.flatten()).unflatten(-1, (3, 2, 2)).transpose(2, 3)
        weight, bias = (ours[f"attention_heads.query_{one}"] for one in ("weight", "bias"))
        queries = x @ weight.flatten(0, 1).T + bias.flatten()
    given = (queries.unflatten(-1, (6, 2)), *pairs.unbind(2))
    scaled = torch.nn.functional.scaled_dot_product_attention
    heads = scaled(*(one.transpose(1, 2) for one in given), is_causal=True, enable_gqa=True)
    known = heads.transpose(1, 2).flatten(2) @ ours["attention.weight"].T + ours["attention.bias"]
    scores = known.flatten(1) @ ours["scores.weight"].T + ours["scores.bias"]
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch["label"][:, 0])).backward()
    np.testing.assert_allclose(played.states["attention"], known.detach().permute(1, 2, 0), **CLOSE)
    for name, gradient in played.gradients.items():
        np.testing.assert_allclose(gradient, ours[name].grad, **CLOSE, err_msg=name)


def messages(rows: str, *, causal: bool) -> dict[str, list[str]]:
    """For each layer between two machines that is sent forward, its rows."""
    graph = network(rows, causal=causal, masked=False).graph()
    layers = [g.name for g in graph.computed if g.name.startswith(("attention", "positions"))]
    cuts = {name: RowSplit(2) for name in layers}
    plan = partition(graph, Cluster.local(machines=2), batch=4, cuts=cuts)
    found: dict[str, list[str]] = {}
    for message in plan.messages:
        name = str(message.buffer)
        if name.removeprefix("attention").startswith(("_", ".")) or name in layers:
            found.setdefault(name, []).append(f"{message.source}->{message.destination} {message.rows}")
    return found


def test_a_causal_cut_by_positions_sends_earlier_keys_and_values_alone() -> None:
    causal, whole = messages("positions", causal=True), messages("positions", causal=False)
    assert causal["attention_key_value"] == ["0->1 0:4"]
    assert sorted(whole["attention_key_value"]) == ["0->1 0:4", "1->0 4:7"]
    for found in (causal, whole):
        assert not {"attention_query", "attention_heads", "positions"} & found.keys()


def test_a_cut_by_heads_sends_no_keys_values_or_weights_of_heads() -> None:
    found = messages("heads", causal=True)
    assert sorted(found["positions"]) == ["0->1 0:4", "1->0 4:7"]
    assert sorted(found["attention_heads"]) == ["0->1 0:3", "1->0 3:6"]
    assert not any("attention_heads" in name and "parameters" in name for name in found)


def test_a_query_that_may_attend_to_nothing_gives_zero_and_no_gradient() -> None:
    given_case = case(Attention(2, 2, masked=True), (3, 4), (3, 8), (3,), batch=2)
    given_case.inputs[2][:] = [[0, 1], [0, 0], [0, 1]]
    found = play(given_case)
    assert not found.state[..., 0].any()
    assert found.state[..., 1].all()
    assert all(np.isfinite(one).all() for one in found.errors)
    assert not found.errors[1][..., 0].any()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x, net: MultiHeadAttention(5)(x), "12 features do not fall into 5 equal heads"),
        (lambda x, net: MultiHeadAttention(0), "the number of heads is 0; write a whole number"),
        (lambda x, net: MultiHeadAttention(3, rows="columns"), 'rows are .columns.; write "positions" or'),
        (lambda x, net: MultiHeadAttention(3)(net.input("row", shape=4)), "a sequence is .positions, fea"),
        (lambda x, net: MultiHeadAttention(3)(x, mask=net.input("m", shape=6)), r"the mask has .* \(7,\)"),
        (lambda x, net: MultiHeadAttention(3)("x"), "needs the states of another layer"),
        (
            lambda x, net: MultiHeadAttention(3, causal=True)(x, net.input("memory", shape=(4, 6))),
            "it is causal, but 7 positions attend to 4",
        ),
        (lambda x, net: Attention(2, 3)(x, x), r"give it queries \(positions, 6\), keys and values"),
    ],
)
def test_mistakes_are_refused(call: Any, sentence: str) -> None:
    net = Network("wrong")
    x = net.input("x", shape=(7, 12))
    with pytest.raises(ValueError, match=sentence):
        call(x, net)


def test_names_of_other_libraries_are_answered() -> None:
    make: Any = MultiHeadAttention
    with pytest.raises(TypeError, match="did you mean 'causal'"):
        make(4, is_causal=True)
    with pytest.raises(TypeError, match=r"call Dropout\(\.\.\.\) on the result"):
        make(4, dropout=0.1)


def test_attends_to_another_sequence() -> None:
    """Both arrangements of rows, with the same weights."""
    states = []
    for rows in ("positions", "heads"):
        net = Network("two")
        x, memory = net.input("x", shape=(3, 4)), net.input("memory", shape=(5, 6))
        attended = MultiHeadAttention(2, 3, rows=rows, use_bias=False, name="a")(x, memory)
        net.loss = SoftmaxCrossEntropy()(Dense(2, name="scores")(attended), net.target("label"))
        plan = partition(net, Cluster.local(machines=2), batch=4, precision="float64", strategy="balanced")
        draw = np.random.default_rng(3)
        query, pair = draw.normal(size=(6, 4)), draw.normal(size=(12, 6))
        blocks = pair.reshape(2, 2, 3, 6).swapaxes(0, 1).reshape(2, 6, 6)
        weights = {
            "a_query.weight": query,
            "a_key_value.weight": pair,
            "a_heads.query_weight": query.reshape(2, 3, 4),
            "a_heads.key_value_weight": blocks,
        }
        given_weights = {n: weights.get(n, np.ones(p.shape)) for n, p in plan.graph.parameters.items()}
        states.append(play_with(plan, given_weights, draw_batch(plan.graph, 4, 3)).states["a"])
    assert states[0].any()
    np.testing.assert_allclose(*states, **CLOSE)
