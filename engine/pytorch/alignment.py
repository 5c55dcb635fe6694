"""Dimensions along which operations of ATen run: the parts of the arguments that a part of the result needs.

A part of the result along such a dimension needs the same part of some arguments, and all of the others. So
chains of operations are cut by rows. The rules know extents and no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from torch import fx

from partita.engine.pytorch.nodes import arguments, extents, operation_of, tensors_of

Demands: TypeAlias = Iterable[tuple[Any, int | None]]
"""Arguments, each with the dimension of which the same part is needed; None where all of it is."""
Rule: TypeAlias = Callable[[fx.Node, int], Demands]
"""Demands for a part of the result along a dimension, counted with that of the examples."""


class NotAlong(Exception):
    """A part of the result along this dimension needs more of the arguments."""


RULES: Final[dict[str, Rule]] = {}
"""By the name of the operation, without its overload."""

SHAPES: Final = frozenset(
    (
        *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
        *("transpose", "t", "expand", "slice", "select", "narrow", "cat", "stack", "repeat"),
        *("repeat_interleave", "split", "split_with_sizes", "chunk", "unbind", "getitem", "flip", "roll"),
        *("contiguous", "clone", "alias"),
    )
)
"""Operations that move numbers and compute none."""

PRODUCTS: Final = frozenset(
    ["matmul", "bmm", "mm", "addmm", "baddbmm", "linear", "einsum", "scaled_dot_product_attention"]
)
"""Operations that add up products."""

POINTWISE: Final = (
    *("add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "sqrt", "rsqrt", "reciprocal", "square"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "sinh"),
    *("cosh", "asin", "acos", "atan", "atan2", "sigmoid", "erf", "sign", "floor", "ceil", "round"),
    *("trunc", "frac", "remainder", "fmod", "relu", "relu6", "hardtanh", "hardswish", "hardsigmoid"),
    *("hardshrink", "softshrink", "gelu", "silu", "mish", "selu", "celu", "elu", "leaky_relu"),
    *("softplus", "log_sigmoid", "threshold", "clamp", "clamp_min", "clamp_max", "minimum", "maximum"),
    *("fmin", "fmax", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_and"),
    *("logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not", "isnan"),
    *("isinf", "addcmul", "addcdiv", "lerp", "complex", "polar", "real", "imag", "zeros_like"),
    *("ones_like", "full_like", "to", "_to_copy", "type_as", "contiguous", "clone", "alias"),
)
"""Operations number by number."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of operations with these names."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _dimension(given: Any, node: fx.Node) -> int:
    """A dimension of a node's tensor from an argument, which may count from the end."""
    return int(given) % max(len(extents(node)), 1)


@rule(*POINTWISE)
def pointwise(node: fx.Node, d: int) -> Demands:
    """Operations number by number; arguments of extent 1 are repeated."""
    return [_repeated(one, node, d) for one in tensors_of(node)]


def _repeated(argument: fx.Node, node: fx.Node, d: int) -> tuple[fx.Node, int | None]:
    """The demand of an operation that repeats its argument along missing dimensions and those of extent 1."""
    out, own = extents(node), extents(argument)
    k = d - (len(out) - len(own))
    return argument, k if k >= 0 and own[k] == out[d] else None


@rule("softmax", "_softmax", "log_softmax", "cumsum", "flip", "roll", "glu")
def along(node: fx.Node, d: int) -> Demands:
    """Operations along some dimensions, which keep the others."""
    a = arguments(node)
    given = a.get("dims", a.get("dim"))
    over = given if isinstance(given, list | tuple) else [given]
    if not over or d in [_dimension(one, node) for one in over]:
        raise NotAlong
    return [(node.all_input_nodes[0], d)]


@rule(
    "mean",
    "sum",
    "amax",
    "amin",
    "prod",
    "var",
    "std",
    "logsumexp",
    "linalg_vector_norm",
    "norm",
    "any",
    "all",
)
def reduced(node: fx.Node, d: int) -> Demands:
    """A number for each place of the other dimensions."""
    a, x = arguments(node), node.all_input_nodes[0]
    given = a.get("dim")
    if given is None or given == []:
        raise NotAlong
    over = {_dimension(one, x) for one in (given if isinstance(given, list | tuple) else [given])}
    n = len(extents(x))
    kept = list(range(n)) if a.get("keepdim") else [one for one in range(n) if one not in over]
    if kept[d] in over:
        raise NotAlong
    return [(x, kept[d])]


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
def reshaped(node: fx.Node, d: int) -> Demands:
    """The dimension with the same extent behind as many numbers."""
    x = node.all_input_nodes[0]
    out, own = extents(node), extents(x)
    before = _product(out[:d])
    for k, extent in enumerate(own):
        if _product(own[:k]) == before and (extent == out[d] or (extent[1] and out[d][1])):
            return [(x, k)]
    raise NotAlong


def _product(given: tuple[tuple[int, bool], ...]) -> tuple[int, int]:
    return math.prod(factor for factor, _ in given), sum(counts for _, counts in given)


