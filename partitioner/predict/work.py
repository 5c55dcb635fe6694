"""The work of an instruction's kernel: operations, bytes, and a signature without names; see `cluster.work`.

Where a machine has weights of some inputs alone, the same products run on arrays of another layout;
signatures say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Final

from partita.layers.box import BLOCK
from partita.layers.connectivity import Full
from partita.layers.graph import Grid
from partita.layers.layer import Layer
from partita.layers.losses import Loss
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.cluster.work import Work
from partita.partitioner.ir.buffer import BufferKind, activations
from partita.partitioner.ir.program import Instruction, Op, Operand
from partita.partitioner.ir.sizes import ITEM_BYTES, Sizes

GRADIENT_BLOCK_BYTES = 2 << 20
"""Bytes of gradients that a FUSED_UPDATE holds for each thread, unless a row is larger: half an L2 cache."""

_BY_LAYER: Final = frozenset(
    {Op.FORWARD, Op.MULTIPLY, Op.SUMMARISE, Op.GRAD_INPUT, Op.GRADIENT, Op.FUSED_UPDATE}
)
_FAMILY: Final = {
    Op.MULTIPLY: "up",
    Op.FORWARD: "up",
    Op.GRAD_PREACTIVATION: "delta",
    Op.GRAD_INPUT: "errors",
    Op.FUSED_UPDATE: "learn",
}
"""First words of families in calibration files; other families begin with their operation."""
_READ_WEIGHTS: Final = frozenset({Op.FORWARD, Op.MULTIPLY, Op.GRAD_INPUT})
_NO_MATTER_OF_SPEED: Final = frozenset(
    {"name", "initialiser", "bias_initialiser", "regulariser", "trainable", "units", "weight"}
)
"""Settings of layers that change no kernel, or that rows express already."""
_LONGEST_TEXT: Final = 200


def work_of(
    instruction: Instruction, sizes: Sizes, *, examples: int, threads: int = 1, device: str = "cpu"
) -> Work:
    """Describes the work of an instruction's kernel.

    Args:
        instruction: any but a RECV or a SEND.
        sizes: sizes of the network.
        examples: examples in the buffers that it reads.
        threads: threads of its machine.
        device: "cpu", "torch" or "cuda".
    """
    batch = f"batch {examples}" if examples == sizes.batch else f"batch {examples} of {sizes.batch}"
    place = f"{batch} {sizes.precision} {device} x{threads}"
    op = _FAMILY.get(instruction.op, instruction.op.value.lower())
    if _is_sum(instruction):
        op, grid = "add", None
        settings, extents = _of_sums(instruction, sizes)
    elif instruction.op in _BY_LAYER:
        grid = sizes.graph[_played_by(instruction)]
        settings, extents = _of_layer(instruction, grid, sizes), _rows_of(instruction, grid, sizes)
    else:
        grid = None
        settings, extents = _of_numbers(instruction, sizes)
    return Work(
        f"{op} {settings}; {place}",
        extents,
        _operations(instruction, grid, sizes, examples),
        _weight_bytes(instruction, grid, sizes),
        _traffic(instruction, sizes),
        threads,
    )


def _is_sum(instruction: Instruction) -> bool:
    """Returns whether it adds the partial sums of a layer that is cut by its inputs."""
    return instruction.op is Op.FORWARD and instruction.sources[0].buffer.kind is BufferKind.PARTIAL_SUMS


def _inputs_of(instruction: Instruction) -> Operand | None:
    """The input of a gradient, in a layer that is cut by its inputs."""
    errors, *others = instruction.sources
    if errors.buffer.kind is not BufferKind.GRAD_PREACTIVATION:
        return None
    return next((source for source in others if source.buffer.kind is BufferKind.ACTIVATIONS), None)


def _played_by(instruction: Instruction) -> str:
    """The layer whose kernel it is; gradients of an input are computed by the consumer."""
    if instruction.op is Op.GRAD_INPUT:
        assert instruction.target.buffer.edge is not None, f"{instruction} lies on no edge"
        return instruction.target.buffer.edge.consumer
    return instruction.target.buffer.layer


def _of_layer(instruction: Instruction, grid: Grid, sizes: Sizes) -> str:
    """Kind, settings, and shapes of rows: `Dense activation='relu' use_bias=True 1 <- 1`."""
    sources = (sizes.graph[source] for source in grid.sources)
    needed = ", ".join(_row(source) for source in sources)
    edge = instruction.target.buffer.edge
    which = f" input {edge.number}" if instruction.op is Op.GRAD_INPUT and edge and edge.number else ""
    return f"{_settings(grid.layer)} {_row(grid)} <- {needed}{which}"


def _row(grid: Grid) -> str:
    return "x".join(map(str, grid.shape[1:])) or "1"


def _rows_of(instruction: Instruction, grid: Grid, sizes: Sizes) -> str:
    """Rows computed, and rows read where they do not follow from these."""
    op, sources = instruction.op, instruction.sources
    own = _extent(instruction.target)
    if op is Op.GRAD_INPUT:
        return f"{_extent(sources[0])} to {own}" + " alone" * (
            sources[0].buffer.kind is BufferKind.GRAD_PREACTIVATION
        )
    if op in (Op.GRADIENT, Op.FUSED_UPDATE):
        rows, inputs = _extent(sources[0]), _inputs_of(instruction)
        needed = str(sizes.graph[grid.sources[0]].n_rows) if inputs is None else _extent(inputs)
        return f"{rows} by {needed}{' alone' * (inputs is not None)}" if grid.layer.splits_sum else rows
    if instruction.target.buffer.kind is BufferKind.PARTIAL_SUMS:
        return f"{own} by {_extent(sources[0])} alone"
    if grid.layer.splits_sum or isinstance(grid.layer, Loss):
        sign = "+" if instruction.accumulate else ""
        more = "..." if op is Op.MULTIPLY else ""
        return f"{sign}{own} by {_extent(sources[0])}{more}"
    return own


def _extent(operand: Operand) -> str:
    """Number of rows; of boxes of a picture, of rows and places."""
    n = operand.rows.size
    if not operand.rows or len(operand.rows[0]) == 2:
        return str(n)
    return f"{operand.rows.rows.size}/{n}"


def _of_numbers(instruction: Instruction, sizes: Sizes) -> tuple[str, str]:
    """Operation and amount of an instruction that treats whole arrays, whatever their layer."""
    op, target = instruction.op, instruction.target
    if op is Op.UPDATE:
        return "parameters", str(_numbers(target, sizes))
    if op is Op.SQUARES:
        return "parameters", str(sum(_numbers(source, sizes) for source in instruction.sources))
    _, kind = sizes.row(target.buffer)
    numbers = str(sizes.n_bytes(target) // ITEM_BYTES[kind])
    if op is Op.GRAD_PREACTIVATION:
        return sizes.graph[instruction.sources[0].buffer.layer].layer.activation, numbers
    return f"{kind}{'' if instruction.accumulate or op is Op.FEED else ' copied'}", numbers


def _of_sums(instruction: Instruction, sizes: Sizes) -> tuple[str, str]:
    """Dtype and amount of adding the partial sums of all machines and applying the activation."""
    target = instruction.target
    _, kind = sizes.row(target.buffer)
    return kind, f"{sizes.n_bytes(target) // ITEM_BYTES[kind]} in {len(instruction.sources)} sums"


def _settings(layer: Layer) -> str:
    """A layer's kind and settings, as text that is equal in every process."""
    kind = type(layer)
    name = (
        kind.__qualname__
        if kind.__module__.startswith("partita.")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    fields: Iterable[str] = getattr(layer, "__dataclass_fields__", ())
    settings = (f"{f}={_text(getattr(layer, f))}" for f in fields if f not in _NO_MATTER_OF_SPEED)
    return " ".join([name, *settings])


def _text(value: object) -> str:
    """A setting as text; functions and long texts by their digest."""
    if isinstance(value, FunctionType):
        return _digest(repr(_code(value.__code__)))
    written = repr(value)
    return written if len(written) <= _LONGEST_TEXT else _digest(written)


def _code(code: CodeType) -> tuple[object, ...]:
    """The content of a function, without its place in a file."""
    constants = tuple(_code(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.co_code.hex(), code.co_names, constants


def _digest(written: str) -> str:
    return hashlib.sha256(written.encode()).hexdigest()[:12]


def _operations(instruction: Instruction, grid: Grid | None, sizes: Sizes, examples: int) -> float:
    """Operations of a kernel, in those of a matrix product."""
    if grid is None:
        return 0.0
    graph, op, target = sizes.graph, instruction.op, instruction.target
    each = grid.flops_per_node * grid.layer.slowdown
    if op in (Op.GRADIENT, Op.FUSED_UPDATE):
        own = grid.nodes_in(instruction.sources[0].rows)
        return each * own * sizes.batch * _share_of_inputs(instruction, sizes)
    if op is Op.GRAD_INPUT:
        own, source = grid.nodes_in(instruction.sources[0].rows), graph[target.buffer.layer]
        share = source.nodes_in(target.rows) / max(source.n_nodes, 1)
        if not (grid.layer.splits_sum or isinstance(grid.connectivity, Full)):  # they feed some rows alone
            share = min(1.0, share * grid.n_nodes / max(own, 1))
        return each * own * examples * share
    share = 1.0
    if grid.layer.splits_sum or isinstance(grid.layer, Loss):
        needed = instruction.sources[0]
        source = graph[needed.buffer.layer]
        share = source.nodes_in(needed.rows) / max(source.n_nodes, 1)
    if op is not Op.SUMMARISE:
        return each * grid.nodes_in(target.rows) * examples * share
    if isinstance(grid.layer, Loss):
        return each * grid.nodes_in(BLOCK) * examples * share
    return each * graph[instruction.sources[0].buffer.layer].nodes_in(instruction.sources[0].rows) * examples


def _weight_bytes(instruction: Instruction, grid: Grid | None, sizes: Sizes) -> float:
    """Bytes of weights that a kernel reads: with few examples, memory limits the kernel.

    Weights that are shared by rows are read once and stay in a cache.
    """
    if grid is None or grid.shares_weights or instruction.op not in _READ_WEIGHTS:
        return 0.0
    own, other = instruction.target, instruction.sources[0]
    if instruction.op is Op.GRAD_INPUT:
        own, other = other, own
    source = sizes.graph[other.buffer.layer]
    share = source.nodes_in(other.rows) / max(source.n_nodes, 1) if grid.layer.splits_sum else 1.0
    return share * _numbers(Operand(activations(grid.name), own.rows), sizes) * ITEM_BYTES[sizes.precision]


def _share_of_inputs(instruction: Instruction, sizes: Sizes) -> float:
    """The share of the layer's inputs whose weights the machine has."""
    inputs = _inputs_of(instruction)
    if inputs is None:
        return 1.0
    source = sizes.graph[inputs.buffer.layer]
    return source.nodes_in(inputs.rows) / max(source.n_nodes, 1)


def _traffic(instruction: Instruction, sizes: Sizes) -> float:
    """Bytes read and written outside arithmetic: copies, sums, squares and updates."""
    op, target = instruction.op, instruction.target
    if op is Op.FUSED_UPDATE:  # the parameters and a rule's state
        share = _share_of_inputs(instruction, sizes)
        return 3.0 * share * _numbers(target, sizes) * sizes.master_bytes
    if op is Op.UPDATE:  # and the whole gradient, which was written before
        return 4.0 * _numbers(target, sizes) * sizes.master_bytes
    if _is_sum(instruction):
        return (1.0 + len(instruction.sources)) * sizes.n_bytes(target)
    if op is Op.SQUARES:
        return 2.0 * sum(_numbers(source, sizes) for source in instruction.sources) * sizes.master_bytes
    if op in (Op.FEED, Op.GRAD_PREACTIVATION, Op.ADD):
        return 2.0 * sizes.n_bytes(target)
    return 0.0


def _numbers(operand: Operand, sizes: Sizes) -> int:
    """Number of parameters of these rows."""
    if operand.buffer.parameter is not None:
        return operand.rows.size
    grid = sizes.graph[operand.buffer.layer]
    return sum(ParameterSlice(parameter, box).size for parameter in grid.parameters for box in operand.rows)
