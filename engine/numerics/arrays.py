"""Operations on whole arrays in storage type, of any precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from partita.engine.numerics.compiled import compiled
from partita.engine.numerics.precision import Array, downcast, downcast_array, upcast

_LINE_BYTES: Final = 64


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Allocates zeros, C-contiguous, that begin at a cache line.

    A BLAS may take another path, and so give other bits, for arrays that begin elsewhere.
    """
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(n_bytes + _LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % _LINE_BYTES
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


def add_array(target: Array, other: Array) -> None:
    """Adds stored numbers to others of the same shape, in place; narrower ones may be added to float32.

    A sum in bfloat16 or float16 is taken in float32 and rounded once.
    """
    if other.dtype == np.float16:
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(target, other, out=target)
    elif target.dtype != other.dtype:
        _add_upcast(target.reshape(-1), other.reshape(-1))
    elif target.dtype == np.uint16 and not (target.flags.c_contiguous and other.flags.c_contiguous):
        for one, another in zip(target, other, strict=True):
            add_array(one, another)
    elif target.dtype == np.uint16:
        _add(target.reshape(-1), other.reshape(-1))
    else:
        np.add(target, other, out=target)


def stored(values: Array, dtype: np.dtype[Any]) -> Array:
    """Converts numbers (of any strides) to storage type, C-contiguous: rounded for float16, and bfloat16's
    `uint16`.
    """
    if dtype != np.uint16:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, dtype)
    return downcast_array(np.ascontiguousarray(values, np.float32), np.empty(values.shape, dtype))


@compiled
def _add(target: Array, other: Array) -> None:
    for i in range(len(target)):
        target[i] = downcast(upcast(target[i]) + upcast(other[i]), target[i])


@compiled
def _add_upcast(target: Array, other: Array) -> None:
    for i in range(len(target)):
        target[i] += upcast(other[i])
