"""Filters that all places of a picture share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from partita.layers.box import Extent, Shape
from partita.layers.checks import check_whole
from partita.layers.connectivity import Padding, Patch
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Parameter
from partita.layers.patches import padded
from partita.layers.weighted_sum import WeightedSum, check_picture


@dataclass(frozen=True)
class Conv2D(WeightedSum):
    """Filters on patches of a picture `[height, width, channels]`, all places sharing their weights.

    The weight is `[filters, kernel height, kernel width, channels / groups]`, and each node uses the row of
    its filter; the bias is `[filters]`. PyTorch's weight is `[filters, channels / groups, kernel height,
    kernel width]`: `permute(0, 2, 3, 1)` converts it; Keras's kernel needs `transpose(3, 0, 1, 2)`.

    A cut layer agrees with the whole one to the bit in its activations and their gradients, and within
    rounding in its parameter gradients: each machine sums over its own places, and then their sums are added.

    Args:
        filters: number of nodes at each patch.
        kernel_size: height and width of a patch.
        stride: from one patch to the next.
        padding: "valid", "same", or the number of rows and columns of zeros: a number, or one for each axis,
            or ((top, bottom), (left, right)).
        dilation: from one row or column of a patch to the next.
        groups: number of groups of filters and channels; a filter reads the channels of its own group.
        activation, use_bias, initialiser, bias_initialiser, regulariser, trainable, name: as in
            `Dense`.
    """

    filters: int
    kernel_size: Extent
    stride: Extent = field(default=1, kw_only=True)
    padding: Padding = field(default="valid", kw_only=True)
    dilation: Extent = field(default=1, kw_only=True)
    groups: int = field(default=1, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        patch = self.connectivity
        self._settle(
            filters=check_whole(self.filters, "the number of filters is"),
            kernel_size=patch.size,
            stride=patch.stride,
            padding=patch.padding,
            dilation=patch.dilation,
            groups=patch.groups,
        )

    @property
    def nodes(self) -> Shape:
        """The filters at each place."""
        return (self.filters,)

    @property
    def connectivity(self) -> Patch:
        """A patch with the channels of the filter's group."""
        return Patch(
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def forward(self, step: Step, inputs: tuple[Tensor, ...], parameters: tuple[Tensor, ...]) -> Tensor:
        """PyTorch's convolution, which wants examples first and knows no padding that differs by side."""
        (y, x), weight = self.connectivity.axes(step.sources[0]), parameters[0].permute(0, 3, 1, 2)
        picture = padded(step, inputs[0]).permute(3, 2, 0, 1)
        strides, dilation = (y.stride, x.stride), (y.dilation, x.dilation)
        sums = step.torch.nn.functional.conv2d(
            picture, weight, stride=strides, dilation=dilation, groups=self.groups
        )
        return self._finished(step, sums.permute(2, 3, 1, 0), parameters)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """Height and width of the places, then the filters."""
        check_picture(sources[0])
        return super().shape(sources)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The weight of each filter, and its bias if there is one; shared by all places."""
        patch = tuple(axis.size for axis in self.connectivity.axes(sources[0]))
        shapes = (self.filters, *patch, sources[0][-1] // self.groups), (self.filters,)
        unshared = super().parameters(shape, sources)
        return tuple(replace(p, shape=own, shared=True) for p, own in zip(unshared, shapes, strict=False))
