"""Pooling: the maximum, mean or Euclidean norm of each patch of one channel, of its nodes inside the picture.

Axes: inputs and their gradient `[row, column, channel * example]`, outputs and theirs `[place row, place
column, channel * example]`: the inner axis is contiguous, and each of its elements is computed alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from partita.engine.kernels.calls import split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.patches import PatchGeometry, receivers
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import rows_of
from partita.engine.numerics import compiled
from partita.layers import AveragePool2D, L2Pool2D, MaxPool2D
from partita.layers.box import Spans
from partita.layers.connectivity import Patch


class _PoolKernel(Kernel):
    """Pools place rows forward, and spreads gradients over input rows backward."""

    precisions = ("float32", "float64")

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        connectivity = context.grid.connectivity
        assert isinstance(connectivity, Patch)
        assert connectivity.per_channel, "a pool reads one channel"
        self._geometry = PatchGeometry.of(connectivity, context.sources[0].shape)
        self._x, self._output = _picture(arrays.inputs[0]), _picture(arrays.output)
        empty = np.empty((0, 0, 0), context.dtype)
        self._pool(empty, empty, 0)
        self._spread(empty, empty, (0, 0))

    @abstractmethod
    def _pool(self, x: Array, out: Array, top: int) -> None:
        """Computes rows of places; the first patch begins in row `top` of `x`, or above it."""

    @abstractmethod
    def _spread(self, out: Array, grad: Array, rows: tuple[int, int]) -> None:
        """Adds to the gradient of these rows of the input, in `out`."""

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Pools every patch of the machine's rows."""
        own, (window, _), g = self.context.rows, self.context.windows[0], self._geometry

        def work(start: int, stop: int) -> None:
            top = start * g.stride_y - g.before_y - window
            self._pool(self._x, rows_of(self._output, (start, stop), own), top)

        return split_spans(self.pool, (own,), work, operations=self.context.operations)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Spreads the gradient of each place over its patch; places in ascending rows."""
        grad, out = _picture(self.arrays.own_grad), _picture(self.arrays.grad_input(source))
        window = self.context.grad_windows[0]

        def work(start: int, stop: int) -> None:
            place = rows_of(out, (start, stop), window)
            if not accumulate:
                place[...] = 0
            if start < stop:
                self._spread(place, grad, (start, stop))

        return split_spans(self.pool, rows, work, operations=self.context.operations)


class MaxPoolKernel(_PoolKernel):
    """The largest activation of the patch; the gradient goes to the first that is largest."""

    layer = MaxPool2D

    def _pool(self, x: Array, out: Array, top: int) -> None:
        _max(x, out, top, self._geometry)

    def _spread(self, out: Array, grad: Array, rows: tuple[int, int]) -> None:
        x, maxima, window = self._x, self._output, self.context.windows[0][0]
        _spread_to_max(out, x, maxima, grad, rows, self.context.rows, window, self._geometry)


class AveragePoolKernel(_PoolKernel):
    """The mean of the patch, or of what of it lies inside the picture."""

    layer = AveragePool2D

    @property
    def _whole(self) -> bool:
        layer = self.context.grid.layer
        assert isinstance(layer, AveragePool2D)
        return layer.counts_outside

    def _pool(self, x: Array, out: Array, top: int) -> None:
        _average(x, out, top, self._whole, self._geometry)

    def _spread(self, out: Array, grad: Array, rows: tuple[int, int]) -> None:
        _spread_evenly(out, grad, rows, self.context.rows, self._whole, self._geometry)


class L2PoolKernel(_PoolKernel):
    """The square root of the sum of squares; no gradient where it is zero."""

    layer = L2Pool2D

    def _pool(self, x: Array, out: Array, top: int) -> None:
        _l2(x, out, top, self._geometry)

    def _spread(self, out: Array, grad: Array, rows: tuple[int, int]) -> None:
        x, norms, window = self._x, self._output, self.context.windows[0][0]
        _spread_by_share(out, x, norms, grad, rows, self.context.rows, window, self._geometry)


def _picture(array: Array) -> Array:
    height, width, channels, batch = array.shape
    return array.reshape(height, width, channels * batch)


@compiled
def _max(x: Array, output: Array, top: int, g: PatchGeometry) -> None:
    for row in range(output.shape[0]):
        for column in range(output.shape[1]):
            largest, is_first = output[row, column], True
            high, left = top + row * g.stride_y, column * g.stride_x - g.before_x
            for y in range(max(0, high), min(x.shape[0], high + g.size_y)):
                for c in range(max(0, left), min(x.shape[1], left + g.size_x)):
                    inputs = x[y, c]
                    for e in range(len(largest)):
                        largest[e] = inputs[e] if is_first or inputs[e] > largest[e] else largest[e]
                    is_first = False


@compiled
def _average(x: Array, output: Array, top: int, whole: bool, g: PatchGeometry) -> None:
    """Divides by the size of the `whole` patch, or by what of it lies inside the picture."""
    for row in range(output.shape[0]):
        for column in range(output.shape[1]):
            total = output[row, column]
            total[:] = 0
            high, left = top + row * g.stride_y, column * g.stride_x - g.before_x
            bottom, right = min(x.shape[0], high + g.size_y), min(x.shape[1], left + g.size_x)
            for y in range(max(0, high), bottom):
                for c in range(max(0, left), right):
                    inputs = x[y, c]
                    for e in range(len(total)):
                        total[e] += inputs[e]
            inside = (bottom - max(0, high)) * (right - max(0, left))
            n = x.dtype.type(g.size_y * g.size_x if whole else inside)
            for e in range(len(total)):
                total[e] /= n


@compiled
def _l2(x: Array, output: Array, top: int, g: PatchGeometry) -> None:
    for row in range(output.shape[0]):
        for column in range(output.shape[1]):
            total = output[row, column]
            total[:] = 0
            high, left = top + row * g.stride_y, column * g.stride_x - g.before_x
            for y in range(max(0, high), min(x.shape[0], high + g.size_y)):
                for c in range(max(0, left), min(x.shape[1], left + g.size_x)):
                    inputs = x[y, c]
                    for e in range(len(total)):
                        total[e] += inputs[e] * inputs[e]
            for e in range(len(total)):
                total[e] = math.sqrt(total[e])


@compiled
def _spread_to_max(
    out: Array,
    x: Array,
    output: Array,
    grad: Array,
    rows: tuple[int, int],
    own: tuple[int, int],
    window: int,
    g: PatchGeometry,
) -> None:
    """Sends the gradient of each place to the first largest node of its patch, if that lies in `rows`."""
    low, _ = receivers(rows[0], g, own[0], own[1])
    _, high = receivers(rows[1] - 1, g, own[0], own[1])
    rest = np.empty(out.shape[2], out.dtype)
    for row in range(low, high):
        for column in range(grad.shape[1]):
            largest = output[row - own[0], column]
            rest[:] = grad[row - own[0], column]
            for k in range(g.size_y * g.size_x):
                y = row * g.stride_y - g.before_y + k // g.size_x
                c = column * g.stride_x - g.before_x + k % g.size_x
                if y >= rows[1]:
                    break
                if not (0 <= y < g.height and 0 <= c < g.width):
                    continue
                inputs = x[y - window, c]
                if y >= rows[0]:
                    grads = out[y - rows[0], c]
                    for e in range(len(rest)):
                        grads[e] += rest[e] if inputs[e] == largest[e] else 0
                for e in range(len(rest)):
                    rest[e] = 0 if inputs[e] == largest[e] else rest[e]


@compiled
def _spread_evenly(
    out: Array, grad: Array, rows: tuple[int, int], own: tuple[int, int], whole: bool, g: PatchGeometry
) -> None:
    for y in range(rows[0], rows[1]):
        low, high = receivers(y, g, own[0], own[1])
        for row in range(low, high):
            above = row * g.stride_y - g.before_y
            n_rows = min(g.height, above + g.size_y) - max(0, above)
            for column in range(grad.shape[1]):
                share, left = grad[row - own[0], column], column * g.stride_x - g.before_x
                inside = n_rows * (min(g.width, left + g.size_x) - max(0, left))
                n = out.dtype.type(g.size_y * g.size_x if whole else inside)
                for c in range(max(0, left), min(g.width, left + g.size_x)):
                    grads = out[y - rows[0], c]
                    for e in range(len(share)):
                        grads[e] += share[e] / n


@compiled
def _spread_by_share(
    out: Array,
    x: Array,
    output: Array,
    grad: Array,
    rows: tuple[int, int],
    own: tuple[int, int],
    window: int,
    g: PatchGeometry,
) -> None:
    for y in range(rows[0], rows[1]):
        low, high = receivers(y, g, own[0], own[1])
        for row in range(low, high):
            for column in range(grad.shape[1]):
                norm, share = output[row - own[0], column], grad[row - own[0], column]
                left = column * g.stride_x - g.before_x
                for c in range(max(0, left), min(g.width, left + g.size_x)):
                    inputs, grads = x[y - window, c], out[y - rows[0], c]
                    for e in range(len(share)):
                        part = inputs[e] * (share[e] / norm[e])
                        grads[e] += part if norm[e] > 0 else norm.dtype.type(0)
