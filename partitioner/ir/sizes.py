"""Bytes of a row of each buffer: the one place for messages, windows and costs. Plain arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from partita.layers.box import Box, Shape
from partita.layers.graph import Graph
from partita.layers.layer import Placeholder
from partita.layers.losses import Loss
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Operand

ITEM_BYTES: Final = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8}
"""Bytes of a number, by its dtype."""
MASTERS: Final = {"float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32"}
"""For each precision, that of the parameters that optimizers update, of gradients and of sums."""
PRECISIONS: Final = {name: ITEM_BYTES[name] for name in MASTERS}
"""Bytes of an activation or its gradient, by precision."""


@dataclass(frozen=True)
class Sizes:
    """Shapes and bytes of a network's buffers; the fields are those of `Plan`."""

    graph: Graph
    batch: int
    precision: str
    micro_batches: int = 1

    @property
    def master(self) -> str:
        """Precision of parameters, of gradients and of sums."""
        return MASTERS[self.precision]

    @property
    def master_bytes(self) -> int:
        """Bytes of a number in the master precision."""
        return ITEM_BYTES[self.master]

    def examples(self, buffer: Buffer) -> int:
        """Examples of a buffer: a micro-batch, or the minibatch for parameters, gradients and norms."""
        return self.batch if buffer.is_of_minibatch else self.batch // self.micro_batches

    def row(self, buffer: Buffer) -> tuple[Shape, str]:
        """Shape and dtype of one row of a buffer.

        Labels are "int64", sums of squares "float64"; other sums, losses and gradients have the master
        precision, all else the precision.
        """
        if buffer.kind is BufferKind.NORMS:
            return (2 * len(self.graph.parameters),), "float64"
        if buffer.parameter is not None:
            return (), self.precision if buffer.kind is BufferKind.PARAMETERS else self.master
        grid = self.graph[buffer.layer]
        if buffer.kind is BufferKind.PARAMETERS:
            return (self._shared(grid.name),), self.precision
        if buffer.kind is BufferKind.GRADIENT:
            return (self._shared(grid.name),), self.master
        if buffer.kind in (BufferKind.SUMMARY, BufferKind.GRAD_SUMMARY):
            assert grid.summary is not None, f"{grid.name} declares no summary"
            examples = (self.examples(buffer),) * grid.summary.by_example
            return (*grid.summary.shape, *examples), self.master
        shape = (*grid.shape[1:], self.examples(buffer))
        if isinstance(grid.layer, Placeholder) and grid.layer.classes is not None:
            return shape, "int64"
        return shape, self.master if isinstance(grid.layer, Loss) else self.precision

    def shape(self, buffer: Buffer, box: Box) -> Shape:
        """Shape of an array that holds a box of a buffer."""
        row, _ = self.row(buffer)
        return (*box.shape, *row[len(box) - 1 :])

    def n_bytes(self, operand: Operand) -> int:
        """Bytes of these rows of a buffer."""
        boxed = bool(operand.rows) and len(operand.rows[0]) > 1
        key = operand.buffer, boxed
        if key not in self._row_bytes:
            shape, kind = self.row(operand.buffer)
            self._row_bytes[key] = math.prod(shape[1:] if boxed else shape) * ITEM_BYTES[kind]
        return operand.rows.size * self._row_bytes[key]

    @cached_property
    def _row_bytes(self) -> dict[tuple[Buffer, bool], int]:
        """Bytes of a row, or of all channels at a place of a picture."""
        return {}

    def _shared(self, layer: str) -> int:
        assert self.graph[layer].shares_weights, f"the parameters of {layer} lie in no buffer"
        return sum(parameter.size for parameter in self.graph[layer].parameters)
