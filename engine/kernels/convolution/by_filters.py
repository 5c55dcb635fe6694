"""Convolutions by PyTorch: each thread computes filters of its own, and channels of the input's gradient.

PyTorch's own threads would divide a call as well. But they go on spinning after it, and keep those of the
pool from a core. Filters are a better division than rows: no place is computed twice, the weight is read
once, and every gradient of a weight is written once, not added up. Importing this imports torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from partita.engine.kernels import orders
from partita.engine.kernels.activations import multiply_by_slope
from partita.engine.kernels.convolution.differentiable import Settings, is_product, of_patches, patches_of
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext, no_op
from partita.engine.kernels.tensors import as_tensor, use_threads
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import Conv2D
from partita.layers.activations import activated
from partita.layers.box import Box, Spans
from partita.layers.connectivity import Patch
from partita.layers.patches import Frame

_FILTERS = 16
"""Filters that a thread has at least, and a multiple of which it has: they fill a vector."""

_COPY = 16.0
"""Operations of a product that take about as long as a number's copy into another order."""


class ConvolutionByFilters(Kernel):
    """`output = activation(convolution of the input + bias)` for the machine's rows."""

    precisions = ("float32", "float64")
    gradient_by_rows = False

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, wiring = context.grid.layer, context.grid.connectivity
        assert isinstance(layer, Conv2D) and isinstance(wiring, Patch)
        self._function, source = layer.activation, context.sources[0].shape
        fed = wiring.source_rows(Box((context.rows,)), context.grid.shape, source)
        self._fed = fed.hull[0] if fed else (context.windows[0][0],) * 2
        self._x = self._of_window(arrays.inputs[0], context.windows[0], self._fed)
        self._output = as_tensor(arrays.output)
        weight = arrays.parameters[0].reshape(context.grid.parameters[0].shape)
        self._weight = as_tensor(weight).permute(0, 3, 1, 2)
        self._bias = as_tensor(arrays.parameters[1]).reshape(-1) if layer.use_bias else None
        axes = wiring.axes(source)
        frame = Frame(axes, context.rows, context.grid.shape[1:2], self._fed, self._x.shape[:2])
        even = frame.even_padding
        (above, below), (left, right) = frame.margins if even is None else [(0, 0)] * 2
        self._margins = left, right, above, below
        strides, dilations = ([getattr(axis, name) for axis in axes] for name in ("stride", "dilation"))
        self._settings = Settings(strides, even or [0, 0], dilations, 1)
        self._filters, self._channels = self._shares(len(weight)), self._shares(self._weight.shape[1])
        self.gradient_shares = len(self._filters)
        self._lock = threading.Lock()
        self._kept: torch.Tensor | None
        self._copied: torch.Tensor | None
        self._patches: torch.Tensor | None
        self._of_input: list[torch.Tensor | None]
        self._free()
        orders.prepare(context.dtype, arrays.output.size)

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether all filters read all channels of their patches."""
        layer = context.grid.layer
        return super().computes(context) and type(layer) is Conv2D and layer.groups == 1

    @staticmethod
    def _of_window(array: Array, window: tuple[int, int], rows: tuple[int, int]) -> torch.Tensor:
        return as_tensor(array[rows[0] - window[0] : rows[1] - window[0]])

    def _shares(self, n: int) -> list[slice]:
        """Filters or channels for each thread, of n."""
        blocks = max(n // _FILTERS, 1)
        pieces = self.pool.pieces(blocks, self.context.operations, kind="product")
        cuts = [blocks * piece // pieces * _FILTERS for piece in range(pieces)]
        return [slice(*pair) for pair in zip(cuts, [*cuts[1:], n], strict=True)]

    def _each(self, shares: Sequence[slice], act: Callable[[int, slice], None]) -> None:
        """Calls a function of the number of each share and the share, on the threads of the pool."""

        def work(start: int, stop: int) -> None:
            use_threads(1)
            for k in range(start, stop):
                act(k, shares[k])

        self.pool.split(0, len(shares), work)

    def _examples_first(self, x: torch.Tensor, place: torch.Tensor | None = None) -> torch.Tensor:
        """A copy of `[row, column, channel, example]` as `[example, channel, row, column]`, in channels last;
        at a place in that order in memory, if given.
        """
        found = _empty(x) if place is None else place

        def work(start: int, stop: int) -> None:
            orders.copy(found[:, start:stop], x[start:stop].permute(3, 0, 1, 2))

        self.pool.split(0, len(x), work, operations=_COPY * x.numel(), kind="product")
        return found.permute(0, 3, 1, 2)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the machine's rows, each thread for filters of its own."""
        place = None if self.arrays.grad_output is None else _empty(self._x)  # its pages are mapped once

        def call() -> None:
            self._free()
            picture = self._examples_first(self._x, place)
            if any(self._margins):
                picture = functional.pad(picture, self._margins)

            def work(_: int, own: slice) -> None:
                bias = None if self._bias is None else self._bias[own]
                sums = functional.conv2d(picture, self._weight[own], bias, *self._settings)
                found = activated(torch, self._function, sums.permute(2, 3, 1, 0))
                orders.copy(self._output[:, :, own], found)

            self._each(self._filters, work)
            if self.arrays.grad_output is not None:
                self._kept = picture

        return call

    def backward_activation(self) -> Call:
        """Multiplies the gradient by the slope of the activation."""
        return multiply_by_slope(self._function, self)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of some rows of the input, each thread for channels of its own; zero where they
        feed no row of the machine.
        """
        out, window = self.arrays.grad_input(source), self.context.grad_windows[source]

        def work(k: int, own: slice) -> None:
            found = self._of_channels(k, own).permute(2, 3, 1, 0)
            for start, stop in rows:
                low, high = max(start, self._fed[0]), min(stop, self._fed[1])
                fed = (low, high) if low < high else (stop, stop)
                place = self._of_window(out, window, fed)[:, :, own]
                part = found[fed[0] - self._fed[0] : fed[1] - self._fed[0]]
                if accumulate:
                    place.add_(part)
                    continue
                orders.copy(place, part)
                for beyond in ((start, fed[0]), (fed[1], stop)):
                    self._of_window(out, window, beyond)[:, :, own].zero_()

        return self._backward(self._channels, work)

    def _of_channels(self, k: int, own: slice) -> torch.Tensor:
        """The gradient of some channels of the rows that feed the machine's; computed once."""
        found = self._of_input[k]
        if found is None:
            # Of the picture the shape alone counts; a view of channels would be copied.
            shape = len(self._picture), own.stop - own.start, *self._picture.shape[2:]
            unread = torch.empty(shape, dtype=self._grad.dtype, memory_format=torch.channels_last)
            found = self._gradient(self._grad, unread, self._weight[:, own], of_weight=False)
            if any(self._margins):
                found = functional.pad(found, [-width for width in self._margins])
            self._of_input[k] = found
        return found

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Sums products of gradients and inputs over places and examples, each thread for filters of its
        own.
        """
        assert rows is None, "all rows share the weights"
        weight = as_tensor(out[0]).reshape(self._weight.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
        places = [weight, *(as_tensor(one).reshape(-1) for one in out[1:])]

        def work(_: int, own: slice) -> None:
            grad, weight = self._grad[:, own], self._weight[own]
            if self._patches is not None:
                found = of_patches(grad, self._patches, weight.shape)
            else:
                found = self._gradient(grad, self._picture, weight, of_weight=True)
            sums = (grad.sum((0, 2, 3)) for _ in places[1:])
            for place, gradient in zip(places, (found, *sums), strict=True):
                part = place[own]
                part.add_(gradient) if accumulate else part.copy_(gradient)

        def prepare() -> None:
            if is_product(self._grad):
                self._patches = patches_of(self._picture, self._weight.shape, self._settings)

        return self._backward(self._filters, work, prepare)

    def _gradient(
        self, grad: torch.Tensor, picture: torch.Tensor, weight: torch.Tensor, *, of_weight: bool
    ) -> torch.Tensor:
        """The gradient of the weight, or that of the picture."""
        *settings, groups = self._settings
        given = grad, picture, weight, None, *settings, False, [0, 0], groups
        wanted = [not of_weight, of_weight, False]
        found: torch.Tensor = torch.ops.aten.convolution_backward(*given, wanted)[of_weight]
        return found

    def _backward(
        self, shares: Sequence[slice], act: Callable[[int, slice], None], prepare: Call = no_op
    ) -> Call:
        """Prepares a call of the backward pass; the last one frees what they share."""

        def call() -> None:
            with self._lock:
                if self._copied is None:
                    self._copied = self._examples_first(as_tensor(self.arrays.own_grad))
                use_threads(1)
                prepare()
                self._each(shares, act)
                self._left -= 1
                if self._left == 0:
                    self._free()

        return call

    @property
    def _grad(self) -> torch.Tensor:
        """The gradient of the preactivation, examples first."""
        assert self._copied is not None, "no backward pass has begun"
        return self._copied

    @property
    def _picture(self) -> torch.Tensor:
        """The input with its padding, examples first."""
        assert self._kept is not None, "a backward pass needs a forward pass before"
        return self._kept

    def _free(self) -> None:
        """Frees what a forward pass keeps for the gradients, and what these share."""
        self._kept = self._copied = self._patches = None
        self._of_input = [None] * len(self._channels)
        self._left = self.backward_calls or 0


def _empty(x: torch.Tensor) -> torch.Tensor:
    """A tensor for `[row, column, channel, example]` with examples first in memory."""
    return torch.empty((x.shape[-1], *x.shape[:-1]), dtype=x.dtype)
