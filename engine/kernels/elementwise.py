"""Layers whose node i reads node i of the inputs: activations and sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import ClassVar

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.kernel import Array, Call, Kernel, KernelContext
from partita.engine.kernels.views import rows_of
from partita.layers import Activation, Add
from partita.layers.box import BoxSet, Spans
from partita.partitioner.cluster.threads import WorkKind


class OneToOneKernel(Kernel):
    """A layer whose node i sends a gradient to node i of an input alone."""

    work: ClassVar[tuple[WorkKind, float]] = "numbers", 1.0
    """Kind of work of a pass over the rows, and its operations as a multiple of the layer's."""

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the machine's rows, and zero into rows without a receiver."""
        own, window = self.context.rows, self.context.grad_windows[source]
        grad, out = self.arrays.own_grad, self.arrays.grad_input(source)
        alone = () if accumulate else without_receivers(self.context, rows, out, window)
        common = (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans

        def work(start: int, stop: int) -> None:
            span, here = (start, stop), slice(start - own[0], stop - own[0])
            self.write_gradient(source, here, grad[here], rows_of(out, span, window), accumulate)

        def clear() -> None:
            for place in alone:
                place[...] = 0

        return sequence(clear, self.over(common, work))

    def over(self, spans: Spans, work: Callable[[int, int], None]) -> Call:
        """Prepares `work(start, stop)` for rows of the layer, divided over threads."""
        kind, each = self.work
        return split_spans(self.pool, spans, work, operations=each * self.context.operations, kind=kind)

    def own_input(self, source: int) -> Array:
        """The machine's own rows of an input."""
        return rows_of(self.arrays.inputs[source], self.context.rows, self.context.windows[source])

    @abstractmethod
    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
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
        output, source = self.arrays.output, self.own_input(0)

        def work(start: int, stop: int) -> None:
            part = output[start:stop]
            np.copyto(part, source[start:stop])
            activations.activate(self._function, part)

        return self.over(((0, len(output)),), work)

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Multiplies by the slope."""
        activations.add_gradient(self._function, self.arrays.output[own], grad, out, accumulate=accumulate)

    @property
    def _function(self) -> str:
        assert isinstance(self.context.grid.layer, Activation)
        return self.context.grid.layer.function


class AddKernel(OneToOneKernel):
    """The sum of the inputs, in their order, where it is to lie."""

    layer = Add
    precisions = ("float32", "float64")

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds one input after the other."""
        output, inputs = self.arrays.output, [self.own_input(k) for k in range(len(self.arrays.inputs))]

        def work(start: int, stop: int) -> None:
            part = output[start:stop]
            reduce(lambda one, other: np.add(one, other, out=part), [x[start:stop] for x in inputs])

        return self.over(((0, len(output)),), work)

    def write_gradient(self, source: int, own: slice, grad: Array, out: Array, accumulate: bool) -> None:
        """Copies the gradient, or adds it."""
        if accumulate:
            np.add(out, grad, out=out)
        else:
            np.copyto(out, grad)


def without_receivers(
    context: KernelContext, rows: Spans, out: Array, window: tuple[int, int]
) -> tuple[Array, ...]:
    """Views of those rows that no node of this machine reads."""
    rest = BoxSet.of_rows(*rows) - BoxSet.of_rows(context.rows)
    return tuple(rows_of(out, span, window) for span in rest.spans)