@rule("expand", "repeat")
def repeated(node: fx.Node, d: int) -> Demands:
    """Dimensions that are not repeated."""
    x = node.all_input_nodes[0]
    found = _repeated(x, node, d)
    k = d - (len(extents(node)) - len(extents(x)))
    if found[1] is None and operation_of(node) == "repeat" and k >= 0 and extents(x)[k] != (1, False):
        raise NotAlong
    return [found]


@rule("repeat_interleave")
def interleaved(node: fx.Node, d: int) -> Demands:
    """Dimensions whose places are not repeated."""
    x, dim = node.all_input_nodes[0], arguments(node)["dim"]
    if dim is None or d == _dimension(dim, x):
        raise NotAlong
    return [(x, d)]


@rule("permute", "transpose", "t")
def permuted(node: fx.Node, d: int) -> Demands:
    """The dimension that stands there."""
    a, x = arguments(node), node.all_input_nodes[0]
    order = list(range(len(extents(x))))
    if operation_of(node) == "permute":
        order = [_dimension(one, x) for one in a["dims"]]
    else:
        first, second = (_dimension(a.get(name, n), x) for n, name in enumerate(("dim0", "dim1")))
        order[first], order[second] = order[second], order[first]
    return [(x, order[d])]


@rule("slice", "narrow", "cat", "split", "split_with_sizes", "chunk")
def placed(node: fx.Node, d: int) -> Demands:
    """Dimensions beside that of which places are taken or joined."""
    inputs = tensors_of(node)
    if d == _dimension(arguments(node)["dim"], inputs[0]):
        raise NotAlong
    return [(one, d) for one in inputs]


@rule("select", "unbind")
def selected(node: fx.Node, d: int) -> Demands:
    """Dimensions beside that of which one place is taken."""
    x = node.all_input_nodes[0]
    return [(x, d + (d >= _dimension(arguments(node)["dim"], x)))]


@rule("stack")
def stacked(node: fx.Node, d: int) -> Demands:
    """Dimensions beside the new one."""
    new = _dimension(arguments(node)["dim"], node)
    if d == new:
        raise NotAlong
    return [(one, d - (d > new)) for one in tensors_of(node)]


@rule("getitem", "view_as_complex", "view_as_real")
def same(node: fx.Node, d: int) -> Demands:
    """The same dimension; not that of the two parts of complex numbers."""
    if operation_of(node) == "view_as_real" and d == len(extents(node)) - 1:
        raise NotAlong
    return [(node.all_input_nodes[0], d)]


@rule("matmul", "bmm", "mm", "addmm", "baddbmm")
def product(node: fx.Node, d: int) -> Demands:
    """Rows of the first matrix, columns of the second, and pairs of matrices."""
    a = arguments(node)
    first, second = (a[one] for one in _factors(a))
    n, added = len(extents(node)), [_repeated(a["self"], node, d)] if "add" in operation_of(node) else []
    if min(len(extents(first)), len(extents(second))) < 2:
        raise NotAlong
    if d == n - 2:
        return [(first, len(extents(first)) - 2), (second, None), *added]
    if d == n - 1:
        return [(first, None), (second, len(extents(second)) - 1), *added]
    return [_repeated(first, node, d), _repeated(second, node, d), *added]


def _factors(a: dict[str, Any]) -> tuple[str, str]:
    for names in (("batch1", "batch2"), ("mat1", "mat2"), ("self", "mat2"), ("self", "other")):
        if all(name in a for name in names):
            return names
    raise AssertionError(f"no product of {list(a)}")


@rule("linear")
def linear(node: fx.Node, d: int) -> Demands:
    """Places of the input, or units."""
    a = arguments(node)
    further = [one for one in (a["weight"], a["bias"]) if one is not None]
    if d < len(extents(node)) - 1:
        return [(a["input"], d), *((one, None) for one in further)]
    return [(a["input"], None), *((one, 0) for one in further)]


@rule("einsum")
def einsum(node: fx.Node, d: int) -> Demands:
    """The letter of the dimension."""
    a = arguments(node)
    equation = a["equation"].replace(" ", "")
    if "." in equation or "->" not in equation:
        raise NotAlong
    inputs, out = equation.split("->")
    letter = out[d]
    return [
        (one, own.index(letter) if letter in own else None)
        for one, own in zip(a["tensors"], inputs.split(","), strict=True)
    ]


@rule("scaled_dot_product_attention")
def attention(node: fx.Node, d: int) -> Demands:
    """Examples and heads; positions of the queries; features of the values."""
    a, n = arguments(node), len(extents(node))
    query, key, value, mask = (a[one] for one in ("query", "key", "value", "attn_mask"))
    masks = [] if mask is None else [mask]
    if d == n - 1:
        return [(query, None), (key, None), (value, d), *((one, None) for one in masks)]
    if d == n - 2:
        return [(query, d), (key, None), (value, None), *(_repeated(one, node, d) for one in masks)]
    if len({extents(one)[d] for one in (query, key, value)}) > 1:
        raise NotAlong
    return [(query, d), (key, d), (value, d), *(_repeated(one, node, d) for one in masks)]
