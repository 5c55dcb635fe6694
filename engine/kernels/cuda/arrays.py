"""Tensors as arrays of kernels that numba.cuda compiles: the same memory, bfloat16 as its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tensors import TYPES, numbers_of, tensor_of
from partita.engine.numerics.cuda import SIMULATED, cuda

_NAMES = {kind: dtype.str for dtype, kind in TYPES.items()} | {torch.int32: np.dtype(np.int32).str}


class _Described:
    """A tensor with the interface by which other libraries read its address; keeps it alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous(), f"a tensor of shape {tuple(tensor.shape)} is not contiguous"
        self._tensor = tensor

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": tuple(self._tensor.shape),
            "typestr": _NAMES[self._tensor.dtype],
            "data": (self._tensor.data_ptr(), False),
            "strides": None,
        }


def shared(array: Array) -> Any:
    """The array of a contiguous tensor, for compiled kernels on its device."""
    tensor = tensor_of(array)
    if SIMULATED:
        return numbers_of(tensor)
    with cuda.gpus[tensor.device.index]:
        return cuda.as_cuda_array(_Described(tensor), sync=False)
