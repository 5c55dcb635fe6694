"""Layers whose node i listens to node i of each input: activations, and the sum of several inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.kernel import Array, Kernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.views import rows_of
from partita.layers.activations import Activation
from partita.layers.rows import Rows, intersection


class ActivationKernel(Kernel):
    """An activation function of every node."""

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site)
        assert isinstance(site.grid.layer, Activation)
        self._function, self._team = site.grid.layer.function, team
        activations.warm(self._function, site.dtype)

    def up(
        self,
        sources: Sequence[Array],
        state: Array,
        parameters: Sequence[Array],
        *,
        block: tuple[int, int] | None = None,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """Copies the rows and applies the function in place."""
        first_row, window = self.site.rows[0], self.site.windows[0]

        def work(start: int, stop: int) -> None:
            own = state[start - first_row : stop - first_row]
            np.copyto(own, rows_of(sources[0], (start, stop), window))
            activations.activate(self._function, own)

        self._team.split(*self.site.rows, work, operations=self.site.operations)

    def errors(
        self,
        source: int,
        rows: Rows,
        out: Array,
        *,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        accumulate: bool,
    ) -> None:
        """The errors times the slope."""
        window = self.site.error_windows[0]
        if not accumulate:
            clear_rest(self.site, rows, out, window)

        def work(start: int, stop: int) -> None:
            place, run = rows_of(out, (start, stop), window), (start, stop)
            states, errors = rows_of(state, run, self.site.rows), rows_of(delta, run, self.site.rows)
            activations.add_error(self._function, states, errors, place, accumulate=accumulate)

        for run in intersection(rows, (self.site.rows,)):
            self._team.split(*run, work, operations=self.site.operations)


class AddKernel(Kernel):
    """The sum of the inputs, in their order. Every input receives the layer's own errors."""

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site)

    def up(
        self,
        sources: Sequence[Array],
        state: Array,
        parameters: Sequence[Array],
        *,
        block: tuple[int, int] | None = None,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """Adds input after input."""
        terms = [
            rows_of(term, self.site.rows, window)
            for term, window in zip(sources, self.site.windows, strict=True)
        ]
        np.add(terms[0], terms[1], out=state)
        for term in terms[2:]:
            np.add(state, term, out=state)

    def errors(
        self,
        source: int,
        rows: Rows,
        out: Array,
        *,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        accumulate: bool,
    ) -> None:
        """Hands the errors on."""
        window = self.site.error_windows[source]
        if not accumulate:
            clear_rest(self.site, rows, out, window)
        for run in intersection(rows, (self.site.rows,)):
            place, error = rows_of(out, run, window), rows_of(delta, run, self.site.rows)
            if accumulate:
                np.add(place, error, out=place)
            else:
                np.copyto(place, error)


def clear_rest(site: Site, rows: Rows, out: Array, window: tuple[int, int]) -> None:
    """Writes zeros into the asked rows that no node of this machine listens to."""
    for start, stop in rows:
        for run in ((start, min(stop, site.rows[0])), (max(start, site.rows[1]), stop)):
            if run[0] < run[1]:
                rows_of(out, run, window)[...] = 0
