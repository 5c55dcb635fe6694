"""Convolutions by PyTorch: each thread computes filters of its own, and channels of the input's gradient.

PyTorch's own threads would divide a call as well. But they go on spinning after it, and keep those of the
pool from a core. Filters are a better division than rows: no place is computed twice, the weight is read
once, and every gradient of a weight is written once, not added up. Views are made before threads begin: each
operation of PyTorch releases the GIL, and a thread that waits for the GIL sleeps. Importing this imports
torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
from partita.layers.box import Box, Span, Spans
from partita.layers.connectivity import Patch
from partita.layers.patches import Frame

_FILTERS = 16
"""Filters that a thread has at least, and a multiple of which it has: they fill a vector."""

_FROM_EXAMPLES_FIRST = 2, 3, 1, 0
"""The engine's order of axes, of `[example, channel, row, column]`."""
_CHANNELS_LAST = torch.channels_last

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
        self._weights = [self._weight[own] for own in self._filters]
        self._of_filters: list[torch.Tensor]
        self._unread: list[torch.Tensor]
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
        biases = [None if self._bias is None else self._bias[own] for own in self._filters]
        write = [orders.Copy(self._output[:, :, own], _FROM_EXAMPLES_FIRST) for own in self._filters]

        def call() -> None:
            self._free()
            picture = self._examples_first(self._x, place)
            if any(self._margins):
                picture = functional.pad(picture, self._margins)

            def work(k: int, _: slice) -> None:
                sums = functional.conv2d(picture, self._weights[k], biases[k], *self._settings)
                write[k](activated(torch, self._function, sums))

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
        out, window = as_tensor(self.arrays.grad_input(source)), self.context.grad_windows[source][0]
        weights = [self._weight[:, own] for own in self._channels]
        parts = [[_Part.of(run, self._fed, out[:, :, own], window) for run in rows] for own in self._channels]

        def work(k: int, _: slice) -> None:
            found = self._of_channels(k, weights[k])
            for part in parts[k]:
                part.write_rows(found, accumulate=accumulate)

        return self._backward(self._channels, work, self._make_unread)

    def _make_unread(self) -> None:
        """Makes what PyTorch takes for the picture. Its shape alone counts; a view of channels would be
        copied.
        """
        n, _, *places = self._picture.shape
        shapes = [(n, own.stop - own.start, *places) for own in self._channels]
        made = (torch.empty(one, dtype=self._grad.dtype, memory_format=_CHANNELS_LAST) for one in shapes)
        self._unread = list(made)

    def _of_channels(self, k: int, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of some channels of the rows that feed the machine's; computed once."""
        found = self._of_input[k]
        if found is None:
            found = self._gradient(self._grad, self._unread[k], weight, of_weight=False)
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
        parts = [[place[own] for place in places] for own in self._filters]

        def work(k: int, _: slice) -> None:
            grad, weight = self._of_filters[k], self._weights[k]
            if self._patches is not None:
                found = of_patches(grad, self._patches, weight.shape)
            else:
                found = self._gradient(grad, self._picture, weight, of_weight=True)
            sums = (grad.sum((0, 2, 3)) for _ in places[1:])
            for part, gradient in zip(parts[k], (found, *sums), strict=True):
                part.add_(gradient) if accumulate else part.copy_(gradient)

        def prepare() -> None:
            self._of_filters = [self._grad[:, own] for own in self._filters]
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
        found: torch.Tensor = torch.ops.aten.convolution_backward.default(*given, wanted)[of_weight]
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
        self._of_filters, self._unread = [], []
        self._left = self.backward_calls or 0


class _Part(NamedTuple):
    """Rows of an input's gradient, for some channels.

    Args:
        fed: of the gradient of what feeds the machine's rows, those that are here.
        place: receives them.
        write: copies them there.
        beyond: receives zeros.
    """

    fed: slice
    place: torch.Tensor
    write: orders.Copy
    beyond: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, rows: Span, fed: Span, out: torch.Tensor, window: int) -> _Part:
        """Finds the parts of rows of the gradient `out`, whose first row is `window`."""
        low, high = max(rows[0], fed[0]), min(rows[1], fed[1])
        low, high = (low, high) if low < high else (rows[1], rows[1])
        above, place, below = (
            out[start - window : stop - window]
            for start, stop in ((rows[0], low), (low, high), (high, rows[1]))
        )
        beyond = tuple(one for one in (above, below) if len(one))
        return cls(
            slice(low - fed[0], high - fed[0]), place, orders.Copy(place, _FROM_EXAMPLES_FIRST), beyond
        )

    def write_rows(self, found: torch.Tensor, *, accumulate: bool) -> None:
        """Writes or adds rows of `found`, `[example, channel, row, column]`."""
        part = found if len(self.place) == found.shape[2] else found[:, :, self.fed]
        if accumulate:
            self.place.add_(part.permute(_FROM_EXAMPLES_FIRST))
            return
        self.write(part)
        for one in self.beyond:
            one.zero_()


def _empty(x: torch.Tensor) -> torch.Tensor:
    """A tensor for `[row, column, channel, example]` with examples first in memory."""
    return torch.empty((x.shape[-1], *x.shape[:-1]), dtype=x.dtype)
