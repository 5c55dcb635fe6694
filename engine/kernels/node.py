"""Any layer of one input that has a node definition: its two functions, compiled over nodes and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array, Kernel, Site
from partita.engine.kernels.node_compiler import Uncompilable, first_line
from partita.engine.kernels.node_loops import DownLoops, UpLoop, down_loops, frozen, up_loop
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.views import columns, rows_of
from partita.layers.connectivity import PADDING
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

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site)
        definition = site.grid.layer.definition
        assert definition is not None
        assert len(site.sources) == 1
        self._upward, self._downward, self._team = definition.upward, definition.downward, team
        source = site.sources[0]
        self._offsets, indices = site.grid.layer.connectivity.edges(site.rows, site.grid.shape, source.shape)
        self._first_sender = site.windows[0][0] * source.nodes_per_row
        self._senders = np.where(indices == PADDING, PADDING, indices - self._first_sender)
        kinds = "".join(
            "n" if is_per_node(parameter, site.grid) else "e" for parameter in site.grid.parameters
        )
        self._up: UpLoop = self._explained("upward", lambda: up_loop(self._upward, kinds, site.dtype))
        self._down: DownLoops | None = self._explained("downward", lambda: self._compiled_downward(kinds))

    def _compiled_downward(self, kinds: str) -> DownLoops | None:
        return None if self._downward is None else down_loops(self._downward, kinds, self.site.dtype)

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
        """Runs `upward` for every node and example; a sum in blocks is taken at once when all of them are
        there.
        """
        if not last:
            return
        x, states, flats = columns(sources[0]), columns(state), _frozen(parameters, state)

        def work(start: int, stop: int) -> None:
            self._up.states(x, self._offsets, self._senders, flats, states, *self._nodes(start, stop))

        with self._noted("upward", self._upward):
            self._team.split(*self.site.rows, work, operations=_SLOWER * self.site.operations)

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
        """Runs `downward` for the nodes that listen to these rows, in ascending order."""
        x, flats, down = columns(sources[0]), _frozen(parameters, state), self._trained()
        states, deltas, per_row = columns(state), columns(delta), self.site.sources[0].nodes_per_row

        def work(start: int, stop: int) -> None:
            place = columns(rows_of(out, (start, stop), self.site.error_windows[0]))
            if not accumulate:
                place[...] = 0
            low, high = start * per_row - self._first_sender, stop * per_row - self._first_sender
            down.errors(x, self._offsets, self._senders, flats, states, deltas, place, low, high)

        with self._noted("downward", self._downward):
            for run in rows:
                self._team.split(*run, work, operations=_SLOWER * self.site.operations)

    def gradient(
        self,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
    ) -> None:
        """Runs `downward` for every node and adds up the examples in their order."""
        loop = self._trained().gradients
        if loop is None:
            return
        for gradient in gradients:
            gradient[...] = 0
        x, flats, sums = columns(sources[0]), _frozen(parameters, state), _flat(gradients, state)
        states, deltas = columns(state), columns(delta)

        def work(start: int, stop: int) -> None:
            nodes = self._nodes(start, stop)
            loop(x, self._offsets, self._senders, flats, states, deltas, sums, *nodes)

        with self._noted("downward", self._downward):
            self._team.split(*self.site.rows, work, operations=_SLOWER * self.site.operations)

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

    def _explained(self, role: str, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except Uncompilable as refusal:
            function = self._upward if role == "upward" else self._downward
            assert function is not None
            raise refusal.explain(layer=self._name, role=role, function=function) from refusal.__cause__

    @contextmanager
    def _noted(self, role: str, function: Callable[..., Any] | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            assert function is not None
            filename, line = first_line(function)
            place = f'File "{filename}", line {line}'
            error.add_note(f"in the {role} function of {self._name}, {function.__name__} ({place})")
            raise


def _frozen(arrays: Sequence[Array], like: Array) -> tuple[Array, ...]:
    return tuple(map(frozen, _flat(arrays, like)))


def _flat(arrays: Sequence[Array], like: Array) -> tuple[Array, ...]:
    """Flat views; without a parameter one empty array, because Numba cannot type an empty tuple."""
    return tuple(array.reshape(-1) for array in arrays) or (np.empty(0, like.dtype),)
