"""The patches of a convolution on its input, as plain integers that compiled loops can read."""

from __future__ import annotations

import math
from typing import NamedTuple

from partita.engine.numerics import compiled
from partita.layers.box import Shape
from partita.layers.connectivity import Patch


class Axis(NamedTuple):
    """Patches on one axis: tap t of place p is node `p * stride + t * dilation - before` of `extent`."""

    size: int
    stride: int
    dilation: int
    before: int
    extent: int


class Receivers(NamedTuple):
    """The places whose patches hold a node: `n_places` from `place` on, every `step`.

    The node is tap `tap` of the first, and `tap_step` less of each following.
    """

    place: int
    step: int
    tap: int
    tap_step: int
    n_places: int


class Geometry(NamedTuple):
    """The patches on both axes; channels and filters fall into `groups`."""

    y: Axis
    x: Axis
    groups: int

    @classmethod
    def of(cls, connectivity: Patch, source: Shape) -> Geometry:
        """Patches on a picture `(height, width, channels)`."""
        y, x = (
            Axis(axis.size, axis.stride, axis.dilation, axis.before, extent)
            for axis, extent in zip(connectivity.axes(source), source[:2], strict=True)
        )
        return cls(y, x, connectivity.groups)


@compiled
def are_joined(g: Geometry) -> bool:
    """Whether the inputs of a filter in a patch's row are contiguous: its columns, one after another."""
    return g.groups == 1 and g.x.dilation == 1


@compiled
def inside(place: int, axis: Axis) -> tuple[int, int]:
    """The taps `[low, high)` of a place that lie on the input, and not on the padding."""
    start = place * axis.stride - axis.before
    low = max(0, -(start // axis.dilation))
    return low, max(low, min(axis.size, -((start - axis.extent) // axis.dilation)))


@compiled
def receivers(node: int, axis: Axis, first: int, last: int) -> Receivers:
    """The places among `[first, last)` that have a node in their patches."""
    reach, common = node + axis.before, math.gcd(axis.stride, axis.dilation)
    step, tap_step = axis.dilation // common, axis.stride // common
    lowest = max(first, -(((axis.size - 1) * axis.dilation - reach) // axis.stride))
    for place in range(lowest, min(last, lowest + step)):
        distance = reach - place * axis.stride
        if distance >= 0 and distance % axis.dilation == 0:
            tap = distance // axis.dilation
            return Receivers(place, step, tap, tap_step, min((last - 1 - place) // step, tap // tap_step) + 1)
    return Receivers(0, step, 0, tap_step, 0)
