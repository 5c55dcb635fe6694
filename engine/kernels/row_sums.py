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
    rows, inverse = torch.unique(rows, return_inverse=True)
    # The sums of the gradient of a whole table: the same bits.
    sums = torch.ops.aten.embedding_dense_backward(values, inverse, len(rows), -1, False)
    if isinstance(place, RowGradient):
        place.add(rows.numpy(), sums.numpy())
    else:
        place[rows] += sums


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
