"""A transformer block cut by positions, or by heads and units: equal to PyTorch's, with the traffic that it
must have.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from partita.layers import (
    Add,
    Dense,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Network,
    SoftmaxCrossEntropy,
)
from partita.layers.box import Shape
from partita.partitioner import Cluster, InputSplit, Plan, Replicated, RowSplit, Whole, partition
from partita.partitioner.assign.cuts import Cut
from partita.partitioner.ir.buffer import BufferKind
from tests.truth.interleaved import draw_batch, play_with

POSITIONS, FEATURES, HEADS, UNITS, BATCH = 6, 12, 6, 10, 4
Arrays = dict[str, Any]


def network(rows: str, *, shape: Shape = (POSITIONS, FEATURES), units: int = UNITS) -> Network:
    """A block that normalises first; `rows` is "positions" or "weights"."""
    of_heads, of_units = ("positions", "positions") if rows == "positions" else ("heads", "units")
    net = Network("block")
    x = net.input("x", shape=shape)
    attention = MultiHeadAttention(HEADS, causal=True, rows=of_heads, name="attention")
    x = Add(name="attended")(x, attention(LayerNorm(name="norm1")(x)))
    x = Add(name="block")(x, FeedForward(units, rows=of_units, name="mlp")(LayerNorm(name="norm2")(x)))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(3, name="scores")(x), net.target("label"))
    return net


def planned(rows: str, machines: int) -> Plan:
    """All layers but the loss cut by positions; or by heads and units, with sums for all ("all") or for those
    who own the positions ("owners")."""
    net = network(rows)
    names = [grid.name for grid in net.graph().computed if grid.name not in ("scores", "loss")]
    cuts: dict[str, Cut] = {name: RowSplit(machines) for name in names}
    if rows != "positions":
        sums = InputSplit(machines, replicated=rows == "all")
        cuts |= {"attention": sums, "mlp": sums}
    if rows == "all":
        cuts |= {name: Replicated(machines) for name in ("norm1", "attended", "norm2", "block")}
    cluster, end = Cluster.local(machines), {"scores": Whole(0), "loss": Whole(0)}
    return partition(net, cluster, batch=BATCH, precision="float64", cuts={**cuts, **end})


def in_torch(rows: str, parameters: Arrays, batch: Arrays) -> tuple[Any, Arrays]:
    """The result of `torch.nn.TransformerEncoderLayer`, and gradients under our names."""
    ours = {name: torch.from_numpy(array).requires_grad_() for name, array in parameters.items()}
    block = torch.nn.TransformerEncoderLayer(
        FEATURES,
        HEADS,
        UNITS,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )

    def projection(what: str) -> torch.Tensor:
        if rows == "positions":
            return torch.cat([ours[f"attention_{one}.{what}"] for one in ("query", "key_value")])
        pair = ours[f"attention_heads.key_value_{what}"].unflatten(1, (2, -1)).transpose(0, 1)
        return torch.cat([ours[f"attention_heads.query_{what}"].flatten(0, 1), pair.flatten(0, 2)])

    names = {"norm1": "norm1", "norm2": "norm2", "self_attn.out_proj": "attention"}
    names |= {"linear1": "mlp_hidden", "linear2": "mlp"}
    state = {f"{theirs}.{what}": ours[f"{name}.{what}"] for theirs, name in names.items() for what in WHAT}
    state |= {f"self_attn.in_proj_{what}": projection(what) for what in WHAT}
    mask = torch.nn.Transformer.generate_square_subsequent_mask(POSITIONS, dtype=torch.float64)
    given = (torch.from_numpy(batch["x"]), mask)
    found = torch.func.functional_call(block, state, given, {"is_causal": True})
    scores = found.flatten(1) @ ours["scores.weight"].T + ours["scores.bias"]
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch["label"][:, 0])).backward()
    gradients = {name: tensor.grad.numpy() for name, tensor in ours.items() if tensor.grad is not None}
    return found.detach().permute(1, 2, 0).numpy(), gradients


WHAT = ("weight", "bias")


@pytest.mark.parametrize("machines", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4, 5, 6))])
@pytest.mark.parametrize("rows", ["positions", "all", "owners"])
def test_equals_the_block_of_pytorch(rows: str, machines: int) -> None:
    plan = planned(rows, machines)
    draw = np.random.default_rng(7)
    parameters = {name: draw.normal(size=p.shape) / 3 for name, p in plan.graph.parameters.items()}
    batch = draw_batch(plan.graph, BATCH, 3)
    found = play_with(plan, parameters, batch)
    expected, gradients = in_torch(rows, parameters, batch)
    np.testing.assert_allclose(found.states["block"], expected, rtol=1e-10, atol=1e-12)
    assert gradients.keys() == found.gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, err_msg=name, rtol=1e-9, atol=1e-11)


def test_a_cut_by_heads_and_units_sends_two_sums_forward_and_two_gradients_backward() -> None:
    """As Megatron-LM: one after the attention, one after the dense layers; and the few numbers of norms."""
    plan = planned("all", 2)
    state = POSITIONS * FEATURES * BATCH * 8
    in_block = [m for m in plan.messages if m.layer not in ("block", "scores", "loss")]
    large = Counter((str(m.buffer), m.n_bytes) for m in in_block if not m.is_of_weights)
    layers, kinds = ("attention", "mlp"), ("sums", "deltas")
    assert large == {(f"{layer}.{kind}", state): 2 for layer in layers for kind in kinds}
    assert {m.layer for m in in_block if m.is_of_weights} == {"norm1", "norm2"}
    held = [sum(one.size for one in plan.ownership.parameter_slices("mlp", m)) for m in range(2)]
    assert held == [FEATURES * UNITS // 2 + FEATURES, FEATURES * UNITS // 2]


def test_sums_for_the_owners_of_positions_are_half_of_it_each_way() -> None:
    """Reduced to the owners, and gathered again by the next layer: with n machines 2 (n - 1) / n of a state
    for each, not n - 1."""
    for machines in (2, 3, 6):
        state = POSITIONS * FEATURES * BATCH * 8
        messages = [m for m in planned("owners", machines).messages if m.direction == "forward"]
        of_block = [m for m in messages if m.layer in ("attention", "norm2")]
        assert {m.buffer.kind for m in of_block if m.layer == "attention"} == {BufferKind.PARTIAL_SUMS}
        sent = sum(m.n_bytes for m in of_block if not m.is_of_weights)
        assert sent == 2 * (machines - 1) * state


def test_the_search_cuts_heads_and_units_by_inputs() -> None:
    """Each layer that reads heads or units has the weights of its machine's, and no weights travel but those
    of norms.
    """
    plan = partition(network("weights", shape=(32, 240), units=960), Cluster.local(2), batch=32)
    owned = plan.ownership
    assert all(owned.is_input_split(layer) for layer in ("attention", "mlp"))
    for layer, reader in (("attention_heads", "attention"), ("mlp_activation", "mlp")):
        inputs = {(piece.machine, piece.inputs) for piece in owned.of(reader)}
        assert {(piece.machine, (piece.start, piece.stop)) for piece in owned.of(layer)} == inputs
    assert {m.layer for m in plan.messages if m.is_of_weights} <= {"norm1", "norm2"}
