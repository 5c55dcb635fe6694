"""Lowering of the exchanges inside a layer that is cut by its inputs.

Forward: each machine sums over its own inputs, first for machines that wait. The owner of a row adds the sums
of all machines in the order of their numbers, so that copies have the same bits. Backward: a machine with the
gradient of rows sends it to all others. If all have all rows, the gradients that came to each are summed,
again in the order of the machines.
"""

from __future__ import annotations

from partita.layers.graph import Grid
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Op, Operand
from partita.partitioner.lower.writer import Writer


def add_up(writer: Writer, grid: Grid) -> None:
    """Writes the forward computation of a machine's rows."""
    buffer, own = Buffer(BufferKind.PARTIAL_SUMS, grid.name), writer.access.own(grid.name)
    inputs, done = writer.access.inputs(grid.name), set()
    outgoing, incoming = writer.outgoing.get(buffer, []), writer.incoming.get(buffer, [])
    for message in outgoing:
        if message.rows not in done:
            done.add(message.rows)
            writer.emit(Op.MULTIPLY, Operand(buffer, message.rows), *inputs)
        writer.send(message)
    if own.rows not in done:
        writer.emit(Op.MULTIPLY, Operand(buffer, own.rows), *inputs)
    terms = {writer.machine: Operand(buffer, own.rows)}
    for message in incoming:
        writer.receive(message, buffer.received_from(message.source))
        terms[message.source] = Operand(buffer.received_from(message.source), message.rows)
    writer.emit(Op.FORWARD, own, *(terms[machine] for machine in sorted(terms)))


def exchange(writer: Writer, grid: Grid, grad: Operand) -> Operand:
    """Sends `grad` of own rows to the others, and gathers theirs; returns the place of all gradients."""
    buffer, whole = Buffer(BufferKind.GRAD_PREACTIVATION, grid.name), grid.rows
    total, own = Operand(buffer, whole), Operand(buffer, grad.rows)
    incoming = sorted(writer.incoming.get(buffer, ()), key=lambda message: message.source)
    sends = writer.machine in writer.owned.grad_senders(grid.name)
    if sends:
        writer.emit(Op.ADD, own, grad)
        writer.send_all(buffer)
    if grad.rows != whole:
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
        writer.emit(Op.ADD, total, term, accumulate=sends or n > 0)
    return total
