"""Local contrast normalisation on a GPU: weighted sums over windows, rows first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.engine.kernels.cuda.tensor_kernel import TensorKernel, rows_of
from partita.engine.kernels.kernel import Arrays, Call, KernelContext
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers import LocalContrastNormalisation2D
from partita.layers.box import Spans
from partita.layers.normalisation import Neighbourhood

Span = tuple[int, int]


class LocalContrastNormalisationKernel(TensorKernel):
    """`output = (input - mean) / max(floor, deviation)`, mean and deviation of the window around the place.

    The forward pass saves both for the backward pass. Sums over windows are float64.
    """

    layer = LocalContrastNormalisation2D

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        layer, wiring, source = context.grid.layer, context.grid.connectivity, context.sources[0].shape
        assert isinstance(layer, LocalContrastNormalisation2D) and isinstance(wiring, Neighbourhood)
        left = len(layer.windows[1]) // 2 - wiring.axes(source)[1].before
        self._columns_here, self._input_columns = (
            (left, left + context.grid.shape[1]),
            (0, source[1]),
        )  # columns of the input
        self._floor, (self._rows, self._columns) = layer.floor, layer.windows
        saved = self.zeros(2, context.n_rows, context.grid.shape[1], 1, context.batch, dtype=torch.float64)
        self._mean, self._deviation = saved[0], saved[1]

    def forward(self, *, block: Span | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes mean and deviation of every window, then the output."""
        own, window = self.context.rows, self.context.windows[0]

        def call() -> None:
            x = self.inputs[0].double()
            n_channels = x.shape[2]
            self._mean.copy_(self._averaged(x.sum(2, keepdim=True)) / n_channels)
            squares = self._averaged(x.square().sum(2, keepdim=True)) / n_channels
            self._deviation.copy_((squares - self._mean.square()).clamp_(min=0).sqrt_())
            values = rows_of(x, own, window)[:, slice(*self._columns_here)]
            self.output.copy_((values - self._mean) / self._divisor)

        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Computes the gradient of each place, less the shares of the windows that contain the place."""
        out, window = self.grad_input(0), self.context.grad_windows[0]
        places = [(span, rows_of(out, span, window)) for span in rows]

        def call() -> None:
            scaled = self.own_grad / self._divisor
            total = scaled.sum(2, keepdim=True)
            varies = self._deviation > self._floor
            slope = torch.where(varies, (scaled * self.output).sum(2, keepdim=True) / self._deviation, 0)
            for span, place in places:
                found = self._gradient_of_span(span, scaled, total - slope * self._mean, slope)
                place.copy_(found.add_(place) if accumulate else found)

        return call

    def _gradient_of_span(
        self, span: Span, scaled: torch.Tensor, shift: torch.Tensor, slope: torch.Tensor
    ) -> torch.Tensor:
        """Returns the gradient of a span of rows.

        `shift` is a place's gradient for every node of its window, `slope` for each unit of a node's
        activation.
        """
        own, window, n_channels = self.context.rows, self.context.windows[0], self.context.grid.shape[2]
        shape = (span[1] - span[0], self._input_columns[1], *scaled.shape[2:])
        found = torch.zeros(shape, dtype=torch.float64, device=scaled.device)
        for start, stop in _common(span, own):
            mine = found[start - span[0] : stop - span[0], slice(*self._columns_here)]
            mine.copy_(rows_of(scaled, (start, stop), own))
        found.sub_(self._returned(shift, span) / n_channels)
        for start, stop in _common(span, window):
            returned = self._returned(slope, (start, stop)) / n_channels
            x = rows_of(self.inputs[0], (start, stop), window)
            found[start - span[0] : stop - span[0]].sub_(returned * x)
        return found

    @property
    def _divisor(self) -> torch.Tensor:
        return self._deviation.clamp(min=self._floor)

    def _averaged(self, of: torch.Tensor) -> torch.Tensor:
        """Weighted sums of the input over the windows around the machine's places."""
        over_columns = _weighed(of, self._columns, 1, self._input_columns, self._columns_here)
        return _weighed(over_columns, self._rows, 0, self.context.windows[0], self.context.rows)

    def _returned(self, of: torch.Tensor, asked: Span) -> torch.Tensor:
        """Weighted sums of the machine's places over windows around the rows `asked`; these are symmetric."""
        over_columns = _weighed(of, self._columns, 1, self._columns_here, self._input_columns)
        return _weighed(over_columns, self._rows, 0, self.context.rows, asked)


def _weighed(of: torch.Tensor, weights: Sequence[float], axis: int, given: Span, asked: Span) -> torch.Tensor:
    """Sums along an axis over windows around its places `asked`, of the nodes `given`, in ascending order."""
    shape = list(of.shape)
    shape[axis] = asked[1] - asked[0]
    found = torch.zeros(shape, dtype=of.dtype, device=of.device)
    for tap, weight in enumerate(weights):
        shift = tap - len(weights) // 2
        for start, stop in _common(asked, (given[0] - shift, given[1] - shift)):
            part = of.narrow(axis, start + shift - given[0], stop - start)
            found.narrow(axis, start - asked[0], stop - start).add_(part, alpha=weight)
    return found


def _common(one: Span, other: Span) -> list[Span]:
    """The span that two spans share, if there is one."""
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return [(start, stop)] if start < stop else []
