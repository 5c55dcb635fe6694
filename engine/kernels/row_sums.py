"""Gradients of a few rows, as layers return them, summed row by row. Importing this imports torch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tensors import TYPES
from partita.engine.numerics import compiled
from partita.engine.numerics.row_gradient import RowGradient

_DIGIT_BITS: Final = 11
"""Bits of a row's number by which it is sorted at once: two passes for tables of 4 million rows."""


def add_gradient(place: torch.Tensor | RowGradient, own: slice, found: Any, *, first: bool) -> None:
    """Adds a gradient to a sum, each of them whole or of some rows.

    Args:
        place: the sum; a tensor in the precision of sums.
        own: the part of a tensor that the gradient belongs to.
        found: a tensor, also a sparse one of torch; or `(rows, values)`, int64 `[k]` and `[k, width]`, in
            which a row may occur several times. None of zeros.
        first: whether the sum begins here: what was there before does not count.
    """
    if isinstance(place, RowGradient):
        if first:
            place.clear()
        _add_rows(place, found)
        return
    part = place[own]
    pair = None if found is None else _pair_of(found)
    if first and (found is None or pair is not None):
        part.zero_()
    if pair is not None:
        rows, sums = _summed(pair[0], _wide(pair[1], place))
        part[rows] += sums
    elif found is not None and first:
        part.copy_(found)
    elif found is not None:
        part.add_(found)


def _add_rows(place: RowGradient, found: Any) -> None:
    """Adds a gradient to a sum of some rows."""
    if found is None:
        return
    pair = _pair_of(found)
    if pair is None:
        place.add_table(_wide(found, place).numpy())
    else:
        rows, sums = _summed(pair[0], _wide(pair[1], place))
        place.add(rows.numpy(), sums.numpy())


def prepare_sums(dtype: npt.DTypeLike) -> None:
    """Compiles the sums of rows of such numbers, so that no step waits for it."""
    _summed(torch.zeros(1, dtype=torch.int64), torch.zeros((1, 1), dtype=TYPES[np.dtype(dtype)]))


def _summed(rows: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows, ascending, and the sum for each, with the bits of the gradient of a whole table."""
    if rows.device.type != "cpu":
        found, inverse = torch.unique(rows, return_inverse=True)
        return found, torch.ops.aten.embedding_dense_backward(values, inverse, len(found), -1, False)
    given, terms = rows.numpy(), values.contiguous().numpy()
    found, sums, orders = np.empty_like(given), np.empty_like(terms), np.empty((2, len(given)), np.int64)
    n = _sum_rows(given, terms, orders, np.empty(1 << _DIGIT_BITS, np.int64), found, sums)
    return torch.from_numpy(found[:n]), torch.from_numpy(sums[:n])


@compiled
def _sum_rows(rows: Array, values: Array, orders: Array, ends: Array, found: Array, sums: Array) -> int:
    """Adds up the values `[k, width]` of rows `[k]`, in their order; returns the number of different rows.

    `orders`, int64 `[2, k]`, and `ends`, int64 `[1 << _DIGIT_BITS]`, are scratch; the rows and their sums are
    the first of `found` and `sums`.
    """
    order = _sorted(rows, orders, ends)
    n = 0
    for at in range(len(rows)):
        k = order[at]
        if at > 0 and rows[k] == found[n - 1]:
            for unit in range(values.shape[1]):
                sums[n - 1, unit] += values[k, unit]
            continue
        found[n] = rows[k]
        for unit in range(values.shape[1]):
            sums[n, unit] = values.dtype.type(0) + values[k, unit]  # -0.0 is 0.0, as in a whole table
        n += 1
    return n


@compiled
def _sorted(rows: Array, orders: Array, ends: Array) -> Array:
    """Sorts row numbers, equal ones in their order, digit by digit; returns the order, one of `orders`."""
    largest = np.int64(0)
    for k in range(len(rows)):
        largest = max(largest, rows[k])
        orders[0, k] = k
    now, shift = np.int64(0), np.int64(0)
    while largest >> shift > 0:
        ends[:] = 0
        for k in range(len(rows)):
            ends[(rows[k] >> shift) & (len(ends) - 1)] += 1
        before = np.int64(0)
        for digit in range(len(ends)):
            before, ends[digit] = before + ends[digit], before
        for at in range(len(rows)):
            k = orders[now, at]
            digit = (rows[k] >> shift) & (len(ends) - 1)
            orders[1 - now, ends[digit]] = k
            ends[digit] += 1
        now, shift = 1 - now, shift + _DIGIT_BITS
    order: Array = orders[now]
    return order


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
