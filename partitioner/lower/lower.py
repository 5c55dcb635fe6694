"""Lowering: from an assignment to a program for each machine.

The order of the list decides what overlaps. Shared weights leave first. In the forward pass, a layer that
splits its sum takes the block of the machine's own rows first, and the others as they arrive; a layer on
patches computes the rows first that another machine waits for (`row_order`). In the backward pass, gradients
that another machine waits for come first, then the machine's own, then those that continue another machine's
sum. Updates stand at the end and fill the time in which gradients travel.

A step of several micro-batches repeats this for each, in the order of `pipeline`, and updates once for each
minibatch, so that gradients and parameters pass through memory once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from partita.layers.graph import Grid
from partita.partitioner.assign.coverage import in_bands
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge, activations, of_parameter
from partita.partitioner.ir.pipeline import Pipeline
from partita.partitioner.ir.program import Op, Operand, Program
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower import partial_sums
from partita.partitioner.lower.backward import BackwardPass
from partita.partitioner.lower.gradients import UpdateWriter
from partita.partitioner.lower.messages import GradientSum, GradientSums, Message
from partita.partitioner.lower.pipeline_stages import pipeline_stages
from partita.partitioner.lower.row_order import compute_in_order
from partita.partitioner.lower.writer import Writer


@dataclass(frozen=True)
class ProgramInputs:
    """Everything that determines a machine's program: messages and sums are its own, of one micro-batch."""

    owned: Ownership
    machine: int
    kind: StepKind
    messages: tuple[Message, ...]
    sums: Mapping[Edge, Sequence[GradientSum]]
    pipeline: Pipeline

    @property
    def key(self) -> Hashable:
        """Equal for two machines of any plans of a network that have the same program."""
        pieces = self.owned.of_machine(self.machine)
        senders = tuple(
            self.owned.of(piece.layer) for piece in pieces if self.owned.summary_senders(piece.layer)
        )
        sums = tuple(each for some in self.sums.values() for each in some)
        return self.machine, self.kind, pieces, self.messages, senders, sums, self.pipeline

    def program(self) -> Program:
        """Writes the program of the machine."""
        writer = Writer(self.owned, self.messages, self.machine, self.kind, self.pipeline)
        mine = [grid for grid in self.owned.graph.computed if writer.own(grid.name)]
        for writer.current in self.pipeline.passes(train=self.kind.train):
            if writer.current.direction == "forward":
                _write_forward(writer, mine)
            else:
                _write_backward(writer, mine, self.sums)
        return writer.program()


def program_inputs(
    owned: Ownership, messages: Sequence[Message], sums: GradientSums, kind: StepKind, *, micro_batches: int
) -> list[ProgramInputs]:
    """Lists the inputs of each machine's program, from all messages and sums of one micro-batch."""
    machines = range(owned.machines)
    own_sums: list[dict[Edge, list[GradientSum]]] = [{} for _ in machines]
    for edge, found in sums.items():
        for each in found:
            own_sums[each.machine].setdefault(edge, []).append(each)
    own_messages: list[list[Message]] = [[] for _ in machines]
    for message in messages:
        own_messages[message.source].append(message)
        own_messages[message.destination].append(message)
    is_one = micro_batches * kind.overlap == 1  # its stage in a pipeline does not matter
    stages = [0] * owned.machines if is_one else pipeline_stages(owned.machines, messages)
    pipelines = [Pipeline(micro_batches, kind.overlap, stage) for stage in stages]
    return [
        ProgramInputs(owned, m, kind, tuple(own_messages[m]), own_sums[m], pipelines[m]) for m in machines
    ]


