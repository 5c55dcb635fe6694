"""Activations, and the sum of several inputs, on a GPU."""

from __future__ import annotations

import torch

from partita.engine.kernels.cuda.activations import activate, slope_times
from partita.engine.kernels.cuda.tensors import TensorKernel, rows_of
from partita.engine.kernels.kernel import Call
from partita.layers.activations import Activation
from partita.layers.box import BoxSet, Spans


class _OneToOneKernel(TensorKernel):
    """What they share: node i returns what it owes to node i of an input."""

    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes what the own rows return; zero to those to which nobody listens."""
        own, window, out = self.site.rows, self.site.error_windows[source], self.errors_of(source)
        asked, mine = BoxSet.of_rows(*rows), BoxSet.of_rows(own)
        heard = [rows_of(out, span, window) for span in (asked & mine).spans]
        places = [slice(start - own[0], stop - own[0]) for start, stop in (asked & mine).spans]
        rest = [] if accumulate else [rows_of(out, span, window) for span in (asked - mine).spans]

        def call() -> None:
            for place in rest:
                place.zero_()
            for place, here in zip(heard, places, strict=True):
                if accumulate:
                    place.add_(self.returned(here))
                else:
                    place.copy_(self.returned(here))

        return call

    def returned(self, rows: slice) -> torch.Tensor:
        """The errors of an input, of these of the own rows."""
        return self.own_errors[rows]


class ActivationKernel(_OneToOneKernel):
    """An activation function of every node."""

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies the rows and applies the function in place."""
        layer, source = self.site.grid.layer, rows_of(self.sources[0], self.site.rows, self.site.windows[0])
        assert isinstance(layer, Activation)
        function, state = layer.function, self.state

        def call() -> None:
            activate(function, state.copy_(source))

        return call

    def returned(self, rows: slice) -> torch.Tensor:
        """The errors times the slope."""
        layer = self.site.grid.layer
        assert isinstance(layer, Activation)
        return slope_times(layer.function, self.state[rows], self.own_errors[rows], self.wide)


class AddKernel(_OneToOneKernel):
    """The sum of the inputs, in their order. Every input receives the layer's own errors."""

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds input after input."""
        state, wide = self.state, self.wide
        first_term, *others = (
            rows_of(term, self.site.rows, window)
            for term, window in zip(self.sources, self.site.windows, strict=True)
        )

        def call() -> None:
            total = first_term.to(wide)
            for term in others:
                total = total + term
            state.copy_(total)

        return call
