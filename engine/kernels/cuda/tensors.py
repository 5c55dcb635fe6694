"""Tensors of torch, in the place of NumPy's arrays. Nothing here copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np
import torch

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool

TYPES: Final[dict[np.dtype[Any], torch.dtype]] = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.uint16): torch.bfloat16,
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


def columns(tensor: torch.Tensor) -> torch.Tensor:
    """`[nodes, example]` of `[rows, other node axes ..., example]`, contiguous both."""
    assert tensor.is_contiguous(), f"a tensor of shape {tuple(tensor.shape)} is not contiguous"
    return tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def rows_of(tensor: torch.Tensor, rows: tuple[int, int], window: tuple[int, int]) -> torch.Tensor:
    """The rows `[start, stop)` of a layer, from the tensor that holds its rows `window`."""
    assert window[0] <= rows[0] <= rows[1] <= window[1], f"rows {rows} lie outside the window {window}"
    return tensor[rows[0] - window[0] : rows[1] - window[0]]


def accumulated(write: Callable[[Sequence[Array]], Call], out: Sequence[Array]) -> Call:
    """Prepares a call that adds to tensors what `write` would write into them, through scratch tensors."""
    places = list(map(tensor_of, out))
    terms = [torch.empty_like(place) for place in places]
    call = write(list(map(array_of, terms)))

    def add() -> None:
        call()
        for place, term in zip(places, terms, strict=True):
            place.add_(term)

    return add


class TensorKernel(Kernel):
    """A kernel on a GPU, with the tensors of its arrays.

    Attributes:
        inputs, output, parameters: see `Arrays`.
        wide: the type of sums.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.inputs = tuple(map(tensor_of, arrays.inputs))
        self.output = tensor_of(arrays.output)
        self.parameters = tuple(map(tensor_of, arrays.parameters))
        self.wide = TYPES[context.master]

    @property
    def own_grad(self) -> torch.Tensor:
        """The gradient of the machine's rows."""
        return tensor_of(self.arrays.own_grad)

    def grad_input(self, source: int) -> torch.Tensor:
        """The tensor of an input's gradient window."""
        return tensor_of(self.arrays.grad_input(source))

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A scratch tensor; for sums, unless another type is given."""
        return torch.zeros(shape, dtype=dtype or self.wide, device=self.output.device)
