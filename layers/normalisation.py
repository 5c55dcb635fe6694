"""Local contrast normalisation: each activation of a picture relative to those around it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.layers.box import Extent, Shape
from partita.layers.checks import check_number
from partita.layers.connectivity import Index, Patch
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.patches import taps
from partita.layers.weighted_sum import check_picture


@dataclass(frozen=True)
class Neighbourhood(Patch):
    """The wiring of a picture's nodes to themselves first, and then to the patch around them."""

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The shape of the input."""
        return super().shape(source, source[-1:])

    def edges(self, rows: tuple[int, int], shape: Shape, source: Shape) -> tuple[Index, Index]:
        """The node itself, then its patch in the order of `Patch`, padding included."""
        offsets, patch = super().edges(rows, shape, source)
        nodes, stride = len(offsets) - 1, math.prod(shape[1:])
        own = np.arange(rows[0] * stride, rows[0] * stride + nodes)
        table = np.concatenate([own[:, None], patch.reshape(nodes, super().fan_in(source))], axis=1)
        return np.arange(nodes + 1) * table.shape[1], table.reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """The node, and those of the patch."""
        return 1 + super().fan_in(source)


@dataclass(frozen=True)
class LocalContrastNormalisation2D(Layer):
    """Each activation as the number of local standard deviations above the local mean.

    Mean and deviation are those of one window around the place, over all channels; places weigh in by a
    Gaussian, channels evenly, and outside the picture inputs are zero: `(input - mean) / max(floor,
    deviation)`.

    Sources: Jarrett, Kavukcuoglu, Ranzato and LeCun, *What is the best multi-stage architecture for object
    recognition?*, ICCV 2009, subtractive and divisive normalisation. There, the deviation is taken over
    neighbours each less the mean of its own window, and the floor is the mean deviation of the whole picture.
    Here both are of one window, as in Pinto, Cox and DiCarlo, *Why is real-world visual object recognition
    hard?*, 2008, and the floor is a constant, as in Le et al., *Building high-level features using large
    scale unsupervised learning*, ICML 2012: so a node needs its neighbourhood alone, wherever it is cut.

    Args:
        kernel_size: height and width of the window, odd.
        sigma: standard deviation of the Gaussian, in places; a quarter of each extent if not given.
        floor: the least divisor.
        name: the layer's name in the network.
    """

    slowdown = 25.0
    kernel_size: Extent = 9
    sigma: float | None = field(default=None, kw_only=True)
    floor: float = field(default=0.01, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        size = self.connectivity.size
        for extent in size if isinstance(size, tuple) else (size,):
            if extent % 2 == 0:
                raise ValueError(f"the kernel size is {size}; make it odd, so that each place has a middle")
        sigma = None if self.sigma is None else _positive(self.sigma, "sigma")
        self._settle(kernel_size=size, sigma=sigma, floor=_positive(self.floor, "the floor"))

    @property
    def connectivity(self) -> Neighbourhood:
        """The node itself, and the window around it."""
        return Neighbourhood(self.kernel_size, padding="same")

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The shape of the input."""
        check_picture(sources[0])
        return self.connectivity.shape(sources[0], None)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """The node's share of the sums of a place, which are taken axis by axis, and a few of its own."""
        height, width = self._extents
        return 8.0 + 4.0 * (height + width) / sources[0][-1]

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """Mean and variance over windows, axis by axis, in float64: the variance is a difference of sums."""
        x, torch = inputs[0].double(), step.torch
        mean, square = (self._averaged(step, of.mean(2, keepdim=True)) for of in (x, x * x))
        variance = (square - mean * mean).clamp(min=self.floor**2)
        assert isinstance(step.wiring, Patch)
        left = self._extents[1] // 2 - step.wiring.axes(step.sources[0])[1].before
        own = x[step.rows[0] - step.windows[0][0] :][: step.rows[1] - step.rows[0]]
        own = own[:, left : left + step.shape[1]]
        return ((own - mean) * torch.rsqrt(variance)).to(inputs[0].dtype)

    def _averaged(self, step: Step, picture: Tensor) -> Tensor:
        """The weighted mean over each window, zero outside the picture."""
        rows, columns = (picture.new_tensor(weights) for weights in self.windows)
        return taps(step, picture) @ columns @ rows

    @property
    def windows(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The weights of rows and of columns; each add up to one."""
        height, width = self._extents
        return _gaussian(height, self.sigma), _gaussian(width, self.sigma)

    @property
    def definition(self) -> NodeDefinition:
        """Mean and deviation of the window, in scalars."""
        places, floor = np.outer(*self.windows).reshape(-1), self.floor

        def window(incoming: Any) -> tuple[Any, Any]:
            patch = incoming[1:]
            n_channels = len(patch) // len(places)
            mean, variance = 0.0, 0.0
            for k in range(len(patch)):
                mean += places[k // n_channels] / n_channels * patch[k]
            for k in range(len(patch)):
                variance += places[k // n_channels] / n_channels * (patch[k] - mean) ** 2
            return mean, math.sqrt(variance)

        def upward(incoming):  # type: ignore[no-untyped-def]
            mean, deviation = window(incoming)
            return (incoming[0] - mean) / max(floor, deviation)

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            mean, deviation = window(incoming)
            n_channels = (len(incoming) - 1) // len(places)
            scaled = error / max(floor, deviation)
            errors = 0.0 * incoming
            errors[0] = scaled
            for k in range(1, len(incoming)):
                share = 1.0
                if deviation > floor:
                    share += state * (incoming[k] - mean) / deviation
                errors[k] = -scaled * places[(k - 1) // n_channels] / n_channels * share
            return (errors,)

        return NodeDefinition(upward, downward)

    @property
    def _extents(self) -> tuple[int, int]:
        size = self.kernel_size
        height, width = size if isinstance(size, tuple) else (size, size)
        return height, width


def _gaussian(extent: int, sigma: float | None) -> tuple[float, ...]:
    middle, sigma = extent // 2, extent / 4 if sigma is None else sigma
    weights = [math.exp(-0.5 * ((place - middle) / sigma) ** 2) for place in range(extent)]
    return tuple(weight / sum(weights) for weight in weights)


def _positive(value: object, what: str) -> float:
    return check_number(value, f"{what} is", rule="; write a number above 0")
