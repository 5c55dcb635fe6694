"""Instructions of one piece, as a machine has them that receives all inputs at once.

Cost, bound and search price pieces by these before there is a plan. In a program the same instructions are
divided by the messages that they wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from partita.layers.box import BLOCK, BoxSet
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.piece import Piece
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge, activations
from partita.partitioner.ir.program import Instruction, Op, Operand
from partita.partitioner.memoised import memoised


def feed(source: str, rows: BoxSet) -> Instruction:
    """Fills rows of an input or target."""
    return Instruction(Op.FEED, Operand(activations(source), rows))


def forward(grid: Grid, rows: BoxSet, inputs: Sequence[BoxSet]) -> Instruction:
    """Computes activations of a layer from these rows of each input."""
    sources = (Operand(activations(s), given) for s, given in zip(grid.sources, inputs, strict=True))
    return Instruction(Op.FORWARD, Operand(activations(grid.name), rows), tuple(sources))


def grad_input(grid: Grid, number: int, rows: BoxSet, grad: Operand) -> Instruction:
    """Computes the gradient of rows of an input."""
    edge = Edge(grid.sources[number], grid.name, number)
    return Instruction(Op.GRAD_INPUT, Operand(edge.buffer, rows), (grad,))


class PiecePrograms:
    """Instructions of any piece of a network; remembers which rows of inputs they need."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def by_rows(self, grid: Grid, rows: BoxSet, *, train: bool) -> Iterator[Instruction]:
        """Instructions of rows of a layer; `train` adds the backward pass and the update."""
        inputs = [self._rows_needed(grid.name, rows, k) for k in range(len(grid.sources))]
        yield forward(grid, rows, inputs)
        if not train or grid.name not in self.graph.needs_gradient:
            return
        own, consumers = Operand(activations(grid.name), rows), self.graph.consumers(grid.name)
        grad = Operand(Edge(grid.name, *consumers[0]).buffer, rows) if consumers else own
        if consumers and grid.layer.activation != "linear":
            yield Instruction(Op.GRAD_PREACTIVATION, grad, (own,), accumulate=True)
        for k, source in enumerate(grid.sources):
            if source in self.graph.needs_gradient:
                yield grad_input(grid, k, inputs[k], grad)
        if grid.learns:
            yield self._learn(grid, BLOCK if grid.shares_weights else rows, grad)

    def partial_sums(self, piece: Piece, pieces: Sequence[Piece]) -> Iterator[tuple[int, Instruction]]:
        """Sums of a piece over its inputs, for the rows of every piece of the layer: how often, and what."""
        source = Operand(
            activations(self.graph[piece.layer].sources[0]), BoxSet.of_rows(piece.inputs or (0, 0))
        )
        extents = Counter(stop - start for start, stop in {each.box[0] for each in pieces})
        for extent, count in extents.items():
            sums = Operand(Buffer(BufferKind.PARTIAL_SUMS, piece.layer), BoxSet.of_rows((0, extent)))
            yield count, Instruction(Op.MULTIPLY, sums, (source,))

    def by_inputs(self, piece: Piece, pieces: Sequence[Piece], *, train: bool) -> Iterator[Instruction]:
        """Instructions of a piece of a layer that is cut by its inputs, but for its partial sums."""
        grid = self.graph[piece.layer]
        assert piece.inputs is not None, f"{piece} is cut by rows"
        own = Operand(activations(grid.name), piece.rows)
        sums = Operand(Buffer(BufferKind.PARTIAL_SUMS, grid.name), piece.rows)
        yield Instruction(Op.FORWARD, own, (sums,) * len(pieces))
        if not train or grid.name not in self.graph.needs_gradient:
            return
        gradient = Buffer(BufferKind.GRAD_PREACTIVATION, grid.name)
        whole = Operand(gradient, grid.rows)
        if grid.layer.activation != "linear":
            yield Instruction(Op.GRAD_PREACTIVATION, Operand(gradient, piece.rows), (own,), accumulate=True)
        if grid.sources[0] in self.graph.needs_gradient:
            yield grad_input(grid, 0, BoxSet.of_rows(piece.inputs), whole)
        if not grid.learns:
            return
        inputs = Operand(activations(grid.sources[0]), BoxSet.of_rows(piece.inputs))
        yield self._learn(grid, whole.rows, whole, inputs)

    def _learn(self, grid: Grid, rows: BoxSet, *given: Operand) -> Instruction:
        """Updates rows of a layer; only computes their gradient where other layers use the parameters."""
        if grid.name in self.graph.tied:
            return Instruction(Op.GRADIENT, Operand(Buffer(BufferKind.GRADIENT, grid.name), rows), given)
        updated = Operand(Buffer(BufferKind.PARAMETERS, grid.name), rows)
        return Instruction(Op.FUSED_UPDATE, updated, given, accumulate=True)

    @memoised
    def _rows_needed(self, layer: str, rows: BoxSet, number: int) -> BoxSet:
        columns = len(rows[0]) > 1 and self.graph[self.graph[layer].sources[number]].is_picture
        boxes = rows if columns else (box.on(1) for box in rows)
        return BoxSet.union(*(self.graph.source_rows(layer, box, number, columns=columns) for box in boxes))
