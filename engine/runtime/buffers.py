"""Every array that instructions name, allocated once for each program and used again in every step.

States, errors and partial errors are windows of rows, `[rows, other node axes ..., example]`. Parameters and
gradients are flat vectors, one for the machine, of which each layer's arrays are views. Weights that are lent to
other machines are sent from there, and lie in windows where they arrive.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.numerics import master, narrow_array, storage
from partita.engine.parameters.layout import Layout, Slot
from partita.layers.layer import Parameter
from partita.layers.rows import Rows
from partita.partitioner.arena import ALIGNMENT, arena_bytes
from partita.partitioner.buffer_names import GRADIENT, PARAMETERS, layer_of
from partita.partitioner.plan import Plan
from partita.partitioner.program import Program

Array: TypeAlias = npt.NDArray[Any]


def layout_of(plan: Plan, *, shards: int) -> Layout:
    """Where every parameter lies: on the machines in the order of the layers, and on the shards."""
    machines = tuple(
        tuple(
            Slot(parameter.name, *parameter.span(rows))
            for grid in plan.graph.computed
            if (rows := plan.ownership.rows(grid.name, machine)) is not None
            for parameter in grid.parameters
        )
        for machine in range(len(plan.cluster))
    )
    return Layout(machines, {name: p.shape for name, p in plan.graph.parameters.items()}, shards)


class Window:
    """Rows `[start, stop)` of a buffer, and the array that holds them."""

    def __init__(self, start: int, array: Array) -> None:
        self.start = start
        self.array = array

    @property
    def rows(self) -> tuple[int, int]:
        """`(start, stop)`."""
        return self.start, self.start + len(self.array)

    def of(self, rows: Rows) -> list[Array]:
        """The runs of these rows, as contiguous views."""
        return [self.array[a - self.start : b - self.start] for a, b in rows]


def piece_shape(parameter: Parameter, rows: tuple[int, int]) -> tuple[int, ...]:
    """The shape of what belongs to these rows of a layer: flat where rows differ in their edges."""
    start, stop = parameter.span(rows)
    if parameter.row_starts is not None:
        return (stop - start,)
    stride = math.prod(parameter.shape[1:])
    return ((stop - start) // stride, *parameter.shape[1:])


class Vectors:
    """A machine's parameters and their gradient: flat vectors, and each layer's arrays as views of them.

    Attributes:
        parameters: the masters, `[n]`, float32 or float64.
        copy: the same in bfloat16 (its bits, `[n]` of uint16) where the plan computes in it, else None.
        gradient: `[n]`, like the masters; empty where nothing asks for a whole gradient.
    """

    def __init__(self, plan: Plan, machine: int, *, gradient: bool = True) -> None:
        """Allocates.

        Args:
            plan: whose parameters.
            machine: as whom.
            gradient: whether the gradient is kept whole.
        """
        size = layout_of(plan, shards=1).machine_size(machine)
        self.parameters = np.zeros(size, master(plan.precision))
        self.gradient = np.zeros(size if gradient else 0, master(plan.precision))
        self.copy = np.zeros(size, storage(plan.precision)) if plan.precision == "bfloat16" else None
        self._spans: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
        position = 0
        for grid in plan.graph.computed:
            rows = plan.ownership.rows(grid.name, machine)
            begin = position
            for parameter in grid.parameters if rows is not None else ():
                assert rows is not None
                start, stop = parameter.span(rows)
                shape = piece_shape(parameter, rows)
                self._shapes.setdefault(grid.name, []).append((position, position + stop - start, shape))
                position += stop - start
            self._spans[grid.name] = (begin, position)

    def span(self, layer: str) -> slice:
        """The layer's range in the vectors."""
        return slice(*self._spans[layer])

    @property
    def read(self) -> Array:
        """The parameters as kernels read them."""
        return self.parameters if self.copy is None else self.copy

    def changed(self, span: slice = slice(None)) -> None:
        """The masters of a range came from elsewhere, so its copy is made anew."""
        if self.copy is not None:
            narrow_array(self.parameters[span], self.copy[span])

    def spans(self, layer: str) -> list[slice]:
        """The ranges of the layer's parameters in the vectors."""
        return [slice(start, stop) for start, stop, _ in self._shapes.get(layer, [])]

    def views(self, layer: str, vector: Array) -> list[Array]:
        """The layer's pieces of its parameters in a vector, in their shapes."""
        return [vector[start:stop].reshape(shape) for start, stop, shape in self._shapes.get(layer, [])]


class Buffers:
    """The windows of a program, by the names that its instructions use, in one piece of memory.

    Attributes:
        windows: by name; also those parts of the vectors that are sent, or that a sum is added to.
        n_bytes: of the memory.
    """

    def __init__(
        self,
        plan: Plan,
        machine: int,
        program: Program,
        vectors: Vectors,
        *,
        keep: Collection[str] | None = None,
    ) -> None:
        """Allocates what the plan says, and fills it with zeros.

        Args:
            plan, machine, program: whose.
            vectors: the machine's parameters and gradient.
            keep: the buffers that are looked at after a step, see `Plan.windows`; None: any.
        """
        assert program.machine == machine, f"the program of machine {program.machine} on machine {machine}"
        self.plan, self.machine = plan, machine
        planned = plan.windows(program, keep=keep)
        self.n_bytes = arena_bytes(planned)
        memory = _aligned(self.n_bytes)
        self.windows: dict[str, Window] = {}
        for name, window in planned.items():
            place = memory[window.offset : window.offset + window.n_bytes]
            self.windows[name] = Window(window.rows[0], place.view(_dtype(window.dtype)).reshape(window.shape))
        for layer in lent_layers(plan, machine):
            span = vectors.span(layer)
            lent = {PARAMETERS: vectors.read[span]}
            if program.kind.gradients == "whole":
                lent[GRADIENT] = vectors.gradient[span]
            self.windows |= {layer + what: Window(0, array.reshape(1, -1)) for what, array in lent.items()}

    def __getitem__(self, buffer: str) -> Window:
        return self.windows[buffer]

    def parameters_in(self, buffer: str) -> list[Array] | None:
        """The arrays of a layer's parameters, or of their gradient, in a window; None if they lie in vectors."""
        if buffer not in self.windows:
            return None
        parameters = self.plan.graph[layer_of(buffer)].parameters
        ends = [0, *accumulate(parameter.size for parameter in parameters)]
        row = self.windows[buffer].array[0]
        return [
            row[start:stop].reshape(parameter.shape)
            for parameter, (start, stop) in zip(parameters, pairwise(ends), strict=True)
        ]


def lent_layers(plan: Plan, machine: int) -> list[str]:
    """The layers whose shared weights are this machine's, and which others borrow."""
    owned = plan.ownership
    return [
        grid.name
        for grid in plan.graph.computed
        if owned.borrowers(grid.name) and owned.of(grid.name)[0].machine == machine
    ]


def _aligned(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that begin on a line of the cache."""
    memory = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_bytes]


def _dtype(name: str) -> np.dtype[Any]:
    """Of a window: labels are int64, all else is stored as its precision."""
    return np.dtype(np.int64) if name == "int64" else storage(name)
