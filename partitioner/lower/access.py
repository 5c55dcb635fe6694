"""The operands of an instruction: those that it names, and those that its kernel uses besides.

The order of a program and the lifetimes of its buffers both follow from this.
"""

from __future__ import annotations

from typing import Final

from partita.layers.box import BLOCK, BoxSet
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import NORMS, Buffer, BufferKind, Edge, activations, of_parameter
from partita.partitioner.ir.program import Instruction, Op, Operand
from partita.partitioner.memoised import memoised

BLOCK_SCRATCH: Final = Operand(Buffer(BufferKind.SCRATCH, ""), BLOCK)
"""The block of gradients of a FUSED_UPDATE. A machine has one, so it updates one layer at a time."""


class Access:
    """Operands on one machine. Buffers are named by their places, see `Program.slots`."""

    def __init__(self, owned: Ownership, machine: int, *, slots: int = 1) -> None:
        self.owned, self.graph, self.machine, self.slots = owned, owned.graph, machine, slots

    def writes(self, instruction: Instruction) -> tuple[Operand, ...]:
        """Every operand that the instruction writes."""
        if instruction.op is Op.SEND:
            return ()
        target = self._placed(instruction.target)
        if instruction.op is Op.GRADIENT:
            return self._of_layer(BufferKind.GRADIENT, target.buffer.layer)
        return (target, BLOCK_SCRATCH) if instruction.op is Op.FUSED_UPDATE else (target,)

    def reads(self, instruction: Instruction) -> tuple[Operand, ...]:
        """Every operand that the instruction reads."""
        return tuple(map(self._placed, self._reads(instruction)))

    def _placed(self, operand: Operand) -> Operand:
        place = operand.buffer.place(self.slots)
        return operand if place == operand.buffer else Operand(place, operand.rows)

    def _reads(self, instruction: Instruction) -> tuple[Operand, ...]:
        target = instruction.target
        found = instruction.sources
        if instruction.op is Op.SEND or instruction.accumulate:
            found = (*found, target)
        layer = target.buffer.layer
        match instruction.op:
            case Op.SUMMARISE if target.buffer.kind is BufferKind.GRAD_SUMMARY:  # of an output that is there
                own = self.own(layer)
                if target.buffer.micro_batch is not None:
                    own = Operand(own.buffer.numbered(target.buffer.micro_batch), own.rows)
                return (*found, own, *self._of_layer(BufferKind.PARAMETERS, layer))
            case Op.FORWARD | Op.MULTIPLY | Op.SUMMARISE:
                return (*found, *self._of_layer(BufferKind.PARAMETERS, layer))
            case Op.GRAD_INPUT:
                return (*found, *self._kernel_operands(self.edge(target.buffer).consumer, target))
            case Op.GRADIENT | Op.FUSED_UPDATE:
                grads = (source for source in instruction.sources if source.buffer.holds_grad)
                return (
                    *found,
                    *(operand for grad in grads for operand in self._kernel_operands(layer, grad)),
                )
            case Op.SQUARES:
                return (*found, *(self._whose_norm(source) for source in instruction.sources))
        return found

    def _whose_norm(self, gradient: Operand) -> Operand:
        if gradient.buffer.parameter is None:
            return self.parameters(gradient.buffer.layer)
        return Operand(gradient.buffer._replace(kind=BufferKind.PARAMETERS), gradient.rows)

    @memoised
    def _of_layer(self, kind: BufferKind, layer: str) -> tuple[Operand, ...]:
        """The parameters that the machine's rows of a layer use, or their gradient, where they lie."""
        if layer not in self.graph.tied:
            return (Operand(Buffer(kind, layer), self._parameter_rows(layer)),)
        placement, machine = self.owned.placement, self.machine
        if kind is BufferKind.GRADIENT:
            return tuple(self.placed(kind, name) for name in placement.learning(layer, machine))
        names = (parameter.name for parameter in self.graph[layer].parameters)
        return tuple(self.placed(kind, name) for name in names if placement.held(name, machine))

    def placed(self, kind: BufferKind, name: str) -> Operand:
        """All that the machine has of a parameter that several layers use, or of its gradient."""
        numbers = self.owned.placement.held(name, self.machine)
        assert numbers is not None, f"machine {self.machine} does not use {name}"
        return Operand(of_parameter(kind, name), BoxSet.of_rows(numbers))

    def learners(self, name: str) -> list[str]:
        """The machine's layers that compute a gradient of a parameter."""
        return self.owned.placement.learners(name, self.machine)

    @memoised
    def own(self, layer: str) -> Operand:
        """Rows of a layer that the machine owns."""
        return Operand(activations(layer), self.owned.rows(layer, self.machine))

    @memoised
    def inputs(self, layer: str) -> tuple[Operand, ...]:
        """Rows of each input that the machine's rows of a layer need; also the summaries of all machines."""
        edges = (Edge(source, layer, k) for k, source in enumerate(self.graph[layer].sources))
        inputs = tuple(
            Operand(activations(edge.layer), self.owned.needed(edge, self.machine)) for edge in edges
        )
        return (*inputs, *self._of_all(BufferKind.SUMMARY, layer))

    def _of_all(self, kind: BufferKind, layer: str) -> tuple[Operand, ...]:
        """The summaries of all machines, or their gradients, if they exchange any."""
        senders = self.owned.summary_senders(layer)
        return (Operand(Buffer(kind, layer), BoxSet.of_rows((0, len(senders)))),) if senders else ()

    @memoised
    def parameters(self, layer: str) -> Operand:
        """Parameters that the machine's rows of a layer use."""
        return Operand(Buffer(BufferKind.PARAMETERS, layer), self._parameter_rows(layer))

    def gradient(self, layer: str) -> Operand:
        """The gradient of these parameters."""
        return Operand(Buffer(BufferKind.GRADIENT, layer), self._parameter_rows(layer))

    @property
    def norms(self) -> Operand:
        """Sums of squares of all machines."""
        return Operand(NORMS, BoxSet.of_rows((0, len(self.owned.parameter_owners))))

    def edge(self, buffer: Buffer) -> Edge:
        """The edge along which these gradients return."""
        assert buffer.edge is not None, f"{buffer} lies on no edge"
        return buffer.edge

    def grad_preactivation(self, layer: str) -> Operand:
        """The gradient from which those of a layer's inputs and parameters are computed."""
        if self.owned.is_input_split(layer):
            return Operand(Buffer(BufferKind.GRAD_PREACTIVATION, layer), self.graph[layer].rows)
        return Operand(self.owned.grad_edges(layer)[0].buffer, self.own(layer).rows)

    def _parameter_rows(self, layer: str) -> BoxSet:
        if self.owned.is_input_split(layer):
            return self.graph[layer].rows
        return BLOCK if self.graph[layer].shares_weights else self.own(layer).rows

    def _kernel_operands(self, layer: str, grads: Operand) -> tuple[Operand, ...]:
        """The operands of a kernel in the backward pass, of the micro-batch of the gradient."""
        number, operands = grads.buffer.micro_batch, (self.own(layer), *self.inputs(layer))
        if self.owned.returns_summary(layer):
            operands += self._of_all(BufferKind.GRAD_SUMMARY, layer)
        if number is not None:
            operands = tuple(Operand(operand.buffer.numbered(number), operand.rows) for operand in operands)
        return (*operands, *self._of_layer(BufferKind.PARAMETERS, layer))
