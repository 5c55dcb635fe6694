"""Masks that modules draw by hand become dropout: of numbers, of channels, of whole examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from partita.engine import Session, from_torch
from partita.engine.parameters import initialise
from partita.layers import Dropout, HalfSquaredError
from partita.partitioner import Cluster, partition

KEPT = 0.75
BATCH = 64
PICTURES = torch.empty(BATCH, 4, 2, 2)
Branch = Callable[[torch.Tensor], torch.Tensor]


class Deep(nn.Module):
    """Something beside its input, which is dropped by a function."""

    def __init__(self, drop: Branch) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x * 1.0).flatten(1)


def by_torchvision(x: torch.Tensor) -> torch.Tensor:
    noise = torch.empty([x.shape[0], 1, 1, 1], dtype=x.dtype).bernoulli_(KEPT)
    noise.div_(KEPT)
    return x * noise


def rounded_down(x: torch.Tensor) -> torch.Tensor:
    noise = KEPT + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype)
    return x.div(KEPT) * noise.floor_()


def of_numbers(x: torch.Tensor) -> torch.Tensor:
    return x * torch.bernoulli(torch.full_like(x, KEPT)) / KEPT


def compared(x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand_like(x) > 1 - KEPT).float() / KEPT


def of_channels(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout2d(x, 1 - KEPT)


def unscaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(KEPT)


def played(branch: Branch, machines: int) -> np.ndarray:
    """What the module computes of inputs that are 1 in a step of training: `[example, ...]`."""
    net = from_torch(Deep(branch), (PICTURES,))
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    plan = partition(net, Cluster.local(machines=machines), batch=BATCH, strategy="balanced")
    given = {"x": np.ones(PICTURES.shape, np.float32), "y": np.zeros((BATCH, 16), np.float32)}
    start = initialise(plan.graph.parameters.values(), 0)
    with Session(plan, start, train=True) as session:
        found = session.step(given, collect=(net.output.name,)).collected[net.output.name]
    return np.moveaxis(found, -1, 0).reshape(BATCH, 4, 4)


@pytest.mark.parametrize(
    ("branch", "together", "factor"),
    [
        (by_torchvision, (1, 2), 1 / KEPT),
        pytest.param(rounded_down, (1, 2), 1 / KEPT, marks=pytest.mark.slow),
        pytest.param(of_numbers, (), 1 / KEPT, marks=pytest.mark.slow),
        pytest.param(compared, (), 1 / KEPT, marks=pytest.mark.slow),
        pytest.param(of_channels, (2,), 1 / KEPT, marks=pytest.mark.slow),
        pytest.param(unscaled, (1, 2), 1.0, marks=pytest.mark.slow),
    ],
)
def test_a_mask_is_dropout(branch: Branch, together: tuple[int, ...], factor: float) -> None:
    """Numbers are dropped together as by the module, with its rate, the same on one machine and two."""
    whole, cut = played(branch, 1), played(branch, 2)
    np.testing.assert_array_equal(whole, cut)
    assert set(np.unique(whole)) == {np.float32(0), np.float32(factor)}
    if together:
        assert (np.ptp(whole, axis=together) == 0).all()
    others = tuple(axis for axis in (1, 2) if axis not in together)
    if others:
        assert (np.ptp(whole, axis=others) > 0).any()
    groups = whole.any(together) if together else whole > 0
    assert abs(groups.mean() - KEPT) < 4 * np.sqrt(KEPT * (1 - KEPT) / groups.size)


def test_masks_that_are_no_dropout_are_refused() -> None:
    def of_all(x: torch.Tensor) -> torch.Tensor:
        return x * torch.empty(1, 1, 1, 1).bernoulli_(KEPT)

    def twice(x: torch.Tensor) -> torch.Tensor:
        mask = torch.rand_like(x) > KEPT
        return x * mask + mask.float()

    for branch, says in ((of_all, "one random mask for all examples"), (twice, "read more than once")):
        with pytest.raises(ValueError, match=says):
            from_torch(Deep(branch), (PICTURES,))
    with pytest.raises(ValueError, match=r"noise_shape is \(1, 3\), and the input \(2, 4\)"):
        Dropout(noise_shape=(1, 3)).shape(((2, 4),))
