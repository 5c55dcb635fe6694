"""Layers whose node i listens to node i of each input: activations, and the sum of several inputs."""

from __future__ import annotations

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.views import rows_of
from partita.layers.activations import Activation
from partita.layers.box import BoxSet, Spans


class ActivationKernel(Kernel):
    """An activation function of every node."""

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        assert isinstance(site.grid.layer, Activation)
        self._function = site.grid.layer.function
        self._loops = activations.LOOPS[self._function]

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Copies the rows and applies the function in place."""
        own, operations = self.site.rows, self.site.operations
        state, source = self.arrays.state, rows_of(self.arrays.sources[0], own, self.site.windows[0])

        def work(start: int, stop: int) -> None:
            states = rows_of(state, (start, stop), own)
            np.copyto(states, rows_of(source, (start, stop), own))
            activations.activate(self._function, states)

        if self._function != "linear":
            activations.warm(self._loops.activate, self.site.dtype)
        return lambda: self.team.split(*own, work, operations=operations)

    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The errors times the slope."""
        own, window, operations = self.site.rows, self.site.error_windows[0], self.site.operations
        state, delta, out = self.arrays.state, self.arrays.own_errors, self.arrays.errors_of(source)
        rest = () if accumulate else unheard(self.site, rows, out, window)
        heard = (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans
        activations.warm(self._loops.add if accumulate else self._loops.write, self.site.dtype)

        def work(start: int, stop: int) -> None:
            run = (start, stop)
            states, errors = rows_of(state, run, own), rows_of(delta, run, own)
            activations.add_error(
                self._function, states, errors, rows_of(out, run, window), accumulate=accumulate
            )

        def call() -> None:
            for place in rest:
                place[...] = 0
            for run in heard:
                self.team.split(*run, work, operations=operations)

        return call


class AddKernel(Kernel):
    """The sum of the inputs, in their order. Every input receives the layer's own errors."""

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Adds input after input."""
        own, state = self.site.rows, self.arrays.state
        heard = zip(self.arrays.sources, self.site.windows, strict=True)
        one, other, *others = (rows_of(term, own, window) for term, window in heard)

        def call() -> None:
            np.add(one, other, out=state)
            for term in others:
                np.add(state, term, out=state)

        return call

    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Hands the errors on."""
        own, window = self.site.rows, self.site.error_windows[source]
        delta, out = self.arrays.own_errors, self.arrays.errors_of(source)
        rest = () if accumulate else unheard(self.site, rows, out, window)
        common = (BoxSet.of_rows(*rows) & BoxSet.of_rows(own)).spans
        pairs = [(rows_of(out, span, window), rows_of(delta, span, own)) for span in common]

        def call() -> None:
            for place in rest:
                place[...] = 0
            for place, error in pairs:
                if accumulate:
                    np.add(place, error, out=place)
                else:
                    np.copyto(place, error)

        return call


def unheard(site: Site, rows: Spans, out: Array, window: tuple[int, int]) -> tuple[Array, ...]:
    """Of the asked rows, views of those that no node of this machine listens to."""
    return tuple(
        rows_of(out, run, window) for run in (BoxSet.of_rows(*rows) - BoxSet.of_rows(site.rows)).spans
    )
