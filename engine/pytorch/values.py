"""Values of a module while its operations become layers: tensors, as arrays of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.layers import Concatenate, Permute, Reshape
from partita.layers.states import SymbolicTensor


class Unsupported(Exception):
    """An operation has no layer, and why."""


@dataclass(frozen=True)
class Value:
    """A tensor (examples, d0, d1, ...) of the module, as an array of the network in an order of its own.

    Args:
        states: the array.
        axes: for each dimension behind the examples, the axis of the array; None for one of extent 1 that
            the array does not have.
    """

    states: SymbolicTensor
    axes: tuple[int | None, ...]

    @classmethod
    def plain(cls, states: SymbolicTensor) -> Value:
        """An array whose axes are the dimensions."""
        return cls(states, tuple(range(len(states.shape))))

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(1 if axis is None else self.states.shape[axis] for axis in self.axes)

    @property
    def present(self) -> tuple[int, ...]:
        """The dimensions that the array has, in its order."""
        found = [(axis, dimension) for dimension, axis in enumerate(self.axes) if axis is not None]
        return tuple(dimension for _, dimension in sorted(found))

    def arranged(self, order: Sequence[int]) -> SymbolicTensor:
        """Returns the array with these dimensions for its axes: all of them, in this order."""
        rest = (one for one in self.present if one not in order)  # of extent 1, which the last step drops
        states, wanted = self.states, [one for one in (*order, *rest) if self.axes[one] is not None]
        axes = [axis for one in wanted if (axis := self.axes[one]) is not None]
        if axes != sorted(axes):
            states = Permute(axes)(states)
        shape = tuple(self.extents[one] for one in order)
        return states if states.shape == shape else Reshape(shape)(states)

    def in_order(self) -> SymbolicTensor:
        """Returns the array with the dimensions in the module's order."""
        return self.arranged(range(len(self.axes)))

    def like(self, other: Value) -> SymbolicTensor:
        """Returns the array in the order of another value of the same extents."""
        if self.extents != other.extents:
            raise Unsupported(f"it joins {self.extents} and {other.extents}, which differ")
        return self.arranged(other.present)

    def with_states(self, states: SymbolicTensor) -> Value:
        """The result of a layer that keeps the axes."""
        return Value(states, self.axes)


def placed(states: SymbolicTensor, order: Sequence[int], n: int) -> Value:
    """Returns the value of n dimensions whose array has these for its axes; others have the extent 1."""
    axes: list[int | None] = [None] * n
    for axis, dimension in enumerate(order):
        axes[dimension] = axis
    return Value(states, tuple(axes))


@dataclass(frozen=True)
class Stacked:
    """Values of equal extents as the places of a dimension before theirs, joined where that is needed."""

    parts: tuple[Value, ...]

    def joined(self) -> Value:
        """Returns one value with the places on dimension 0."""
        rows = [Reshape((1, *one.extents))(one.in_order()) for one in self.parts]
        return Value.plain(Concatenate(0)(*rows) if len(rows) > 1 else rows[0])
