"""Finds the first array of a step that is not finite, in the order in which the step computed them.

A watch notes the instructions of the step that are done. It looks as soon as something is known to be wrong:
arrays reuse memory within a step, so only those that still hold their numbers count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import upcast_array
from partita.engine.runtime.buffers import Buffers
from partita.layers.losses import Loss
from partita.layers.node import Node
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Instruction, Op, Operand
from partita.partitioner.lower.access import Access


@dataclass(frozen=True)
class NonfiniteArray:
    """An array with a NaN or an infinity.

    Attributes:
        what: subject and verb of the message: "the states of 'hidden' are".
        received: whether another machine computed the array; that machine may know of an earlier one.
        hint: a further place to look at, or nothing.
    """

    what: str
    received: bool = False
    hint: str = ""


class NonfiniteWatch:
    """The instructions that a machine has done in a step. Any thread may call the watch.

    Attributes:
        suspect: the first array of the step that is not finite.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers, self._plan, self._vectors = buffers, buffers.plan, buffers.vectors
        self._program = buffers.program
        self._access = Access(self._plan.ownership, buffers.machine, slots=self._program.slots)
        self._done: list[int] = []
        self.suspect: NonfiniteArray | None = None

    def begin(self) -> None:
        """Resets the record for a step."""
        self._done, self.suspect = [], None

    def done(self, position: int) -> None:
        """Notes an instruction of the step that is done."""
        self._done.append(position)

    def look(self, gradient_of: str | None = None) -> None:
        """Finds the first array that is not finite, once in a step.

        Args:
            gradient_of: a layer whose gradient is known not to be finite.
        """
        if self.suspect is not None:
            return
        found = next(self._found(), None)
        if found is None and gradient_of is not None:
            found = NonfiniteArray(f"the gradient of '{gradient_of}' is", hint=self._hint(gradient_of))
        self.suspect = found

    def describe(self, *, step: int, replica: int) -> tuple[str, bool]:
        """Returns a sentence about the first array that is not finite, and whether it came from elsewhere."""
        self.look()
        suspect = self.suspect or NonfiniteArray("the loss is")
        return (
            f"in step {step} of replica {replica}, {suspect.what} not finite; lower the learning rate, clip "
            f"the gradients, or look at the data of this step{suspect.hint}"
        ), suspect.received

    def _found(self) -> Iterator[NonfiniteArray]:
        done = list(self._done)
        written = self._written(done)
        names = {operand.buffer for _, operand in written}
        for instruction, operand in written:
            if any(_bad(self._buffers.device.given(array)) for array in self._arrays(operand)):
                yield self._suspect(instruction, done, names)

    def _written(self, done: list[int]) -> list[tuple[Instruction, Operand]]:
        """The operands that were written in the step and are still there, in their order."""
        found: list[tuple[Instruction, Operand]] = []
        for position in done:
            instruction = self._program.instructions[position]
            for operand in self._access.writes(instruction):
                if operand.buffer in self._buffers.windows:
                    found = [one for one in found if not self._buffers.overlap(operand.buffer, one[1].buffer)]
                    found.append((instruction, operand))
        return found

    def _arrays(self, operand: Operand) -> list[Array]:
        return self._buffers.windows[operand.buffer].of(operand.rows)

    def _suspect(self, instruction: Instruction, done: list[int], names: set[Buffer]) -> NonfiniteArray:
        buffer = instruction.target.buffer.undivided
        layer, received = buffer.layer, instruction.op is Op.RECV
        if instruction.op is Op.FEED:
            return NonfiniteArray(f"the input '{layer}' is")
        if buffer.kind in (BufferKind.GRADIENT, BufferKind.PARAMETERS):
            kind = "gradient" if buffer.kind is BufferKind.GRADIENT else "parameters"
            return NonfiniteArray(
                f"the {kind} of '{layer}' {'is' if kind == 'gradient' else 'are'}", received
            )
        if buffer.edge is not None:
            by = buffer.edge.consumer
            above = "" if self._had_gradients(by, done, names) else ", or a layer behind it,"
            what = f"the errors that '{by}'{above} computes for '{layer}' are"
            return NonfiniteArray(what, received, self._hint(by))
        if buffer.holds_grad:
            return NonfiniteArray(f"the errors of '{layer}' are", received, self._hint(layer))
        if not received and not self._was_updated(layer, done):
            for parameter in self._plan.graph[layer].parameters:
                span = self._vectors.place(parameter.name)
                if span and _bad(self._vectors.device.given(self._vectors.parameters[span])):
                    return NonfiniteArray(f"the parameter '{parameter.name}' is")
        return NonfiniteArray(f"the states of '{layer}' are", received, self._hint(layer))

    def _had_gradients(self, layer: str, done: list[int], names: set[Buffer]) -> bool:
        """Returns whether the gradients that reached a layer are known to be finite: they are still there,
        or all consumers that sent them are losses or were updated by gradients of their own.
        """
        if any(name.layer == layer and name.holds_grad for name in names):
            return True
        graph, senders = self._plan.graph, [edge.consumer for edge in self._access.owned.grad_edges(layer)]
        return all(isinstance(graph[one].layer, Loss) or self._was_updated(one, done) for one in senders)

    def _was_updated(self, layer: str, done: list[int]) -> bool:
        learnt = (self._program.instructions[position] for position in done)
        owners = {layer, *(parameter.layer for parameter in self._plan.graph[layer].parameters)}
        return any(
            one.op in (Op.FUSED_UPDATE, Op.UPDATE) and one.target.buffer.layer in owners for one in learnt
        )

    def _hint(self, layer: str) -> str:
        declared = self._plan.graph[layer].layer
        return f", or at the functions of {declared.kind} '{layer}'" if isinstance(declared, Node) else ""


def _bad(values: Array) -> bool:
    return values.dtype != np.int64 and not bool(np.isfinite(upcast_array(values)).all())
