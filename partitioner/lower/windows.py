"""The windows of a program: rows of each buffer that a machine holds, and their bytes.

Plain arithmetic. The engine allocates exactly these arrays; `arena` places them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from partita.layers.box import BLOCK, Box, Shape
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Operand, Program
from partita.partitioner.ir.sizes import ITEM_BYTES, Sizes

ALIGNMENT: Final = 64
"""Bytes: arrays begin at cache lines."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """An array to allocate: rows of a buffer, for every example where they are activations or gradients of
    them.

    Args:
        box: rows of the buffer; of a picture in a plan with tiles, rows and columns.
        shape: shape of the array, `[rows, other node axes ..., example]`; of shared weights and their
            gradient `[1, number]`.
        dtype: kind of its numbers, see `Sizes.row`.
        offset: beginning in the machine's memory for windows, in bytes.
        own: shape of the machine's own tile where it has an array of its own, because the window has other
            columns too and kernels take whole arrays; else None.
    """

    box: Box
    shape: Shape
    dtype: str
    offset: int = 0
    own: Shape | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of the array, and of the machine's own tile beside it."""
        return self.own_offset + (math.prod(self.own) * ITEM_BYTES[self.dtype] if self.own else 0)

    @property
    def own_offset(self) -> int:
        """Beginning of the own tile, in bytes from the array's beginning."""
        n_bytes = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        return -(-n_bytes // ALIGNMENT) * ALIGNMENT if self.own else n_bytes


def windows_of(owned: Ownership, program: Program, sizes: Sizes) -> dict[Buffer, WindowPlan]:
    """Lists the windows of a program, by the places of its buffers.

    Parameters that lie in the machine's vectors are left out, and their gradient where that is whole.
    """
    found: dict[Buffer, WindowPlan] = {}
    for instruction in program.instructions:
        for operand in (instruction.target, *instruction.sources):
            name = operand.buffer.place(program.slots)
            if name not in found and not in_vectors(owned, program, name):
                box = _box(owned, operand, program.machine)
                own = own_tile(owned, name, program.machine, box)
                tile = None if own is None else sizes.shape(name, own)
                found[name] = WindowPlan(box, sizes.shape(name, box), sizes.row(name)[1], own=tile)
    return found


def own_tile(owned: Ownership, buffer: Buffer, machine: int, window: Box) -> Box | None:
    """The machine's own tile, if the window in which its activations or gradients lie is wider."""
    own = owned.rows(buffer.layer, machine).hull
    apart = buffer.travels_along_edges and buffer.peer is None
    if not apart or own.columns in (None, window.columns):
        return None
    is_joined = buffer.edge in (None, *owned.grad_edges(buffer.layer)[:1])
    return own if is_joined else None


def in_vectors(owned: Ownership, program: Program, buffer: Buffer) -> bool:
    """Returns whether a buffer is no window, but part of the machine's vectors of parameters or their
    gradient.
    """
    if buffer.peer is not None:
        return False
    if buffer.kind not in (BufferKind.PARAMETERS, BufferKind.GRADIENT):
        return False
    if buffer.parameter is not None:
        owners = owned.placement.owners(f"{buffer.layer}.{buffer.parameter}")
        is_whole = buffer.kind is BufferKind.PARAMETERS or program.kind.gradients == "whole"
        return is_whole and program.machine in owners
    if buffer.layer in owned.graph.tied:  # its parameters have places of their own
        return True
    receivers = owned.weight_receivers(buffer.layer)
    if buffer.kind is BufferKind.PARAMETERS or program.kind.gradients == "whole":
        return program.machine not in receivers
    return not receivers


def _box(owned: Ownership, operand: Operand, machine: int) -> Box:
    name, layer = operand.buffer, operand.buffer.layer
    if name.peer is not None:  # received, added and done with: nobody needs other rows of it
        return operand.rows.hull
    if name.parameter is not None:
        held = owned.placement.held(f"{layer}.{name.parameter}", machine)
        assert held is not None, f"machine {machine} has no {name}"
        return Box((held,))
    if name.kind is BufferKind.NORMS:
        return Box.of_rows(0, len(owned.parameter_owners))
    if name.kind in (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY):
        return Box.of_rows(0, len(owned.summary_senders(layer)))
    if name.kind in (BufferKind.PARAMETERS, BufferKind.GRADIENT):
        return BLOCK.hull
    if name.kind in (BufferKind.PARTIAL_SUMS, BufferKind.GRAD_PREACTIVATION):
        return owned.graph[layer].rows.hull
    if name.edge is None:
        return owned.state_window(layer, machine)
    return owned.error_window(name.edge, machine)
