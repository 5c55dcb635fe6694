"""Any layer of one input that has a node definition: its two functions, compiled over nodes and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, Site, nothing
from partita.engine.kernels.node_compiler import Uncompilable
from partita.engine.kernels.node_loops import DownLoops, UpLoop, down_loops, up_loop
from partita.engine.kernels.node_source import first_line
from partita.engine.kernels.node_vectors import Signature
from partita.engine.kernels.node_wiring import Wiring
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.views import columns, rows_of
from partita.engine.numerics import narrow_array, widen_array
from partita.layers.edges import Edges
from partita.layers.rows import Rows

_SLOWER = 50.0
"""How many operations of a vectorised loop take as long as one of a user's scalar function, roughly."""


class NodeKernel(Kernel):
    """Plays a node definition. `downward` runs twice for each node: once for the errors, once for the
    gradients.

    An exception that a user's function raises comes out as it is, with a note that names layer and function.

    Raises:
        NodeCompileError: a function is not one that Numba compiles, or returns what it must not.
    """

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        definition = site.grid.layer.definition
        assert definition is not None
        assert len(site.sources) == 1
        self._upward, self._downward = definition.upward, definition.downward
        signature = signature_of(site)
        self._up: UpLoop = self._explained("upward", lambda: up_loop(self._upward, signature))
        self._down: DownLoops | None = self._explained("downward", lambda: self._compiled_downward(signature))
        self._wiring = Wiring.of(site)
        self._x, self._state = columns(arrays.sources[0]), columns(arrays.state)
        self._parameters = tuple(parameter.reshape(-1) for parameter in arrays.parameters)
        wiring, zeros = self._wiring, np.zeros(site.batch, site.dtype)
        self._table = (self._x, zeros, wiring.senders, wiring.firsts, wiring.offsets, wiring.width)

    def _compiled_downward(self, signature: Signature) -> DownLoops | None:
        return None if self._downward is None else down_loops(self._downward, signature)

    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Runs `upward` for every node and example; a sum in blocks is taken at once when all of them are
        there.
        """
        if not last:
            return nothing
        loop, given = self._up.states, (*self._table, *self._parameters, self._state)

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop))

        return self._split((self.site.rows,), work, "upward", self._up.in_vectors)

    def errors(self, source: int, rows: Rows, *, accumulate: bool) -> Call:
        """Runs `downward` for the nodes that listen to these rows, in ascending order."""
        down, wiring, window = self._trained(), self._wiring, self.site.error_windows[0]
        per_row, first = self.site.sources[0].nodes_per_row, self.site.windows[0][0]
        stored = self.arrays.errors_of(0)
        wide = np.float32 if stored.dtype == np.uint16 else stored.dtype
        sums = stored if stored.dtype == wide else np.empty(stored.shape, wide)
        delta = columns(self.arrays.own_errors)
        given = (*self._table, wiring.least, wiring.most, *self._parameters, self._state, delta)

        def work(start: int, stop: int) -> None:
            place, out = rows_of(sums, (start, stop), window), rows_of(stored, (start, stop), window)
            if not accumulate:
                place[...] = 0
            elif place.dtype != out.dtype:
                widen_array(out, place)
            down.errors(*given, columns(place), (start - first) * per_row, (stop - first) * per_row)
            if place.dtype != out.dtype:
                narrow_array(place, out)

        return self._split(rows, work, "downward", down.in_vectors)

    def gradient(self, out: Sequence[Array], rows: tuple[int, int] | None = None) -> Call:
        """Runs `downward` for every node and adds up the examples in their order."""
        down, asked = self._trained(), rows or self.site.rows
        loop = down.gradients
        if loop is None:
            return nothing
        sums, (begin, _) = tuple(gradient.reshape(-1) for gradient in out), self._nodes(*asked)
        given = (*self._table, *self._parameters, self._state, columns(self.arrays.own_errors), *sums)

        def work(start: int, stop: int) -> None:
            loop(*given, *self._nodes(start, stop), begin)

        return self._split((asked,), work, "downward", down.in_vectors)

    def _split(self, rows: Rows, work: Callable[[int, int], None], role: str, in_vectors: bool) -> Call:
        operations = self.site.operations * (1.0 if in_vectors else _SLOWER)

        def call() -> None:
            with self._noted(role):
                for run in rows:
                    self.team.split(*run, work, operations=operations)

        return call

    def _nodes(self, start: int, stop: int) -> tuple[int, int]:
        per_row = self.site.grid.nodes_per_row
        return (start - self.site.rows[0]) * per_row, (stop - self.site.rows[0]) * per_row

    def _trained(self) -> DownLoops:
        if self._down is None:
            raise ValueError(
                f"{self._name} has no downward function, and training needs one; "
                f"give it one with @{self._upward.__name__}.downward"
            )
        return self._down

    @property
    def _name(self) -> str:
        return f"{self.site.grid.layer.kind} '{self.site.grid.name}'"

    def _function(self, role: str) -> Callable[..., Any]:
        function = self._upward if role == "upward" else self._downward
        assert function is not None
        return function

    def _explained(self, role: str, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except Uncompilable as refusal:
            function = self._function(role)
            raise refusal.explain(layer=self._name, role=role, function=function) from refusal.__cause__

    @contextmanager
    def _noted(self, role: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            function = self._function(role)
            filename, line = first_line(function)
            place = f'File "{filename}", line {line}'
            error.add_note(f"in the {role} function of {self._name}, {function.__name__} ({place})")
            raise


def signature_of(site: Site) -> Signature:
    """What the functions of a site's layer take."""
    grid, (source,) = site.grid, site.sources
    wiring = grid.layer.connectivity
    least = wiring.fan_in(source.shape)
    if isinstance(wiring, Edges):
        least = int(np.diff(wiring.edges((0, grid.n_rows), grid.shape, source.shape)[0]).min())
    kinds = tuple(
        (parameter.name.rpartition(".")[2], "n" if is_per_node(parameter, grid) else "e")
        for parameter in grid.parameters
    )
    return Signature(kinds, least, site.precision)
