"""Lowering: from who owns what to a program for each machine.

Overlap is decided here, by the order of the list. Weights that other machines borrow leave first. On the way
up a layer that splits its sum takes the block of the machine's own rows first, and the others as they arrive.
On the way down come, for each layer, first the errors that another machine waits for, then the machine's own,
then those that continue another's sum. Learning stands at the end: it fills the time in which errors travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.layers import rows as row_sets
from partita.layers.graph import Grid
from partita.partitioner import lower_sums
from partita.partitioner.buffer_names import PARAMETERS, SUMMARY
from partita.partitioner.lower_errors import Errors
from partita.partitioner.lower_learning import Learning
from partita.partitioner.messages import Message, Sum, sums
from partita.partitioner.ownership import Edge, Ownership
from partita.partitioner.program import Op, Operand, Program
from partita.partitioner.step_kind import StepKind
from partita.partitioner.writer import Writer


def lower(owned: Ownership, messages: tuple[Message, ...], kind: StepKind) -> tuple[Program, ...]:
    """One program for each machine, of a step with these messages."""
    turns = _turns(owned) if kind.train else {}
    found = []
    for machine in range(owned.machines):
        writer = Writer(owned, messages, machine, kind)
        mine = [grid for grid in owned.graph.computed if writer.own(grid.name)]
        _write_up(writer, mine)
        if kind.train:
            _write_down(writer, mine, turns.get(machine, {}))
        found.append(writer.program())
    return tuple(found)


def _write_down(writer: Writer, mine: list[Grid], turns: Mapping[Edge, Sequence[Sum]]) -> None:
    """All errors, then all learning; but a machine that is alone learns at once what it has the errors for.

    So it reads them again soon, and needs their memory no longer.
    """
    errors, learning = Errors(writer, turns), Learning(writer)
    from_above = [grid for grid in reversed(mine) if grid.name in writer.graph.needs_error]
    for grid in from_above:
        errors.write(grid)
        if writer.is_alone:
            learning.write(grid)
    if not writer.is_alone:
        for grid in sorted(from_above, key=learning.is_awaited, reverse=True):
            learning.write(grid)
    learning.finish()


def _turns(owned: Ownership) -> dict[int, dict[Edge, list[Sum]]]:
    """For each machine, its turns in summing errors along each edge."""
    found: dict[int, dict[Edge, list[Sum]]] = {}
    for layer in owned.graph.needs_error:
        for edge in owned.edges(layer):
            for turn in sums(owned, edge):
                found.setdefault(turn.machine, {}).setdefault(edge, []).append(turn)
    return found


def _write_up(writer: Writer, mine: list[Grid]) -> None:
    """Weights that are lent and borrowed, then layer after layer from the inputs on."""
    for grid in mine:
        writer.send_all(grid.name + PARAMETERS)
        writer.receive_all(grid.name + PARAMETERS)
    obtained: set[str] = set()
    for grid in mine:
        for source in dict.fromkeys(grid.sources):
            if source not in obtained:
                obtained.add(source)
                _obtain(writer, source)
        _compute(writer, grid)
        writer.send_all(grid.name)


def _obtain(writer: Writer, source: str) -> None:
    """Feeds or receives the rows of a layer that this machine's pieces listen to."""
    if writer.graph[source].is_given:
        needed = writer.owned.needed_by_all(source, writer.machine)
        writer.emit(Op.FEED, Operand(source, needed))
    writer.receive_all(source)


def _compute(writer: Writer, grid: Grid) -> None:
    if writer.owned.by_inputs(grid.name):
        lower_sums.add_up(writer, grid)
        return
    target = writer.access.own(grid.name)
    judges = writer.owned.tells(grid.name)
    if judges:
        _summarise(writer, grid, judges.index(writer.machine))
    needed = writer.access.inputs(grid.name)
    blocks = _blocks(writer, needed[0]) if grid.layer.splits_sum else [needed]
    for n, block in enumerate(blocks):
        op = Op.UP if n == len(blocks) - 1 else Op.MULTIPLY
        writer.emit(op, target, *block, accumulate=n > 0)


def _summarise(writer: Writer, loss: Grid, piece: int) -> None:
    """Tells the others what they must know of the machine's scores, and hears of theirs."""
    buffer = loss.name + SUMMARY
    heard = (operand for operand in writer.access.inputs(loss.name) if operand.buffer != buffer)
    writer.emit(Op.SUMMARISE, Operand(buffer, ((piece, piece + 1),)), *heard)
    writer.send_all(buffer)
    writer.receive_all(buffer)


def _blocks(writer: Writer, needed: Operand) -> list[tuple[Operand, ...]]:
    """The machine's own rows first, then those of each other machine, in the order of their pieces."""
    if writer.graph[needed.buffer].is_given:
        return [(needed,)]
    pieces = sorted(writer.owned.of(needed.buffer), key=lambda piece: piece.machine != writer.machine)
    fed = (writer.owned.fed(needed.buffer, piece.machine, writer.machine) for piece in pieces)
    found = [row_sets.intersection(needed.rows, rows) for rows in fed]
    return [(Operand(needed.buffer, rows),) for rows in found if rows]
