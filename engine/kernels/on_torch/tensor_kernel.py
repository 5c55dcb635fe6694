"""Kernels on a GPU, and views of their tensors."""

from __future__ import annotations

import math

import torch

from partita.engine.kernels.kernel import Arrays, Kernel, KernelContext
from partita.engine.kernels.tensors import TYPES, tensor_of
from partita.engine.kernels.thread_pool import ThreadPool


def columns(tensor: torch.Tensor) -> torch.Tensor:
    """`[nodes, example]` of `[rows, other node axes ..., example]`, contiguous both."""
    assert tensor.is_contiguous(), f"a tensor of shape {tuple(tensor.shape)} is not contiguous"
    return tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def rows_of(tensor: torch.Tensor, rows: tuple[int, int], window: tuple[int, int]) -> torch.Tensor:
    """The rows `[start, stop)` of a layer, from the tensor that holds its rows `window`."""
    assert window[0] <= rows[0] <= rows[1] <= window[1], f"rows {rows} lie outside the window {window}"
    return tensor[rows[0] - window[0] : rows[1] - window[0]]


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
