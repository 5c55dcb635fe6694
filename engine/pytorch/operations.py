"""Operations without parameters: functions of numbers, sums, pools, and other shapes of the same numbers."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, Final

from torch import fx

from partita.engine.pytorch.conversion import Conversion, operation
from partita.engine.pytorch.nodes import arguments, extents, is_tensor, operation_of, shape_of
from partita.engine.pytorch.values import MIXED, Unsupported, Value, placed
from partita.layers import (
    Activation,
    Add,
    AveragePool2D,
    Concatenate,
    Dropout,
    GlobalAveragePool,
    GlobalMaxPool,
    MaxPool2D,
    Multiply,
    Slice,
    Softmax,
    UpSample,
    ZeroPad,
)

PICTURE = (1, 2, 0)
"""Dimensions of (channels, height, width) in the order of a picture."""


SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "gelu": {"approximate": "none"},
    "leaky_relu": {"negative_slope": 0.01},
    "elu": {"alpha": 1, "scale": 1, "input_scale": 1},
    "softplus": {"beta": 1},
}
"""Settings of functions that the layer has; others are part of an `Expression`."""


def _as_the_layer(node: fx.Node) -> bool:
    a = arguments(node)
    return all(a[name] == value for name, value in SETTINGS.get(operation_of(node), {}).items())


@operation(
    *("relu", "sigmoid", "tanh", "silu", "softplus", "elu", "gelu", "leaky_relu"),
    alone=_as_the_layer,
)
def activation(at: Conversion, node: fx.Node) -> Value:
    """A function of each number, with the settings that the layer has."""
    x = at.value(node.args[0])
    return x.with_states(at.layer(node, Activation, x.states, function=operation_of(node)))


def _of_equals(node: fx.Node) -> bool:
    a = arguments(node)
    pair = a["self"], a["other"]
    both = all(map(is_tensor, pair)) and a.get("alpha", 1) == 1
    return both and extents(pair[0]) == extents(pair[1])


@operation("add", "mul", alone=_of_equals)
def joined(at: Conversion, node: fx.Node) -> Value:
    """The sum or the product of two values of the same extents."""
    a = arguments(node)
    left, right = (at.value(a[name]) for name in ("self", "other"))
    make = Add if operation_of(node) == "add" else Multiply
    return left.with_states(at.layer(node, make, left.states, right.like(left)))


@operation("dropout", "feature_dropout")
def dropout(at: Conversion, node: fx.Node) -> Value:
    """Zeros in the place of some numbers, or of whole channels, while a network trains."""
    a = arguments(node)
    x = at.value(a["self"] if "self" in a else a["input"])  # `self` in place
    noise = None
    if operation_of(node) == "feature_dropout":
        noise = [extent if axis == x.axes[0] else 1 for axis, extent in enumerate(x.shape)]
    return _dropped(at, node, x, a["p"], noise) if a["p"] and a["train"] else x


@operation("dropped")
def dropped(at: Conversion, node: fx.Node) -> Value:
    """Zeros by a mask that the module draws."""
    source, rate, extents = node.args
    x = at.value(source)
    kept = {axis for axis, extent in zip(x.axes, extents, strict=True) if extent > 1}  # type: ignore[arg-type]
    noise = [extent if axis in kept else 1 for axis, extent in enumerate(x.shape)]
    return _dropped(at, node, x, rate, noise)


def _dropped(at: Conversion, node: fx.Node, x: Value, rate: Any, noise: list[int] | None) -> Value:
    """Dropout of numbers that share a place of `noise`; of each by itself where that has as many."""
    shape = None if noise is None or tuple(noise) == x.shape else tuple(noise)
    return x.with_states(at.layer(node, Dropout, x.states, rate=rate, noise_shape=shape))


@operation("softmax")
def softmax(at: Conversion, node: fx.Node) -> Value:
    """Shares of one dimension."""
    a = arguments(node)
    x = at.value(a["self"])
    along = _dimension(a["dim"], len(x.axes))
    order = [*(one for one in x.present if one != along), along]
    return placed(at.layer(node, Softmax, x.arranged(order)), order, len(x.axes))


def _of_pictures(node: fx.Node) -> bool:
    """Returns whether a pool is that of a layer."""
    a = arguments(node)
    whole = len(extents(node)) == 4 and not a.get("divisor_override")
    return whole and all(one == 1 for one in a.get("dilation") or ())


@operation("max_pool2d", "avg_pool2d", alone=_of_pictures)
def pool(at: Conversion, node: fx.Node) -> Value:
    """A pool over patches of a picture."""
    a = arguments(node)
    x = at.value(a["self"])
    settings: dict[str, Any] = {
        "pool_size": _both(a["kernel_size"]),
        "stride": _both(a["stride"] or a["kernel_size"]),
        "padding": tuple((one, one) for one in _both(a["padding"])),
        "ceil_mode": a["ceil_mode"],
    }
    if operation_of(node) == "avg_pool2d":
        settings["count_include_pad"] = a["count_include_pad"]
    make = AveragePool2D if operation_of(node) == "avg_pool2d" else MaxPool2D
    return placed(at.layer(node, make, x.arranged(PICTURE), **settings), PICTURE, 3)


def _of_channels(node: fx.Node) -> bool:
    """Returns whether a mean keeps one dimension, and an adaptive pool has places that divide the others."""
    if operation_of(node) != "mean":
        return _is_even(node)
    x, over = node.all_input_nodes[0], arguments(node).get("dim") or ()
    n = len(extents(x))
    kept = [d for d in range(1, n) if d not in {one % n for one in over}]
    return (
        bool(over)
        and len([d for d in kept if extents(x)[d] != (1, False)]) == 1
        and 0 not in {o % n for o in over}
    )


@operation(*("adaptive_avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool1d", "mean"), alone=_of_channels)
def global_pool(at: Conversion, node: fx.Node) -> Value:
    """A number for each channel, of all its places; or patches that divide a picture evenly."""
    a, name = arguments(node), operation_of(node)
    x = at.value(a["self"])
    n = len(x.axes)
    if name == "mean":
        over = sorted(_dimension(one, n) for one in a["dim"] or ())
    else:
        over, extents = list(range(1, n)), _both(a["output_size"])[: n - 1]
        if any(one != 1 for one in extents):
            return _even(at, node, x, extents)
    kept = [one for one in x.present if one not in over]
    if len(kept) != 1 or not over:
        raise Unsupported("it keeps more than one dimension, or takes the mean over the examples")
    present = [one for one in x.present if one in over]
    make = GlobalMaxPool if "max" in name else GlobalAveragePool
    states = x.arranged([*present, *kept])
    found = placed(at.layer(node, make, states) if present else states, kept, n)
    if name == "mean" and not a["keepdim"]:
        return Value(found.states, tuple(axis for one, axis in enumerate(found.axes) if one not in over))
    return found


def _is_even(node: fx.Node) -> bool:
    """Returns whether the places of an adaptive pool divide those of its input, or repeat each of them."""
    have, wanted = ([extent for extent, _ in extents(one)[2:]] for one in (node.all_input_nodes[0], node))
    pairs = list(zip(have, wanted, strict=True))
    if len(have) != 2:
        return have == wanted or all(one == 1 for one in wanted)
    divide = not any(one % other for one, other in pairs)
    return divide or not any(other % one for one, other in pairs)


def _even(at: Conversion, node: fx.Node, x: Value, extents: tuple[int, ...]) -> Value:
    """Places that divide those of a picture, or that repeat each of them."""
    have = x.extents[1:]
    if have == extents:
        return x
    pairs = list(zip(have, extents, strict=False))
    if len(have) == 2 and not any(one % other for one, other in pairs):
        size = tuple(one // other for one, other in pairs)
        make = MaxPool2D if "max" in operation_of(node) else AveragePool2D
        return placed(at.layer(node, make, x.arranged(PICTURE), pool_size=size), PICTURE, 3)
    if len(have) == 2 and not any(other % one for one, other in pairs):
        size = tuple(other // one for one, other in pairs)
        return placed(at.layer(node, UpSample, x.arranged(PICTURE), size=size), PICTURE, 3)
    raise Unsupported(f"it makes places {extents} of {have}, which they do not divide")


def _times_places(node: fx.Node) -> bool:
    """Returns whether an interpolation repeats each place of a picture."""
    have, wanted = (extents(one)[2:] for one in (node.all_input_nodes[0], node))
    return not any(other % one for (one, _), (other, _) in zip(have, wanted, strict=True))


@operation("upsample_nearest2d", alone=_times_places)
def repeated(at: Conversion, node: fx.Node) -> Value:
    """Each place of a picture several times."""
    x = at.value(node.args[0])
    made = (extent for extent, _ in extents(node)[2:])
    size = tuple(other // one for one, other in zip(x.extents[1:], made, strict=True))
    return placed(at.layer(node, UpSample, x.arranged(PICTURE), size=size), PICTURE, 3)


def _with_zeros(node: fx.Node) -> bool:
    """Returns whether places of zeros are added around all dimensions but the channels."""
    a, n = arguments(node), len(extents(node))
    plain = a.get("mode", "constant") == "constant" and not a["value"]
    return plain and 2 < n < 5 and len(a["pad"]) == 2 * (n - 2) and min(a["pad"]) >= 0


@operation("pad", alone=_with_zeros)
def padded(at: Conversion, node: fx.Node) -> Value:
    """Places of zeros around a picture or a sequence."""
    x, given = at.value(node.args[0]), arguments(node)["pad"]
    order = [*range(1, len(x.axes)), 0]
    pairs = tuple(tuple(given[k : k + 2]) for k in range(len(given) - 2, -1, -2))
    return placed(at.layer(node, ZeroPad, x.arranged(order), padding=pairs), order, len(x.axes))


@operation("flatten", "view", "reshape", "_unsafe_view", "unflatten", "squeeze", "unsqueeze")
def reshaped(at: Conversion, node: fx.Node) -> Value:
    """The same numbers in another shape, in the module's order."""
    x = at.value(node.args[0])
    (_, counts), *rest = extents(node) or [(0, False)]
    after = [extent for extent, _ in rest] or [1]
    if not counts or any(one for _, one in rest) or math.prod(after) != math.prod(x.extents):
        raise Unsupported(MIXED)
    return x.reshaped(after)


