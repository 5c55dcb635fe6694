"""Patches of a picture in torch, for `forward` of layers whose connectivity is `Patch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from partita.layers.box import Span
from partita.layers.connectivity import Patch, PatchAxis
from partita.layers.contract import Step, Tensor


class Frame(NamedTuple):
    """A picture (or a sequence) under the patches of some rows of a layer.

    Args:
        axes: the patches on each axis of the whole input.
        rows: rows `[start, stop)` of the layer.
        places: the number of places on every other axis.
        window: the rows `[start, stop)` of the input that are given: those that feed `rows`.
        extents: the extents of what is given, on each axis.
    """

    axes: Sequence[PatchAxis]
    rows: Span
    places: Sequence[int]
    window: Span
    extents: Sequence[int]

    @classmethod
    def of(cls, step: Step, picture: Tensor) -> Frame:
        """The frame of a step whose wiring is a `Patch`, and of the rows given to it, `[row, column, channel,
        example]`; `[row, channel, example]` of a sequence.
        """
        assert isinstance(step.wiring, Patch)
        axes = step.wiring.axes(step.sources[0])
        n = len(axes)
        return cls(axes, step.rows, step.shape[1:n], step.windows[0], picture.shape[:n])

    @property
    def margins(self) -> list[Span]:
        """The number of rows (columns ...) of padding before the picture, and after it, where the patches
        reach. Negative numbers are of rows that no patch reaches.
        """
        (y, *across), (start, stop) = self.axes, self.window
        top = self.rows[0] * y.stride - y.before
        bottom = (self.rows[1] - 1) * y.stride - y.before + (y.size - 1) * y.dilation + 1
        above = min(start, bottom) - top if start < stop else bottom - top
        below = bottom - stop if start < stop else 0
        widths = [(above, below)]
        for x, n_places, extent in zip(across, self.places, self.extents[1:], strict=True):
            last = (n_places - 1) * x.stride - x.before + (x.size - 1) * x.dilation
            widths.append((x.before, last + 1 - extent))
        return widths

    @property
    def even_padding(self) -> list[int] | None:
        """The number of rows (columns ...) of padding on both sides alike that gives these patches; None
        where no number does. A patch beyond the last stride needs none, so that one side may have more than
        is read, or rows that no patch reaches.
        """
        n_places = self.rows[1] - self.rows[0], *self.places
        found = []
        for (before, _), axis, n, extent in zip(self.margins, self.axes, n_places, self.extents, strict=True):
            rest = extent + 2 * before - (axis.size - 1) * axis.dilation - 1
            if not extent or before < 0 or rest < 0 or rest // axis.stride + 1 != n:
                return None
            found.append(before)
        return found


def padded(step: Step, picture: Tensor, value: float = 0.0) -> Tensor:
    """Returns a picture with its margins around it. The picture itself where these are nothing.

    Args:
        step: see `Frame.of`.
        picture: see `Frame.of`.
        value: of the padding.
    """
    widths = Frame.of(step, picture).margins
    if not any(width for pair in widths for width in pair):
        return picture
    flat = (width for pair in reversed(widths) for width in pair)
    return step.torch.nn.functional.pad(picture, (0, 0, 0, 0, *flat), value=value)


def taps(step: Step, picture: Tensor, value: float = 0.0) -> Tensor:
    """A view of the patches, `[row, column, channel, example, patch row, patch column]`; see `padded`."""
    assert isinstance(step.wiring, Patch)
    found = padded(step, picture, value)
    for dimension, axis in enumerate(step.wiring.axes(step.sources[0])):
        reach = (axis.size - 1) * axis.dilation + 1
        found = found.unfold(dimension, reach, axis.stride)[..., :: axis.dilation]
    return found
