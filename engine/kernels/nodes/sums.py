"""Finds out whether a node takes a weighted sum: then its products run in the loops of the local layers.

Upward: the state is any function of the sum of `weight * incoming` and of the node's own parameters.
Downward: one number `delta`, of the state, the error and the node's own parameters; the errors are `delta *
weight`, the weight's gradient is `delta * incoming`, that of every parameter of the node `delta` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.engine.kernels.nodes.arithmetic import (
    ERROR,
    FAN_IN,
    INCOMING,
    PLACE,
    Argument,
    Assign,
    Choice,
    Constant,
    Elements,
    Expression,
    Function,
    Item,
    Loop,
    Operation,
    Output,
    Statement,
    Variable,
    edited,
    every,
    expressions,
    rebuilt,
    walk,
)
from partita.engine.kernels.nodes.grouping import Flow
from partita.engine.kernels.nodes.passes import Body, useful
from partita.engine.kernels.nodes.templates import substituted

SUM: Final = Argument("@sums")
_ONE: Final = Constant(1)


@dataclass(frozen=True)
class WeightedSum:
    """The functions of a node that takes a weighted sum, number by number.

    Args:
        weight: the parameter's name.
        upward: with an `Output` of the state, from `SUM`.
        downward: with an `Output` of `delta`; None if there is no way down.
        passes: whether `delta` is the error itself.
    """

    weight: str
    upward: Body
    downward: Body | None
    passes: bool


def weighted_sum(
    upward: Function, downward: Function | None, parameters: tuple[tuple[str, str], ...]
) -> WeightedSum | None:
    """The weighted sum that a node takes; None if it does something else.

    Args:
        upward: as it was read.
        downward: the same.
        parameters: by name, "e" for a number for each edge or "n" for one.
    """
    weights = [name for name, kind in parameters if kind == "e"]
    if len(weights) != 1 or upward.returns_tuple or isinstance(upward.results[0], Elements):
        return None
    body = useful((*upward.body, Output(0, None, upward.results[0])))
    state = _of_the_sum(body, weights[0])
    if state is None:
        return None
    if downward is None:
        return WeightedSum(weights[0], state, None, False)
    delta = _delta(downward, parameters, weights[0])
    if delta is None:
        return None
    body = useful((*downward.body, Output(0, None, delta)))
    return WeightedSum(weights[0], state, body, delta == ERROR) if _is_of_the_node(body) else None


def _of_the_sum(body: Body, weight: str) -> Body | None:
    """The body with `SUM` in the place of its loops over the edges, all of which are that sum."""
    found: list[Statement] = []
    for i, statement in enumerate(body):
        if isinstance(statement, Loop):
            total = _summed(statement, weight)
            dropped = {one.name for one in every((statement,)) if isinstance(one, Assign)} - {total}
            if total is None or dropped & Flow(body[i + 1 :]).exposed:
                return None
            found.append(Assign(total, Operation("+", (Variable(total), SUM))))
        else:
            found.append(edited(statement, _without_zeros))
    has_loops = any(isinstance(statement, Loop) for statement in body)
    return tuple(found) if has_loops and _is_of_the_node(tuple(found)) else None


def _summed(loop: Loop, weight: str) -> str | None:
    """The variable to which a loop adds `weight * incoming` of every edge, and nothing else."""
    if (loop.start, loop.stop, loop.step) != (Constant(0), FAN_IN, 1):
        return None
    body = substituted(loop.body)
    if body is None or len(body) != 1 or not isinstance(body[0], Assign):
        return None
    name, value = body[0].name, body[0].value
    place = Variable(loop.variable)
    factors = {Item(weight, place), Item(INCOMING, place)}
    match value:
        case Operation("+", (old, Operation("*", terms))) | Operation("+", (Operation("*", terms), old)):
            return name if old == Variable(name) and set(terms) == factors else None
    return None


def _delta(function: Function, parameters: tuple[tuple[str, str], ...], weight: str) -> Expression | None:
    """The one number from which all results follow."""
    if not function.returns_tuple or len(function.results) != 1 + len(parameters):
        return None
    errors, *gradients = function.results
    found: list[Expression | None] = [_factor_of(weight, errors)]
    for (_, kind), gradient in zip(parameters, gradients, strict=True):
        if kind == "e":
            found.append(_factor_of(INCOMING, gradient))
        else:
            found.append(None if isinstance(gradient, Elements) else gradient)
    first, *others = found
    if first is None or any(other is None or _ordered(other) != _ordered(first) for other in others):
        return None
    return first


def _factor_of(array: str, value: Expression | Elements) -> Expression | None:
    """By what an array is multiplied, the same for every edge."""
    if not isinstance(value, Elements):
        return None
    return _factor(Item(array, PLACE), value.template)


def _factor(item: Item, template: Expression) -> Expression | None:
    match template:
        case Operation("*", (left, right)):
            for part, other in ((left, right), (right, left)):
                factor = None if PLACE in walk(other) else _factor(item, part)
                if factor is not None:
                    return other if factor == _ONE else Operation("*", (factor, other))
        case Operation("/", (left, right)) if PLACE not in walk(right):
            factor = _factor(item, left)
            return None if factor is None else Operation("/", (factor, right))
        case Operation("+" | "-" as sign, (only,)):
            factor = _factor(item, only)
            return None if factor is None else Operation(sign, (factor,))
        case Choice(condition, yes, no) if PLACE not in walk(condition):
            sides = _factor(item, yes), _factor(item, no)
            return None if None in sides else Choice(condition, *sides)  # type: ignore[arg-type]
    return _ONE if template == item else None


def _ordered(expression: Expression) -> Expression:
    """The expression with the operands of sums and products in one order, for comparisons."""
    expression = rebuilt(expression, _ordered)
    match expression:
        case Operation("*" | "+" as sign, operands):
            return Operation(sign, tuple(sorted(operands, key=repr)))
    return expression


def _without_zeros(expression: Expression) -> Expression:
    """The expression with 0 for `0 * incoming[k]`, as some sums begin."""
    match expression:
        case Operation("*", (Constant(0), Item(array, _))) if array == INCOMING:
            return Constant(0.0)
    return rebuilt(expression, _without_zeros)


def _is_of_the_node(body: Body) -> bool:
    """Whether nothing in a body has to do with edges, or is missing."""
    statements = list(every(body))
    assigned = {Variable(one.name) for one in statements if isinstance(one, Assign)}
    parts = [part for one in statements for whole in expressions(one) for part in walk(whole)]
    return (
        not any(isinstance(one, Loop) for one in statements)
        and not any(isinstance(part, Item) for part in parts)
        and {part for part in parts if isinstance(part, Variable)} <= assigned
    )
