"""From Python's expressions to those of a node: names are looked up, arrays become templates, and sums over
the edges become loops of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from partita.engine.kernels.nodes.arithmetic import (
    FAN_IN,
    TRUTHS,
    Assign,
    Choice,
    Constant,
    Elements,
    Expression,
    Loop,
    NotUnderstood,
    Operation,
    Statement,
    Variable,
    at,
)
from partita.engine.kernels.nodes.functions import EVERYWHERE, NUMBERS, larger, smaller
from partita.engine.kernels.nodes.source import plain_number

Value: TypeAlias = Expression | Elements
Fold: TypeAlias = Callable[[Expression, Expression], Expression]

_SIGNS: Final[dict[type[ast.AST], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: "and",
    ast.Or: "or",
}
_ALIKE: Final[dict[Any, float]] = {np.zeros_like: 0.0, np.ones_like: 1.0, np.empty_like: 0.0}
_SIZED: Final[dict[Any, float]] = {np.zeros: 0.0, np.ones: 1.0, np.empty: 0.0}
_SUMS: Final = (sum, np.sum)
_LARGEST: Final = (max, np.max)
_SMALLEST: Final = (min, np.min)
_DOTS: Final = (np.dot, np.vdot, np.inner)


class ExpressionReader:
    """Reads expressions; what they need done before goes to the end of `statements`.

    Args:
        names: what the names that are not local stand for.
        numbers: the arguments that are numbers, and what they are.
        arrays: the arrays in reach by name, as templates.
        helper: what a call of a function of the user's is, for its arguments.
    """

    def __init__(
        self,
        names: dict[str, Any],
        numbers: dict[str, Expression],
        arrays: dict[str, Expression],
        helper: Callable[[FunctionType, list[Expression]], Expression],
    ) -> None:
        self.names, self.numbers, self.arrays, self._helper = names, numbers, arrays, helper
        self.statements: list[Statement] = []
        self._n_fresh = 0

    def fresh(self, prefix: str) -> str:
        """A name that no user has, as it begins with a digit."""
        self._n_fresh += 1
        return f"{self._n_fresh}_{prefix}"

    def read(self, node: ast.expr) -> Value:
        """The value of an expression."""
        read = getattr(self, f"_{type(node).__name__.lower()}", None)
        if read is None:
            raise NotUnderstood(type(node).__name__)
        value: Value = read(node)
        return value

    def number(self, node: ast.expr) -> Expression:
        """The value of an expression that is a number."""
        value = self.read(node)
        if isinstance(value, Elements):
            raise NotUnderstood("an array where a number is meant")
        return value

    def condition(self, node: ast.expr) -> Expression:
        """The value of an expression of which only the truth matters."""
        if isinstance(node, ast.BoolOp):
            return Operation(_SIGNS[type(node.op)], tuple(map(self.condition, node.values)))
        return self.number(node)

    def array(self, node: ast.expr) -> Expression | None:
        """The template of an array; None where the expression is no name of one."""
        return self.arrays.get(node.id) if isinstance(node, ast.Name) else None

    def _constant(self, node: ast.Constant) -> Value:
        return _number(node.value)

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.arrays:
            return Elements(self.arrays[node.id])
        if node.id in self.numbers:
            return self.numbers[node.id]
        if node.id in self.names:
            return _number(self.names[node.id])
        raise NotUnderstood(f"'{node.id}' before it has a value")

    def _attribute(self, node: ast.Attribute) -> Value:
        if node.attr == "size" and self.array(node.value) is not None:
            return FAN_IN
        return _number(self._meant(node))

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.MatMult):
            return self._dot(left, right)
        return self.operation(node.op, left, right)

    def operation(self, operator: ast.AST, *operands: Value) -> Value:
        """What an operator makes of numbers or arrays."""
        sign = _SIGNS.get(type(operator))
        if sign is None:
            raise NotUnderstood(type(operator).__name__)
        return _lifted(lambda *values: Operation(sign, values), *operands)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        operand = self.read(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(operand, Constant) and isinstance(node.op, ast.USub):
            return Constant(-operand.value)
        sign = {ast.USub: "-", ast.Not: "not"}.get(type(node.op))
        if sign is None or (sign == "not" and isinstance(operand, Elements)):
            raise NotUnderstood(type(node.op).__name__)
        return _lifted(lambda value: Operation(sign, (value,)), operand)

    def _boolop(self, node: ast.BoolOp) -> Value:
        values = list(map(self.number, node.values))
        if not all(isinstance(value, Operation) and value.sign in TRUTHS for value in values):
            raise NotUnderstood("'and' and 'or' of numbers, which give one of them")
        return Operation(_SIGNS[type(node.op)], tuple(values))

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.read(side) for side in (node.left, *node.comparators)]
        if len(values) > 2 and any(isinstance(value, Elements) for value in values):
            raise NotUnderstood("a chain of comparisons of arrays")
        pairs = zip(node.ops, values[:-1], values[1:], strict=True)
        found = [self.operation(operator, left, right) for operator, left, right in pairs]
        return found[0] if len(found) == 1 else Operation("and", tuple(map(_plain, found)))

    def _ifexp(self, node: ast.IfExp) -> Value:
        condition = self.condition(node.test)
        return chosen(condition, self.read(node.body), self.read(node.orelse))

    def _subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            if self.array(node.value.value) is not None and self.number(node.slice) == Constant(0):
                return FAN_IN
            raise NotUnderstood("a shape")
        template = self.array(node.value)
        if template is None or isinstance(node.slice, ast.Slice | ast.Tuple):
            raise NotUnderstood("a part of an array")
        return at(template, self.number(node.slice))

    def _call(self, node: ast.Call) -> Value:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise NotUnderstood("arguments by name")
        method = isinstance(node.func, ast.Attribute) and self.array(node.func.value) is not None
        if isinstance(node.func, ast.Attribute) and (method or not self._is_module(node.func.value)):
            return self._method(self.read(node.func.value), node.func.attr, node.args)
        return self._applied(self._meant(node.func), node.args)

    def _method(self, array: Value, name: str, arguments: list[ast.expr]) -> Value:
        if isinstance(array, Elements) and not arguments:
            if name == "copy":
                return Elements(Operation("+", (array.template,)))
            known = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean}
            if name in known:
                return self._over_edges(known[name], array)
        if isinstance(array, Elements) and name == "dot" and len(arguments) == 1:
            return self._dot(array, self.read(arguments[0]))
        raise NotUnderstood(f"the method {name}")

    def _applied(self, function: Any, arguments: list[ast.expr]) -> Value:
        """A call of a function that the name in the code stands for."""
        if not callable(function) or not isinstance(function, Hashable):
            raise NotUnderstood(f"a call of {function!r}")
        values = [self.read(argument) for argument in arguments]
        for table in (_SIZED, _ALIKE):
            if function in table and len(values) == 1 and (table is _SIZED) == (values[0] == FAN_IN):
                return Elements(Constant(table[function]))
        if function is len and isinstance(values[0], Elements):
            return FAN_IN
        if function in _DOTS and len(values) == 2:
            return self._dot(*values)
        if len(values) == 1 and isinstance(values[0], Elements) and function not in EVERYWHERE:
            return self._over_edges(function, values[0])
        if function in EVERYWHERE:
            return _made(EVERYWHERE[function], values)
        numbers = list(map(_plain, values))
        if function in NUMBERS:
            return _made(NUMBERS[function], numbers)
        if isinstance(function, FunctionType):
            return self._helper(function, numbers)
        raise NotUnderstood(f"a call of {function!r}")

    def _dot(self, left: Value, right: Value) -> Value:
        if not isinstance(left, Elements) or not isinstance(right, Elements):
            raise NotUnderstood("a product of matrices")
        return self._over_edges(np.sum, self.operation(ast.Mult(), left, right))

    def _over_edges(self, function: Any, array: Value) -> Expression:
        """One number from a number of every edge: a loop before the expression."""
        assert isinstance(array, Elements)
        if function is np.mean:
            return Operation("/", (self._over_edges(np.sum, array), FAN_IN))
        if function in _SUMS:
            return self._folded(array.template, Constant(0.0), lambda a, b: Operation("+", (a, b)), start=0)
        if function in _LARGEST or function in _SMALLEST:
            first = at(array.template, Constant(0))
            return self._folded(array.template, first, larger if function in _LARGEST else smaller, start=1)
        raise NotUnderstood(f"{function!r} of an array")

    def _folded(self, template: Expression, first: Expression, fold: Fold, *, start: int) -> Expression:
        name, place = self.fresh("total"), Variable(self.fresh("k"))
        total = Variable(name)
        step = Assign(name, fold(total, at(template, place)))
        self.statements += [
            Assign(name, first),
            Loop(place.name, Constant(start), FAN_IN, 1, (step,)),
        ]
        return total

    def _is_module(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and isinstance(self.names.get(node.id), ModuleType)

    def _meant(self, node: ast.expr) -> Any:
        """What a name, or a name in a module, stands for."""
        if isinstance(node, ast.Name) and node.id not in self.arrays and node.id not in self.numbers:
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and self._is_module(node.value):
            assert isinstance(node.value, ast.Name)
            return getattr(self.names[node.value.id], node.attr, None)
        raise NotUnderstood("a name of a name")


def chosen(condition: Expression, yes: Value, no: Value) -> Value:
    """One of two numbers, or of two arrays for every edge alike."""
    return _lifted(lambda a, b: Choice(condition, a, b), yes, no)


def _lifted(make: Callable[..., Expression], *values: Value) -> Value:
    """Applies to numbers; or to arrays edge by edge, numbers being the same for every edge."""
    made = make(*(value.template if isinstance(value, Elements) else value for value in values))
    return Elements(made) if any(isinstance(value, Elements) for value in values) else made


def _made(make: Callable[..., Expression], values: list[Any]) -> Value:
    try:
        return _lifted(make, *values)
    except TypeError:  # too many arguments, or too few: Numba says so better
        raise NotUnderstood("a call with other arguments") from None


def _plain(value: Value) -> Expression:
    if isinstance(value, Elements):
        raise NotUnderstood("an array where a number is meant")
    return value


def _number(value: Any) -> Constant:
    if plain_number(value):
        if isinstance(value, int) and abs(value) >= 2**53:
            raise NotUnderstood("a very large number")
        return Constant(value)
    raise NotUnderstood(f"the value {value!r}")
