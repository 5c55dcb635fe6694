"""Activations whose slope follows from the sum: PyTorch's functions, which write where the result is to lie.

The layer's `forward` computes the same with the same functions, but into memory of its own that is copied,
and autograd's gradient likewise. PyTorch is imported when a kernel is built.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from partita.engine.kernels.elementwise import OneToOneKernel
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Activation
from partita.layers.activations import BY_INPUT

_SETTINGS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "gelu": ({}, {}),
    "silu": ({}, {}),
    "leaky_relu": ({"negative_slope": 0.01}, {"negative_slope": 0.01, "self_is_result": False}),
    "elu": ({}, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0, "is_result": False}),
    "softplus": ({}, {"beta": 1.0, "threshold": 20.0}),
}
"""By function, what it takes besides tensors, and what its gradient takes."""


class TorchActivationKernel(OneToOneKernel):
    """An activation function of every node, by PyTorch, whose threads are those of the pool."""

    layer = Activation
    precisions = ("float32", "float64")
    work = "loop", 20.0

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        import torch  # here, because declaring and planning import none

        from partita.engine.kernels import tensors

        assert isinstance(context.grid.layer, Activation)
        name = context.grid.layer.function
        operations, (settings, of_slope) = torch.ops.aten, _SETTINGS[name]
        self._value = partial(getattr(operations, name).out, **settings)
        self._slope = partial(getattr(operations, f"{name}_backward").grad_input, **of_slope)
        self._input_name = "self_or_result" if name == "elu" else "self"
        self._tensor, self._use_threads = tensors.as_tensor, tensors.use_threads

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Functions whose slope the activation does not determine."""
        layer = context.grid.layer
        return super().computes(context) and isinstance(layer, Activation) and layer.function in BY_INPUT

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Writes the activations of rows."""
        output, source = self._tensor(self.arrays.output), self._tensor(self.own_input(0))

        def work(start: int, stop: int) -> None:
            if start < stop:
                self._use_threads(1)
                self._value(source[start:stop], out=output[start:stop])

        return self.over(((0, len(output)),), work)

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Multiplies by the slope."""
        if not len(grad):
            return
        self._use_threads(1)
        given, x, place = self._tensor(grad), self._tensor(self.own_input(0)[own]), self._tensor(out)
        found = place.new_empty(place.shape) if accumulate else place
        self._slope(grad_output=given, grad_input=found, **{self._input_name: x})
        if accumulate:
            place.add_(found)
