"""Values of a module while its operations become layers: tensors, as arrays of the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from partita.layers import Concatenate, Permute, Reshape
from partita.layers.states import SymbolicTensor

MIXED = "it mixes the examples with another dimension"
"""Reason why an operation has no layer."""


class Unsupported(Exception):
    """An operation has no layer, and why."""


@dataclass(frozen=True)
class Value:
    """A tensor (examples, d0, d1, ...) of the module, as an array of the network in an order of its own.

    Args:
        base: the array, before it gets its shape.
        axes: for each dimension behind the examples, the axis of the array; None for one of extent 1 that
            the array does not have.
        shape: of the array, if not that of `base`.
    """

    base: SymbolicTensor
    axes: tuple[int | None, ...]
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.shape:
            object.__setattr__(self, "shape", self.base.shape)

    @property
    def states(self) -> SymbolicTensor:
        """Returns the array of the network that holds the value, in the value's shape."""
        return _shaped(self.base, self.shape)

    @classmethod
    def plain(cls, states: SymbolicTensor) -> Value:
        """An array whose axes are the dimensions."""
        return cls(states, tuple(range(len(states.shape))))

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the dimensions."""
        return tuple(1 if axis is None else self.shape[axis] for axis in self.axes)

    @property
    def present(self) -> tuple[int, ...]:
        """The dimensions that the array has, in its order."""
        found = [(axis, dimension) for dimension, axis in enumerate(self.axes) if axis is not None]
        return tuple(dimension for _, dimension in sorted(found))

    def arranged(self, order: Sequence[int], shape: Sequence[int] = ()) -> SymbolicTensor:
        """Returns the array with these dimensions for its axes, in this order; or with another shape."""
        rest = (one for one in self.present if one not in order)  # of extent 1, which the last step drops
        wanted = [one for one in (*order, *rest) if self.axes[one] is not None]
        axes = [axis for one in wanted if (axis := self.axes[one]) is not None]
        turned = self.base if axes == sorted(axes) else Permute(axes)(self.states)
        return _shaped(turned, tuple(shape) or tuple(self.extents[one] for one in order))

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

    def turned(self, order: Sequence[int]) -> Value:
        """Returns the same array with its dimensions in another order."""
        return replace(self, axes=tuple(self.axes[one] for one in order))

    def reshaped(self, extents: Sequence[int]) -> Value:
        """Returns the same numbers with other dimensions: in the array's order of axes where that can be.

        Dimensions that become others keep their place in the array if they stand there side by side.
        """
        blocks = list(_blocks(self.extents, extents))
        at: list[tuple[int, tuple[int, ...]]] = []  # of each block, the first axis, and what it becomes
        for before, after in blocks:
            axes = [axis for one in before if (axis := self.axes[one]) is not None]
            if axes != list(range(axes[0], axes[0] + len(axes)) if axes else ()):
                return Value(self.in_order(), tuple(range(len(extents))), shape=tuple(extents))
            if axes:
                at.append((axes[0], after))
        order = [one for _, after in sorted(at) for one in after]
        shape = tuple(extents[one] for one in order) or (1,)
        return replace(placed(self.base, order, len(extents)), shape=shape)


def _blocks(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The smallest runs of dimensions with as many numbers on both sides; those of extent 1 are in none."""
    left = [one for one, extent in enumerate(before) if extent != 1]
    right = [one for one, extent in enumerate(after) if extent != 1]
    while left and right:
        first, second = [left.pop(0)], [right.pop(0)]
        sizes = [before[first[0]], after[second[0]]]
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                first.append(left.pop(0))
                sizes[0] *= before[first[-1]]
            else:
                second.append(right.pop(0))
                sizes[1] *= after[second[-1]]
        yield tuple(first), tuple(second)


def _shaped(states: SymbolicTensor, shape: tuple[int, ...]) -> SymbolicTensor:
    return states if states.shape == shape else Reshape(shape)(states)


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
