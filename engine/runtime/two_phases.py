"""A part whose step is played in two phases: the forward pass, and the backward pass when its caller has the
gradients of the outputs.

The backward pass begins at losses of the kind `GivenGradient`, whose targets are these gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from typing_extensions import override

from partita.engine.runtime.session import SessionTask
from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.layer import Layer
from partita.layers.losses import ScoreLoss
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Instruction

FORWARD: Final = 0
BACKWARD: Final = 1

_OF_BACKWARD: Final = frozenset(
    {
        BufferKind.GRAD_OUTPUT,
        BufferKind.GRAD_PREACTIVATION,
        BufferKind.GRAD_SUMMARY,
        BufferKind.GRADIENT,
        BufferKind.NORMS,
        BufferKind.SCRATCH,
    }
)


class GivenGradient(ScoreLoss):
    """The loss whose gradient of the scores is the target itself. Its value is 0."""

    @override
    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        return step.torch.zeros((1, inputs[0].shape[-1]), dtype=step.torch.float64, device=inputs[0].device)

    @override
    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        return (inputs[1], None), ()


@dataclass(frozen=True)
class InputGradient(Layer):
    """An input whose gradient is computed: its output is its input."""

    name: str | None = None
    asks_gradient = True

    @property
    def connectivity(self) -> Connectivity:
        """Each node is its own input."""
        return OneToOne()

    @property
    def definition(self) -> None:
        """None: it computes nothing."""
        return None

    @override
    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        return sources[0]

    @override
    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        return inputs[0]

    @override
    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        return (grad_output,), ()


@dataclass(frozen=True)
class TwoPhaseTask(SessionTask):
    """One machine's part of a plan whose losses are of the kind `GivenGradient`."""

    @cached_property
    @override
    def phases(self) -> tuple[tuple[int, ...], ...]:
        found = self.instructions.instructions
        ends = {*self.plan.graph.losses, *(grid.name for grid in self.plan.graph.targets)}
        later = {n for n, instruction in enumerate(found) if _is_backward(instruction, ends)}
        for n in set(range(len(found))) - later:
            assert not later.intersection(found[n].after), f"{found[n]} waits for the backward pass"
        return tuple(n for n in range(len(found)) if n not in later), tuple(sorted(later))


def _is_backward(instruction: Instruction, ends: set[str]) -> bool:
    operands = instruction.target, *instruction.sources
    return any(_belongs(operand.buffer, ends) for operand in operands)


def _belongs(buffer: Buffer, ends: set[str]) -> bool:
    return buffer.kind in _OF_BACKWARD or buffer.layer in ends