@operation("permute", "transpose")
def permuted(at: Conversion, node: fx.Node) -> Value:
    """Another order of the dimensions, which costs nothing until a layer needs it."""
    a, n, name = arguments(node), len(shape_of(node)), operation_of(node)
    x, order = at.value(a["self"]), list(range(n))
    if name == "permute":
        order = [one % n for one in a["dims"]]
    else:
        first, second = a["dim0"] % n, a["dim1"] % n
        order[first], order[second] = order[second], order[first]
    if order[0] != 0:
        raise Unsupported("it moves the examples from axis 0")
    return x.turned([one - 1 for one in order[1:]])


@operation("cat")
def concatenated(at: Conversion, node: fx.Node) -> Value:
    """Values one behind the other along a dimension."""
    a = arguments(node)
    first, *others = (at.value(one) for one in a["tensors"])
    along = _dimension(a["dim"], len(first.axes))
    order = [one for one in first.present if one != along]
    order.insert(first.present.index(along) if along in first.present else len(order), along)
    found = at.layer(
        node, Concatenate, *(one.arranged(order) for one in (first, *others)), axis=order.index(along)
    )
    return placed(found, order, len(first.axes))


@operation("select", "slice")
def part(at: Conversion, node: fx.Node) -> Value:
    """Some places of a dimension, or one of them."""
    a, name = arguments(node), operation_of(node)
    places = at.stacked(a["self"])
    if places and name == "select" and a["dim"] == 1:
        one: Value = places[a["index"]]
        return one
    x = at.value(a["self"])
    if a["dim"] == 0:
        raise Unsupported("it takes some of the examples")
    along = _dimension(a["dim"], len(x.axes))
    extent = x.extents[along]
    if name == "select":
        return _one_place(at, node, x, along, a["index"] % extent)
    wanted = range(extent)[a["start"] : a["end"] : a["step"]]
    return _places(at, node, x, along, wanted)


