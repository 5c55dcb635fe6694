"""What an instruction costs on a machine: a first, uncalibrated model of operations and bytes.

Rates come from the `Machine` and the `Link`; overheads are guesses, stated here.
"""

from __future__ import annotations

from partita.layers import rows as row_sets
from partita.layers.graph import Grid
from partita.layers.losses import Loss
from partita.layers.node import Node
from partita.partitioner.buffer_names import holds_sums, layer_of
from partita.partitioner.cluster import Link, Machine
from partita.partitioner.program import Instruction, Op, Operand
from partita.partitioner.sizes import PRECISIONS, Sizes

INSTRUCTION_OVERHEAD_S = 40e-6
"""To hand an instruction to a kernel thread and hear that it is done. A guess for Python."""
MESSAGE_OVERHEAD_S = 60e-6
"""To encode a message, and to find its buffer. A guess."""
FREE_FORM_SLOWDOWN = 30.0
"""How many times longer an operation of a `Node` takes than one of a matrix product: it runs as scalar code.
Measured once on one machine; it stands until there is calibration."""

LEARN_BLOCK_BYTES = 2 << 20
"""Of gradients that a LEARN holds at a time for each kernel thread, as long as a row of them is smaller: half
of a core's second cache."""


def compute_seconds(instruction: Instruction, sizes: Sizes, machine: Machine) -> float:
    """How long a machine's kernel threads are busy with an instruction."""
    flops = _operations(instruction, sizes)
    n_bytes = _traffic(instruction, sizes)
    return (
        INSTRUCTION_OVERHEAD_S
        + flops / (machine.flops_per_s * machine.threads)
        + n_bytes / machine.bytes_per_s
    )


def _operations(instruction: Instruction, sizes: Sizes) -> float:
    """Of a kernel's arithmetic, in those of a matrix product."""
    graph, op, target = sizes.graph, instruction.op, instruction.target
    layer = layer_of(target.buffer)
    if op is Op.UP and holds_sums(instruction.sources[0].buffer):
        return 0.0
    if op in (Op.MULTIPLY, Op.UP, Op.SUMMARISE):
        grid, share = graph[layer], 1.0
        if grid.layer.splits_sum or isinstance(grid.layer, Loss):
            scores = instruction.sources[0]
            share = row_sets.count(scores.rows) / max(graph[scores.buffer].n_rows, 1)
        rows = 1 if op is Op.SUMMARISE else row_sets.count(target.rows)
        return _effort(grid) * rows * grid.nodes_per_row * sizes.batch * share
    if op is Op.ERRORS:
        grid = graph[target.buffer.partition("<")[2].partition("#")[0]]
        own = row_sets.count(instruction.sources[0].rows)
        share = row_sets.count(target.rows) / max(graph[layer].n_rows, 1)
        if not grid.layer.splits_sum:
            share = min(1.0, share * grid.n_rows / max(own, 1))
        return _effort(grid) * own * grid.nodes_per_row * sizes.batch * share
    if op in (Op.GRADIENT, Op.LEARN):
        grid, (errors, *inputs) = graph[layer], instruction.sources
        share = row_sets.count(inputs[0].rows) / graph[inputs[0].buffer].n_rows if inputs else 1.0
        return _effort(grid) * row_sets.count(errors.rows) * grid.nodes_per_row * sizes.batch * share
    return 0.0


def _weights(instruction: Instruction, sizes: Sizes) -> float:
    """Bytes that a kernel must read or write while it computes, however fast it computes."""
    op, target = instruction.op, instruction.target
    if op is Op.UP and not sizes.graph[target.buffer].layer.splits_sum:
        grid = sizes.graph[target.buffer]
        per_node = grid.bytes_per_node(batch=sizes.batch, item_bytes=PRECISIONS[sizes.precision])
        return per_node * row_sets.count(target.rows) * grid.nodes_per_row
    return 0.0


def _traffic(instruction: Instruction, sizes: Sizes) -> float:
    """Bytes that are read and written by what is not arithmetic: copies, sums, squares and updates."""
    op, target = instruction.op, instruction.target
    if op in (Op.UPDATE, Op.LEARN):  # the parameters and a rule's state; a whole gradient was written before
        inputs = instruction.sources[1:] if op is Op.LEARN else ()
        share = row_sets.count(inputs[0].rows) / sizes.graph[inputs[0].buffer].n_rows if inputs else 1.0
        return (4.0 if op is Op.UPDATE else 3.0) * share * _numbers(target, sizes) * sizes.master_bytes
    if op is Op.SQUARES:
        return 2.0 * sum(_numbers(source, sizes) for source in instruction.sources) * sizes.master_bytes
    if op is Op.UP and holds_sums(instruction.sources[0].buffer):
        return (1.0 + len(instruction.sources)) * sizes.n_bytes(target)
    if op in (Op.FEED, Op.DELTA, Op.ADD):
        return 2.0 * sizes.n_bytes(target)
    return 0.0


def _numbers(operand: Operand, sizes: Sizes) -> int:
    """How many parameters these rows have."""
    grid = sizes.graph[layer_of(operand.buffer)]
    spans = [parameter.span(rows) for parameter in grid.parameters for rows in operand.rows]
    return sum(stop - start for start, stop in spans)


def slowdown(grid: Grid) -> float:
    """How many times longer an operation of the layer takes than one of a matrix product.

    `FREE_FORM_SLOWDOWN` for a `Node`, which is played by its definition; 1 for all others. A user's own class
    of layer counts as 1, because its `flops_per_node` is its own too.
    """
    return FREE_FORM_SLOWDOWN if isinstance(grid.layer, Node) else 1.0


def message_seconds(operand: Operand, sizes: Sizes, link: Link) -> tuple[float, float]:
    """How long a message occupies its sender's link, and how long after that it arrives."""
    return MESSAGE_OVERHEAD_S + sizes.n_bytes(operand) / link.bytes_per_s, link.latency_s


def _effort(grid: Grid) -> float:
    """Operations of one node for one example, in those of a matrix product."""
    return grid.flops_per_node * slowdown(grid)
