"""Patches of a picture in torch, for `forward` of layers whose connectivity is `Patch`."""

from __future__ import annotations

from partita.layers.box import Span
from partita.layers.connectivity import Patch
from partita.layers.contract import Step, Tensor


def margins(step: Step, picture: Tensor) -> list[Span]:
    """Returns how many rows (columns ...) of padding lie before a picture, and how many after it, where the
    patches of the step's rows reach. Negative numbers are of rows that no patch reaches.

    Args:
        step: whose wiring is a `Patch` over a picture or a sequence.
        picture: the rows given, `[row, column, channel, example]`; `[row, channel, example]` of a sequence.
    """
    assert isinstance(step.wiring, Patch)
    (y, *across), (start, stop) = step.wiring.axes(step.sources[0]), step.windows[0]
    top = step.rows[0] * y.stride - y.before
    bottom = (step.rows[1] - 1) * y.stride - y.before + (y.size - 1) * y.dilation + 1
    above = min(start, bottom) - top if start < stop else bottom - top
    below = bottom - stop if start < stop else 0
    widths = [(above, below)]
    for x, n_places, extent in zip(across, step.shape[1:], picture.shape[1:], strict=False):
        last = (n_places - 1) * x.stride - x.before + (x.size - 1) * x.dilation
        widths.append((x.before, last + 1 - extent))
    return widths


def even_padding(step: Step, picture: Tensor) -> list[int] | None:
    """Returns how many rows (columns ...) of padding on both sides alike give the patches of the step's rows;
    None where no number does. A patch beyond the last stride needs none, so that one side may have more than
    is read, or rows that no patch reaches.

    Args:
        step: see `margins`.
        picture: see `margins`.
    """
    assert isinstance(step.wiring, Patch)
    n_places = step.rows[1] - step.rows[0], *step.shape[1:]
    found = []
    for (before, _), axis, n, extent in zip(
        margins(step, picture), step.wiring.axes(step.sources[0]), n_places, picture.shape, strict=False
    ):
        rest = extent + 2 * before - (axis.size - 1) * axis.dilation - 1
        if not extent or before < 0 or rest < 0 or rest // axis.stride + 1 != n:
            return None
        found.append(before)
    return found


def padded(step: Step, picture: Tensor, value: float = 0.0) -> Tensor:
    """Returns a picture with its margins around it. The picture itself where these are nothing.

    Args:
        step: see `margins`.
        picture: see `margins`.
        value: of the padding.
    """
    widths = margins(step, picture)
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
