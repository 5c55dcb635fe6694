"""Convolutions on a GPU, by torch, which wants examples first: inputs, outputs and gradients are transposed.

Sums are taken in torch's order: a cut layer agrees with the whole within rounding, not to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch.nn import grad as gradients
from torch.nn.functional import conv2d

from partita.engine.kernels.convolution.geometry import Geometry
from partita.engine.kernels.cuda.activations import activate, multiply_by_slope
from partita.engine.kernels.cuda.tensor_kernel import TensorKernel, accumulated, rows_of
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, no_op
from partita.engine.kernels.tensors import tensor_of
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Conv2D, Patch
from partita.layers.box import Spans

_input_gradient: Final[Callable[..., torch.Tensor]] = gradients.conv2d_input
_weight_gradient: Final[Callable[..., torch.Tensor]] = gradients.conv2d_weight


class Conv2DKernel(TensorKernel):
    """`output = activation(sum over the patch of weight * input + bias)` for the machine's rows."""

    layer = Conv2D

    gradient_by_rows = False

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, (_, width, channels) = context.grid.layer, context.sources[0].shape
        connectivity = context.grid.connectivity
        assert isinstance(layer, Conv2D) and isinstance(connectivity, Patch)
        self._function = layer.activation
        self._geometry = y, x, groups = Geometry.of(connectivity, context.sources[0].shape)
        self._settings = (y.stride, x.stride), 0, (y.dilation, x.dilation), groups
        self._weight = self.parameters[0].reshape(context.grid.parameters[0].shape).permute(0, 3, 1, 2)
        self._reach = (y.size - 1) * y.dilation + 1
        self._width = (context.grid.shape[1] - 1) * x.stride + (x.size - 1) * x.dilation + 1
        self._columns = slice(
            max(0, -x.before), min(width, self._width - x.before)
        )  # that some patch reaches
        self._padded = self.zeros(
            context.batch, channels, self._height(context.n_rows), self._width, dtype=self.output.dtype
        )

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Transposes and pads the input, and transposes the result back."""
        bias = self.parameters[1] if len(self.parameters) > 1 else None
        top, window = self._top(self.context.rows[0]), self.context.windows[0]
        low, high = (min(max(row, window[0]), window[1]) for row in (top, top + self._padded.shape[2]))
        inside = self._inside(self._padded)[:, :, low - top : high - top]
        source = _transposed(rows_of(self.inputs[0], (low, high), window))[..., self._columns]

        def call() -> None:
            inside.copy_(source)
            self.output.copy_(_back(conv2d(self._padded, self._weight, bias, *self._settings)))
            activate(self._function, self.output)

        return call

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self.output, self.own_grad, self.wide)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the rows asked for, from the places whose patches reach them."""
        window, out = self.context.grad_windows[0], self.grad_input(0)
        calls = [self._gradient_of_span(span, rows_of(out, span, window)) for span in rows]

        def call() -> None:
            for span, add in zip(rows, calls, strict=True):
                if not accumulate:
                    rows_of(out, span, window).zero_()
                add()

        return call

    def _gradient_of_span(self, span: tuple[int, int], place: torch.Tensor) -> Call:
        """Adds to the gradient of a span of rows."""
        y, first, last = self._geometry.y, *self.context.rows
        low = max(first, -((self._reach - 1 - span[0] - y.before) // y.stride))
        high = max(low, min(last, (span[1] - 1 + y.before) // y.stride + 1))
        grad = _transposed(rows_of(self.own_grad, (low, high), self.context.rows))
        top, (batch, channels, *_) = self._top(low), self._padded.shape
        shape = [batch, channels, self._height(high - low), self._width]
        start, stop = max(span[0], top), min(span[1], top + shape[2])

        def call() -> None:
            found = self._inside(_input_gradient(shape, self._weight, grad, *self._settings))
            place[start - span[0] : stop - span[0], self._columns].add_(
                _back(found[:, :, start - top : stop - top])
            )

        return call if low < high and start < stop else no_op

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums products of gradients and inputs over the places of the machine's rows and the examples."""
        assert rows is None, "all rows share the weights"
        if accumulate:
            return accumulated(lambda terms: self.backward_parameters(terms, rows), out)
        grad, weight = self.own_grad, tensor_of(out[0]).view(self.context.grid.parameters[0].shape)
        bias = tensor_of(out[1]) if len(out) > 1 else None
        shape = list(self._weight.shape)

        def call() -> None:
            found = _weight_gradient(self._padded, shape, _transposed(grad), *self._settings)
            weight.copy_(found.permute(0, 2, 3, 1))
            if bias is not None:
                bias.copy_(grad.sum((0, 1, 3), dtype=self.wide))

        return call

    def _top(self, place: int) -> int:
        """The row of the input, or of its padding, at which the patch of a place begins."""
        return place * self._geometry.y.stride - self._geometry.y.before

    def _height(self, places: int) -> int:
        """Number of rows that the patches of so many rows of places cover."""
        return (places - 1) * self._geometry.y.stride + self._reach

    def _inside(self, padded: torch.Tensor) -> torch.Tensor:
        """The columns that are no padding."""
        before = self._geometry.x.before
        return padded[..., before + self._columns.start : before + self._columns.stop]


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """`[example, channel, row, column]` of `[row, column, channel, example]`: a view."""
    return tensor.permute(3, 2, 0, 1)


def _back(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(2, 3, 1, 0)
