"""The kernel of any layer of one input with a node definition: its two functions, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.nodes.compiler import Refusal
from partita.engine.kernels.nodes.loop_kernel import NodeLoopKernel
from partita.engine.kernels.nodes.loops import down_loops, sum_loops, up_loop
from partita.engine.kernels.nodes.source import first_line
from partita.engine.kernels.nodes.sum_kernels import sum_kernel
from partita.engine.kernels.nodes.vectors import Signature
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Spans
from partita.layers.edges import Edges

T = TypeVar("T")


class NodeKernel(Kernel):
    """Runs a node definition in the fastest form: a weighted sum by products, anything else by loops.

    An exception of a user's function is raised unchanged, with a note that names layer and function.

    Raises:
        NodeCompileError: a function cannot be compiled by Numba, returns a value of a wrong kind, or computes
            other numbers than in plain Python.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        definition = context.grid.layer.definition
        assert definition is not None
        assert len(context.sources) == 1
        self._functions = {"upward": definition.upward, "downward": definition.downward}
        self.played: Kernel = self._by_products() or self._by_loops()
        self.gradient_by_rows = self.played.gradient_by_rows

    def _by_products(self) -> Kernel | None:
        if self.context.grid.layer.padding_value != 0:
            return None
        signature, upward = signature_of(self.context), self._function("upward")
        downward = self._functions["downward"]
        loops = self._explained("upward", lambda: sum_loops(upward, downward, signature))
        return None if loops is None else sum_kernel(self.context, self.arrays, self.pool, loops)

    def _by_loops(self) -> Kernel:
        signature, upward = signature_of(self.context), self._function("upward")
        downward = self._functions["downward"]
        up = self._explained("upward", lambda: up_loop(upward, signature))
        down = downward and self._explained("downward", lambda: down_loops(downward, signature))
        return NodeLoopKernel(self.context, self.arrays, self.pool, up, down)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the output; a sum in blocks starts when all blocks are present."""
        return self._noted("upward", self.played.forward(block=block, first=first, last=last))

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Computes the gradient of the input, receivers in ascending order."""
        self._check_trained()
        return self._noted("downward", self.played.backward_input(source, rows, accumulate=accumulate))

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Computes parameter gradients, summed over the examples."""
        self._check_trained()
        return self._noted("downward", self.played.backward_parameters(out, rows, accumulate=accumulate))

    def _check_trained(self) -> None:
        if self._functions["downward"] is None:
            raise ValueError(
                f"{self._name} has no downward function, and training needs one; "
                f"give it one with @{self._function('upward').__name__}.downward"
            )

    @property
    def _name(self) -> str:
        return f"{self.context.label}"

    def _function(self, role: str) -> Callable[..., Any]:
        function = self._functions[role]
        assert function is not None
        return function

    def _explained(self, role: str, build: Callable[[], T]) -> T:
        try:
            return build()
        except Refusal as refusal:
            function = self._function(role)
            raise refusal.explain(layer=self._name, role=role, function=function) from refusal.__cause__

    def _noted(self, role: str, call: Call) -> Call:
        """Adds a note to exceptions of a call."""

        def noted() -> None:
            try:
                call()
            except Exception as error:
                function = self._function(role)
                filename, line = first_line(function)
                place = f'File "{filename}", line {line}'
                error.add_note(f"in the {role} function of {self._name}, {function.__name__} ({place})")
                raise

        return noted


def signature_of(context: KernelContext) -> Signature:
    """The signature of the functions of a context's layer."""
    grid, (source,) = context.grid, context.sources
    wiring = grid.connectivity
    least = wiring.fan_in(source.shape)
    if isinstance(wiring, Edges):
        least = int(np.diff(wiring.edges((0, grid.n_rows), grid.shape, source.shape)[0]).min())
    kinds = tuple(
        (parameter.name.rpartition(".")[2], "n" if is_per_node(parameter, grid) else "e")
        for parameter in grid.parameters
    )
    return Signature(kinds, least, context.precision)
