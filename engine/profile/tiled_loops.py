"""The compiled loops of a layer on patches, on some of its rows and drawn numbers, to be measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Final

import numpy as np
from typing_extensions import override

from partita.engine.kernels import local_loops
from partita.engine.kernels.convolution import gradient as shared_gradient
from partita.engine.kernels.convolution import loops as shared_loops
from partita.engine.kernels.kernel import Array, Call
from partita.engine.kernels.patches import PatchGeometry
from partita.engine.kernels.tiles.forms import Tile
from partita.engine.numerics import aligned, downcast_array, master, storage
from partita.partitioner.cluster.tile_forms import TiledLoop

_OPERATIONS: Final = 100e6
_WEIGHTS: Final = 8 << 20
"""Operations and weights of the rows, at most: a millisecond or two, and more than caches hold if the layer
has so many."""


class LoopsOfRows(ABC):
    """The first rows of a layer, their input, and the gradient of their sums, all from its first row on.

    Args:
        loop: the operation; others of the layer have the same arrays.
    """

    def __init__(self, loop: TiledLoop) -> None:
        self._loop, self._storage, self._master = loop, storage(loop.precision), master(loop.precision)
        (height, width, channels), (_, columns, filters) = loop.picture, loop.places
        self._geometry = PatchGeometry(*loop.patch, *loop.stride, *loop.before, *loop.picture)
        fan_in = loop.patch[0] * loop.patch[1] * channels
        of_row = columns * filters * fan_in
        most = min(_OPERATIONS / loop.row_operations, loop.places[0] if loop.shared else _WEIGHTS / of_row)
        self._rows = rows = max(1, min(loop.places[0], int(most)))
        end = (rows - 1) * loop.stride[0] - loop.before[0] + loop.patch[0]
        self._x = self._drawn(max(min(end, height), 1), width, channels, loop.batch)
        self._grad = self._drawn(rows, columns, filters, loop.batch)

    def prepare(self, tile: Tile) -> tuple[Call, Array]:
        """Returns a call in the form of a tile, and the array that it writes."""
        match self._loop.operation:
            case "forward":
                return self.forward(tile)
            case "input gradient":
                return self.input_gradient(tile)
            case "weight gradient":
                return self.weight_gradient(tile)

    @abstractmethod
    def forward(self, tile: Tile) -> tuple[Call, Array]:
        """Prepares the sums of the rows."""

    @abstractmethod
    def input_gradient(self, tile: Tile) -> tuple[Call, Array]:
        """Prepares the gradient of their input."""

    @abstractmethod
    def weight_gradient(self, tile: Tile) -> tuple[Call, Array]:
        """Prepares the gradient of their weights."""

    def _drawn(self, *shape: int) -> Array:
        """Draws numbers quickly: a few normal ones, repeated."""
        few = np.random.default_rng(0).standard_normal(4093).astype(self._master)
        if self._storage != self._master:
            few = downcast_array(few, np.empty(few.shape, self._storage))
        found = aligned(shape, self._storage)
        found[...] = np.resize(few, shape)
        return found

    def _sums(self, *shape: int) -> Array:
        return aligned(shape, self._master)


class OwnWeights(LoopsOfRows):
    """The loops of layers no two places of which share a weight."""

    def __init__(self, loop: TiledLoop) -> None:
        super().__init__(loop)
        self._places = local_loops.Places(0, self._rows, loop.places[1], loop.places[2], loop.batch, 0)
        self._shape = self._places, self._geometry

    @override
    def forward(self, tile: Tile) -> tuple[Call, Array]:
        out, bias = self._sums(self._grad.size), self._drawn(self._grad.size // self._loop.batch)
        given = self._x.reshape(-1), self._weight(), bias, (0, self._rows), *self._shape, tile
        return partial(local_loops.forward, out, *given), out

    @override
    def input_gradient(self, tile: Tile) -> tuple[Call, Array]:
        out = aligned((self._x.size,), self._storage)
        lines = self._loop.patch[0] * self._x[0].size
        sums = out if self._storage == self._master else self._sums(lines)
        given = self._weight(), self._grad.reshape(-1), (0, len(self._x)), False, *self._shape, tile
        return partial(local_loops.backward_input, out, sums, *given), out

    @override
    def weight_gradient(self, tile: Tile) -> tuple[Call, Array]:
        g, out = self._geometry, self._sums(self._weight().size)
        line = local_loops.transposed_row(g, self._loop.batch, out.itemsize)
        given = self._sums(g.size_y * line), self._x.reshape(-1), self._grad.reshape(-1), (0, self._rows)
        return partial(local_loops.backward_weight, out, *given, *self._shape, False, tile), out

    def _weight(self) -> Array:
        g = self._geometry
        return self._drawn(self._grad.size // self._loop.batch * g.size_y * g.size_x * g.channels)


class SharedWeights(LoopsOfRows):
    """The loops of convolutions."""

    @override
    def forward(self, tile: Tile) -> tuple[Call, Array]:
        out, sums = aligned(self._grad.shape, self._storage), self._sums(*self._grad.shape[1:])
        bias = self._drawn(self._loop.places[2])
        given = self._x, self._weight(), bias, out, (0, 0), 0, sums, self._geometry, tile
        return partial(shared_loops.forward, *given), out

    @override
    def input_gradient(self, tile: Tile) -> tuple[Call, Array]:
        weight, out = self._weight(), aligned(self._x.shape, self._storage)
        filters, height, width, channels = weight.shape
        packed = self._sums(-(-channels // tile.rows), height, width, filters, tile.rows)
        shared_loops.pack(weight, packed, 0, len(packed))
        given = out, 0, packed, self._grad, 0, False, self._sums(*out.shape[1:]), self._geometry, tile
        return partial(shared_loops.backward_input, *given), out

    @override
    def weight_gradient(self, tile: Tile) -> tuple[Call, Array]:
        (_, columns, filters, batch), fan_in = self._grad.shape, self._weight()[0].size
        transposed, sums = self._sums(columns, batch, filters), self._sums(fan_in, filters)
        x, grad, out, all_filters = self._x, self._grad, self._sums(filters, fan_in), (0, filters)
        given = x, grad, (0, 0), transposed, sums, out, all_filters, self._geometry, tile
        return partial(shared_gradient.backward_weight, *given), out

    def _weight(self) -> Array:
        g = self._geometry
        return self._drawn(self._loop.places[2], g.size_y, g.size_x, g.channels)


def loops_of(loop: TiledLoop) -> LoopsOfRows:
    """Returns the loops of the layer that an operation belongs to, with arrays."""
    return SharedWeights(loop) if loop.shared else OwnWeights(loop)
