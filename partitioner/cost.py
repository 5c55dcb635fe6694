"""What an instruction costs on a machine: a first, uncalibrated model of operations and bytes.

Rates come from the `Machine` and the `Link`; overheads are guesses, stated here.
"""

from __future__ import annotations

from partita.layers import rows as row_sets
from partita.layers.graph import Graph, Grid
from partita.layers.node import Node
from partita.partitioner.cluster import Link, Machine
from partita.partitioner.program import Instruction, Op, Operand

INSTRUCTION_OVERHEAD_S = 40e-6
"""To hand an instruction to a kernel thread and hear that it is done. A guess for Python."""
MESSAGE_OVERHEAD_S = 60e-6
"""To encode a message, and to find its buffer. A guess."""
FREE_FORM_SLOWDOWN = 30.0
"""How many times longer an operation of a `Node` takes than one of a matrix product: it runs as scalar code.
Measured once on one machine; it stands until there is calibration."""


def compute_seconds(
    instruction: Instruction, graph: Graph, machine: Machine, *, batch: int, n_bytes: int
) -> float:
    """How long a machine's kernel threads are busy with an instruction. `n_bytes` is the size of a number."""
    rate = machine.flops_per_s * machine.threads
    layer = instruction.target.buffer.partition("<")[0].partition(".")[0]
    if instruction.op in (Op.MULTIPLY, Op.UP):
        share = _share(instruction, graph, layer) if graph[layer].layer.splits_sum else 1.0
        work = _effort(graph[layer]) * _nodes(graph, instruction.target, layer) * batch * share / rate
    elif instruction.op is Op.ERRORS:
        consumer = instruction.target.buffer.partition("<")[2].partition("#")[0]
        own = instruction.sources[0]
        share = row_sets.count(instruction.target.rows) / max(graph[layer].n_rows, 1)
        grid = graph[consumer]
        if not grid.layer.splits_sum:
            share = min(1.0, share * grid.n_rows / max(row_sets.count(own.rows), 1))
        work = _effort(grid) * _nodes(graph, own, consumer) * batch * share / rate
    elif instruction.op is Op.GRADIENT:
        work = _effort(graph[layer]) * _nodes(graph, instruction.target, layer) * batch / rate
    elif instruction.op is Op.UPDATE:
        rows = instruction.target.rows[0]
        numbers = sum(p.span(rows)[1] - p.span(rows)[0] for p in graph[layer].parameters)
        work = 4.0 * numbers * n_bytes / machine.bytes_per_s
    else:
        work = 2.0 * _nodes(graph, instruction.target, layer) * batch * n_bytes / machine.bytes_per_s
    return INSTRUCTION_OVERHEAD_S + work


def slowdown(grid: Grid) -> float:
    """How many times longer an operation of the layer takes than one of a matrix product.

    `FREE_FORM_SLOWDOWN` for a `Node`, which is played by its definition; 1 for all others. A user's own class
    of layer counts as 1, because its `flops_per_node` is its own too.
    """
    return FREE_FORM_SLOWDOWN if isinstance(grid.layer, Node) else 1.0


def message_seconds(
    operand: Operand, graph: Graph, link: Link, *, batch: int, n_bytes: int
) -> tuple[float, float]:
    """How long a message occupies its sender's link, and how long after that it arrives."""
    layer = operand.buffer.partition("<")[0]
    size = _nodes(graph, operand, layer) * batch * n_bytes
    return MESSAGE_OVERHEAD_S + size / link.bytes_per_s, link.latency_s


def _effort(grid: Grid) -> float:
    """Operations of one node for one example, in those of a matrix product."""
    return grid.flops_per_node * slowdown(grid)


def _nodes(graph: Graph, operand: Operand, layer: str) -> int:
    return row_sets.count(operand.rows) * graph[layer].nodes_per_row


def _share(instruction: Instruction, graph: Graph, layer: str) -> float:
    rows = graph[graph[layer].sources[0]].n_rows
    return sum(row_sets.count(source.rows) for source in instruction.sources) / rows
