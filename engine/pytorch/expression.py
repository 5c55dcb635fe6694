"""`Expression`: a layer that computes a small program of PyTorch's operations, and can be cut."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.engine.pytorch.program import Program
from partita.layers.box import Box, Shape, Span
from partita.layers.connectivity import Connectivity, Full, Index, OneToOne
from partita.layers.contract import Step, Tensor
from partita.layers.copies import positions
from partita.layers.layer import Layer, Parameter
from partita.layers.ties import ParameterOf


@dataclass(frozen=True)
class Across(Connectivity):
    """The wiring of each row to all nodes of the same place on an axis of the input.

    Args:
        axis: of the input.
    """

    axis: int

    ordered_gradients = False

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The nodes that were given, or those of the input."""
        return nodes or source

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """All nodes with these places on the axis; of pictures all columns, as kernels read."""
        if not region.size:
            return ()
        found: list[Span] = [(0, extent) for extent in source]
        if not (self.axis == 1 and len(source) == 3):
            found[self.axis] = region.rows
        return (Box(found),)

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The nodes of the row's place, for each of its nodes."""
        table = np.moveaxis(positions(source), self.axis, 0).reshape(source[self.axis], -1)[slice(*rows)]
        nodes = math.prod(shape[1:])
        found = np.repeat(table, nodes, axis=0)
        return np.arange(len(found) + 1) * table.shape[1], found.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """The nodes of a place."""
        return math.prod(source) // source[self.axis]


@dataclass(frozen=True)
class Expression(Layer):
    """A chain of PyTorch's operations as one layer, computed by PyTorch, with gradients by autograd.

    `from_torch` makes it of operations that have no layer of their own: arithmetic with numbers, constants
    and parameters that broadcast, sums, products of states, attention with any mask. Its rows are a dimension
    along which all of its operations run; a machine computes its own rows, from the same rows of the inputs
    that have this dimension, and from all of the others. Where there is no such dimension, it is not cut.

    Args:
        program: the operations.
        ties: parameters of other layers that it uses as its own, by their names here.
        name: the layer's name in the network.
    """

    several_inputs = True
    slowdown = 10.0

    program: Program
    ties: tuple[tuple[str, ParameterOf], ...] = field(default=(), kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def __getattr__(self, name: str) -> Any:
        """The parameter of another layer that stands for one of its own, by its name here."""
        if not name.startswith("_"):
            for own, other in self.__dict__.get("ties", ()):
                if own == name:
                    return other
        raise AttributeError(f"{type(self).__name__} has no {name}")

    @property
    def cuttable(self) -> bool:  # type: ignore[override]
        """Returns whether its operations run along a dimension."""
        return self.program.rows

    @property
    def connectivity(self) -> Connectivity:
        """All of each input, see `wirings`."""
        return OneToOne() if self.program.places else Full()

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """The own place, or the same rows along the axis that they cut, or all."""
        if self.program.places:
            return (OneToOne(),) * len(sources)
        return tuple(Full() if one.row is None else Across(one.row) for one in self.program.inputs)

    @property
    def definition(self) -> None:
        """None: it is what PyTorch computes."""
        return None

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The extents of the result, which the module determines."""
        return self.program.shape

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """Parameters of the program, which all rows share."""
        return tuple(
            Parameter(one.name, one.shape or (1,), shared=True, trainable=one.trainable)
            for one in self.program.parameters
        )

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """The program's operations, divided among the nodes."""
        return self.program.operations

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The program on the examples that are real."""
        batch = inputs[0].shape[-1]
        if not step.examples:
            return inputs[0].new_zeros((step.rows[1] - step.rows[0], *step.shape[1:], batch))
        found = self.program.run(inputs, parameters, examples=step.examples, rows=step.rows)
        return (
            found
            if step.examples == batch
            else step.torch.nn.functional.pad(found, (0, batch - step.examples))
        )
