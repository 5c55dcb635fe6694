"""Gradients of a few rows, as layers return them, summed row by row. Importing this imports torch."""

from __future__ import annotations

from typing import Any

import torch

from partita.engine.kernels.tensors import TYPES
from partita.engine.numerics.row_gradient import RowGradient


def add_gradient(place: torch.Tensor | RowGradient, found: Any) -> None:
    """Adds a gradient to a sum, each of them whole or of some rows.

    Args:
        place: the sum; a tensor in the precision of sums.
        found: a tensor, also a sparse one of torch; or `(rows, values)`, int64 `[k]` and `[k, width]`, in
            which a row may occur several times.
    """
    pair = _pair_of(found)
    if pair is None:
        if isinstance(place, RowGradient):
            place.add_table(_wide(found, place).numpy())
        else:
            place.add_(found)
        return
    rows, values = pair
    values = _wide(values, place)
    rows, sums = _summed(rows, values)
    if isinstance(place, RowGradient):
        place.add(rows.numpy(), sums.numpy())
    else:
        place[rows] += sums


def _summed(rows: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows, ascending, and the sum for each, with the bits of the gradient of a whole table."""
    rows, inverse, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    place = torch.empty(len(rows), dtype=torch.int64)
    place[inverse] = torch.arange(len(inverse))
    sums = values.index_select(0, place)
    repeated = counts > 1
    (some,) = repeated[inverse].nonzero(as_tuple=True)
    if len(some):
        number = repeated.cumsum(0) - 1
        of = number[inverse[some]]
        n = int(number[-1]) + 1
        sums[repeated] = torch.ops.aten.embedding_dense_backward(values[some], of, n, -1, False)
    return rows, sums


def _pair_of(found: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The rows and their values; None of a whole gradient."""
    if isinstance(found, tuple):
        rows, values = found
        return rows.reshape(-1), values
    if found.is_sparse:
        return found._indices()[0], found._values()
    return None


def _wide(values: torch.Tensor, place: torch.Tensor | RowGradient) -> torch.Tensor:
    """Values in the precision of sums."""
    return values.to(place.dtype if isinstance(place, torch.Tensor) else TYPES[place.values.dtype])
