"""Operations that have no layer of their own, as layers `Expression`: equal to the module's, however cut."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from partita.engine import Session, from_torch
from partita.engine.parameters import initialise
from partita.engine.pytorch.expression import Expression
from partita.engine.pytorch.imported_network import ImportedNetwork
from partita.layers import HalfSquaredError
from partita.partitioner import Cluster, partition
from tests.pytorch.expressions import Arithmetic, Excited, Masked, Rotated
from tests.pytorch.modules import Language
from tests.pytorch.steps import BATCH, check

SEQUENCE = torch.empty(BATCH, 6, 8)
CASES = {
    "arithmetic": (Arithmetic, torch.empty(BATCH, 3, 5)),
    "excited": (Excited, torch.empty(BATCH, 2, 8, 8)),
    "rotated": (Rotated, SEQUENCE),
    "masked": (Masked, SEQUENCE),
    "language": (lambda: Language(9, 4), torch.empty(BATCH, 7, dtype=torch.int64)),
}


def cases() -> list[Any]:
    """Every module on 1 to 4 machines; by default on 2."""
    every = [(name, machines) for name in CASES for machines in (1, 2, 3, 4)]
    by_default = [(name, 2) for name in CASES if name != "language"]
    return [
        pytest.param(
            *(*CASES[name], machines),
            id=f"{name}-{machines}",
            marks=[] if (name, machines) in by_default else [pytest.mark.slow],
        )
        for name, machines in every
    ]


@pytest.mark.parametrize(("make", "like", "machines"), cases())
def test_a_step_is_the_modules(make: Any, like: torch.Tensor, machines: int) -> None:
    torch.manual_seed(3)
    check(make(), like, machines=machines)


def test_what_is_written_out_is_one_layer_that_is_cut() -> None:
    """A chain is one layer; its rows are those of its input; a norm and a causal mask are recognised."""
    torch.manual_seed(3)
    grids = from_torch(Rotated(), (SEQUENCE,)).graph().grids
    kinds = [one.layer.kind for one in grids]
    assert kinds[:3] == ["Input", "RMSNorm", "Linear"] and "Add" not in kinds
    found = [one for one in grids if isinstance(one.layer, Expression)]
    assert all(one.layer.cuttable and one.shape[0] == 6 for one in found)
    pictures = from_torch(Excited(), (torch.empty(BATCH, 2, 8, 8),)).graph()
    layers = [one.layer for one in pictures.grids if isinstance(one.layer, Expression)]
    assert layers[0].program.places and not layers[-1].program.places
    for one in layers:
        again = pickle.loads(pickle.dumps(one))
        assert again == one and hash(again) == hash(one)


def losses_of(net: ImportedNetwork, batch: dict[str, Any]) -> list[float]:
    """The loss of a training step on one machine, and on two."""
    found = []
    for machines in (1, 2):
        plan = partition(
            net, Cluster.local(machines=machines), batch=BATCH, strategy="balanced", precision="float64"
        )
        start = initialise(plan.graph.parameters.values(), 0, dtype="float64")
        with Session(plan, start, train=True) as session:
            found.append(session.step(batch).loss)
    return found


class Dropping(nn.Module):
    """Attention whose shares are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True)


def test_dropout_of_attention_is_counted() -> None:
    """In training the same shares are dropped however the network is cut; at rest none are."""
    torch.manual_seed(3)
    module = Dropping()
    net = from_torch(module, (SEQUENCE,))
    x = np.random.default_rng(2).normal(size=SEQUENCE.shape)

    plan = partition(net, Cluster.local(machines=2), batch=BATCH, strategy="balanced", precision="float64")
    start = initialise(plan.graph.parameters.values(), 0, dtype="float64")
    with Session(plan, start, train=False) as session:
        found = session.step({"x": x}, collect=(net.output.name,)).collected[net.output.name]
    rest = np.moveaxis(found, -1, 0)
    module.double()
    q, k, v = (
        one.unflatten(-1, (2, 4)).transpose(1, 2) for one in module.qkv(torch.from_numpy(x)).chunk(3, -1)
    )
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(rest, expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    whole, cut = losses_of(net, {"x": x, "y": np.zeros((BATCH, *net.output.shape))})
    assert whole == pytest.approx(cut, rel=1e-12)
    assert whole != pytest.approx(float(expected.detach().square().sum()) / 2 / BATCH, rel=1e-3)


@pytest.mark.slow
def test_a_transformer_in_training_drops_the_same_on_one_machine_and_two() -> None:
    """With its rate of 0.1, in attention and behind it."""
    torch.manual_seed(3)
    module = nn.Transformer(8, 2, 1, 1, 12, batch_first=True)
    net = from_torch(module, (SEQUENCE, SEQUENCE))
    assert [one.layer.kind for one in net.graph().grids].count("Dropout") > 6
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    draw = np.random.default_rng(2)
    given = {one: draw.normal(size=SEQUENCE.shape) for one in (*net.arguments, "y")}
    whole, cut = losses_of(net, given)
    assert whole == pytest.approx(cut, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x - x.mean(0), "mixes the examples with each other"),
        (lambda x: x * torch.rand(8), r"rand, at .*test_expressions.py"),
        (lambda x: x.flatten(0, 1) * 2, "mixes the examples with another dimension"),
        (lambda x: torch.ones(3) * 2, "no network's"),
        (lambda x: x * torch.arange(x.size(0))[:, None, None], "arange, at "),
    ],
)
def test_what_is_no_layer_is_refused(change: Any, message: str) -> None:
    class Changed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = change(x)
            return found

    with pytest.raises(ValueError, match=message):
        from_torch(Changed(), (SEQUENCE,))


def test_one_of_several_results() -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"twice": x * 2, "thrice": x * 3, "cache": object()}

    with pytest.raises(ValueError, match=r"returns 2 tensors: .* choose one, output='twice'"):
        from_torch(Several(), (SEQUENCE,))
    with pytest.raises(ValueError, match=r"output='cache' is no tensor"):
        from_torch(Several(), (SEQUENCE,), output="cache")
    assert from_torch(Several(), (SEQUENCE,), output="thrice").output.shape == (6, 8)
    lstm = nn.LSTM(8, 3, batch_first=True)
    assert from_torch(lstm, (SEQUENCE,), output=0).output.shape == (6, 3)
