"""Networks from modules of PyTorch: losses, gradients and names are the module's, on any number of parts."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import from_torch
from partita.engine.parameters import initialise
from partita.engine.pytorch.conversion import OPERATIONS
from tests.pytorch.modules import Decoder, InPlace, Pictures, Plain, Strange, Texts
from tests.pytorch.steps import BATCH, check

PICTURES = torch.empty(BATCH, 2, 8, 8)
WORDS = torch.empty(BATCH, 7, dtype=torch.int64)


@pytest.mark.parametrize("machines", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("make", "like"),
    [
        (Pictures, PICTURES),
        (Plain, PICTURES),
        (Decoder, torch.empty(BATCH, 6, 8)),
        (Texts, WORDS),
    ],
)
def test_a_step_is_the_modules(make: Any, like: torch.Tensor, machines: int) -> None:
    torch.manual_seed(3)
    check(make(), like, machines=machines)


def test_keys_and_values_that_lie_side_by_side_are_one_part() -> None:
    net = from_torch(Decoder(), (torch.empty(BATCH, 6, 8),))
    kinds = [one.layer.kind for one in net.graph().grids]
    assert kinds.count("Slice") == 2 and "Concatenate" not in kinds


def test_what_has_no_layer_is_named_with_its_line_and_may_stay_as_it_is() -> None:
    torch.manual_seed(3)
    like = torch.empty(BATCH, 4)
    with pytest.raises(
        ValueError, match=r"(?s)opaque=True.*fft_fft.*modules.py:\d+: return torch.fft"
    ) as error:
        from_torch(Strange(), (like,))
    assert "linear" not in str(error.value)
    check(Strange(), like, machines=2, opaque=True)
    net = from_torch(Strange(), (like,), opaque=True)
    assert [one.layer.kind for one in net.graph().grids] == ["Input", "Dense", "Torch", "Dense"]


def test_frozen_and_shared_weights_stay_so() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    check(module, torch.empty(BATCH, 4), machines=2)
    check(InPlace(), torch.empty(BATCH, 6, dtype=torch.int64), machines=2)


def test_a_gradient_that_is_stopped_is_not_passed_on_in_silence() -> None:
    class Stopped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.detach() + x

    with pytest.raises(ValueError, match="detach, at "):
        from_torch(Stopped(), (torch.empty(BATCH, 4),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_torch(nn.ReLU, (PICTURES,)), "is no module"),  # type: ignore[arg-type]
        (lambda: from_torch(nn.LSTM(8, 3, batch_first=True), (PICTURES[:, 0],)), "returns 3 tensors"),
        (lambda: from_torch(nn.Linear(3, 3), (PICTURES,)), "torch.export makes no graph"),
        (lambda: from_torch(nn.Identity(), (WORDS,)), "holds whole numbers"),
        (lambda: from_torch(nn.Flatten(0), (PICTURES,)), "mixes the examples with another dimension"),
        (
            lambda: from_torch(nn.Sequential(nn.Flatten(0, 1), nn.Linear(8, 3)), (PICTURES,)),
            "mixes the examples with another dimension",
        ),
    ],
)
def test_what_cannot_be_a_network_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_the_numbers_of_the_module_are_those_of_the_network() -> None:
    """And the module may change afterwards."""
    torch.manual_seed(3)
    module = Plain()
    net = from_torch(module, (PICTURES,))
    before = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        module.classifier[0].weight.zero_()
    found = net.state_dict(initialise(net.graph().parameters.values(), 0))
    for name, values in before.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0)


def test_the_page_names_every_operation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row)}
    assert OPERATIONS.keys() <= named
