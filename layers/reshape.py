"""Other shapes of the same numbers, and other orders of axes: `Reshape`, `Flatten`, `Permute`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from partita.layers.box import Box, Shape
from partita.layers.checks import is_whole
from partita.layers.connectivity import Index
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.copies import Copied, Copy, positions, whole_rows


@dataclass(frozen=True)
class SameOrder(Copied):
    """The wiring of each node to the node of the same flat position: both grids have as many nodes.

    Args:
        target: shape of the layer; one extent may be -1, which makes the numbers of nodes equal.
    """

    target: Shape

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The target.

        Raises:
            ValueError: the numbers of nodes differ.
        """
        size, known = math.prod(source), math.prod(extent for extent in self.target if extent != -1)
        found = tuple(size // known if extent == -1 else extent for extent in self.target)
        if math.prod(found) != size:
            raise ValueError(
                f"the input has the shape {source}, {size} nodes, which have no shape {self.target}; "
                f"write a shape of {size} nodes, or -1 for one of its extents"
            )
        return found

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The rows from the region's first node to its last."""
        if not region.size:
            return ()
        shape = self.shape(source, None)
        corners = ([a for a, _ in region], [b - 1 for _, b in region])
        first, last = (int(np.ravel_multi_index(corner, shape)) for corner in corners)
        return whole_rows(first, last, source)

    def senders(self, shape: Shape, source: Shape) -> Index:
        """The node's own position."""
        return positions(shape)


@dataclass(frozen=True)
class Reshape(Copy):
    """The same numbers in another shape, in the order of the grid: the last axis runs fastest.

    A cut by rows needs the rows of the input that hold the same numbers; where machines cut both at the same
    numbers, nothing is sent.

    Args:
        target_shape: without the examples; one extent may be -1, which follows from the others.
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "shape": ("target_shape",),
    }

    target_shape: Sequence[int]

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        target: Any = self.target_shape
        given = tuple(target) if isinstance(target, list | tuple) else (target,)
        valid = all(is_whole(extent) and (extent > 0 or extent == -1) for extent in given)
        if not given or not valid or given.count(-1) > 1:
            raise ValueError(
                f"the target shape is {target!r}; write whole numbers of at least 1, of which one may be -1"
            )
        self._settle(target_shape=tuple(map(int, given)))

    @property
    def connectivity(self) -> SameOrder:
        """The node of the same position."""
        return SameOrder(tuple(self.target_shape))

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The target, with the extent that follows in the place of -1."""
        return self.connectivity.shape(sources[0], None)

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """A view of the rows of the input, from the first node to the last."""
        (x,) = inputs
        return x.reshape(-1, x.shape[-1])[self._nodes(step)].reshape(-1, *step.shape[1:], x.shape[-1])

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """A view, where the rows hold all that is given; autograd would copy it, and fill zeros."""
        (x,), flat = inputs, grad_output.reshape(-1, grad_output.shape[-1])
        if flat.numel() == x.numel():
            return (flat.reshape(x.shape),), ()
        found = step.torch.zeros_like(x, dtype=flat.dtype)
        found.reshape(-1, x.shape[-1])[self._nodes(step)] = flat
        return (found,), ()

    def _nodes(self, step: Step) -> slice:
        """The nodes to be computed, among those of the rows that are given."""
        per_row, per_source_row = math.prod(step.shape[1:]), math.prod(step.sources[0][1:])
        first = step.rows[0] * per_row - step.windows[0][0] * per_source_row
        return slice(first, first + (step.rows[1] - step.rows[0]) * per_row)


@dataclass(frozen=True)
class Flatten(Reshape):
    """All nodes in one row, in the order of the grid: the last axis runs fastest, as in Keras.

    `Dense` reads an input of any shape, and needs no `Flatten`. PyTorch's pictures have their channels first:
    where weights come from there, see `Permute`.

    Args:
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "start_dim": "it makes one axis of all nodes; for other shapes, call Reshape(...)",
        "end_dim": "it makes one axis of all nodes; for other shapes, call Reshape(...)",
    }

    target_shape: Sequence[int] = field(default=(-1,), init=False, repr=False)


@dataclass(frozen=True)
class AxesOf(Copied):
    """The wiring of each node to that of the same place when the axes are in another order.

    Args:
        axes: for each axis of the layer, that of the input.
    """

    axes: tuple[int, ...]

    ordered_gradients = False

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The extents of the input in the other order.

        Raises:
            ValueError: the input has another number of axes.
        """
        if len(source) != len(self.axes):
            raise ValueError(
                f"the input has the shape {source}; name each of its {len(source)} axes once, not {self.axes}"
            )
        return tuple(source[axis] for axis in self.axes)

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The same box with its axes in the order of the input; of pictures all columns, as kernels read."""
        if not region.size:
            return ()
        found = [region[self.axes.index(axis)] for axis in range(len(source))]
        if len(source) == 3:
            found[1] = (0, source[1])
        return (Box(found),)

    def senders(self, shape: Shape, source: Shape) -> Index:
        """The positions of the input, with other axes."""
        return positions(source).transpose(self.axes)


@dataclass(frozen=True)
class Permute(Copy):
    """The axes of the input in another order: `Permute((1, 0))` makes (positions, features) of the opposite.

    Where axis 0 changes, a cut sends every machine all rows of its input. Axes are counted from 0, without
    the examples (Keras counts them from 1, PyTorch with the examples).

    Args:
        axes: for each axis of the output, that of the input.
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "dims": ("axes",),
    }

    axes: Sequence[int]

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        axes: Any = self.axes
        given = tuple(axes) if isinstance(axes, list | tuple) else (axes,)
        if not all(map(is_whole, given)) or sorted(given) != list(range(len(given))):
            raise ValueError(f"the axes are {self.axes!r}; name each axis once, from 0: (1, 0) for example")
        self._settle(axes=tuple(map(int, given)))

    @property
    def connectivity(self) -> AxesOf:
        """The node of the same place."""
        return AxesOf(tuple(self.axes))

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The extents in the other order."""
        return self.connectivity.shape(sources[0], None)

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """A view with other axes, of which the rows are a part."""
        (x,), axes = inputs, tuple(self.axes)
        found = x.permute(*axes, len(axes))
        return found if axes[0] == 0 else found[step.own]
