"""Tensors of torch, on the memory of arrays. Nothing here copies. Importing this imports torch."""

from __future__ import annotations

import threading
from typing import Any, Final, cast

import numpy as np
import torch

from partita.engine.kernels.kernel import Array

TYPES: Final[dict[np.dtype[Any], torch.dtype]] = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.uint16): torch.bfloat16,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.uint8): torch.uint8,
}
"""Types of tensors, by the type of the arrays that hold the same numbers on the host."""


def tensor_of(array: Array) -> torch.Tensor:
    """An array of a kernel on a GPU as the tensor that it is."""
    tensor: object = array
    assert isinstance(tensor, torch.Tensor), f"a {type(array).__name__} on a GPU"
    return tensor


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor, for code that knows no torch."""
    return cast(Array, tensor)


def as_tensor(array: Array) -> torch.Tensor:
    """The tensor of an array of a kernel on any device: the same memory, with a version of its own."""
    tensor: object = array
    return tensor.data if isinstance(tensor, torch.Tensor) else on_host(array)


def on_host(array: Array) -> torch.Tensor:
    """The tensor of a host's array: the same memory."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def numbers_of(tensor: torch.Tensor) -> Array:
    """The array of a tensor in the host's memory: the same memory."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


class _Threads(threading.local):
    """Number of threads that the calling thread has set in torch; 0 if it never has."""

    asked = 0


_THREADS = _Threads()


def use_threads(threads: int) -> None:
    """Sets the number of threads of the calling thread's operations.

    OpenMP and MKL keep the number for each thread that calls, and this may be one that torch has never seen.
    It is set even where OpenMP has it already: until then MKL may use fewer threads, or those of another
    limit.
    """
    if _THREADS.asked != threads or torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
        _THREADS.asked = threads


def leaf(tensor: torch.Tensor, learns: bool, as_stored: bool) -> torch.Tensor:
    """A tensor without a history, integers as they are; in the precision of sums, or as stored.

    float16 is never taken as it is: its products on a CPU may sum in float16.
    """
    narrow = tensor.dtype == torch.float16 or (tensor.dtype == torch.bfloat16 and not as_stored)
    found = tensor.float() if narrow else tensor.data
    return found.requires_grad_(learns and found.is_floating_point())
