"""Several inputs side by side along an axis, and a part of one: `Concatenate`, `Slice`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from partita.layers.box import Box, Shape
from partita.layers.checks import is_whole
from partita.layers.connectivity import PADDING, Connectivity, Index, OneToOne
from partita.layers.contract import Step, Tensor
from partita.layers.copies import Copied, Copy, positions


@dataclass(frozen=True)
class Shifted(Copied):
    """The wiring of each node to the node of the input that lies `by` further along an axis, if there is one.

    Args:
        axis: of both grids.
        by: position of the input that feeds position 0.
        step: positions of the input from one node to the next.
    """

    axis: int
    by: int
    step: int = 1

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The shape of the input, as a shift does not say where its grid ends."""
        return source

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The region, further along the axis; of pictures all columns where it is shifted along those."""
        if not region.size:
            return ()
        found, (start, stop), extent = list(region), region[self.axis], source[self.axis]
        first, last = start * self.step + self.by, (stop - 1) * self.step + self.by
        first = first if first >= 0 else first % self.step
        last = last if last < extent else extent - 1 - (extent - 1 - self.by) % self.step
        if first > last:
            return ()
        if self.axis == 0 and self.step > 1:
            rows = range(first, last + 1, self.step)
            return tuple(Box(((row, row + 1), *found[1:])) for row in rows)
        found[self.axis] = (0, extent) if self.axis == 1 and len(source) == 3 else (first, last + 1)
        return (Box(found),)

    def senders(self, shape: Shape, source: Shape) -> Index:
        """The positions of the input, and `PADDING` beside it."""
        wanted = np.arange(shape[self.axis]) * self.step + self.by
        found = positions(source).take(wanted.clip(0, source[self.axis] - 1), self.axis)
        inside = (wanted >= 0) & (wanted < source[self.axis])
        return np.where(np.expand_dims(inside, _others(self.axis, len(source))), found, PADDING)


@dataclass(frozen=True)
class ShiftedInPlace(Shifted, OneToOne):
    """A shift along an axis after those of rows and columns: a node reads its own place."""


def shifted(axis: int, by: int, step: int = 1) -> Connectivity:
    """The wiring of a shift along an axis, counted from 0."""
    return (ShiftedInPlace if axis > 1 else Shifted)(axis, by, step)


def _others(axis: int, axes: int) -> tuple[int, ...]:
    return tuple(other for other in range(axes) if other != axis)


@dataclass(frozen=True)
class Concatenate(Copy):
    """The inputs side by side along an axis, in the order in which they are given.

    Along the last axis (the channels of pictures, the features of positions) a cut by rows sends nothing.
    Along axis 0, rows come from the input that they are of.

    Args:
        axis: without the examples, from 0; -1 is the last one.
        name: the layer's name in the network.
    """

    several_inputs = True

    _meant: ClassVar[Any] = {
        "dim": ("axis",),
    }

    axis: int = -1

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        if not is_whole(self.axis):
            raise ValueError(f"the axis is {self.axis!r}; write a whole number, -1 for the last axis")
        self._settle(axis=int(self.axis))

    @property
    def connectivity(self) -> Connectivity:
        """The node of its place in one of the inputs: see `wirings`."""
        return shifted(max(self.axis, 0), 0)

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """A shift for each input, by the extents of those before it."""
        axis = self.axis % len(sources[0])
        starts = accumulate((source[axis] for source in sources[:-1]), initial=0)
        return tuple(shifted(axis, -start) for start in starts)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the inputs, with the sum of their extents on the axis.

        Raises:
            ValueError: there is one input, or they differ on other axes, or have no such axis.
        """
        first, shapes = sources[0], " and ".join(map(str, sources))
        if not -len(first) <= self.axis < len(first):
            raise ValueError(f"the axis is {self.axis}, but the input has the shape {first}")
        axis = self.axis % len(first)
        places = {(len(s), s[:axis], s[axis + 1 :]) for s in sources}
        if len(sources) < 2 or len(places) > 1:
            raise ValueError(
                f"the inputs have the shapes {shapes}; give it two or more, equal but for axis {axis}"
            )
        return (*first[:axis], sum(source[axis] for source in sources), *first[axis + 1 :])

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's concatenation of what is given: along axis 0, the rows of the inputs that feed these."""
        return step.torch.cat(inputs, self.axis % len(step.shape))


@dataclass(frozen=True)
class Slice(Copy):
    """A part of the input along one axis: `[start:stop:step]` of it, as of a list.

    Args:
        start: first position.
        stop: end of the part; None is the end of the axis. Negative positions count from there.
        step: from one position to the next.
        axis: without the examples, from 0; -1 is the last one.
        name: the layer's name in the network.
    """

    start: int = 0
    stop: int | None = None
    step: int = field(default=1, kw_only=True)
    axis: int = field(default=-1, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        for what in ("start", "stop", "step", "axis"):
            value = getattr(self, what)
            if not (is_whole(value) or (what == "stop" and value is None)) or (what == "step" and value < 1):
                least = " of at least 1" if what == "step" else ""
                raise ValueError(f"the {what} is {value!r}; write a whole number{least}")
            self._settle(**{what: value if value is None else int(value)})

    @property
    def connectivity(self) -> Connectivity:
        """The node further along the axis: see `wirings`."""
        return shifted(max(self.axis, 0), max(self.start, 0), self.step)

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """A shift by the start."""
        part = self._part(sources[0])
        return (shifted(self.axis % len(sources[0]), part.start, part.step),)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input, with the extent of the part on the axis.

        Raises:
            ValueError: the part is empty, or there is no such axis.
        """
        (source,) = sources
        if not -len(source) <= self.axis < len(source):
            raise ValueError(f"the axis is {self.axis}, but the input has the shape {source}")
        part, axis = self._part(source), self.axis % len(source)
        if not part:
            raise ValueError(
                f"positions {self.start} to {self.stop} of an axis of {source[axis]} are none; "
                "write a start below the stop"
            )
        return (*source[:axis], len(part), *source[axis + 1 :])

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """A view; along axis 0 of the rows that feed these."""
        (x,), part = inputs, self._part(step.sources[0])
        axis = self.axis % len(step.sources[0])
        if axis == 0:
            return x[:: self.step]
        return x[(slice(None),) * axis + (slice(part.start, part.stop, part.step),)]

    def _part(self, source: Shape) -> range:
        return range(source[self.axis])[self.start : self.stop : self.step]
