"""Connectivities: the nodes of an input that feed each node of a layer. Halos, messages and costs follow.

A connectivity knows shapes and nothing else. `sources(region, source_shape)` returns the regions of the input
that feed a region; `edges` lists the same for each node, in the order in which it sees its incoming states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.layers.arguments import Arguments
from partita.layers.box import Box, BoxSet, Extent, Margins, Shape, Span, Spans
from partita.layers.checks import check_extents, check_flag, check_padding, check_whole

Index = npt.NDArray[np.int64]
Padding: TypeAlias = Extent | Margins | Literal["valid", "same"]
"""The number of rows that are put around an input, see `Patch`."""
PADDING = -1
"""Index of an edge whose sender lies outside the grid: its state is the layer's `padding_value`."""


class Connectivity(Arguments, ABC):
    """The nodes of an input that feed each node of a layer."""

    ordered_gradients: bool = True
    """States whether the errors of a sender are summed in the order of the receivers' rows, on any machines.

    True where a node has few receivers: every cut then gives the same bits. In a fully connected layer each
    machine sums over its own receivers, and the owners add up these sums, machine by machine.
    """

    tiles: bool = False
    """States whether a picture of this connectivity may be cut along its columns too, see `within`."""

    @abstractmethod
    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The grid of a layer over `source` with these `nodes`, as the user gave them (None: not given).

        Raises:
            ValueError: no such layer is possible over this input.
        """

    @abstractmethod
    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The regions of a grid of shape `source` that feed the nodes of `region`, ascending."""

    @abstractmethod
    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The incoming edges of the nodes in these rows of a grid of `shape`.

        Returns `offsets` (one more than there are nodes) and `indices` (flat positions in the source grid, or
        `PADDING`): node n, counted from the first row, is fed by `indices[offsets[n]:offsets[n + 1]]`.
        """

    @abstractmethod
    def fan_in(self, source: Shape) -> int:
        """Largest number of incoming edges of a node."""

    def source_rows(self, box: Box, shape: Shape, source: Shape, *, columns: bool = False) -> BoxSet:
        """The rows of the source that feed these rows (and columns) of a grid of `shape`.

        With `columns`, the rows and columns of a picture: all columns between the first that feeds a patch
        and the last.
        """
        regions = self.sources(box.over(shape), source)
        if columns and len(source) == 3:
            return BoxSet.union(region.on(2) for region in regions)
        return BoxSet.of_rows(*(region.rows for region in regions))

    def within(self, columns: Span, source_columns: Span, shape: Shape, source: Shape) -> Connectivity:
        """The same connectivity for some columns of a picture, over some columns of its input.

        Both are then numbered from 0, so that kernels of whole pictures compute a tile. Rows do not change.

        Args:
            columns: columns of a grid of `shape`.
            source_columns: at least those that feed them; all, if the input is no picture.
            shape: shape of the whole grid.
            source: shape of the whole input.
        """
        whole = len(source) != 3 or source_columns == (0, source[1])
        assert whole and columns == (0, shape[1]), (
            f"{self} cannot be narrowed to columns {columns} of {shape}"
        )
        return self


@dataclass(frozen=True)
class Full(Connectivity):
    """Every node is fed by every node of the input."""

    ordered_gradients = False
    tiles = True

    def within(self, columns: Span, source_columns: Span, shape: Shape, source: Shape) -> Connectivity:
        """Returns itself: every node is fed by the whole input."""
        assert len(source) != 3 or source_columns == (0, source[1]), (
            f"{source_columns} is not all of {source}"
        )
        return self

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """Returns the nodes that the user gave.

        Raises:
            ValueError: none were given.
        """
        if nodes is None:
            raise ValueError(
                "a fully connected layer needs its number of nodes; write for example layer(10)(x)"
            )
        return nodes

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The whole input, for any box."""
        return (Box.whole(source),) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """Every sender, in the order of the source grid."""
        senders = math.prod(source)
        nodes = (rows[1] - rows[0]) * math.prod(shape[1:])
        return np.arange(nodes + 1) * senders, np.tile(np.arange(senders), nodes)

    def fan_in(self, source: Shape) -> int:
        """The size of the input."""
        return math.prod(source)


@dataclass(frozen=True)
class OneToOne(Connectivity):
    """Node i is fed by node i; the grids are equal."""

    tiles = True

    def within(self, columns: Span, source_columns: Span, shape: Shape, source: Shape) -> Connectivity:
        """Returns itself, for the same columns of the input."""
        assert source_columns == columns, f"columns {columns} are fed by {columns}, not {source_columns}"
        return self

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The shape of the input.

        Raises:
            ValueError: another one was given.
        """
        if nodes is not None and nodes != source:
            raise ValueError(
                f"a one-to-one layer has the grid of its input, {source}, not {nodes}; leave it out"
            )
        return source

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The same box of the input."""
        return (region,) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """One edge for each node."""
        stride = math.prod(shape[1:])
        return np.arange((rows[1] - rows[0]) * stride + 1), np.arange(rows[0] * stride, rows[1] * stride)

    def fan_in(self, source: Shape) -> int:
        """One, for every node."""
        return 1


