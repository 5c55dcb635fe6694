"""Parts of an input along an axis behind its rows: runs of numbers, copied to where they are to lie."""

from __future__ import annotations

import numpy as np

from partita.engine.kernels.elementwise import OneToOneKernel
from partita.engine.kernels.kernel import Array, Call, KernelContext
from partita.layers import Slice


class SliceKernel(OneToOneKernel):
    """Successive positions of one axis, of the machine's rows."""

    layer = Slice
    precisions = ("float32", "float64")

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether rows are those of the input, and no picture is cut into columns."""
        layer, axes = context.grid.layer, len(context.grid.shape)
        assert isinstance(layer, Slice)
        return super().computes(context) and layer.axis % axes > 0 and layer.step == 1 and axes == 2

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies the positions of each row."""
        output, source = self.arrays.output, self.own_input(0)
        start, end = self._span

        def work(first: int, stop: int) -> None:
            np.copyto(output[first:stop], source[first:stop, start:end])

        return self.over(((0, len(output)),), work)

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Writes or adds the gradient at the positions; the others have none."""
        start, end = self._span
        part = out[:, start:end]
        if accumulate:
            np.add(part, grad, out=part)
            return
        out[:, :start] = 0
        out[:, end:] = 0
        np.copyto(part, grad)

    @property
    def _span(self) -> tuple[int, int]:
        layer, (_, extent) = self.context.grid.layer, self.context.sources[0].shape
        assert isinstance(layer, Slice)
        found = range(extent)[layer.start : layer.stop]
        return found.start, found.stop