def _write_backward(writer: Writer, mine: list[Grid], sums: Mapping[Edge, Sequence[GradientSum]]) -> None:
    """Writes all gradients of nodes, then all updates, if this pass is the last of a minibatch.

    A machine that is alone updates a layer at once: it reads the gradients again while they are in cache, and
    needs their memory no longer.
    """
    backward, updates = BackwardPass(writer, sums), UpdateWriter(writer)
    from_above = [grid for grid in reversed(mine) if grid.name in writer.graph.needs_gradient]
    for grid in from_above:
        backward.write(grid)
        if writer.is_alone and writer.current.updates:
            updates.write(grid)
    if not writer.current.updates:
        return
    if not writer.is_alone:
        for grid in sorted(from_above, key=updates.is_awaited, reverse=True):
            updates.write(grid)
    updates.finish()


def _write_forward(writer: Writer, mine: list[Grid]) -> None:
    """Sends and receives shared weights, then computes layer after layer from the inputs on."""
    placed = writer.owned.placement.names(writer.machine)
    weights = [Buffer(BufferKind.PARAMETERS, grid.name) for grid in mine]
    weights += [of_parameter(BufferKind.PARAMETERS, name) for name in placed]
    for buffer in weights if writer.current.starts_minibatch else ():
        writer.send_all(buffer)
        writer.receive_all(buffer)
    obtained: set[str] = set()
    for grid in mine:
        for source in dict.fromkeys(grid.sources):
            if source not in obtained:
                obtained.add(source)
                _obtain(writer, source)
        _compute(writer, grid)


def _obtain(writer: Writer, source: str) -> None:
    """Feeds or receives the rows of a layer that the machine's pieces need."""
    if writer.graph[source].is_placeholder:
        needed = writer.owned.needed_by_all(source, writer.machine)
        writer.emit(Op.FEED, Operand(activations(source), needed))
    writer.receive_all(activations(source))


def _compute(writer: Writer, grid: Grid) -> None:
    """Computes the machine's rows of a layer, and sends what other machines need of them."""
    if compute_in_order(writer, grid):
        return
    if writer.owned.is_input_split(grid.name):
        partial_sums.add_up(writer, grid)
    else:
        _compute_whole(writer, grid)
    writer.send_all(activations(grid.name))


def _compute_whole(writer: Writer, grid: Grid) -> None:
    target = writer.access.own(grid.name)
    inputs = (need for need in writer.access.inputs(grid.name) if need.buffer.kind is BufferKind.ACTIVATIONS)
    writer.exchange_summary(Buffer(BufferKind.SUMMARY, grid.name), *inputs)
    needed = writer.access.inputs(grid.name)
    blocks = _blocks(writer, needed[0]) if grid.layer.splits_sum else [needed]
    for n, block in enumerate(blocks):
        op = Op.FORWARD if n == len(blocks) - 1 else Op.MULTIPLY
        writer.emit(op, target, *block, accumulate=n > 0)


def _blocks(writer: Writer, needed: Operand) -> list[tuple[Operand, ...]]:
    """Divides an input: the machine's own rows first, then those of each other machine in the order of the
    pieces.

    A picture that is cut into tiles is divided by rows of tiles.
    """
    layer = needed.buffer.layer
    if writer.graph[layer].is_placeholder:
        return [(needed,)]
    if layer in writer.owned.tiled:
        return _bands(writer, needed)
    pieces = sorted(writer.owned.of(layer), key=lambda piece: piece.machine != writer.machine)
    fed = (writer.owned.rows_from(layer, piece.machine, writer.machine) for piece in pieces)
    found = [needed.rows & rows for rows in fed]
    return [(Operand(needed.buffer, rows),) for rows in found if rows]


def _bands(writer: Writer, needed: Operand) -> list[tuple[Operand, ...]]:
    """Divides an input by rows of tiles, which kernels take whole; that of the machine's own tile first."""
    layer = needed.buffer.layer
    own, width = writer.own(layer), writer.graph[layer].shape[1]
    found = in_bands(needed.rows, writer.owned.of(layer), (0, width))
    found.sort(key=lambda band: not own.overlaps(band))
    return [(Operand(needed.buffer, rows),) for rows in found]
