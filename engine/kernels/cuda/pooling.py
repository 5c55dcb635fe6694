"""Pooling on a GPU: each tap of the patches is a strided view of the input, and they are taken one by one.

Places return gradients in ascending rows and columns, so that no bit depends on where a layer is cut.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch

from partita.engine.kernels.cuda.tensor_kernel import TensorKernel, rows_of
from partita.engine.kernels.kernel import Arrays, Call, KernelContext
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import AveragePool2D, L2Pool2D, MaxPool2D
from partita.layers.box import Spans
from partita.layers.connectivity import Patch


class _PoolKernel(TensorKernel):
    """The taps of the patches, and their order."""

    padding = 0.0
    """The state of nodes outside the picture."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        connectivity = context.grid.connectivity
        assert isinstance(connectivity, Patch)
        self._geometry = g = PatchGeometry.of(connectivity, context.sources[0].shape)
        (_, columns, _), (_, last), (window, end) = context.grid.shape, context.rows, context.windows[0]
        beyond = (columns - 1) * g.stride_x + g.size_x - g.before_x - g.width
        self._sides = max(0, g.before_x), max(0, beyond)
        below = (last - 1) * g.stride_y + g.size_y - g.before_y - end
        self._x, self._inside = self.inputs[0], self.inputs[0]
        if any((*self._sides, g.before_y, max(0, below))):  # padding around the picture
            rows, width = end - window, sum(self._sides) + g.width
            shape = (g.before_y + rows + max(0, below), width, *self._x.shape[2:])
            self._x = self.zeros(*shape, dtype=self._x.dtype).fill_(self.padding)
            self._inside = self._picture(self._x)[g.before_y : g.before_y + rows]

    def _picture(self, padded: torch.Tensor) -> torch.Tensor:
        """The columns that are no padding."""
        return padded[:, self._sides[0] : self._sides[0] + self._geometry.width]

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Pools every patch of the machine's rows."""
        top, own, g = self._top, self.context.rows, self._geometry
        taps = [self._tap(self._x, top, own, y, c) for y in range(g.size_y) for c in range(g.size_x)]

        def call() -> None:
            if self._inside is not self.inputs[0]:
                self._inside.copy_(self.inputs[0])
            self._pool(taps)

        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Spreads the gradient of each place over its patch."""
        places = [self._gradient_of_span(span, accumulate=accumulate) for span in rows]

        def call() -> None:
            for spread in places:
                spread()

        return call

    def _gradient_of_span(self, span: tuple[int, int], *, accumulate: bool) -> Call:
        (first, last), g = self.context.rows, self._geometry
        place = rows_of(self.grad_input(0), span, self.context.grad_windows[0])
        steps: list[tuple[int, tuple[int, int], int, int]] = []
        for y in reversed(range(g.size_y)):  # from low rows of places to high ones
            low = max(first, -((y - g.before_y - span[0]) // g.stride_y))
            high = min(last, (span[1] - 1 - y + g.before_y) // g.stride_y + 1)
            steps += [(y * g.size_x + c, (low, high), y, c) for c in reversed(range(g.size_x)) if low < high]

        def call() -> None:
            if not accumulate:
                place.zero_()
            sums = place.to(self.wide)
            if any(self._sides):
                sums = self.zeros(len(place), sum(self._sides) + g.width, *place.shape[2:])
                self._picture(sums).copy_(place)
            for k, places, y, c in steps:
                own = slice(places[0] - first, places[1] - first)
                share = self._share(k, own, self._tap(self._x, self._top, places, y, c))
                self._tap(sums, span[0], places, y, c).add_(share)
            if sums is not place:
                place.copy_(self._picture(sums))

        return call

    def _tap(
        self, picture: torch.Tensor, top: int, places: tuple[int, int], y: int, column: int
    ) -> torch.Tensor:
        """The nodes that are tap `(y, column)` of these rows of places; the picture begins at row `top`."""
        g, width = self._geometry, self.context.grid.shape[1]
        column += self._sides[0] - g.before_x
        top += g.before_y
        begin, end = places[0] * g.stride_y + y - top, (places[1] - 1) * g.stride_y + y - top
        return picture[
            begin : end + 1 : g.stride_y, column : column + (width - 1) * g.stride_x + 1 : g.stride_x
        ]

    @property
    def _top(self) -> int:
        """The row of the picture at which `_x` begins."""
        padded = self._geometry.before_y if self._inside is not self.inputs[0] else 0
        return self.context.windows[0][0] - padded

    @abstractmethod
    def _pool(self, taps: list[torch.Tensor]) -> None:
        """Computes the output."""

    @abstractmethod
    def _share(self, k: int, own: slice, tap: torch.Tensor) -> torch.Tensor:
        """The gradient of tap number `k` of these rows, of which the inputs are given."""


def _inside(places: range, stride: int, before: int, size: int, extent: int) -> torch.Tensor:
    """Number of nodes of each patch on one axis that lie inside the picture."""
    starts = torch.tensor(places) * stride - before
    return (starts + size).clamp(max=extent) - starts.clamp(min=0)


class MaxPoolKernel(_PoolKernel):
    """The largest activation of the patch; the gradient goes to the first that is largest."""

    layer = MaxPool2D

    padding = -math.inf

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._winners = self.zeros(*self.output.shape, dtype=torch.int16)

    def _pool(self, taps: list[torch.Tensor]) -> None:
        self._winners.zero_()
        self.output.copy_(taps[0])
        for k, tap in enumerate(taps[1:], start=1):
            larger = tap > self.output
            self._winners.masked_fill_(larger, k)
            self.output.copy_(torch.where(larger, tap, self.output))

    def _share(self, k: int, own: slice, tap: torch.Tensor) -> torch.Tensor:
        return torch.where(self._winners[own] == k, self.own_grad[own], 0)


class AveragePoolKernel(_PoolKernel):
    """The mean of the patch, or of what of it lies inside the picture."""

    layer = AveragePool2D

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, g = context.grid.layer, self._geometry
        assert isinstance(layer, AveragePool2D)
        rows = _inside(range(*context.rows), g.stride_y, g.before_y, g.size_y, g.height)
        columns = _inside(range(context.grid.shape[1]), g.stride_x, g.before_x, g.size_x, g.width)
        if layer.count_include_pad:
            rows, columns = torch.full_like(rows, g.size_y), torch.full_like(columns, g.size_x)
        self._counts = (rows[:, None] * columns)[:, :, None, None].to(self.output.device, self.wide)

    def _pool(self, taps: list[torch.Tensor]) -> None:
        total = self.zeros(*self.output.shape)
        for tap in taps:
            total.add_(tap)
        self.output.copy_(total.div_(self._counts))

    def _share(self, k: int, own: slice, tap: torch.Tensor) -> torch.Tensor:
        return self.own_grad[own].to(self.wide) / self._counts[own]


class L2PoolKernel(_PoolKernel):
    """The square root of the sum of squares; no gradient where it is zero."""

    layer = L2Pool2D

    def _pool(self, taps: list[torch.Tensor]) -> None:
        total = self.zeros(*self.output.shape)
        for tap in taps:
            total.add_(tap.to(self.wide).square())
        self.output.copy_(total.sqrt_())

    def _share(self, k: int, own: slice, tap: torch.Tensor) -> torch.Tensor:
        norm, grad = self.output[own].to(self.wide), self.own_grad[own].to(self.wide)
        return torch.where(norm > 0, tap.to(self.wide) * (grad / norm), 0)
