"""The patches of a layer on a picture, as plain integers that compiled loops can read."""

from __future__ import annotations

from typing import NamedTuple

from partita.engine.numerics import compiled
from partita.layers.box import Shape
from partita.layers.connectivity import Patch


class PatchGeometry(NamedTuple):
    """Patches `size_y` by `size_x`, one every `stride`, the first beginning `before` rows and columns
    outside.
    """

    size_y: int
    size_x: int
    stride_y: int
    stride_x: int
    before_y: int
    before_x: int
    height: int
    width: int
    channels: int

    @classmethod
    def of(cls, connectivity: Patch, source: Shape) -> PatchGeometry:
        """Patches on a picture `(height, width, channels)`, of which they leave nothing out."""
        y, x = connectivity.axes(source)
        assert y.dilation == x.dilation == connectivity.groups == 1, f"{connectivity} leaves nodes out"
        return cls(y.size, x.size, y.stride, x.stride, y.before, x.before, *source)


@compiled
def inside(start: int, size: int, extent: int) -> tuple[int, int]:
    """The positions `[low, high)` of a patch that begins at `start` that lie inside the picture."""
    low = max(0, -start)
    return low, max(low, min(size, extent - start))


@compiled
def receivers(y: int, geometry: PatchGeometry, first: int, last: int) -> tuple[int, int]:
    """The rows of places among `[first, last)` that have row `y` of the picture in their patches."""
    return receivers_on(y, geometry.size_y, geometry.stride_y, geometry.before_y, first, last)


@compiled
def receivers_on(node: int, size: int, stride: int, before: int, first: int, last: int) -> tuple[int, int]:
    """The places of an axis among `[first, last)` that have the node in their patches."""
    reach = node + before
    lowest = -((size - 1 - reach) // stride)  # ceil((reach - size + 1) / stride)
    return max(first, lowest), min(last, reach // stride + 1)
