"""Pictures and sequences with more or fewer places: `ZeroPad`, `Crop`, `UpSample`.

All take the axes before the last one as places: height and width of pictures, the positions of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from partita.layers.box import Box, Extent, Margins, Shape
from partita.layers.checks import check_extents, check_padding
from partita.layers.connectivity import Index, Patch, PatchAxis
from partita.layers.contract import Step, Tensor
from partita.layers.copies import Copied, Copy, positions
from partita.layers.patches import padded

Around: TypeAlias = Extent | Margins
"""Rows and columns around a picture: a number, one for each axis, or a pair for each."""


@dataclass(frozen=True)
class Framed(Patch):
    """The wiring of each node to the node of the input that is `before` places nearer to the beginning.

    Args:
        margins: places added before and behind each axis; taken away where negative.
    """

    margins: Around = 0

    def axes(self, source: Shape) -> tuple[PatchAxis, ...]:
        """Patches of one node.

        Raises:
            ValueError: the margins have another number of axes.
        """
        if self.placed is not None:
            return self.placed
        n, given = len(source) - 1, self.margins
        pairs = given if isinstance(given, tuple) else (given,) * n
        if len(pairs) != n:
            raise ValueError(f"the margins {given} do not name the {n} axes of places of the input {source}")
        found = []
        for pair, extent in zip(pairs, source, strict=False):
            before, behind = pair if isinstance(pair, tuple) else (pair, pair)
            found.append(PatchAxis(1, 1, before, extent + before + behind))
        return tuple(found)


@dataclass(frozen=True)
class Frame(Copy):
    """The layers whose nodes are those of the input, less or more those at the edges."""

    @property
    def connectivity(self) -> Framed:
        """The node of its place."""
        return Framed(1, per_channel=True, margins=self.margins)

    @property
    def margins(self) -> Around:
        """Places added on each axis, before and behind."""
        raise NotImplementedError

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """More or fewer places, with the same channels."""
        (source,) = sources
        if any(axis.out < 1 for axis in self.connectivity.axes(source)):
            raise ValueError(f"nothing is left of an input of the shape {source}; crop less")
        return self.connectivity.shape(source, None)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's padding, of negative widths where it crops."""
        return padded(step, inputs[0])


@dataclass(frozen=True)
class ZeroPad(Frame):
    """Places of zeros around a picture, or before and behind a sequence.

    Layers of patches have a `padding` of their own, which costs no copy.

    Args:
        padding: a number, one for each axis of places, or ((top, bottom), (left, right)).
        name: the layer's name in the network.
    """

    padding: Around = 1

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        self._settle(padding=check_padding(self.padding, "the padding is"))

    @property
    def margins(self) -> Around:
        """Places of zeros on each axis."""
        return self.padding


@dataclass(frozen=True)
class Crop(Frame):
    """A picture without the places at its edges, or a sequence without its ends.

    Args:
        cropping: how many are left out: a number, one for each axis of places, or ((top, bottom), (left,
            right)).
        name: the layer's name in the network.
    """

    cropping: Around = 1

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        self._settle(cropping=check_padding(self.cropping, "the cropping is"))

    @property
    def margins(self) -> Around:
        """Places that are cut off, as negative numbers."""
        given = self.cropping
        if not isinstance(given, tuple):
            return -given
        pairs = (pair if isinstance(pair, tuple) else (pair, pair) for pair in given)
        return tuple((-before, -behind) for before, behind in pairs)


@dataclass(frozen=True)
class Repeating(Copied):
    """The wiring of so many neighbouring places to one place of the input."""

    size: Extent

    def factors(self, source: Shape) -> tuple[int, ...]:
        """Places of the layer for each place of the input, on each axis of places.

        Raises:
            ValueError: the sizes have another number of axes.
        """
        n = len(source) - 1
        found = self.size if isinstance(self.size, tuple) else (self.size,) * n
        if len(found) != n or not n:
            raise ValueError(
                f"the size {self.size} does not name the {n} axes of places of the input {source}"
            )
        return found

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """So many times the places, with the same channels."""
        factors = self.factors(source)
        return (*(n * factor for n, factor in zip(source, factors, strict=False)), source[-1])

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The places from the first to the last; of pictures all columns, as kernels read."""
        if not region.size:
            return ()
        pairs = zip(region, self.factors(source), strict=False)
        found = [(start // factor, (stop - 1) // factor + 1) for (start, stop), factor in pairs]
        if len(source) == 3:
            found[1] = (0, source[1])
        return (Box((*found, region[-1])),)

    def senders(self, shape: Shape, source: Shape) -> Index:
        """Positions of the input, repeated."""
        found = positions(source)
        for axis, factor in enumerate(self.factors(source)):
            found = np.repeat(found, factor, axis)
        return found


@dataclass(frozen=True)
class UpSample(Copy):
    """Each place of a picture or of a sequence several times, side by side (PyTorch's and Keras's "nearest").

    Args:
        size: how often, on every axis of places, or on each.
        name: the layer's name in the network.
    """

    _meant: ClassVar[Any] = {
        "scale_factor": ("size",),
        "mode": "places are repeated ('nearest'); leave it out",
        "interpolation": "places are repeated ('nearest'); leave it out",
        "align_corners": "places are repeated ('nearest'); leave it out",
    }

    size: Extent = 2

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        self._settle(size=check_extents(self.size, "the size is"))

    @property
    def connectivity(self) -> Repeating:
        """The place of the input that covers the node's."""
        return Repeating(self.size)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """So many times the places."""
        return self.connectivity.shape(sources[0], None)

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Repeats rows and columns; of the rows, those to be computed."""
        (found,) = inputs
        factors = self.connectivity.factors(step.sources[0])
        for axis, factor in enumerate(factors):
            found = found.repeat_interleave(factor, axis) if factor > 1 else found
        first = step.rows[0] - step.windows[0][0] * factors[0]
        return found[first : first + step.rows[1] - step.rows[0]]
