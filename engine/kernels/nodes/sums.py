"""Recognises a node that takes a weighted sum: then its products run in the loops of the local layers.

Upward: the state is any function of the sum of `weight * incoming` and of the node's own parameters.
Downward: one number `delta`, of the state, the error and the node's own parameters; the errors are `delta *
weight`, the weight's gradient is `delta * incoming`, that of every parameter of the node `delta` itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.grouping import Flow
from partita.engine.kernels.nodes.passes import Body, useful
from partita.engine.kernels.nodes.templates import substituted

SUM: Final = ir.Argument("@sums")
_ONE: Final = ir.Constant(1)


@dataclass(frozen=True)
class WeightedSum:
    """The functions of a node that takes a weighted sum, number by number.

    Args:
        weight: the parameter's name.
        upward: with an `Output` of the state, from `SUM`.
        downward: with an `Output` of `delta`; None if there is no backward pass.
        passes: whether `delta` is the error itself.
        keeps_sums: whether `delta` depends on `SUM`.
    """

    weight: str
    upward: Body
    downward: Body | None
    passes: bool
    keeps_sums: bool


def weighted_sum(
    upward: ir.Function, downward: ir.Function | None, parameters: tuple[tuple[str, str], ...]
) -> WeightedSum | None:
    """Finds the weighted sum of a node; None if it computes something else.

    Args:
        upward: the function that computes the state.
        downward: the function that computes the gradients; None if there is no backward pass.
        parameters: pairs of a name and "e" (a number for each edge) or "n" (a number for each node).
    """
    weights = [name for name, kind in parameters if kind == "e"]
    if len(weights) != 1 or upward.returns_tuple or isinstance(upward.results[0], ir.Elements):
        return None
    body = useful((*upward.body, ir.Output(0, None, upward.results[0])))
    state = _of_the_sum(body, weights[0])
    if state is None or not any(isinstance(one, ir.Loop) for one in body):
        return None
    if downward is None:
        return WeightedSum(weights[0], state, None, False, False)
    delta = _delta(downward, parameters, weights[0])
    if delta is None:
        return None
    back = _of_the_sum(useful((*downward.body, ir.Output(0, None, delta))), weights[0])
    if back is None:
        return None
    wholes = [whole for one in ir.every(back) for whole in ir.expressions(one)]
    keeps = any(part == SUM for whole in wholes for part in ir.walk(whole))
    return WeightedSum(weights[0], state, back, delta == ir.ERROR, keeps)


def _of_the_sum(body: Body, weight: str) -> Body | None:
    """Replaces the loops over the edges by `SUM`; None if one of them computes something else."""
    found: list[ir.Statement] = []
    for i, statement in enumerate(body):
        if isinstance(statement, ir.Loop):
            total = _summed(statement, weight)
            dropped = {one.name for one in ir.every((statement,)) if isinstance(one, ir.Assign)} - {total}
            if total is None or dropped & Flow(body[i + 1 :]).exposed:
                return None
            found.append(ir.Assign(total, ir.Operation("+", (ir.Variable(total), SUM))))
        else:
            found.append(ir.edited(statement, _without_zeros))
    return tuple(found) if _is_of_the_node(tuple(found)) else None


def _summed(loop: ir.Loop, weight: str) -> str | None:
    """Finds the variable to which a loop adds `weight * incoming` of every edge, and nothing else."""
    if (loop.start, loop.stop, loop.step) != (ir.Constant(0), ir.FAN_IN, 1):
        return None
    body = substituted(loop.body)
    if body is None or len(body) != 1 or not isinstance(body[0], ir.Assign):
        return None
    name, value = body[0].name, body[0].value
    place = ir.Variable(loop.variable)
    factors = {ir.Item(weight, place), ir.Item(ir.INCOMING, place)}
    match value:
        case ir.Operation("+", (old, ir.Operation("*", terms))) | ir.Operation(
            "+", (ir.Operation("*", terms), old)
        ):
            return name if old == ir.Variable(name) and set(terms) == factors else None
    return None


def _delta(
    function: ir.Function, parameters: tuple[tuple[str, str], ...], weight: str
) -> ir.Expression | None:
    """Finds the one number from which all results follow."""
    if not function.returns_tuple or len(function.results) != 1 + len(parameters):
        return None
    errors, *gradients = function.results
    found: list[ir.Expression | None] = [_factor_of(weight, errors)]
    for (_, kind), gradient in zip(parameters, gradients, strict=True):
        if kind == "e":
            found.append(_factor_of(ir.INCOMING, gradient))
        else:
            found.append(None if isinstance(gradient, ir.Elements) else gradient)
    first, *others = found
    if first is None or any(other is None or _ordered(other) != _ordered(first) for other in others):
        return None
    return first


def _factor_of(array: str, value: ir.Expression | ir.Elements) -> ir.Expression | None:
    """Finds the factor of an array, the same for every edge."""
    if not isinstance(value, ir.Elements):
        return None
    return _factor(ir.Item(array, ir.PLACE), value.template)


def _factor(item: ir.Item, template: ir.Expression) -> ir.Expression | None:
    match template:
        case ir.Operation("*", (left, right)):
            for part, other in ((left, right), (right, left)):
                factor = None if ir.PLACE in ir.walk(other) else _factor(item, part)
                if factor is not None:
                    return other if factor == _ONE else ir.Operation("*", (factor, other))
        case ir.Operation("/", (left, right)) if ir.PLACE not in ir.walk(right):
            factor = _factor(item, left)
            return None if factor is None else ir.Operation("/", (factor, right))
        case ir.Operation("+" | "-" as sign, (only,)):
            factor = _factor(item, only)
            return None if factor is None else ir.Operation(sign, (factor,))
        case ir.Choice(condition, yes, no) if ir.PLACE not in ir.walk(condition):
            sides = _factor(item, yes), _factor(item, no)
            return None if None in sides else ir.Choice(condition, *sides)  # type: ignore[arg-type]
    return _ONE if template == item else None


def _ordered(expression: ir.Expression) -> ir.Expression:
    """Sorts the operands of sums and products, for comparisons."""
    expression = ir.rebuilt(expression, _ordered)
    match expression:
        case ir.Operation("*" | "+" as sign, operands):
            return ir.Operation(sign, tuple(sorted(operands, key=repr)))
    return expression


def _without_zeros(expression: ir.Expression) -> ir.Expression:
    """Replaces `0 * incoming[k]`, the start value of some sums, by 0."""
    match expression:
        case ir.Operation("*", (ir.Constant(0), ir.Item(array, _))) if array == ir.INCOMING:
            return ir.Constant(0.0)
    return ir.rebuilt(expression, _without_zeros)


def _is_of_the_node(body: Body) -> bool:
    """Returns whether a body depends on no edge, and assigns every variable that it uses."""
    statements = list(ir.every(body))
    assigned = {ir.Variable(one.name) for one in statements if isinstance(one, ir.Assign)}
    parts = [part for one in statements for whole in ir.expressions(one) for part in ir.walk(whole)]
    return (
        not any(isinstance(one, ir.Loop) for one in statements)
        and not any(isinstance(part, ir.Item) for part in parts)
        and {part for part in parts if isinstance(part, ir.Variable)} <= assigned
    )
