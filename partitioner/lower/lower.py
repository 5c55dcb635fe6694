"""Lowering: from who owns what to a program for each machine.

Overlap is decided here, by the order of the list. Weights that other machines borrow leave first. On the way
up a layer that splits its sum takes the block of the machine's own rows first, and the others as they arrive.
On the way down come, for each layer, first the errors that another machine waits for, then the machine's own,
then those that continue another's sum. Learning stands at the end: it fills the time in which errors travel.

A step of several portions repeats this for each, in the order of `pipeline`; it learns once for all portions
of a minibatch, so that gradients and parameters pass through memory once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from partita.layers.box import Box, BoxSet
from partita.layers.graph import Grid
from partita.partitioner.assign.coverage import bands
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer, BufferKind, Edge, activations
from partita.partitioner.ir.pipeline import Pipeline
from partita.partitioner.ir.program import Op, Operand, Program
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower import partial_sums
from partita.partitioner.lower.backward import Errors
from partita.partitioner.lower.gradients import Learning
from partita.partitioner.lower.messages import Message, Sum, sums
from partita.partitioner.lower.pipeline_stages import pipeline_stages
from partita.partitioner.lower.writer import Writer


@dataclass(frozen=True)
class Share:
    """What a machine's program follows from.

    Args:
        owned: who owns what.
        machine: whose program.
        kind: of the step.
        messages: that it sends and receives for each portion.
        turns: its turns in summing errors along each edge.
        pipeline: the order of its portions.
    """

    owned: Ownership
    machine: int
    kind: StepKind
    messages: tuple[Message, ...]
    sums: Mapping[Edge, Sequence[Sum]]
    pipeline: Pipeline

    @property
    def key(self) -> Hashable:
        """Equal for two shares of a network that have the same program, however their plans differ."""
        pieces = self.owned.of_machine(self.machine)
        judges = tuple(
            self.owned.of(piece.layer) for piece in pieces if self.owned.summary_senders(piece.layer)
        )
        sums = tuple(each for some in self.sums.values() for each in some)
        return self.machine, self.kind, pieces, self.messages, judges, sums, self.pipeline

    def program(self) -> Program:
        """The instructions, with what each waits for."""
        writer = Writer(self.owned, self.messages, self.machine, self.kind, self.pipeline)
        mine = [grid for grid in self.owned.graph.computed if writer.own(grid.name)]
        for writer.current in self.pipeline.passes(train=self.kind.train):
            if writer.current.direction == "forward":
                _write_up(writer, mine)
            else:
                _write_down(writer, mine, self.sums)
        return writer.program()


def shares(
    owned: Ownership, messages: Sequence[Message], kind: StepKind, *, micro_batches: int = 1
) -> list[Share]:
    """For each machine what its program follows from."""
    sums = _turns(owned) if kind.train else {}
    parts = _by_machine(owned.machines, messages)
    one = micro_batches * kind.overlap == 1  # portion, whose place in a pipeline does not matter
    places = [0] * owned.machines if one else pipeline_stages(owned.machines, messages)
    return [
        Share(owned, m, kind, tuple(mine), sums.get(m, {}), Pipeline(micro_batches, kind.overlap, places[m]))
        for m, mine in enumerate(parts)
    ]


def _by_machine(machines: int, messages: Sequence[Message]) -> list[list[Message]]:
    """For each machine the messages that it sends and receives."""
    found: list[list[Message]] = [[] for _ in range(machines)]
    for message in messages:
        found[message.source].append(message)
        found[message.destination].append(message)
    return found


def _write_down(writer: Writer, mine: list[Grid], sums: Mapping[Edge, Sequence[Sum]]) -> None:
    """All errors, then all learning, if this is the last portion of a minibatch; but a machine that is alone
    learns at once what it has the errors for.

    So it reads them again soon, and needs their memory no longer.
    """
    errors, learning = Errors(writer, sums), Learning(writer)
    from_above = [grid for grid in reversed(mine) if grid.name in writer.graph.needs_error]
    for grid in from_above:
        errors.write(grid)
        if writer.is_alone and writer.current.updates:
            learning.write(grid)
    if not writer.current.updates:
        return
    if not writer.is_alone:
        for grid in sorted(from_above, key=learning.is_awaited, reverse=True):
            learning.write(grid)
    learning.finish()


def _turns(owned: Ownership) -> dict[int, dict[Edge, list[Sum]]]:
    """For each machine, its turns in summing errors along each edge."""
    found: dict[int, dict[Edge, list[Sum]]] = {}
    for layer in owned.graph.needs_error:
        for edge in owned.edges(layer):
            for current in sums(owned, edge):
                found.setdefault(current.machine, {}).setdefault(edge, []).append(current)
    return found


def _write_up(writer: Writer, mine: list[Grid]) -> None:
    """Weights that are lent and borrowed, then layer after layer from the inputs on."""
    for grid in mine if writer.current.starts_minibatch else ():
        writer.send_all(Buffer(BufferKind.PARAMETERS, grid.name))
        writer.receive_all(Buffer(BufferKind.PARAMETERS, grid.name))
    obtained: set[str] = set()
    for grid in mine:
        for source in dict.fromkeys(grid.sources):
            if source not in obtained:
                obtained.add(source)
                _obtain(writer, source)
        _compute(writer, grid)
        writer.send_all(activations(grid.name))


def _obtain(writer: Writer, source: str) -> None:
    """Feeds or receives the rows of a layer that this machine's pieces listen to."""
    if writer.graph[source].is_placeholder:
        needed = writer.owned.needed_by_all(source, writer.machine)
        writer.emit(Op.FEED, Operand(activations(source), needed))
    writer.receive_all(activations(source))


def _compute(writer: Writer, grid: Grid) -> None:
    if writer.owned.is_input_split(grid.name):
        partial_sums.add_up(writer, grid)
        return
    target = writer.access.own(grid.name)
    judges = writer.owned.summary_senders(grid.name)
    if judges:
        _summarise(writer, grid, judges.index(writer.machine))
    needed = writer.access.inputs(grid.name)
    blocks = _blocks(writer, needed[0]) if grid.layer.splits_sum else [needed]
    for n, block in enumerate(blocks):
        op = Op.FORWARD if n == len(blocks) - 1 else Op.MULTIPLY
        writer.emit(op, target, *block, accumulate=n > 0)


def _summarise(writer: Writer, loss: Grid, piece: int) -> None:
    """Tells the others what they must know of the machine's scores, and hears of theirs."""
    buffer = Buffer(BufferKind.SUMMARY, loss.name)
    heard = (operand for operand in writer.access.inputs(loss.name) if operand.buffer != buffer)
    writer.emit(Op.SUMMARISE, Operand(buffer, BoxSet.of_rows((piece, piece + 1))), *heard)
    writer.send_all(buffer)
    writer.receive_all(buffer)


def _blocks(writer: Writer, needed: Operand) -> list[tuple[Operand, ...]]:
    """The machine's own rows first, then those of each other machine, in the order of their pieces.

    Of a picture that is cut into tiles, row of tiles after row of tiles.
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
    """A kernel takes whole rows: the row of tiles of which one is the machine's own first."""
    layer = needed.buffer.layer
    own = writer.own(layer)
    rows = bands([piece.box for piece in writer.owned.of(layer)])
    width = writer.graph[layer].shape[1]
    found = [needed.rows & BoxSet((Box((band, (0, width))),)) for band in rows]
    found.sort(key=lambda band: not own.overlaps(band))
    return [(Operand(needed.buffer, rows),) for rows in found if rows]
