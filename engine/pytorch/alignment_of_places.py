"""Dimensions along which operations on places run: pools, resizing, padding, convolutions without a layer.

They keep the examples and, if they have no weights, the channels, so that parts compute some channels each.
The rules register themselves beside those of `alignment`.
"""

from __future__ import annotations

from torch import fx

from partita.engine.pytorch.alignment import Demands, NotAlong, rule
from partita.engine.pytorch.nodes import arguments, extents, tensors_of


@rule(
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa"),
)
def of_channels(node: fx.Node, d: int) -> Demands:
    """The examples and the channels."""
    if d > 1:
        raise NotAlong
    return [(node.all_input_nodes[0], d)]


@rule(
    "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"
)
def padded(node: fx.Node, d: int) -> Demands:
    """Dimensions to which no places are added."""
    n = len(extents(node))
    a = arguments(node)
    given = a["pad"] if "pad" in a else a["padding"]
    if d >= n - len(given) // 2:
        raise NotAlong
    return [(node.all_input_nodes[0], d)]


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv3d")
def convolved(node: fx.Node, d: int) -> Demands:
    """The examples, and the channels of the result where all of them read all of the input's."""
    a = arguments(node)
    bias = [] if a["bias"] is None else [a["bias"]]
    if d == 0:
        return [(a["input"], 0), (a["weight"], None), *((one, None) for one in bias)]
    if d > 1 or a["groups"] > 1:
        raise NotAlong
    own = 0 if "transpose" not in str(node.target) else 1
    return [(a["input"], None), (a["weight"], own), *((one, 0) for one in bias)]


@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def shuffled(node: fx.Node, d: int) -> Demands:
    """The examples alone: a channel becomes places, or moves to another."""
    if d:
        raise NotAlong
    return [(node.all_input_nodes[0], 0)]


@rule("layer_norm", "rms_norm")
def normalised(node: fx.Node, d: int) -> Demands:
    """Dimensions before those over which it normalises."""
    a = arguments(node)
    if d >= len(extents(node)) - len(a["normalized_shape"]):
        raise NotAlong
    return [(one, d if one is a["input"] else None) for one in tensors_of(node)]


@rule("instance_norm")
def normalised_places(node: fx.Node, d: int) -> Demands:
    """The examples and the channels; it has no running statistics."""
    a = arguments(node)
    if d > 1 or a["running_mean"] is not None:
        raise NotAlong
    return [(one, d if one is a["input"] else (0 if d else None)) for one in tensors_of(node)]
