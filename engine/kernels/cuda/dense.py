"""Fully connected layers on a GPU: products of matrices by torch, on blocks of columns of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from partita.engine.kernels.cuda.activations import activate, multiply_by_slope
from partita.engine.kernels.cuda.tensors import TensorKernel, columns, rows_of, tensor_of
from partita.engine.kernels.kernel import Array, Arrays, Call, Site
from partita.engine.kernels.parallel import Team
from partita.layers.rows import WholeRows


class DenseKernel(TensorKernel):
    """`state = activation(weight @ input + bias)` for the machine's rows.

    As on a CPU, a product in bfloat16 is rounded once, and a sum of several is kept in float32 until it is
    whole.
    """

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        self._function, self._per_row = site.grid.layer.activation, site.sources[0].nodes_per_row
        self._weight = self.parameters[0].reshape(site.n_rows * site.grid.nodes_per_row, -1)
        self._bias = self.parameters[1].reshape(-1, 1) if len(self.parameters) > 1 else None
        self._sums = columns(self.state)
        if self._sums.dtype != self.wide:
            self._sums = self.zeros(*self._sums.shape)

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """One product of a block of the weight's columns with a block of the input's rows."""
        rows = block or self.site.windows[0]
        weight = self._weight_of(rows)
        inputs = columns(rows_of(self.sources[0], rows, self.site.windows[0]))
        state, sums, bias = columns(self.state), self._sums, self._bias

        def whole() -> None:
            if bias is None:
                torch.mm(weight, inputs, out=state)
            else:
                torch.addmm(bias, weight, inputs, out=state)
            activate(self._function, state)

        def part() -> None:
            if not first:
                sums.add_(torch.mm(weight, inputs))
            else:
                sums.copy_(torch.mm(weight, inputs))
            if last:
                if bias is not None:
                    sums.add_(bias)
                activate(self._function, sums)
                if sums is not state:
                    state.copy_(sums)

        return whole if first and last else part

    def delta(self) -> Call:
        """Multiplies the errors by the slope of the activation."""
        return multiply_by_slope(self._function, self.state, self.own_errors, self.wide)

    def errors(self, source: int, rows: WholeRows, *, accumulate: bool) -> Call:
        """The transposed weight times the errors: the sum over the machine's receivers, all at once."""
        out, delta, window = self.errors_of(source), columns(self.own_errors), self.site.error_windows[0]
        pairs = [(self._weight_of(run).T, columns(rows_of(out, run, window))) for run in rows]

        def call() -> None:
            for weight, place in pairs:
                if accumulate:
                    place.addmm_(weight, delta)
                else:
                    torch.mm(weight, delta, out=place)

        return call

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """As states are stored: a product's own output."""
        return self.site.dtype

    def gradient(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """The outer products of errors and inputs, summed over the examples."""
        delta = columns(rows_of(self.own_errors, rows or self.site.rows, self.site.rows))
        inputs, weight = columns(self.sources[0]), tensor_of(out[0]).view(len(delta), -1)
        bias = tensor_of(out[1]).view(-1) if len(out) > 1 else None

        def call() -> None:
            if accumulate:
                weight.addmm_(delta, inputs.T)
            else:
                torch.mm(delta, inputs.T, out=weight)
            if bias is not None and accumulate:
                bias.add_(torch.sum(delta, 1))
            elif bias is not None:
                torch.sum(delta, 1, out=bias)

        return call

    def _weight_of(self, rows: tuple[int, int]) -> torch.Tensor:
        """Its columns for these rows of the input."""
        return self._weight[:, rows[0] * self._per_row : rows[1] * self._per_row]
