"""Pooling: each channel of a picture, patch by patch. No parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from partita.layers.box import Extent, Shape
from partita.layers.checks import check_flag
from partita.layers.connectivity import Padding, Patch
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Layer, NodeDefinition
from partita.layers.patches import padded
from partita.layers.weighted_sum import check_picture


@dataclass(frozen=True)
class Pool2D(Layer):
    """Patches of one channel each.

    Args:
        pool_size: height and width of a patch.
        stride: from one patch to the next; as large as the patch if not given.
        padding: as in `Conv2D`. Nodes outside the picture are never the largest, and add nothing to a sum.
        ceil_mode: whether rows and columns at the end that fill no patch get a smaller one.
        name: what the network calls the layer.
    """

    slowdown = 12.0
    pool_size: Extent = 2
    stride: Extent | None = field(default=None, kw_only=True)
    padding: Padding = field(default="valid", kw_only=True)
    ceil_mode: bool = field(default=False, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        patch = self.connectivity
        self._settle(pool_size=patch.size, stride=patch.stride, padding=patch.padding)

    @property
    def connectivity(self) -> Patch:
        """A patch of the node's own channel."""
        stride = self.pool_size if self.stride is None else self.stride
        return Patch(
            self.pool_size, stride=stride, padding=self.padding, per_channel=True, ceil_mode=self.ceil_mode
        )

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """Height and width of the places, and the channels of the input."""
        check_picture(sources[0])
        return self.connectivity.shape(sources[0], None)

    def _pooled(self, step: Step, pool: Callable[..., Tensor], picture: Tensor) -> Tensor:
        """A pool of PyTorch over a picture with its padding.

        PyTorch wants examples first. All examples are channels of a single picture here: that is a view, in
        the layout for which its loops have vectors.
        """
        y, x = self.connectivity.axes(step.sources[0])
        found = pool(picture.flatten(2)[None].permute(0, 3, 1, 2), (y.size, x.size), (y.stride, x.stride))
        return found.permute(0, 2, 3, 1)[0].unflatten(2, picture.shape[2:])


def maximum() -> NodeDefinition:
    """Returns the largest sender's state, in scalars; the gradient goes to the first that has it."""

    def upward(incoming):  # type: ignore[no-untyped-def]
        largest = incoming[0]
        for k in range(1, len(incoming)):
            if incoming[k] > largest:
                largest = incoming[k]
        return largest

    def downward(incoming, state, error):  # type: ignore[no-untyped-def]
        errors = np.zeros(len(incoming))
        for k in range(len(incoming)):
            if incoming[k] == state:
                errors[k] = error
                break
        return (errors,)

    return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class MaxPool2D(Pool2D):
    """The largest activation of the patch. On a tie the gradient goes to the first of them.

    Args:
        pool_size: height and width of a patch.
        stride: from one patch to the next; as large as the patch if not given.
        padding: as in `Conv2D`. Nodes outside the picture are never the largest.
        ceil_mode: whether rows and columns at the end that fill no patch get a smaller one.
        name: the layer's name in the network.
    """

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's pool: the first of the largest."""
        pool = step.torch.nn.functional.max_pool2d
        return self._pooled(step, pool, padded(step, inputs[0], -math.inf))

    @property
    def padding_value(self) -> float:
        """Less than any state."""
        return -math.inf

    @property
    def definition(self) -> NodeDefinition:
        """The maximum of a patch, in scalars."""
        return maximum()


@dataclass(frozen=True)
class AveragePool2D(Pool2D):
    """The mean of the patch.

    Args:
        pool_size: height and width of a patch.
        stride: from one patch to the next; as large as the patch if not given.
        padding: as in `Conv2D`.
        ceil_mode: whether rows and columns at the end that fill no patch get a smaller one, with the mean of
            what it has. With padding, it needs `count_include_pad=False`.
        count_include_pad: whether nodes outside the picture count, as zeros; if not, the mean is over those
            of the patch that lie inside.
        name: what the network calls the layer.
    """

    count_include_pad: bool = field(default=True, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        check_flag(self.count_include_pad, "count_include_pad is")
        if self.ceil_mode and self.count_include_pad and self.padding not in ("valid", 0, (0, 0)):
            raise ValueError(
                "with ceil_mode, patches reach beyond the padding, and what lies there does not count; write "
                "count_include_pad=False, or leave out one of ceil_mode and padding"
            )

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's pool; over those inside, the mean by their share of the patch."""
        means = self._mean(step, inputs[0])
        if self.counts_outside:
            return means
        return means / self._mean(step, step.torch.ones_like(inputs[0][:, :, :1, :1]))

    def _mean(self, step: Step, x: Tensor) -> Tensor:
        return self._pooled(step, step.torch.nn.functional.avg_pool2d, padded(step, x))

    @property
    def counts_outside(self) -> bool:
        """Returns whether a mean divides by the size of the whole patch, wherever it lies."""
        return self.count_include_pad and not self.ceil_mode

    @property
    def padding_value(self) -> float:
        """Zero where it counts; else no number (NaN), which the definition leaves out."""
        return 0.0 if self.counts_outside else math.nan

    @property
    def definition(self) -> NodeDefinition:
        """The mean of a patch, in scalars."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total, n = 0.0, 0
            for k in range(len(incoming)):
                if incoming[k] == incoming[k]:
                    total += incoming[k]
                    n += 1
            return total / n

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            n = 0
            for k in range(len(incoming)):
                if incoming[k] == incoming[k]:
                    n += 1
            return (np.zeros(len(incoming)) + error / n,)

        return NodeDefinition(upward, downward)


@dataclass(frozen=True)
class L2Pool2D(Pool2D):
    """The square root of the patch's sum of squares; where that is zero, the gradient is zero.

    Args:
        pool_size: height and width of a patch.
        stride: from one patch to the next; as large as the patch if not given.
        padding: as in `Conv2D`. Nodes outside the picture add nothing.
        ceil_mode: whether rows and columns at the end that fill no patch get a smaller one.
        name: the layer's name in the network.
    """

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """A square and an addition for each edge."""
        return 2.0 * self.connectivity.fan_in(sources[0])

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """The root of the mean of squares times their number: PyTorch's `lp_pool2d` raises them to powers."""
        pool, x = step.torch.nn.functional.avg_pool2d, padded(step, inputs[0])
        total = self._pooled(step, pool, x * x) * self.connectivity.fan_in(step.sources[0])
        found = total > 0
        return step.torch.where(found, total, 1.0).sqrt() * found

    @property
    def definition(self) -> NodeDefinition:
        """The Euclidean norm of a patch, in scalars."""

        def upward(incoming):  # type: ignore[no-untyped-def]
            total = 0 * incoming[0]
            for k in range(len(incoming)):
                total += incoming[k] * incoming[k]
            return math.sqrt(total)

        def downward(incoming, state, error):  # type: ignore[no-untyped-def]
            if state > 0:
                return (incoming * (error / state),)
            return (0 * incoming,)

        return NodeDefinition(upward, downward)
