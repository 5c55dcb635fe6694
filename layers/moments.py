"""Mean and variance of numbers that several machines have: a summary of three numbers, and its combination.

Each machine finds the count, the mean and the sum of squared differences from its own mean; these combine
without cancellation. Source: Chan, Golub and LeVeque, *Algorithms for computing the sample variance*, 1983.
"""

from __future__ import annotations

from typing import Any

from partita.layers.contract import Tensor

N_MOMENTS = 3
"""Rows of the summary: count, mean, and sum of squared differences from it."""


def moments(torch: Any, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The moments over some axes, `[3, other axes ...]`; zeros of no numbers."""
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    if not count:
        return torch.zeros_like(torch.stack([x.sum(axes)] * N_MOMENTS))
    mean = x.mean(axes, keepdim=True)
    squares = (x - mean).square().sum(axes)
    return torch.stack((torch.full_like(squares, count), mean.sum(axes), squares))


def joined(torch: Any, pieces: Tensor) -> Tensor:
    """The moments of all pieces, from `[piece, 3, ...]`; their order is that of the sums."""
    counts, means, squares = pieces.unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1)
    spread = (squares + counts * (means - mean).square()).sum(0)
    return torch.stack((total, mean, spread))
