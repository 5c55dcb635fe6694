"""What kernels on a GPU are given: tensors of torch, in the place of NumPy's arrays. Nothing here copies."""

from __future__ import annotations

import math
from typing import Any, Final, cast

import numpy as np
import torch

from partita.engine.kernels.kernel import Array

TYPES: Final[dict[np.dtype[Any], torch.dtype]] = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.uint16): torch.bfloat16,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.uint8): torch.uint8,
}
"""Of tensors, by that of the arrays which hold the same numbers on the host."""


def tensor_of(array: Array) -> torch.Tensor:
    """What an array is on a GPU."""
    assert isinstance(array, torch.Tensor), f"a {type(array).__name__} on a GPU"
    return cast(torch.Tensor, array)


def bits(array: Array) -> torch.Tensor:
    """The tensor of a host's array: the same memory."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def columns(array: torch.Tensor) -> torch.Tensor:
    """`[nodes, example]` of `[rows, other node axes ..., example]`, contiguous both."""
    assert array.is_contiguous(), f"a tensor of shape {tuple(array.shape)} is not contiguous"
    return array.view(math.prod(array.shape[:-1]), array.shape[-1])


def rows_of(array: torch.Tensor, rows: tuple[int, int], window: tuple[int, int]) -> torch.Tensor:
    """The rows `[start, stop)` of a layer, from the tensor that holds its rows `window`."""
    assert window[0] <= rows[0] <= rows[1] <= window[1], f"rows {rows} lie outside the window {window}"
    return array[rows[0] - window[0] : rows[1] - window[0]]
