"""The arrays of a program's instructions, allocated once and used again in every step.

Activations and their gradients are windows of rows, `[rows, other node axes ..., example]`. Parameters and
their gradients are flat vectors, one for the machine, of which each layer's arrays are views. Weights that
are shared with other machines are sent from there, and lie in windows where they arrive.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.numerics import master, storage
from partita.engine.parameters.layout import Layout
from partita.engine.parameters.slots import Slot, intersections, learning
from partita.engine.runtime.open_device import open_device
from partita.engine.runtime.window import PackedWindow, Window
from partita.layers.box import Box, BoxSet
from partita.partitioner.assign.placement import local
from partita.partitioner.ir.buffer import Buffer, BufferKind, of_parameter
from partita.partitioner.ir.program import Program
from partita.partitioner.lower.arena import arena_bytes
from partita.partitioner.plan import Plan

Array: TypeAlias = npt.NDArray[Any]


def layout_of(plan: Plan, *, shards: int, fragments: int = 1) -> Layout:
    """The places of all parameters: on the machines in the order of the layers, and on the shards; and the
    fragments in which they are exchanged.
    """
    machines = tuple(
        tuple(
            Slot(held.parameter.name, *held.runs)
            for grid in plan.graph.computed
            for held in plan.ownership.parameter_slices(grid.name, machine)
        )
        for machine in range(len(plan.cluster))
    )
    shapes = {name: p.shape for name, p in plan.graph.parameters.items()}
    graph = plan.graph
    return Layout(machines, shapes, shards, graph.frozen, graph.averaged, graph.sparse, fragments)


class Vectors:
    """A machine's parameters and their gradient: flat vectors, and each layer's arrays as views of them.

    Attributes:
        device: the machine's.
        dtype: of the masters and the gradient.
        parameters: the masters, `[n]`, float32 or float64.
        copy: the same in bfloat16 (its bits, `[n]` of uint16) where the plan computes in it, else None.
        gradient: `[n]`, like the masters; empty where nothing asks for a whole gradient.
        frozen: names of parameters that are not trainable.
        tables: whose gradients are of a few rows.
    """

    def __init__(self, plan: Plan, machine: int, *, gradient: bool = True) -> None:
        """Allocates the vectors; the whole `gradient` only if asked for.

        Raises:
            NoSuchDevice: this host does not have the machine's device.
        """
        layout = layout_of(plan, shards=1)
        size = layout.machine_size(machine)
        self.frozen = layout.frozen
        self._learning = learning(layout.machines[machine], layout.frozen)
        self.tables = layout.tables_of(machine)
        self._averaged = learning(layout.machines[machine], layout.shapes.keys() - layout.averaged)
        self._kept = plan.graph.kept
        self.dtype, read = master(plan.precision), storage(plan.precision)
        self.device = open_device(plan.cluster.machines[machine])
        self.parameters = self.device.zeros((size,), self.dtype)
        self.gradient = self.device.zeros((size if gradient else 0,), self.dtype)
        self.copy = self.device.zeros((size,), read) if read != self.dtype else None
        self._window = self.device.window(0, self.parameters)
        self._places: dict[str, slice] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._shapes: dict[str, list[tuple[int, int, tuple[int, ...]]]] = {}
        position = 0
        for grid in plan.graph.computed:
            begin = position
            for held in plan.ownership.parameter_slices(grid.name, machine):
                self._shapes.setdefault(grid.name, []).append((position, position + held.size, held.shape))
                self._places[held.parameter.name] = slice(position, position + held.size)
                position += held.size
            self._spans[grid.name] = (begin, position)

    def span(self, layer: str) -> slice:
        """The layer's range in the vectors."""
        return slice(*self._spans[layer])

    def place(self, parameter: str) -> slice | None:
        """The range of a parameter, by its full name, in the vectors; None if the machine owns none of it."""
        return self._places.get(parameter)

    def updated(self, span: slice) -> list[slice]:
        """The ranges within a range that are of trainable parameters, then those of running averages."""
        ranges = (self._learning, self._averaged)
        return [part for some in ranges for part in intersections(some, span.start, span.stop)]

    def is_kept(self, span: slice) -> bool:
        """Returns whether a range of one parameter is of one whose changes are added up over replicas."""
        places = (self._places.get(name) for name in self._kept)
        return any(at is not None and at.start <= span.start and span.stop <= at.stop for at in places)

    def is_averaged(self, span: slice) -> bool:
        """Returns whether a range of one parameter is of a running average."""
        return any(start <= span.start and span.stop <= stop for start, stop in self._averaged)

    @property
    def read(self) -> Array:
        """The parameters as kernels read them."""
        return self.parameters if self.copy is None else self.copy

    def arriving(self, span: slice = slice(None)) -> Array:
        """The host's array for new masters of a range; call `changed` when it is filled."""
        (run,) = self._window.arriving(self._range(span))
        return run

    def changed(self, span: slice = slice(None)) -> None:
        """Takes over new masters of a range, and makes their bfloat16 copy."""
        self._window.upload(self._range(span))
        if self.copy is not None:
            self.device.copy(self.copy[span], self.parameters[span])

    def _range(self, span: slice) -> BoxSet:
        start, stop, _ = span.indices(len(self.parameters))
        return BoxSet((Box(((start, stop),)),))

    def spans(self, layer: str) -> list[slice]:
        """The ranges of the layer's parameters in the vectors."""
        return [slice(start, stop) for start, stop, _ in self._shapes.get(layer, [])]

    def views(self, layer: str, vector: Array) -> list[Array]:
        """The layer's pieces of its parameters in a vector, in their shapes."""
        return [vector[start:stop].reshape(shape) for start, stop, shape in self._shapes.get(layer, [])]


