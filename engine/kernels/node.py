"""The kernel of any layer with a node definition: its two functions, in the fastest form."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from partita.engine.kernels.kernel import Array, Arrays, Call, Kernel, KernelContext
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.comparison import compared, rejection
from partita.engine.kernels.nodes.errors import NodeCompileError, Place, place_of, underivable
from partita.engine.kernels.nodes.generated import NotCompiled
from partita.engine.kernels.nodes.loop_kernel import NodeLoopKernel
from partita.engine.kernels.nodes.loops import (
    Function,
    down_loops,
    read_downward,
    read_upward,
    sum_loops,
    up_loop,
)
from partita.engine.kernels.nodes.source import first_line
from partita.engine.kernels.nodes.sum_kernels import sum_kernel
from partita.engine.kernels.nodes.vectors import Signature, downward_text, upward_text
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Spans
from partita.layers.edges import Edges
from partita.layers.graph import Graph, Grid
from partita.layers.layer import NodeDefinition
from partita.layers.node import Node

Made: TypeAlias = Callable[[KernelContext, Arrays, ThreadPool], Kernel | None]


class NodeKernel(Kernel):
    """Runs a node definition in the fastest form.

    The forms, in this order: a weighted sum by products, anything else by compiled loops (both on a CPU
    alone), in torch, and in plain Python. Where a definition has no `downward`, it is derived. An exception
    of a user's function is raised unchanged, with a note that names layer and function.

    Raises:
        NodeCompileError: a function computes other numbers than in plain Python, or there is no `downward`
            and none can be derived.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        definition = context.grid.layer.definition
        assert definition is not None
        self._definition = definition
        self.played = self._chosen()
        self.gradient_by_rows = self.played.gradient_by_rows

    def _chosen(self) -> Kernel:
        for form in _FORMS:
            try:
                kernel = form(self.context, self.arrays, self.pool)
            except (ir.Unsupported, NotCompiled):
                continue
            if kernel is not None:
                self._compare(form)
                return kernel
        self._check_python()
        return _in_python(self.context, self.arrays, self.pool)

    def _check_python(self) -> None:
        """Refuses a function that raises, whatever it is given."""
        found = rejection(self._definition.upward, self._definition.downward, _signature(self.context))
        if found is not None:
            function, error = found
            frames = traceback.extract_tb(error.__traceback__)[1:]
            filename, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else first_line(function)
            place = Place(
                filename,
                line,
                linecache.getline(filename, line).strip(),
                f"{type(error).__name__}: {error}",
            )
            raise NodeCompileError(
                f"{self.context.label}: its function {function.__name__} raises for all inputs.\n{place}"
            )

    def _compare(self, form: Made) -> None:
        trained = self.arrays.grad_output is not None
        signature = _signature(self.context)
        up, down = self._definition.upward, self._definition.downward
        found = compared(up, down, signature, form, trained)
        if found is not None:
            raise found.explain(layer=self.context.label)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the output; a sum in blocks starts when all blocks are present."""
        return self._noted("upward", self.played.forward(block=block, first=first, last=last))

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Computes the gradient of an input, receivers in ascending order."""
        self._check_trained()
        return self._noted("downward", self.played.backward_input(source, rows, accumulate=accumulate))

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Computes parameter gradients, summed over the examples."""
        self._check_trained()
        return self._noted("downward", self.played.backward_parameters(out, rows, accumulate=accumulate))

    def _check_trained(self) -> None:
        """Refuses to train a node whose gradients nobody knows."""
        if self._definition.downward is not None:
            return
        signature = _signature(self.context)
        try:
            read_upward(self._definition.upward, signature)
        except ir.Unsupported as refused:
            raise underivable(self.context.label, self._definition.upward, refused) from None

    def _noted(self, role: str, call: Call) -> Call:
        """Adds a note to exceptions of a call."""

        def noted() -> None:
            try:
                call()
            except Exception as error:
                function = self._definition.upward
                if role == "downward" and self._definition.downward is not None:
                    function = self._definition.downward
                filename, line = first_line(function)
                name, place = function.__name__, f'File "{filename}", line {line}'
                error.add_note(f"in the {role} function of {self.context.label}, {name} ({place})")
                raise

        return noted


def _by_products(context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel | None:
    definition, grid = context.grid.layer.definition, context.grid
    if context.device != "cpu" or grid.layer.padding_value != 0 or len(context.sources) > 1:
        return None
    if grid.shares_weights:  # the products take weights of each node
        return None
    assert definition is not None
    signature, trained = _signature(context), arrays.grad_output is not None
    loops = sum_loops(definition.upward, definition.downward, signature, trained)
    return None if loops is None else sum_kernel(context, arrays, pool, loops)


def _by_loops(context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel | None:
    definition = context.grid.layer.definition
    if context.device != "cpu":
        return None
    assert definition is not None
    signature = _signature(context)
    up = up_loop(definition.upward, None, signature)
    trained = arrays.grad_output is not None
    down = down_loops(definition.upward, definition.downward, signature) if trained else None
    return NodeLoopKernel(context, arrays, pool, up, down)


def _in_torch(context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel | None:
    """Makes the kernel that runs the functions in torch, imported here alone; None where it cannot."""
    from partita.engine.kernels.nodes.torch_kernel import TorchForm, gathered_kernel

    definition, signature = context.grid.layer.definition, _signature(context)
    assert definition is not None
    up = read_upward(definition.upward, signature)
    down = definition.downward and read_downward(definition.upward, definition.downward, signature)
    names = tuple(name for name, _ in signature.parameters)
    return gathered_kernel(TorchForm(names, up, down), context, arrays, pool)


def _in_python(context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel:
    """Makes the kernel that runs the functions in plain Python, which gathers its inputs by torch."""
    from partita.engine.kernels.nodes.torch_kernel import PythonForm, gathered_kernel

    definition = context.grid.layer.definition
    assert definition is not None
    return gathered_kernel(PythonForm(definition.upward, definition.downward), context, arrays, pool)


_FORMS: Final[tuple[Made, ...]] = (_by_products, _by_loops, _in_torch)


def slow_place(grid: Grid, sources: tuple[Grid, ...], *, trained: bool = True) -> tuple[str, Place] | None:
    """Finds the line for which a node is not played by compiled loops; None if it is.

    Nothing is compiled.

    Returns:
        The form, "torch" or "plain Python", and the line.
    """
    definition = grid.layer.definition
    if definition is None:
        return None
    signature = signature_of(grid, sources, "float32")
    wanted: list[tuple[Function, Callable[[], Any]]] = [
        (definition.upward, lambda: upward_text(read_upward(definition.upward, signature), signature))
    ]
    if trained:
        down = definition.downward
        wanted.append(
            (
                down or definition.upward,
                lambda: downward_text(read_downward(definition.upward, down, signature), signature),
            )
        )
    for function, write in wanted:
        try:
            write()
        except ir.Unsupported as refused:
            return _form_of(definition, signature), place_of(refused, function)
    return None


def slow_nodes(graph: Graph) -> list[str]:
    """Describes each node definition that does not run as compiled loops, with the line that is the cause."""
    remarks = []
    for grid in graph.grids:
        if isinstance(grid.layer, Node):
            found = slow_place(grid, tuple(graph[name] for name in grid.sources))
            if found is not None:
                form, place = found
                what = f"{grid.layer.kind} '{grid.name}' runs in {form}, not in compiled loops."
                remarks.append(f"{what}\n{place}")
    return remarks


def _form_of(definition: NodeDefinition, signature: Signature) -> str:
    try:
        read_upward(definition.upward, signature)
        if definition.downward is not None:
            read_downward(definition.upward, definition.downward, signature)
    except ir.Unsupported:
        return "plain Python"
    return "torch"


def _signature(context: KernelContext) -> Signature:
    return signature_of(context.grid, context.sources, context.precision)


def signature_of(grid: Grid, sources: Sequence[Grid], precision: str) -> Signature:
    """The signature of the functions of a layer."""
    least = 0
    for wiring, source in zip(grid.wirings, sources, strict=True):
        if isinstance(wiring, Edges):
            least += int(np.diff(wiring.edges((0, grid.n_rows), grid.shape, source.shape)[0]).min())
        else:
            least += wiring.fan_in(source.shape)
    kinds = tuple(
        (parameter.name.rpartition(".")[2], "n" if is_per_node(parameter, grid) else "e")
        for parameter in grid.parameters
    )
    shared = frozenset(parameter.name.rpartition(".")[2] for parameter in grid.parameters if parameter.shared)
    return Signature(kinds, least, precision, shared)
