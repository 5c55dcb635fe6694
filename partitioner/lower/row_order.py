"""The order in which a machine computes its rows of a layer on patches, so that messages travel meanwhile.

Rows that another machine waits for come first. Of the others, those whose inputs the machine has itself come
before those that wait for a message. Each row is computed once, by the same sums: bits do not change.
"""

from __future__ import annotations

from typing import Final

from partita.layers.box import NOTHING, Box, BoxSet
from partita.layers.graph import Grid
from partita.partitioner.ir.buffer import activations
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.ir.sizes import ITEM_BYTES
from partita.partitioner.lower.writer import Writer

HIDING_FLOPS: Final = 2e7
"""Operations that take about as long as a message between two processes of a machine (0.2 ms). Fewer are not
worth an instruction of their own."""


def compute_in_order(writer: Writer, grid: Grid) -> bool:
    """Computes and sends the rows of a layer in this order; False, and nothing, where that gains nothing."""
    outgoing = writer.outgoing.get(activations(grid.name), ())
    incoming = [m for source in grid.sources for m in writer.incoming.get(activations(source), ())]
    if not (outgoing or incoming) or not grid.layer.by_rows or writer.owned.tiled:
        return False
    message = (*outgoing, *incoming)[0]
    rows = writer.graph[message.layer].nodes_in(message.rows)
    examples = message.n_bytes / ITEM_BYTES["float32"] / rows
    flops = grid.flops_per_node * grid.nodes_per_row * examples
    awaited = BoxSet.union(*(message.rows for message in outgoing))
    others = writer.own(grid.name) - awaited
    if flops * others.size < HIDING_FLOPS:
        return False
    waiting = _waiting(writer, grid, others)
    if flops * (others - waiting).size < HIDING_FLOPS:
        waiting = NOTHING
    if not awaited and not waiting:
        return False
    _compute(writer, grid, awaited)
    writer.send_all(activations(grid.name))
    _compute(writer, grid, others - waiting)
    _compute(writer, grid, waiting)
    return True


def _waiting(writer: Writer, grid: Grid, rows: BoxSet) -> BoxSet:
    """The rows that need inputs of other machines: some at both ends of each run."""
    found = []
    for start, stop in rows.spans:
        low, high = start, stop
        while low < stop and _waits(writer, grid, low):
            low += 1
        while high > low and _waits(writer, grid, high - 1):
            high -= 1
        found += [(start, low), (high, stop)]
    return BoxSet.of_rows(*(run for run in found if run[0] < run[1]))


def _waits(writer: Writer, grid: Grid, row: int) -> bool:
    return any(
        not writer.graph[source].is_placeholder
        and bool(writer.graph.source_rows(grid.name, Box.of_rows(row, row + 1), k) - writer.own(source))
        for k, source in enumerate(grid.sources)
    )


def _compute(writer: Writer, grid: Grid, rows: BoxSet) -> None:
    """Computes rows of a layer, as soon as those rows of its inputs are there that they need."""
    if not rows:
        return
    inputs = []
    for k, source in enumerate(grid.sources):
        needed = (writer.graph.source_rows(grid.name, box.on(1), k) for box in rows)
        inputs.append(Operand(activations(source), BoxSet.union(*needed)))
    writer.emit(Op.FORWARD, Operand(activations(grid.name), rows), *inputs)
