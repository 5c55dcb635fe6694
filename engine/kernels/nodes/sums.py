"""Recognises a node that takes a weighted sum: then its products run in the loops of the local layers.

Upward: the state is any function of the sum of `weight * incoming` and of the node's own parameters.
Downward: one number `delta`, of the state, the error and the node's own parameters; the errors are `delta *
weight`, the weight's gradient is `delta * incoming`, that of every parameter of the node `delta` itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.passes import Body, useful

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
    if len(weights) != 1 or upward.are_arrays != (False,):
        return None
    state = _of_the_sum(upward.body, weights[0])
    if state is None or not any(isinstance(one, ir.Loop) for one in upward.body):
        return None
    if downward is None:
        return WeightedSum(weights[0], state, None, False, False)
    delta = _Delta(downward.body, weights[0]).found(downward, parameters)
    back = None if delta is None else _of_the_sum(delta, weights[0])
    if delta is None or back is None:
        return None
    keeps = any(SUM in ir.operands(one) for one in ir.every(back))
    return WeightedSum(weights[0], state, back, _is_error(delta), keeps)


def _is_error(delta: Body) -> bool:
    return len(delta) == 1 and isinstance(delta[0], ir.Output) and delta[0].value == ir.ERROR


def _of_the_sum(body: Body, weight: str) -> Body | None:
    """Replaces the loops over the edges by `SUM`; None if one of them computes something else."""
    found: Body = []
    copy = ir.Copy({})
    for statement in body:
        if isinstance(statement, ir.Loop):
            total = _summed(statement, weight)
            if total is None:
                return None
            with_sum = ir.Value("+", (copy.of(total.start), SUM))
            found.append(with_sum)
            copy.put(total, with_sum)
        else:
            match statement:
                case ir.Value("*", (ir.Constant(0), ir.Value(array=ir.INCOMING))):
                    copy.put(statement, ir.Constant(0.0))  # 0 * incoming[k], the start of some sums
            found += copy.body([statement])
    found = useful(found)
    of_edges = (
        isinstance(one, ir.Loop) or (isinstance(one, ir.Value) and one.operator == "item")
        for one in ir.every(found)
    )
    return None if any(of_edges) else found


def _summed(loop: ir.Loop, weight: str) -> ir.Carried | None:
    """Finds the number to which a loop adds `weight * incoming` of every edge, and nothing else."""
    if not loop.is_of_all_edges or len(loop.carried) != 1 or len(loop.body) != 4:
        return None
    (total,) = loop.carried
    match total.end:
        case ir.Value("+", (ir.Carried() as old, ir.Value("*", factors))) | ir.Value(
            "+", (ir.Value("*", factors), ir.Carried() as old)
        ):
            items = {(one.array, one.operands) for one in factors if isinstance(one, ir.Value)}
            wanted = {(weight, (loop.counter,)), (ir.INCOMING, (loop.counter,))}
            return total if old is total and items == wanted else None
    return None


class _Delta:
    """Finds the one number from which all results of a function follow."""

    def __init__(self, body: Body, weight: str) -> None:
        self._weight, self._body = weight, body
        self._conditions = {
            one: branch.condition
            for branch in ir.every(body)
            if isinstance(branch, ir.Branch)
            for one in branch.merged
        }
        self._made: Body = []
        self._keys: dict[ir.Operand, int] = {}
        self._forms: dict[Hashable, int] = {}

    def found(self, function: ir.Function, parameters: tuple[tuple[str, str], ...]) -> Body | None:
        """Returns what computes the number, with an `Output` of it; None if there is no such number."""
        if function.are_arrays != (True, *(kind == "e" for _, kind in parameters)):
            return None
        factors: list[ir.Operand | None] = []
        others: Body = []
        for statement in self._body:
            match statement:
                case ir.Output(_, None, value):
                    factors.append(value)
                case ir.Loop(body=[*inner, ir.Output(result, _, value)]):
                    array = ir.INCOMING if result else self._weight
                    values = (one for one in inner if isinstance(one, ir.Value))
                    self._made += [one for one in values if statement.counter not in ir.behind(one)]
                    factors.append(self._factor(value, array, statement.counter))
                case _:
                    others.append(statement)
        first = factors[0]
        if first is None or any(one is None or self._key(one) != self._key(first) for one in factors):
            return None
        return useful([*others, *self._made, ir.Output(0, None, first)])

    def _new(self, operator: str, *operands: ir.Operand) -> ir.Operand:
        value = ir.Value(operator, operands)
        self._made.append(value)
        return value

    def _factor(self, value: ir.Operand, array: str, place: ir.Counter) -> ir.Operand | None:
        """Finds the factor of an array in a value, the same for every edge."""

        def of(part: ir.Operand) -> ir.Operand | None:
            return self._factor(part, array, place)

        match value:
            case ir.Value("item", (index,)) if value.array == array and index is place:
                return _ONE
            case ir.Value("*", (left, right)):
                for part, other in ((left, right), (right, left)):
                    factor = None if place in ir.behind(other) else of(part)
                    if factor is not None:
                        return other if factor == _ONE else self._new("*", factor, other)
            case ir.Value("/", (left, right)) if place not in ir.behind(right):
                factor = of(left)
                return None if factor is None else self._new("/", factor, right)
            case ir.Value("+" | "-" as sign, (only,)):
                factor = of(only)
                return None if factor is None else self._new(sign, factor)
            case ir.Value("choice", (condition, yes, no)) if place not in ir.behind(condition):
                first, second = of(yes), of(no)
                if first is not None and second is not None:
                    return self._new("choice", condition, first, second)
        return None

    def _key(self, operand: ir.Operand) -> int:
        """Returns a number that is the same for two numbers that are computed alike."""
        if operand not in self._keys:
            form: Hashable = operand
            match operand:
                case ir.Value(operator, operands):
                    keys = [self._key(one) for one in operands]
                    form = (operator, operand.array, *(sorted(keys) if operator in "*+" else keys))
                case ir.Merged(yes, no) if operand in self._conditions:
                    form = ("choice", "", *map(self._key, (self._conditions[operand], yes, no)))
            self._keys[operand] = self._forms.setdefault(form, len(self._forms))
        return self._keys[operand]
