"""Layers of several inputs, without parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from partita.layers.box import Shape
from partita.layers.connectivity import Connectivity, OneToOne
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.pooling import maximum


@dataclass(frozen=True)
class Merge(Layer):
    """Layers whose node i reads node i of each input."""

    several_inputs = True

    name: str | None = field(default=None, kw_only=True)

    @property
    def connectivity(self) -> Connectivity:
        """Node i of each input."""
        return OneToOne()

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the inputs.

        Raises:
            ValueError: there is only one, or they have several shapes.
        """
        if len(sources) < 2 or len(set(sources)) > 1:
            shapes = " and ".join(map(str, sources))
            raise ValueError(f"the inputs have the shapes {shapes}; give it two or more of the same shape")
        return sources[0]


@dataclass(frozen=True)
class Add(Merge):
    """The sum of inputs of one shape, in the order in which they are given: skips and branches end here."""

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The sum in the order of the inputs."""
        return sum(inputs[1:], start=inputs[0])

    @property
    def definition(self) -> NodeDefinition:
        """The sum of the node's incoming states, one from each input."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = incoming[0]
            for k in range(1, len(incoming)):
                total += incoming[k]
            return total

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0 * incoming + error,)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class Multiply(Merge):
    """The product of inputs of one shape: gates end here."""

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The product in the order of the inputs."""
        return math.prod(inputs[1:], start=inputs[0])

    @property
    def definition(self) -> NodeDefinition:
        """The product of the node's incoming states, one from each input."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = incoming[0]
            for k in range(1, len(incoming)):
                total *= incoming[k]
            return total

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            errors = 0 * incoming + error
            for k in range(len(incoming)):
                for other in range(len(incoming)):
                    if other != k:
                        errors[k] *= incoming[other]
            return (errors,)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class Maximum(Merge):
    """The largest of inputs of one shape, node by node; on a tie, the gradient goes to the first.

    Where a machine is lost during a prediction with exits, its inputs are left out.
    """

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The largest in each place."""
        return step.torch.stack(inputs).amax(0)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The gradient of the first input that is the largest; 0 of the others."""
        taken, found = step.torch.zeros_like(output, dtype=step.torch.bool), []
        for one in inputs:
            first = (one == output) & ~taken
            found.append(grad_output * first)
            taken |= first
        return tuple(found), ()

    @property
    def definition(self) -> NodeDefinition:
        """The largest of the node's incoming states, one from each input."""
        return maximum()


@dataclass(frozen=True)
class Average(Merge):
    """The mean of inputs of one shape, in the order in which they are given.

    Where a machine is lost during a prediction with exits, it is the mean of the others' inputs.
    """

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """The sum in the order of the inputs, divided by their number."""
        return sum(inputs[1:], start=inputs[0]) / len(inputs)

    @property
    def definition(self) -> NodeDefinition:
        """The mean of the node's incoming states, one from each input."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = incoming[0]
            for k in range(1, len(incoming)):
                total += incoming[k]
            return total / len(incoming)

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            return (0 * incoming + error / len(incoming),)

        return NodeDefinition(upward, downward)