def _places(at: Conversion, node: fx.Node, x: Value, along: int, wanted: range) -> Value:
    """Some places of a dimension."""
    axis = x.axes[along]
    if axis is None or wanted == range(x.extents[along]):
        return x
    start, stop, step = wanted.start, wanted.stop, wanted.step
    return Value(at.layer(node, Slice, x.states, start=start, stop=stop, step=step, axis=axis), x.axes)


def _one_place(at: Conversion, node: fx.Node, x: Value, along: int, place: int) -> Value:
    """One place of a dimension, which goes."""
    found = _places(at, node, x, along, range(place, place + 1))
    return found.reshaped([extent for one, extent in enumerate(found.extents) if one != along] or [1])


@operation("split", "chunk", "split_with_sizes", "unbind")
def parts(at: Conversion, node: fx.Node) -> tuple[Value, ...]:
    """Places of a dimension, one run behind the other, or each alone."""
    x = at.value(node.args[0])
    made = [tuple(one.shape) for one in node.meta["val"]]
    along = _dimension(arguments(node)["dim"], len(x.axes))
    if operation_of(node) == "unbind":
        return tuple(_one_place(at, node, x, along, place) for place in range(len(made)))
    stops = list(accumulate(int(shape[along + 1]) for shape in made))
    spans = zip((0, *stops), stops, strict=False)
    return tuple(_places(at, node, x, along, range(start, stop)) for start, stop in spans)


def _dimension(given: Any, n: int) -> int:
    """A dimension behind the examples, of n, from an argument of PyTorch."""
    found = given[0] if isinstance(given, list | tuple) else given
    found = found + n + 1 if found < 0 else found
    if found == 0:
        raise Unsupported("it is along the examples")
    return int(found) - 1


def _both(given: Any) -> tuple[int, ...]:
    return tuple(given) * (2 // len(given)) if isinstance(given, list | tuple) else (given, given)
