"""Lowering what the machines of a layer that is cut by its inputs tell one another.

Up: each machine has sums over its own inputs, first those that another machine waits for. Who has a row adds
up the sums of all machines, in the order of their numbers, so that several that have the same row have the
same bits. Down: who has errors of rows, slopes included, gives them to all others. If all have all rows, the
errors that came to each of them are summed, again in the order of the machines.
"""

from __future__ import annotations

from partita.layers.graph import Grid
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.lower.writer import Writer


def add_up(writer: Writer, grid: Grid) -> None:
    """Writes how a machine computes its states of such a layer."""
    buffer, own = Buffer(BufferKind.PARTIAL_SUMS, grid.name), writer.access.own(grid.name)
    heard, done = writer.access.inputs(grid.name), set()
    outgoing, incoming = writer.outgoing.get(buffer, []), writer.incoming.get(buffer, [])
    for message in outgoing:
        if message.rows not in done:
            done.add(message.rows)
            writer.emit(Op.MULTIPLY, Operand(buffer, message.rows), *heard)
        writer.send(message)
    if own.rows not in done:
        writer.emit(Op.MULTIPLY, Operand(buffer, own.rows), *heard)
    terms = {writer.machine: Operand(buffer, own.rows)}
    for message in incoming:
        writer.receive(message, buffer.received_from(message.source))
        terms[message.source] = Operand(buffer.received_from(message.source), message.rows)
    writer.emit(Op.FORWARD, own, *(terms[machine] for machine in sorted(terms)))


def exchange(writer: Writer, grid: Grid, error: Operand) -> Operand:
    """Writes how the machines of such a layer come to know all of its errors; returns where.

    Args:
        writer: of one of them.
        grid: the layer.
        error: those of the machine's own rows, as far as they came to it.
    """
    buffer, whole = Buffer(BufferKind.GRAD_PREACTIVATION, grid.name), writer.access.whole(grid.name)
    total, own = Operand(buffer, whole), Operand(buffer, error.rows)
    incoming = sorted(writer.incoming.get(buffer, ()), key=lambda message: message.source)
    shares = writer.machine in writer.owned.grad_senders(grid.name)
    if shares:
        writer.emit(Op.ADD, own, error)
        writer.send_all(buffer)
    if error.rows != whole:
        writer.receive_all(buffer)
        return total
    before = [message for message in incoming if message.source < writer.machine]
    terms = []
    for message in incoming:
        writer.receive(message, buffer.received_from(message.source))
        terms.append(Operand(buffer.received_from(message.source), message.rows))
    for term in terms[1 : len(before)]:
        writer.emit(Op.ADD, terms[0], term, accumulate=True)
    rest = [*terms[:1], *terms[len(before) :]] if before else terms
    for n, term in enumerate(rest):
        writer.emit(Op.ADD, total, term, accumulate=shares or n > 0)
    return total
