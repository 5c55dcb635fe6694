"""Fully connected layers: NumPy's BLAS on blocks of columns of the weight matrix `[rows, inputs]`.

An input of any shape is flattened in the order of its grid. BLAS takes as many threads as the process lets it
(threadpoolctl sets that, once, where a part starts); results agree within rounding, not to the bit, between
different cuts and numbers of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.engine.kernels import activations
from partita.engine.kernels.kernel import Array, Kernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.views import columns, rows_of
from partita.layers.rows import Rows


class DenseKernel(Kernel):
    """`state = activation(weight @ input + bias)` for the machine's rows.

    Steps allocate nothing: the scratch for the second and later terms of a sum is kept from the first step
    on. Calls for different rows may run at the same time.
    """

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site)
        layer, source = site.grid.layer, site.sources[0]
        self._activation, self._inputs_per_row = layer.activation, source.nodes_per_row
        self._units = (site.rows[1] - site.rows[0]) * site.grid.nodes_per_row
        self._sum_scratch: Array | None = None
        self._error_scratch: Array | None = None
        activations.warm(self._activation, site.dtype)
        assert site.windows[0] == (0, source.n_rows), (
            f"{site.grid.name} holds only {site.windows[0]} of its input"
        )

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
        """One product of a block of the weight's columns with a block of the input's rows."""
        rows = block or self.site.windows[0]
        weight = self._weight(parameters[0], rows)
        inputs = columns(rows_of(sources[0], rows, self.site.windows[0]))
        sums = columns(state)
        if first:
            np.matmul(weight, inputs, out=sums)
        else:
            if self._sum_scratch is None:
                self._sum_scratch = np.empty_like(sums)
            np.matmul(weight, inputs, out=self._sum_scratch)
            np.add(sums, self._sum_scratch, out=sums)
        if last:
            if len(parameters) > 1:
                np.add(sums, parameters[1].reshape(-1, 1), out=sums)
            activations.activate(self._activation, sums)

    def delta(self, state: Array, error: Array) -> None:
        """Multiplies the errors by the slope of the activation."""
        activations.multiply_by_slope(self._activation, state, error)

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
        """The transposed weight times the errors: the sum over the machine's receivers, all at once."""
        window = self.site.error_windows[0]
        for run in rows:
            weight = self._weight(parameters[0], run)
            place = columns(rows_of(out, run, window))
            if not accumulate:
                np.matmul(weight.T, columns(delta), out=place)
                continue
            scratch = self._error_scratch
            if scratch is None:  # as large as the window: calls for different rows never share a place
                scratch = self._error_scratch = np.empty_like(out)
            product = columns(rows_of(scratch, run, window))
            np.matmul(weight.T, columns(delta), out=product)
            np.add(place, product, out=place)

    def gradient(
        self,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
    ) -> None:
        """The outer products of errors and inputs, summed over the examples."""
        weight = gradients[0].reshape(self._units, -1)
        np.matmul(columns(delta), columns(sources[0]).T, out=weight)
        if len(gradients) > 1:
            np.add.reduce(columns(delta), axis=1, out=gradients[1].reshape(-1))

    def _weight(self, weight: Array, rows: tuple[int, int]) -> Array:
        start, stop = rows[0] * self._inputs_per_row, rows[1] * self._inputs_per_row
        return weight.reshape(self._units, -1)[:, start:stop]
