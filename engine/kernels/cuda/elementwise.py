"""Activations, and the sum of several inputs, on a GPU."""

from __future__ import annotations

import torch

from partita.engine.kernels.cuda.activations import activate, slope_times
from partita.engine.kernels.cuda.tensor_kernel import TensorKernel, rows_of
from partita.engine.kernels.kernel import Call
from partita.layers import Activation, Add
from partita.layers.box import BoxSet, Spans


class _OneToOneKernel(TensorKernel):
    """A layer whose node i sends a gradient to node i of an input alone."""

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the machine's rows, and zero into rows without a receiver."""
        own, window, out = self.context.rows, self.context.grad_windows[source], self.grad_input(source)
        places_of = [rows_of(out, run, window) for run in (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans]
        places = [
            (slice(run[0] - own[0], run[1] - own[0]))
            for run in (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans
        ]
        rest = (
            []
            if accumulate
            else [rows_of(out, run, window) for run in (BoxSet.of_rows(*rows) - BoxSet.of_rows(own)).spans]
        )

        def call() -> None:
            for place in rest:
                place.zero_()
            for place, here in zip(places_of, places, strict=True):
                if accumulate:
                    place.add_(self.returned(here))
                else:
                    place.copy_(self.returned(here))

        return call

    def returned(self, rows: slice) -> torch.Tensor:
        """The gradient of an input, for these of the machine's rows."""
        return self.own_grad[rows]


class ActivationKernel(_OneToOneKernel):
    """An activation function of every node."""

    layer = Activation

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies the rows and applies the function in place."""
        layer, source = (
            self.context.grid.layer,
            rows_of(self.inputs[0], self.context.rows, self.context.windows[0]),
        )
        assert isinstance(layer, Activation)
        function, output = layer.function, self.output

        def call() -> None:
            activate(function, output.copy_(source))

        return call

    def returned(self, rows: slice) -> torch.Tensor:
        """Multiplies by the slope."""
        layer = self.context.grid.layer
        assert isinstance(layer, Activation)
        return slope_times(layer.function, self.output[rows], self.own_grad[rows], self.wide)


class AddKernel(_OneToOneKernel):
    """The sum of the inputs, in their order; every input receives the layer's own gradient."""

    layer = Add

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds input after input."""
        output, wide = self.output, self.wide
        first_term, *others = (
            rows_of(term, self.context.rows, window)
            for term, window in zip(self.inputs, self.context.windows, strict=True)
        )

        def call() -> None:
            total = first_term.to(wide)
            for term in others:
                total = total + term
            output.copy_(total)

        return call