@dataclass(frozen=True)
class Patch(Connectivity):
    """A node is fed by a patch of the spatial axes: every axis of the input but the last, its channels.

    Args:
        size: extent of the patch, one number or one for each spatial axis.
        stride: step from one patch to the next.
        padding: rows around the input, of the layer's `padding_value` (zero in most): a number, one for each
            spatial axis, or a pair for each, as
            ((top, bottom), (left, right)); "valid" (none) or "same" (output = input / stride).
        per_channel: each node reads its own channel only (pooling), instead of all channels (filters).
        dilation: step from one node of a patch to the next.
        groups: number of groups of equal size into which channels and filters fall; a filter reads the
            channels of the group with its own number.
        ceil_mode: whether nodes at the end that fill no patch get one that reaches beyond the padding, if it
            begins before that.
        placed: positions of the patches on each spatial axis, in a part of a picture, see `within`; None:
            they follow from the rest.

    Raises:
        ValueError: an argument is invalid.
    """

    size: Extent
    stride: Extent = 1
    padding: Padding = 0
    per_channel: bool = False
    dilation: Extent = 1
    groups: int = 1
    ceil_mode: bool = field(default=False, kw_only=True)
    placed: tuple[PatchAxis, ...] | None = field(default=None, kw_only=True, repr=False)

    tiles = True

    def __post_init__(self) -> None:
        for setting in ("size", "stride", "dilation"):
            extents = check_extents(getattr(self, setting), f"the {setting} of a patch is")
            object.__setattr__(self, setting, extents)
        if not (isinstance(self.padding, str) and self.padding in ("valid", "same")):
            padding = check_padding(self.padding, "the padding of a patch is")
            object.__setattr__(self, "padding", padding)
        check_flag(self.per_channel, "per_channel of a patch is")
        check_flag(self.ceil_mode, "ceil_mode of a patch is")
        object.__setattr__(self, "groups", check_whole(self.groups, "the number of groups of a patch is"))
        if self.per_channel and self.groups > 1:
            raise ValueError("a patch has groups and is per_channel too; leave one of the two out")

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """One place for each patch, with the number of filters given, or one for each group.

        Raises:
            ValueError: the patches do not fit the input, or not the number of filters.
        """
        if len(source) < 2:
            raise ValueError(
                f"patches need spatial axes and a last axis of channels, but the input has shape {source}; "
                f"declare it as {(*source, 1)}"
            )
        if self.per_channel and nodes is not None:
            raise ValueError(
                "a layer of patches for each channel keeps the channels of its input; leave the number out"
            )
        if nodes is not None and len(nodes) != 1:
            raise ValueError(f"a layer of patches takes a number of filters, not {nodes}")
        spatial = tuple(axis.out for axis in self.axes(source))
        for extent, axis in zip(source, self.axes(source), strict=False):
            if axis.out < 1:
                raise ValueError(
                    f"a patch of {self.size} does not fit into an input of shape {source}; "
                    f"make it at most {extent} wide, or pad the input"
                )
        filters = source[-1] if self.per_channel else (nodes or (self.groups,))[0]
        if source[-1] % self.groups or filters % self.groups:
            raise ValueError(
                f"{source[-1]} channels and {filters} filters do not fall into {self.groups} equal groups; "
                f"choose a number of groups that divides both"
            )
        return (*spatial, filters)

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The patch of every node of the region, without the padding."""
        if not region.size:
            return ()
        covered = [
            axis.covered(places, extent)
            for axis, places, extent in zip(self.axes(source), region.bounds, source, strict=False)
        ]
        rest = [(positions[0][0], positions[-1][1]) if positions else (0, 0) for positions in covered[1:]]
        channels = region.bounds[-1] if self.per_channel else (0, source[-1])
        found = (Box((rows, *rest, channels)) for rows in covered[0])
        return tuple(box for box in found if box.size)

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The patch of each node in the order (spatial axes, channel), padding included."""
        axes = self.axes(source)
        extents = (rows[1] - rows[0], *shape[1:-1])
        n = len(axes)
        flat = np.zeros((1,) * (2 * n), dtype=np.int64)
        inside = np.ones((1,) * (2 * n), dtype=bool)
        for i, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
            first = rows[0] if i == 0 else 0
            start = np.arange(first, first + extent) * axis.stride - axis.before
            place = (start[:, None] + np.arange(axis.size) * axis.dilation).reshape(
                [extent if j == i else axis.size if j == n + i else 1 for j in range(2 * n)]
            )
            flat = flat * source[i] + place
            inside = inside & (place >= 0) & (place < source[i])
        places, patch = math.prod(extents), math.prod(axis.size for axis in axes)
        flat = np.where(inside, flat * source[-1], PADDING).reshape(places, 1, patch, 1)
        filters, group = np.arange(shape[-1]), source[-1] // self.groups
        first_channel = filters if self.per_channel else filters // (shape[-1] // self.groups) * group
        within_group = np.arange(1 if self.per_channel else group)
        channel = first_channel.reshape(1, -1, 1, 1) + within_group.reshape(1, 1, 1, -1)
        table = np.where(flat == PADDING, PADDING, flat + channel)
        table = table.reshape(places * shape[-1], math.prod(table.shape[2:]))
        return np.arange(len(table) + 1) * table.shape[1], table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """Number of nodes in a patch."""
        channels = 1 if self.per_channel else source[-1] // self.groups
        return math.prod(axis.size for axis in self.axes(source)) * channels

    @property
    def is_box(self) -> bool:
        """Returns whether each patch is a box of nodes without gaps and with all channels."""
        dilation = self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)
        return not self.per_channel and self.groups == 1 and all(step == 1 for step in dilation)

    def axes(self, source: Shape) -> tuple[PatchAxis, ...]:
        """Positions of the patches on each spatial axis of an input of this shape.

        Raises:
            ValueError: the patches have another number of axes, or the padding is as large as a patch.
        """
        if self.placed is not None:
            return self.placed
        n = len(source) - 1
        for what in ("size", "stride", "padding", "dilation"):
            value = getattr(self, what)
            if isinstance(value, tuple) and len(value) != n:
                raise ValueError(
                    f"the {what} {value} of a patch does not name the {n} spatial axes of {source}"
                )
        return tuple(PatchAxis.place(self, axis=i, extent=source[i]) for i in range(n))

    def within(self, columns: Span, source_columns: Span, shape: Shape, source: Shape) -> Connectivity:
        """The same patches, shifted so that both ranges of columns begin at 0."""
        down, right = self.axes(source)
        before = right.before + source_columns[0] - columns[0] * right.stride
        narrow = replace(right, before=before, out=columns[1] - columns[0])
        return replace(self, placed=(down, narrow))


