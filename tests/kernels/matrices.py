"""Matrices of drawn numbers in each precision."""

from __future__ import annotations

import numpy as np

from partita.engine.kernels import Array
from partita.engine.numerics import downcast_array, master, storage


def stored(numbers: Array, precision: str) -> Array:
    return downcast_array(numbers.astype(master(precision)), np.zeros(numbers.shape, storage(precision)))


def matrix(
    rows: int, columns: int, precision: str, *, transposed: bool = False, margin: int = 0, seed: int = 0
) -> Array:
    """A view of normal numbers, in rows or in columns, that may lie apart."""
    lying = (columns, rows + margin) if transposed else (rows, columns + margin)
    whole = stored(np.random.default_rng(seed).normal(size=lying), precision)
    return whole.T[:rows] if transposed else whole[:, :columns]