class Buffers:
    """The windows of a program, by the buffers of its instructions, in one piece of memory.

    Attributes:
        plan, machine, program, vectors: those of the constructor.
        device: the machine's.
        windows: by the name of their place (see `place_of`); also those parts of the vectors that are sent,
            or that a sum is added to.
        tiles: arrays of the machine's own tiles, by the names of the windows in which they do not lie in one
            piece.
        n_bytes: of the memory.
    """

    def __init__(
        self,
        plan: Plan,
        machine: int,
        program: Program,
        vectors: Vectors,
        *,
        keep: Collection[Buffer] | None = None,
    ) -> None:
        """Allocates the planned windows, and fills them with zeros.

        Args:
            plan: of the network.
            machine: its index in the plan.
            program: the machine's instructions.
            vectors: the machine's parameters and gradient.
            keep: the buffers that are read after a step, see `Plan.windows`; None: any.
        """
        assert program.machine == machine, f"the program of machine {program.machine} on machine {machine}"
        self.plan, self.machine, self.program, self.vectors = plan, machine, program, vectors
        self.device, self._slots = vectors.device, program.slots
        self._planned = planned = plan.windows(program, keep=keep)
        self.n_bytes = arena_bytes(planned)
        memory = self.device.memory(self.n_bytes)
        self.windows: dict[Buffer, Window] = {}
        self.tiles: dict[Buffer, Array] = {}
        for name, window in planned.items():
            array = self.device.placed(memory, window.offset, window.shape, _dtype(window.dtype))
            start, columns = window.box[0][0], window.box.columns
            if columns is None:
                self.windows[name] = self.device.window(start, array)
                continue
            self.windows[name] = PackedWindow(self.device.window(start, array, columns[0]))
            if window.own is not None:
                offset = window.offset + window.own_offset
                self.tiles[name] = self.device.placed(memory, offset, window.own, _dtype(window.dtype))
        for layer in shared_layers(plan, machine):
            span = vectors.span(layer)
            shared = {BufferKind.PARAMETERS: vectors.read[span]}
            if program.kind.gradients == "whole":
                shared[BufferKind.GRADIENT] = vectors.gradient[span]
            for kind, array in shared.items():
                self.windows[Buffer(kind, layer)] = self.device.window(0, array.reshape(1, -1))
        self._take_places()

    def _take_places(self) -> None:
        """Makes windows of the parts of the vectors that are of parameters with places of their own."""
        placement, vectors = self.plan.ownership.placement, self.vectors
        for name in placement.names(self.machine):
            span = vectors.place(name)
            if span is None:
                continue
            start, _ = placement.owners(name)[self.machine]
            arrays = {BufferKind.PARAMETERS: vectors.read[span]}
            if self.program.kind.gradients == "whole" and placement.learns(name):
                arrays[BufferKind.GRADIENT] = vectors.gradient[span]
            for kind, array in arrays.items():
                self.windows[of_parameter(kind, name)] = self.device.window(start, array)

    def __getitem__(self, buffer: Buffer) -> Window:
        return self.windows[buffer.place(self._slots)]

    def overlap(self, one: Buffer, other: Buffer) -> bool:
        """Returns whether two windows, by their places, use the same memory one after the other."""
        if one == other or one not in self._planned or other not in self._planned:
            return False
        (low, n_low), (high, n_high) = sorted(
            (self._planned[name].offset, self._planned[name].n_bytes) for name in (one, other)
        )
        return low + n_low > high and n_high > 0

    def collected(self, name: Buffer, rows: BoxSet) -> list[Array]:
        """The machine's own rows of a buffer, copied to the host, micro-batch after micro-batch."""
        return [
            self.windows[one].download(rows)[0]
            if one not in self.tiles
            else self.device.given(self.tiles[one])
            for one in self._places(name)
        ]

    def _places(self, name: Buffer) -> list[Buffer]:
        names = [name, *(name.numbered(slot) for slot in range(self._slots))]
        return [one for one in names if one in self.windows]

    def own(self, buffer: Buffer, rows: BoxSet) -> Array:
        """The machine's own rows of a buffer in one piece, as its kernels have them."""
        tile = self.tiles.get(buffer)
        return self.windows[buffer].of(rows)[0] if tile is None else tile

    def zeros_like(self, buffer: Buffer, shape: tuple[int, ...]) -> Array:
        """An array of zeros of a buffer's dtype, besides its window."""
        return self.device.zeros(shape, _dtype(self.plan.sizes.row(buffer)[1]))

    def used(self, kind: BufferKind, layer: str) -> list[Array]:
        """The numbers of a layer's parameters that the machine's rows use (or of their gradient), where these
        have places of their own: views, in their shapes, or `[run, number]` if they do not lie in one piece.
        What is in no place, as the gradient of a parameter that does not learn, gets an array.
        """
        found = []
        for held in self.plan.ownership.used_slices(layer, self.machine):
            name = of_parameter(kind, held.parameter.name)
            if not held.size or name not in self.windows:
                found.append(self.device.zeros(held.shape, _dtype(self.plan.sizes.row(name)[1])))
                continue
            window, (start, stop, run, stride) = self.windows[name], held.runs
            if run:
                start, stop = held.parameter.span(held.box[0])
            array = window.array[start - window.start : stop - window.start]
            found.append(array.reshape(-1, stride)[:, local(held)] if run else array.reshape(held.shape))
        return found

    def parameters_in(self, buffer: Buffer) -> list[Array] | None:
        """The arrays of a layer's parameters, or of their gradient, in a window; None: in vectors."""
        if buffer not in self.windows:
            return None
        parameters = self.plan.graph[buffer.layer].parameters
        ends = [0, *accumulate(parameter.size for parameter in parameters)]
        row = self.windows[buffer].array[0]
        return [
            row[start:stop].reshape(parameter.shape)
            for parameter, (start, stop) in zip(parameters, pairwise(ends), strict=True)
        ]


def shared_layers(plan: Plan, machine: int) -> list[str]:
    """The layers whose weights this machine shares with others."""
    owned = plan.ownership
    return [
        grid.name
        for grid in plan.graph.computed
        if owned.weight_receivers(grid.name) and owned.of(grid.name)[0].machine == machine
    ]


def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of a window: int64 for labels, else the storage type of its precision."""
    return np.dtype(np.int64) if name == "int64" else storage(name)
