"""Layers whose node i reads node i of the input: activations."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.kernel import Array, Call, Kernel, KernelContext
from partita.engine.kernels.views import rows_of
from partita.layers import Activation
from partita.layers.box import BoxSet, Spans


class OneToOneKernel(Kernel):
    """A layer whose node i sends a gradient to node i of an input alone."""

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the machine's rows, and zero into rows without a receiver."""
        own, window = self.context.rows, self.context.grad_windows[source]
        grad, out = self.arrays.own_grad, self.arrays.grad_input(source)
        alone = () if accumulate else without_receivers(self.context, rows, out, window)
        common = (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans

        def work(start: int, stop: int) -> None:
            span, here = (start, stop), slice(start - own[0], stop - own[0])
            self.write_gradient(here, grad[here], rows_of(out, span, window), accumulate)

        def clear() -> None:
            for place in alone:
                place[...] = 0

        write = split_spans(self.pool, common, work, operations=self.context.operations, kind="numbers")
        return sequence(clear, write)

    @abstractmethod
    def write_gradient(self, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Writes the gradient of an input into `out`, or adds it, for some of the machine's rows."""


class ActivationKernel(OneToOneKernel):
    """An activation function of every node."""

    layer = Activation

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Functions whose slope follows from the activation."""
        layer = context.grid.layer
        return isinstance(layer, Activation) and layer.function in activations.LOOPS

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies the rows and applies the function in place."""
        output, window = self.arrays.output, self.context.windows[0]
        source = rows_of(self.arrays.inputs[0], self.context.rows, window)

        def work(start: int, stop: int) -> None:
            part = output[start:stop]
            np.copyto(part, source[start:stop])
            activations.activate(self._function, part)

        return split_spans(
            self.pool, ((0, len(output)),), work, operations=self.context.operations, kind="numbers"
        )

    def write_gradient(self, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Multiplies by the slope."""
        activations.add_gradient(self._function, self.arrays.output[own], grad, out, accumulate=accumulate)

    @property
    def _function(self) -> str:
        assert isinstance(self.context.grid.layer, Activation)
        return self.context.grid.layer.function


def without_receivers(
    context: KernelContext, rows: Spans, out: Array, window: tuple[int, int]
) -> tuple[Array, ...]:
    """Views of those rows that no node of this machine reads."""
    rest = BoxSet.of_rows(*rows) - BoxSet.of_rows(context.rows)
    return tuple(rows_of(out, span, window) for span in rest.spans)