@dataclass(frozen=True, slots=True)
class PatchAxis:
    """Patches on one axis: `out` patches, one every `stride` nodes, the first at `-before`.

    Each has `size` nodes, one every `dilation`.
    """

    size: int
    stride: int
    before: int
    out: int
    dilation: int = 1

    @classmethod
    def place(cls, patch: Patch, *, axis: int, extent: int) -> PatchAxis:
        """Patches over the `extent` nodes of this axis.

        Raises:
            ValueError: the padding is as large as a patch.
        """
        size, stride, dilation = (
            value[axis] if isinstance(value, tuple) else value
            for value in (patch.size, patch.stride, patch.dilation)
        )
        padding = patch.padding[axis] if isinstance(patch.padding, tuple) else patch.padding
        reach = (size - 1) * dilation + 1
        if padding == "same":
            out = -(-extent // stride)
            return cls(size, stride, max((out - 1) * stride + reach - extent, 0) // 2, out, dilation)
        if padding == "valid":
            padding = 0
        assert not isinstance(padding, str)
        before, behind = padding if isinstance(padding, tuple) else (padding, padding)
        if not 0 <= before < reach or not 0 <= behind < reach:
            raise ValueError(
                f"the padding of a patch is {padding!r}; it must be 'valid', 'same' or 0 to {reach - 1}"
            )
        left = extent + before + behind - reach
        out = left // stride + 1
        if patch.ceil_mode and left % stride and out * stride < extent + before:
            out += 1
        return cls(size, stride, before, out, dilation)

    def covered(self, places: Span, extent: int) -> Spans:
        """The nodes of the axis, of `extent`, that lie in the patches at these places."""
        first, last = (place * self.stride - self.before for place in (places[0], places[1] - 1))
        if self.dilation == 1 and self.stride <= self.size:
            span = max(first, 0), min(last + self.size, extent)
            return (span,) if span[0] < span[1] else ()
        return BoxSet.of_rows(
            *(
                (node, node + 1)
                for start in range(first, last + 1, self.stride)
                for node in range(start, start + self.size * self.dilation, self.dilation)
                if 0 <= node < extent
            )
        ).spans
