"""Random masks that a module draws and multiplies with, as dropout: stochastic depth, and dropout by hand.

A mask is 1 with a probability that is a number, and 0 otherwise; it may be divided by a number. Along
dimensions of extent 1 its numbers are repeated, so that whole channels, or all numbers of an example, are
dropped together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from partita.engine.pytorch.nodes import arguments, extents, is_tensor, operation_of

ATEN: Final = torch.ops.aten
SAME: Final = frozenset(["to", "_to_copy", "type_as", "contiguous", "clone", "alias", "detach"])
UNIFORM: Final = frozenset(["rand", "rand_like"])
"""Operations that draw numbers between 0 and 1."""


@torch.library.custom_op("partita::dropped", mutates_args=())
def _dropped(x: torch.Tensor, rate: float, noise: Sequence[int]) -> torch.Tensor:
    """Stands for dropout whose mask has these extents behind the examples. The graph is never run."""
    return torch.empty_like(x)


DROPPED: Final = torch.ops.partita.dropped.default


@_dropped.register_fake
def _(x: torch.Tensor, rate: float, noise: Sequence[int]) -> torch.Tensor:
    return torch.empty_like(x)


@dataclass(frozen=True)
class Mask:
    """A mask that is drawn.

    Args:
        kept: probability of a number that is not 0.
        factor: that number.
        drawn: the operation that draws it.
    """

    kept: float
    factor: float
    drawn: fx.Node


@dataclass(frozen=True)
class Dropping:
    """A product with a mask, which is dropout times a number.

    Args:
        x: what is multiplied.
        rate: of the dropout.
        noise: extents of the mask behind the examples, as many as those of `x`.
        factor: of the result of dropout, which itself divides by the share that is kept.
        last: the operation whose result it is.
    """

    x: fx.Node
    rate: float
    noise: tuple[int, ...]
    factor: float
    last: fx.Node


def dropping(node: fx.Node) -> Dropping | None:
    """Returns what a product with a random mask is; None for other products.

    Notes in `meta["refused"]` of the operation that draws why a product with a mask is no dropout.
    """
    pair = node.args[:2]
    for x, other in (pair, pair[::-1]):
        mask = _mask(other) if isinstance(other, fx.Node) and is_tensor(other) else None
        if mask is None or not isinstance(x, fx.Node):
            continue
        assert isinstance(other, fx.Node)
        reason = _refused(node, x, other, mask)
        if reason:
            mask.drawn.meta["refused"] = reason
            return None
        noise = [extent for extent, _ in extents(other)[1:]]
        found = Dropping(x, round(1 - mask.kept, 12), tuple(noise), mask.factor * mask.kept, node)
        return _with_numbers(found)
    return None


def _refused(node: fx.Node, x: fx.Node, mask: fx.Node, known: Mask) -> str:
    """The reason why a product with a mask is no dropout; none if it is."""
    if extents(x) != extents(node) or len(extents(mask)) != len(extents(x)):
        return "it multiplies with a random mask of other dimensions"
    if not extents(mask)[0][1]:
        return "it draws one random mask for all examples, which parts of a minibatch do not share"
    one: fx.Node = known.drawn
    while one is not node:
        readers = [user for user in one.users if operation_of(user) != "_assert_tensor_metadata"]
        if len(readers) != 1:
            return "its random mask is read more than once"
        one = readers[0]
    return ""


def _with_numbers(found: Dropping) -> Dropping:
    """The same with the numbers by which the product, and what is multiplied, are divided."""
    x, last = found.x, found.last
    before, by = x.args[:2] if operation_of(x) == "div" else (None, None)
    if isinstance(before, fx.Node) and isinstance(by, int | float) and len(x.users) == 1:
        found = replace(found, x=before, factor=found.factor / by)
    users = list(last.users)
    if len(users) == 1 and operation_of(users[0]) == "div" and isinstance(users[0].args[1], int | float):
        found = replace(found, factor=found.factor / users[0].args[1], last=users[0])
    return replace(found, factor=1.0) if math.isclose(found.factor, 1.0) else found


def _mask(node: fx.Node) -> Mask | None:
    """The mask that a tensor is; None for others."""
    if node.op != "call_function":
        return None
    name, a = operation_of(node), node.args
    if name in SAME and a and isinstance(a[0], fx.Node):
        return _mask(a[0])
    if name in ("div", "mul") and isinstance(a[0], fx.Node) and isinstance(a[1], int | float):
        found = _mask(a[0])
        by = 1 / a[1] if name == "div" else a[1]
        return found and replace(found, factor=found.factor * by)
    kept = _probability(node)
    drawn = node if name == "bernoulli" else _uniform(node)
    return None if kept is None or drawn is None or not 0 < kept <= 1 else Mask(kept, 1.0, drawn)


def _probability(node: fx.Node) -> float | None:
    """The probability of 1, for an operation that draws 0 or 1; None for others."""
    name, a = operation_of(node), node.args
    if name == "bernoulli":
        given = arguments(node).get("p")
        return float(given) if isinstance(given, int | float) else _filled(a[0])
    if name == "floor" and isinstance(a[0], fx.Node) and operation_of(a[0]) == "add":
        number = next((one for one in a[0].args if isinstance(one, int | float)), None)
        return None if number is None else float(number)
    if name in ("gt", "ge", "lt", "le") and isinstance(a[1], int | float):
        return float(a[1]) if name in ("lt", "le") else 1 - float(a[1])
    return None


def _uniform(node: fx.Node) -> fx.Node | None:
    """The operation that draws the uniform numbers that are compared or rounded down; None for others."""
    source: Any = node.args[0]
    if operation_of(node) == "floor":
        tensors = [one for one in source.args if isinstance(one, fx.Node)]
        source = tensors[0] if len(tensors) == 1 else None
    return source if isinstance(source, fx.Node) and operation_of(source) in UNIFORM else None


def _filled(node: Any) -> float | None:
    """The number with which a tensor is filled; None for others."""
    if not isinstance(node, fx.Node) or operation_of(node) not in ("full", "full_like", "new_full"):
        return None
    a = arguments(node)
    given = a.get("fill_value")
    return float(given) if isinstance(given, int | float) else None
