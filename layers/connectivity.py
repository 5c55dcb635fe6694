"""Which nodes feed which: the one source of every halo, message and cost.

A connectivity knows shapes and nothing else. `sources(region, source_shape)` says which regions of the input
the nodes of a region listen to; `edges` lists the same for each node, in the order in which a node sees its
incoming states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from partita.layers import rows as row_sets
from partita.layers.checks import check_extents, check_flag
from partita.layers.region import Extent, Region, Shape
from partita.layers.rows import Rows

Index = npt.NDArray[np.int64]
PADDING = -1
"""The index of an edge whose sender lies outside the grid: its state is always zero."""


class Connectivity(ABC):
    """Which nodes of an input each node of a layer listens to."""

    ordered_errors: bool = True
    """Whether the errors of a sender are summed in the order of the receivers' rows, whoever computes them.

    True where a node has few receivers: then every cut gives the same bits. A fully connected layer sums by
    part instead: each machine its own receivers first, then machine by machine.
    """

    @abstractmethod
    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The grid of a layer over `source`, where the user asked for `nodes` (None: did not say).

        Raises:
            ValueError: there can be no such layer over such an input.
        """

    @abstractmethod
    def sources(self, region: Region, source: Shape) -> tuple[Region, ...]:
        """The regions of a grid of shape `source` that the nodes of `region` listen to, ascending."""

    @abstractmethod
    def edges(self, rows: tuple[int, int], shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The incoming edges of the nodes in these rows of a grid of `shape`.

        Returns `offsets` (one more than there are nodes) and `indices` (flat positions in the source grid, or
        `PADDING`): node n, counted from the first row, listens to `indices[offsets[n]:offsets[n + 1]]`.
        """

    @abstractmethod
    def fan_in(self, source: Shape) -> int:
        """Incoming edges of a node (of the one that has most)."""

    def source_rows(self, rows: tuple[int, int], shape: Shape, source: Shape) -> Rows:
        """The rows of the source that these rows of a grid of `shape` listen to."""
        if rows[0] >= rows[1]:
            return ()
        regions = self.sources(Region.of_rows(*rows, shape=shape), source)
        return row_sets.union(region.rows for region in regions)


@dataclass(frozen=True)
class Full(Connectivity):
    """Every node listens to every node of the input."""

    ordered_errors = False

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """As asked for.

        Raises:
            ValueError: nothing was asked for.
        """
        if nodes is None:
            raise ValueError(
                "a fully connected layer needs its number of nodes; write for example layer(10)(x)"
            )
        return nodes

    def sources(self, region: Region, source: Shape) -> tuple[Region, ...]:
        """The whole input."""
        return (Region.whole(source),) if region.size else ()

    def edges(self, rows: tuple[int, int], shape: Shape, source: Shape) -> tuple[Index, Index]:
        """Every sender, in the order of the source grid."""
        senders = math.prod(source)
        nodes = (rows[1] - rows[0]) * math.prod(shape[1:])
        return np.arange(nodes + 1) * senders, np.tile(np.arange(senders), nodes)

    def fan_in(self, source: Shape) -> int:
        """The size of the input."""
        return math.prod(source)


@dataclass(frozen=True)
class OneToOne(Connectivity):
    """Node i listens to node i; the grids are equal."""

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The shape of the input.

        Raises:
            ValueError: another was asked for.
        """
        if nodes is not None and nodes != source:
            raise ValueError(
                f"a one-to-one layer has the grid of its input, {source}, not {nodes}; leave it out"
            )
        return source

    def sources(self, region: Region, source: Shape) -> tuple[Region, ...]:
        """The same region."""
        return (region,) if region.size else ()

    def edges(self, rows: tuple[int, int], shape: Shape, source: Shape) -> tuple[Index, Index]:
        """One edge for each node."""
        stride = math.prod(shape[1:])
        return np.arange((rows[1] - rows[0]) * stride + 1), np.arange(rows[0] * stride, rows[1] * stride)

    def fan_in(self, source: Shape) -> int:
        """One."""
        return 1


@dataclass(frozen=True)
class Patch(Connectivity):
    """A node listens to a patch of the spatial axes: every axis of the input but the last, its channels.

    Args:
        size: extent of the patch, one number or one for each spatial axis.
        stride: step from one patch to the next.
        padding: rows of zeros around the input: a number, "valid" (none) or "same" (output = input / stride).
        per_channel: listen to the node's own channel only (pooling), instead of all of them (filters).

    Raises:
        ValueError: one of them is none of these.
    """

    size: Extent
    stride: Extent = 1
    padding: Extent | Literal["valid", "same"] = 0
    per_channel: bool = False

    def __post_init__(self) -> None:
        for setting in ("size", "stride"):
            extents = check_extents(getattr(self, setting), f"the {setting} of a patch is")
            object.__setattr__(self, setting, extents)
        if not (isinstance(self.padding, str) and self.padding in ("valid", "same")):
            padding = check_extents(
                self.padding, "the padding of a patch is", least=0, other="'valid', 'same', "
            )
            object.__setattr__(self, "padding", padding)
        check_flag(self.per_channel, "per_channel of a patch is")

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """One place for each patch, with as many filters as asked for (1 if not said).

        Raises:
            ValueError: the patches do not fit the input, or cannot have what was asked for.
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
        return (*spatial, source[-1] if self.per_channel else (nodes or (1,))[0])

    def sources(self, region: Region, source: Shape) -> tuple[Region, ...]:
        """The patch of every node of the region, without the padding."""
        if not region.size:
            return ()
        axes = self.axes(source)
        if axes[0].stride <= axes[0].size:
            return self._box(region, axes, source)
        start, stop = region.rows  # patches that leave rows out between them
        rows = (Region(((row, row + 1), *region.bounds[1:])) for row in range(start, stop))
        return tuple(box for row in rows for box in self._box(row, axes, source))

    def _box(self, region: Region, axes: tuple[PatchAxis, ...], source: Shape) -> tuple[Region, ...]:
        bounds = [
            (
                max(start * axis.stride - axis.before, 0),
                min((stop - 1) * axis.stride - axis.before + axis.size, extent),
            )
            for (start, stop), axis, extent in zip(region.bounds, axes, source, strict=False)
        ]
        found = Region((*bounds, region.bounds[-1] if self.per_channel else (0, source[-1])))
        return (found,) if found.size else ()

    def edges(self, rows: tuple[int, int], shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The patch of each node in the order (spatial axes, channel), padding included."""
        axes = self.axes(source)
        extents = (rows[1] - rows[0], *shape[1:-1])
        n = len(axes)
        flat = np.zeros((1,) * (2 * n), dtype=np.int64)
        inside = np.ones((1,) * (2 * n), dtype=bool)
        for i, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
            first = rows[0] if i == 0 else 0
            place = (np.arange(first, first + extent) * axis.stride - axis.before)[:, None] + np.arange(
                axis.size
            )
            place = place.reshape(
                [extent if j == i else axis.size if j == n + i else 1 for j in range(2 * n)]
            )
            flat = flat * source[i] + place
            inside = inside & (place >= 0) & (place < source[i])
        places, patch = math.prod(extents), math.prod(axis.size for axis in axes)
        flat = np.where(inside, flat * source[-1], PADDING).reshape(places, 1, patch, 1)
        channels = np.arange(source[-1])
        channel = channels.reshape(1, -1, 1, 1) if self.per_channel else channels.reshape(1, 1, 1, -1)
        table = np.where(flat == PADDING, PADDING, flat + channel)
        table = np.broadcast_to(table, (places, shape[-1], *table.shape[2:]))
        table = table.reshape(places * shape[-1], math.prod(table.shape[2:]))
        return np.arange(len(table) + 1) * table.shape[1], table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """Nodes in a patch."""
        return math.prod(axis.size for axis in self.axes(source)) * (1 if self.per_channel else source[-1])

    def axes(self, source: Shape) -> tuple[PatchAxis, ...]:
        """How patches lie on each spatial axis of an input of this shape.

        Raises:
            ValueError: the patches are for another number of axes, or the padding is as large as they are.
        """
        n = len(source) - 1
        for what, value in (("size", self.size), ("stride", self.stride), ("padding", self.padding)):
            if isinstance(value, tuple) and len(value) != n:
                raise ValueError(
                    f"the {what} {value} of a patch does not name the {n} spatial axes of {source}"
                )
        return tuple(
            PatchAxis.place(self.size, self.stride, self.padding, axis=i, extent=source[i]) for i in range(n)
        )


@dataclass(frozen=True, slots=True)
class PatchAxis:
    """Patches on one axis: `out` of them, `size` long, every `stride` nodes, the first at `-before`."""

    size: int
    stride: int
    before: int
    out: int

    @classmethod
    def place(
        cls, size: Extent, stride: Extent, padding: Extent | str, *, axis: int, extent: int
    ) -> PatchAxis:
        """Patches over the `extent` nodes of this axis."""
        size = size[axis] if isinstance(size, tuple) else size
        stride = stride[axis] if isinstance(stride, tuple) else stride
        padding = padding[axis] if isinstance(padding, tuple) else padding
        if padding == "same":
            out = -(-extent // stride)
            return cls(size, stride, max((out - 1) * stride + size - extent, 0) // 2, out)
        if padding == "valid":
            padding = 0
        if not isinstance(padding, int) or not 0 <= padding < size:
            raise ValueError(
                f"the padding of a patch is {padding!r}; it must be 'valid', 'same' or 0 to {size - 1}"
            )
        return cls(size, stride, padding, (extent + 2 * padding - size) // stride + 1)
