"""Filters that all places of a picture, or of a sequence, share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from partita.layers.activations import activated
from partita.layers.box import Extent, Shape
from partita.layers.checks import check_whole
from partita.layers.connectivity import Connectivity, Padding, Patch
from partita.layers.contract import Step, Tensor
from partita.layers.layer import Parameter
from partita.layers.patches import Frame, padded
from partita.layers.weighted_sum import WeightedSum, check_picture


@dataclass(frozen=True)
class Convolution(WeightedSum):
    """Filters on patches of every axis but the last, the channels."""

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
        """PyTorch's convolution, with examples first; what it cannot pad is padded before."""
        assert isinstance(step.wiring, Patch)
        axes, functional = step.wiring.axes(step.sources[0]), step.torch.nn.functional
        picture, weight, bias = inputs[0], parameters[0].movedim(-1, 1), parameters[1:]
        widths = Frame.of(step, picture).even_padding
        if widths is None:
            picture, widths = padded(step, picture), [0] * len(axes)
        strides, dilations = ([getattr(axis, name) for axis in axes] for name in ("stride", "dilation"))
        settings = strides, widths, dilations, step.wiring.groups
        if len(axes) == 1:
            given = step.contiguous(picture.permute(2, 1, 0))
            sums = functional.conv1d(given, weight, *(bias or (None,)), *settings).permute(2, 1, 0)
        else:  # channels last, of which oneDNN makes most
            given = step.contiguous(picture.permute(3, 0, 1, 2)).permute(0, 3, 1, 2)
            sums = step.convolve(given, weight, *(bias or (None,)), *settings).permute(2, 3, 1, 0)
        return activated(step.torch, self.activation, sums)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The weight of each filter, and its bias if there is one; shared by all places."""
        (patch,) = self.wirings(sources)
        assert isinstance(patch, Patch)
        size = tuple(axis.size for axis in patch.axes(sources[0]))
        shapes = (shape[-1], *size, sources[0][-1] // patch.groups), shape[-1:]
        unshared = super().parameters(shape, sources)
        return tuple(replace(p, shape=own, shared=True) for p, own in zip(unshared, shapes, strict=False))


@dataclass(frozen=True)
class Conv2D(Convolution):
    """Filters on patches of a picture `[height, width, channels]`, all places sharing their weights.

    The weight is `[filters, kernel height, kernel width, channels / groups]`, and each node uses the row of
    its filter; the bias is `[filters]`. PyTorch's weight is `[filters, channels / groups, kernel height,
    kernel width]`: `permute(0, 2, 3, 1)` converts it; Keras's kernel needs `transpose(3, 0, 1, 2)`.

    From 16 examples on and without groups and dilation, a cut layer agrees with the whole one to the bit in
    its activations and their gradients; PyTorch computes others, within rounding. Parameter gradients agree
    within rounding: each machine sums over its own places, and then their sums are added.

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

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """Height and width of the places, then the filters."""
        check_picture(sources[0])
        return super().shape(sources)


@dataclass(frozen=True)
class Conv1D(Convolution):
    """Filters on neighbouring positions of a sequence `[positions, channels]`, all sharing their weights.

    The weight is `[filters, kernel size, channels / groups]`, the bias `[filters]`. PyTorch's weight is
    `[filters, channels / groups, kernel size]`: `permute(0, 2, 1)` converts it; Keras's kernel needs
    `transpose(2, 0, 1)`. A cut by positions sends a halo, as that of `Conv2D`.

    Args:
        filters: number of nodes at each position.
        kernel_size: positions of a patch.
        stride: from one patch to the next.
        padding: "valid", "same", or the number of positions of zeros at each end, or ((before, behind),).
        dilation: from one position of a patch to the next.
        groups: number of groups of filters and channels; a filter reads the channels of its own group.
        activation, use_bias, initialiser, bias_initialiser, regulariser, trainable, name: as in
            `Dense`.
    """

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The places, then the filters.

        Raises:
            ValueError: the input is no sequence.
        """
        if len(sources[0]) != 2:
            raise ValueError(
                f"the input has shape {sources[0]}; a sequence is (positions, channels), for example (100, 8)"
            )
        return super().shape(sources)


@dataclass(frozen=True)
class DepthwiseConv2D(Convolution):
    """Filters that read one channel of a picture each, all places sharing their weights.

    Filter `c * depth_multiplier + k` reads channel `c`. The weight is `[filters, kernel height, kernel width,
    1]`, the bias `[filters]`: those of a `Conv2D` with as many groups as channels.

    Args:
        kernel_size: height and width of a patch.
        depth_multiplier: filters of each channel.
        stride, padding, dilation: as in `Conv2D`.
        activation, use_bias, initialiser, bias_initialiser, regulariser, trainable, name: as in
            `Dense`.
    """

    filters: int = field(default=1, init=False, repr=False)
    kernel_size: Extent
    groups: int = field(default=1, init=False, repr=False)
    depth_multiplier: int = field(default=1, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        self._settle(depth_multiplier=check_whole(self.depth_multiplier, "the depth multiplier is"))

    def wirings(self, sources: tuple[Shape, ...]) -> tuple[Connectivity, ...]:
        """A patch of one channel for each filter."""
        check_picture(sources[0])
        return (replace(self.connectivity, groups=sources[0][-1]),)

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """Height and width of the places, then the filters of all channels."""
        (patch,) = self.wirings(sources)
        return patch.shape(sources[0], (sources[0][-1] * self.depth_multiplier,))
