"""Operations on tensors whose examples are not on axis 0, as operations on nodes that have them there."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from partita.engine.pytorch.examples_first import ELSEWHERE, Placed, Rewriting, rule
from partita.engine.pytorch.nodes import arguments, is_zeros, operation_of
from partita.engine.pytorch.values import Unsupported

ALONG = "it is along the examples, or takes some of them"
MIXES = "it mixes the examples with another dimension"


@rule("permute", "transpose", "t")
def permuted(at: Rewriting, node: fx.Node) -> Placed:
    """Another account of the same axes."""
    a = arguments(node)
    x = at.of(a["self"])
    n = len(x.dims)
    order = list(range(n))
    if operation_of(node) == "permute":
        order = [one % n for one in a["dims"]]
    else:
        first, second = (a.get(name, number) % n for number, name in enumerate(("dim0", "dim1")))
        order[first], order[second] = order[second], order[first]
    return Placed(x.node, tuple(x.dims[one] for one in order))


@rule("scores_of_loss")
def scores_of_loss(at: Rewriting, node: fx.Node) -> Placed:
    """The scores of a loss in the order of its target; notes the number of rows before the examples."""
    given, shape, classes = node.args
    x = at.merged(at.of(given))
    order = [number for number in range(len(x.dims)) if number != classes]
    axes = [axis for number in order for axis in x.dims[number]]
    if 0 not in axes:
        raise Unsupported(MIXES)
    node.meta["before"] = math.prod(int(x.extents[axis]) for axis in axes[: axes.index(0)])
    last = () if classes == -1 else (x.dims[classes],)  # type: ignore[index]
    found = at.standard(Placed(x.node, ((0,), *((axis,) for axis in axes if axis), *last)))
    if [int(one) for one in found.meta["val"].shape[1:]] != list(shape):  # type: ignore[arg-type]
        found = at.call("reshape", found, [-1, *shape])  # type: ignore[misc]
    return Placed(found, tuple((axis,) for axis in range(found.meta["val"].dim())))


@rule("contiguous", "clone", "alias")
def same(at: Rewriting, node: fx.Node) -> Placed:
    """Returns the argument, which such an operation does not change."""
    return at.of(node.args[0])


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def reshaped(at: Rewriting, node: fx.Node) -> Placed:
    """The same axes in other products; an axis that two dimensions share becomes two."""
    x = at.of(node.args[0])
    dims: list[tuple[int, ...]] = []
    todo = [axis for one in x.dims for axis in one]
    for extent in node.meta["val"].shape:
        own: list[int] = []
        counts, size = _factor(at, extent)
        while (counts, size) != (False, 1):
            if not todo:
                raise Unsupported(MIXES)
            axis = todo.pop(0)
            have = 1 if axis == 0 else int(x.extents[axis])
            if axis == 0 and not counts:
                raise Unsupported(MIXES)
            if size % have:
                if size == 1 or have % size:
                    raise Unsupported(MIXES)
                x = at.split(x, axis, have // size)
                todo = [axis + 1, *(one + (one > axis) for one in todo)]
                dims = [tuple(one + (one > axis) for one in earlier) for earlier in dims]
                own, have = [one + (one > axis) for one in own], size
            own.append(axis)
            counts, size = counts and axis != 0, size // have
        dims.append(tuple(own))
    if any(axis == 0 or int(x.extents[axis]) > 1 for axis in todo):
        raise Unsupported(MIXES)
    return Placed(x.node, tuple(dims))


def _factor(at: Rewriting, extent: Any) -> tuple[bool, int]:
    """Returns whether an extent has the examples for a factor, and the product of the others."""
    if not isinstance(extent, torch.SymInt):
        return False, int(extent)
    expression = extent.node.expr
    [batch] = expression.free_symbols
    factor = expression.subs(batch, 1)
    if expression != factor * batch:
        raise Unsupported(f"it has the extent {expression}, no multiple of the number of examples")
    return True, int(factor)


@rule("linear")
def linear(at: Rewriting, node: fx.Node) -> Placed:
    """A product along the last dimension."""
    a = arguments(node)
    return _along_last(at, node, a["input"])


@rule("layer_norm", "rms_norm")
def normalised(at: Rewriting, node: fx.Node) -> Placed:
    """Normalisation over the last dimension."""
    a = arguments(node)
    if len(a["normalized_shape"]) > 1:
        raise Unsupported("it is over several dimensions, and the examples are among or behind the others")
    return _along_last(at, node, a["input"])


def _along_last(at: Rewriting, node: fx.Node, argument: Any) -> Placed:
    x = at.with_last(at.of(argument), len(at.of(argument).dims) - 1)
    return Placed(at.again(node, {argument: x.node}), x.dims)


@rule("embedding")
def embedding(at: Rewriting, node: fx.Node) -> Placed:
    """A new last dimension."""
    indices = arguments(node)["indices"]
    x = at.of(indices)
    return Placed(at.again(node, {indices: x.node}), (*x.dims, (len(x.extents),)))


@rule("softmax", "log_softmax", "_softmax", "cumsum")
def along(at: Rewriting, node: fx.Node) -> Placed:
    """A function of the numbers along one dimension."""
    source = node.all_input_nodes[0]
    x = at.of(source)
    x = at.with_last(x, arguments(node)["dim"] % len(x.dims))
    return Placed(at.again(node, {source: x.node}, dim=len(x.extents) - 1), x.dims)


@rule("mean", "sum", "amax", "amin")
def reduced(at: Rewriting, node: fx.Node) -> Placed:
    """A number for each place of the dimensions that are kept."""
    a, source = arguments(node), node.all_input_nodes[0]
    x = at.of(source)
    if "dim" not in a:
        raise Unsupported(MIXES)
    given = a["dim"] if isinstance(a["dim"], list | tuple) else [a["dim"]]
    if not given or given == [None]:
        raise Unsupported(ALONG)
    over = [one % len(x.dims) for one in given]
    for number, dimension in enumerate(over):
        x = at.with_last(x, dimension)
        changed = {"dim": [len(x.extents) - 1] if isinstance(a["dim"], list | tuple) else len(x.extents) - 1}
        reducing = at.again(node, {source: x.node}, keepdim=False, **changed)
        dims = [() if one == dimension else axes for one, axes in enumerate(x.dims)]
        x, source = Placed(reducing, tuple(dims)), source if number < len(over) else reducing
    if not a["keepdim"]:
        x = Placed(x.node, tuple(axes for one, axes in enumerate(x.dims) if one not in over))
    return x


@rule("select")
def selected(at: Rewriting, node: fx.Node) -> Placed:
    """One place of a dimension."""
    a = arguments(node)
    x = at.of(a["self"])
    return _place(at, x, a["dim"] % len(x.dims), a["index"])


def _place(at: Rewriting, x: Placed, dimension: int, index: int) -> Placed:
    """One place of a dimension; of an axis that a view has split, a run of places of the axis before."""
    own, rest = x.dims[dimension], (*x.dims[:dimension], *x.dims[dimension + 1 :])
    if 0 in own:
        raise Unsupported(ALONG)
    if not own:
        return Placed(x.node, rest)
    split = at.splits.get(x.node)
    if len(own) == 1 and split is not None and own[0] == split[1]:
        source, axis = split
        start, inner = index % int(x.extents[axis]), int(x.extents[axis + 1])
        found = at.call("slice", source.node, axis, start * inner, (start + 1) * inner)
    else:
        x = x if len(own) == 1 else at.with_last(x, dimension)
        [axis] = x.dims[dimension]
        rest = (*x.dims[:dimension], *x.dims[dimension + 1 :])
        found = at.call("select", x.node, axis, index)
    return Placed(found, tuple(tuple(one - (one > axis) for one in axes) for axes in rest))


@rule("slice", "narrow")
def sliced(at: Rewriting, node: fx.Node) -> Placed:
    """Some places of a dimension."""
    a = arguments(node)
    x = at.of(a["self"])
    dimension = a["dim"] % len(x.dims)
    if 0 in x.dims[dimension]:
        if _factor(at, node.meta["val"].shape[dimension]) == _factor(
            at, a["self"].meta["val"].shape[dimension]
        ):
            return x
        raise Unsupported(ALONG)
    x = x if len(x.dims[dimension]) == 1 else at.with_last(x, dimension)
    [axis] = x.dims[dimension]
    return Placed(at.again(node, {a["self"]: x.node}, dim=axis), x.dims)


@rule("split", "split_with_sizes", "chunk", "unbind")
def parts(at: Rewriting, node: fx.Node) -> Placed:
    """Places of a dimension, one run behind the other: results for `getitem`."""
    a = arguments(node)
    x = at.of(a["self"])
    dimension = a["dim"] % len(x.dims)
    if operation_of(node) == "unbind":
        return x
    x = at.with_last(x, dimension)
    return Placed(at.again(node, {a["self"]: x.node}, dim=len(x.extents) - 1), x.dims)


@rule("getitem")
def item(at: Rewriting, node: fx.Node) -> Placed:
    """One of the results."""
    source: Any = node.args[0]
    x, number = at.placed[source], operator.index(node.args[1])  # type: ignore[arg-type]
    if operation_of(source) == "unbind":
        return _place(at, x, arguments(source)["dim"] % len(x.dims), number)
    if operation_of(x.node) in ("lstm", "gru"):
        return _recurrent_result(at, x.node, number)
    return Placed(at.call(operator.getitem, x.node, number), x.dims)


@rule("cat")
def concatenated(at: Rewriting, node: fx.Node) -> Placed:
    """Tensors one behind the other along a dimension, in one arrangement of their axes."""
    a = arguments(node)
    n = len(node.meta["val"].shape)
    given = {one: at.with_last(at.of(one), a["dim"] % n) for one in a["tensors"]}
    first, *others = given.values()
    if any(one.dims != first.dims for one in others):
        raise Unsupported("it joins tensors of examples in two arrangements")
    replaced = {one: x.node for one, x in given.items()}
    return Placed(at.again(node, replaced, dim=len(first.extents) - 1), first.dims)


@rule("bmm", "matmul", "baddbmm")
def product(at: Rewriting, node: fx.Node) -> Placed:
    """Products of the matrices in the last two dimensions, for each place of the others."""
    a = arguments(node)
    added = operation_of(node) == "baddbmm"
    names = ("batch1", "batch2") if added else ("self", "mat2" if "mat2" in a else "other")
    left, right = (_matrix(at, at.of(a[one])) for one in names)
    if left.dims[:-2] != right.dims[:-2]:
        raise Unsupported("it multiplies tensors of examples in two arrangements")
    n = len(left.extents)
    found = Placed(at.call("matmul", left.node, right.node), (*left.dims[:-2], (n - 2,), (n - 1,)))
    if not added:
        return found
    if (a["beta"], a["alpha"]) != (1, 1):
        raise Unsupported(f"its beta is {a['beta']}, and its alpha {a['alpha']}")
    if a["self"] in at.placed:
        raise Unsupported("it adds a tensor of examples to a product")
    term = at.constant(a["self"], found)
    return Placed(at.call(torch.ops.aten.add.Tensor, found.node, term), found.dims)


def _matrix(at: Rewriting, x: Placed) -> Placed:
    """A tensor whose last two dimensions are its last two axes."""
    if any(0 in one for one in x.dims[-2:]):
        raise Unsupported("it is along the examples, or along a dimension that has them")
    x = at.with_last(x, len(x.dims) - 2)
    return at.with_last(x, len(x.dims) - 1)


@rule("addmm", "mm")
def product_with_weight(at: Rewriting, node: fx.Node) -> Placed:
    """A product of the last dimension with a matrix, for each place of the others."""
    a = arguments(node)
    x, weight = a.get("mat1", a["self"]), a["mat2"]
    bias = a["self"] if "mat1" in a else None
    if weight in at.placed or bias in at.placed or (a.get("beta", 1), a.get("alpha", 1)) != (1, 1):
        raise Unsupported(ELSEWHERE)
    placed = at.with_last(at.of(x), 1)
    found = at.call("linear", placed.node, at.call("t", weight), bias)
    return Placed(found, placed.dims)


@rule("lstm", "gru")
def recurrent(at: Rewriting, node: fx.Node) -> Placed:
    """Sequences (examples, positions, features), from states (examples, layers, units)."""
    a = arguments(node)
    if "batch_sizes" in a:
        raise Unsupported("it has a packed sequence; give it padded sequences of one length")
    x = at.of(a["input"])
    if not a["batch_first"]:
        x = Placed(x.node, (x.dims[1], x.dims[0], x.dims[2]))
    alone = not isinstance(a["hx"], list | tuple)
    states = [a["hx"]] if alone else a["hx"]
    hx = states if all(map(is_zeros, states)) else [_state(at, one) for one in states]
    changed = {**a, "input": at.standard(x), "hx": hx[0] if alone else hx, "batch_first": True}
    value = node.meta["val"]
    with value[0].fake_mode:
        output = value[0] if a["batch_first"] else value[0].movedim(1, 0)
        turned = (output, *(one.movedim(1, 0) for one in value[1:]))
    found = at.add(node.target, tuple(changed.values()), turned)
    found.meta["positions_first"] = not a["batch_first"]
    return Placed(found, ((0,), (1,), (2,)))


def _state(at: Rewriting, argument: Any) -> fx.Node:
    x = at.of(argument)
    return at.standard(Placed(x.node, (x.dims[1], x.dims[0], x.dims[2])))


def _recurrent_result(at: Rewriting, made: fx.Node, number: int) -> Placed:
    """The sequence of a recurrent layer in its own order, or states (layers, examples, units)."""
    found = at.call(operator.getitem, made, number)
    turned = number > 0 or made.meta["positions_first"]
    return Placed(found, ((1,), (0,), (2,)) if turned else ((0,), (1,), (2,)))
