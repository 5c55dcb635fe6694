"""One machine's instructions while they are written, with the messages that it sends and receives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from partita.layers.box import BoxSet
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.pipeline import MicroBatchPass, Pipeline
from partita.partitioner.ir.program import Instruction, Op, Operand, Program, ordered
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.access import Access
from partita.partitioner.lower.messages import Message


class Writer:
    """Instructions in the order of their priority; each message is received once, however often asked for.

    Callers name buffers without a number; they are numbered when they are written, for the pass `current`.
    """

    def __init__(
        self,
        owned: Ownership,
        messages: Iterable[Message],
        machine: int,
        kind: StepKind,
        pipeline: Pipeline = Pipeline(),  # noqa: B008 - frozen
    ) -> None:
        """Takes the messages of one micro-batch."""
        self.owned, self.graph, self.machine, self.kind = owned, owned.graph, machine, kind
        self.pipeline, self.current = pipeline, MicroBatchPass("forward", 0)
        self._is_undivided = pipeline.total == 1
        self.access = Access(owned, machine, slots=pipeline.slots)
        self.outgoing: dict[Buffer, list[Message]] = {}
        self.incoming: dict[Buffer, list[Message]] = {}
        for message in messages:
            if message.source == machine:
                self.outgoing.setdefault(message.buffer, []).append(message)
            if message.destination == machine:
                self.incoming.setdefault(message.buffer, []).append(message)
        self._received: set[tuple[Buffer, int]] = set()
        self._instructions: list[Instruction] = []

    @property
    def is_alone(self) -> bool:
        """Returns whether the machine neither sends nor receives."""
        return not self.outgoing and not self.incoming

    def program(self) -> Program:
        """Orders the instructions. A machine that is alone has nothing to overlap: the list is the order."""
        access, written = self.access, self._instructions
        if self.is_alone:
            done = [
                replace(instruction, after=(n - 1,) if n else ()) for n, instruction in enumerate(written)
            ]
            return Program(self.machine, tuple(done), self.kind, self.pipeline)
        uses = [(access.reads(instruction), access.writes(instruction)) for instruction in written]
        return Program(self.machine, ordered(written, uses), self.kind, self.pipeline)

    def own(self, layer: str) -> BoxSet:
        """Rows of a layer that the machine owns."""
        return self.access.own(layer).rows

    def emit(
        self, op: Op, target: Operand, *sources: Operand, peer: int | None = None, accumulate: bool = False
    ) -> None:
        """Adds an instruction; a gradient reads all micro-batches of the minibatch."""
        if self._is_undivided:
            self._instructions.append(Instruction(op, target, sources, peer, accumulate))
            return
        number = self.current.micro_batch
        numbers: Iterable[int] = (number,)
        if op in (Op.FUSED_UPDATE, Op.GRADIENT):
            numbers = self.pipeline.micro_batches_of(self.pipeline.minibatch_of(number))
        inputs = tuple(self._numbered(source, n) for n in numbers for source in sources)
        self._instructions.append(Instruction(op, self._numbered(target, number), inputs, peer, accumulate))

    def _numbered(self, operand: Operand, micro_batch: int) -> Operand:
        """Numbers the buffer of an operand, unless all micro-batches share it."""
        name = operand.buffer
        if self._is_undivided or name.is_of_minibatch or name.micro_batch is not None:
            return operand
        return Operand(name.numbered(micro_batch), operand.rows)

    def _sent(self, buffer: Buffer) -> Buffer:
        """The buffer of a message: where micro-batches share it, with the number of the minibatch."""
        if self.pipeline.overlap == 1 or not buffer.is_of_minibatch:
            return buffer
        return buffer.numbered(self.pipeline.minibatch_of(self.current.micro_batch))

    def send(self, message: Message) -> None:
        """Sends the rows of a message."""
        self.emit(Op.SEND, Operand(self._sent(message.buffer), message.rows), peer=message.destination)

    def send_all(self, buffer: Buffer) -> None:
        """Sends a buffer to every machine that needs it."""
        for message in self.outgoing.get(buffer, ()):
            self.send(message)

    def receive(self, message: Message, buffer: Buffer | None = None) -> None:
        """Receives a message into the buffer of its name, or another."""
        target = self._numbered(
            Operand(self._sent(buffer or message.buffer), message.rows), self.current.micro_batch
        )
        known = target.buffer.sent, message.source
        if known not in self._received:
            self._received.add(known)
            self.emit(Op.RECV, target, peer=message.source)

    def receive_all(self, buffer: Buffer) -> None:
        """Receives all messages of a buffer."""
        for message in self.incoming.get(buffer, ()):
            self.receive(message)

    def exchange_summary(self, buffer: Buffer, *sources: Operand) -> None:
        """Computes the machine's row of a layer's summary or of its gradient, and exchanges rows."""
        senders = self.owned.summary_senders(buffer.layer)
        if senders:
            row = senders.index(self.machine)
            self.emit(Op.SUMMARISE, Operand(buffer, BoxSet.of_rows((row, row + 1))), *sources)
            self.send_all(buffer)
            self.receive_all(buffer)

    def receive_and_add(self, message: Message, target: Operand) -> None:
        """Receives a message into a buffer of its own, and adds it to the target's rows."""
        buffer = message.buffer.received_from(message.source)
        self.receive(message, buffer)
        self.emit(Op.ADD, target, Operand(self._sent(buffer), target.rows), accumulate=True)

    def receive_into_sum(self, message: Message, begun: BoxSet) -> None:
        """Receives a message into the buffer of its name, and adds it where `begun` rows hold a sum.

        Other rows are taken as they are.
        """
        added = message.rows & begun
        if not added:
            self.receive(message)
            return
        self.receive_and_add(message, Operand(message.buffer, added))
        fresh = message.rows - begun
        if fresh:
            arrived = Operand(message.buffer.received_from(message.source), fresh)
            self.emit(Op.ADD, Operand(message.buffer, fresh), arrived)
