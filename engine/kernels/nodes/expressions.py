"""Reads Python's expressions into `ir`: looks names up, turns arrays into templates, and sums over edges into
loops.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.functions import EVERYWHERE, NUMBERS, larger, smaller
from partita.engine.kernels.nodes.source import plain_number

Value: TypeAlias = ir.Expression | ir.Elements
Fold: TypeAlias = Callable[[ir.Expression, ir.Expression], ir.Expression]

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
    """Reads expressions; statements that must run before them are appended to `statements`.

    Args:
        names: the values of names that are not local.
        numbers: the arguments that are numbers, and their expressions.
        arrays: the arrays in scope by name, as templates.
        helper: makes the call of a user's function, for its arguments.
    """

    def __init__(
        self,
        names: dict[str, Any],
        numbers: dict[str, ir.Expression],
        arrays: dict[str, ir.Expression],
        helper: Callable[[FunctionType, list[ir.Expression]], ir.Expression],
    ) -> None:
        self.names, self.numbers, self.arrays, self._helper = names, numbers, arrays, helper
        self.statements: list[ir.Statement] = []
        self.lines: dict[ir.Expression, ast.AST] = {}
        self._n_fresh = 0

    def fresh(self, prefix: str) -> str:
        """Returns a name that no user has, as it begins with a digit."""
        self._n_fresh += 1
        return f"{self._n_fresh}_{prefix}"

    def read(self, node: ast.expr) -> Value:
        """Reads an expression of any kind."""
        read = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            if read is None:
                raise ir.Unsupported(type(node).__name__)
            value: Value = read(node)
        except ir.Unsupported as refused:
            raise refused.at(node) from None
        return value

    def number(self, node: ast.expr) -> ir.Expression:
        """Reads an expression that is a number."""
        value = self.read(node)
        if isinstance(value, ir.Elements):
            raise ir.Unsupported("an array where a number is meant")
        return value

    def condition(self, node: ast.expr) -> ir.Expression:
        """Reads an expression of which only the truth matters."""
        if isinstance(node, ast.BoolOp):
            return ir.Operation(_SIGNS[type(node.op)], tuple(map(self.condition, node.values)))
        return self.number(node)

    def array(self, node: ast.expr) -> ir.Expression | None:
        """Returns the template of an array; None where the expression is no name of one."""
        return self.arrays.get(node.id) if isinstance(node, ast.Name) else None

    def _constant(self, node: ast.Constant) -> Value:
        return _number(node.value)

    def _name(self, node: ast.Name) -> Value:
        if node.id in self.arrays:
            return ir.Elements(self.arrays[node.id])
        if node.id in self.numbers:
            return self.numbers[node.id]
        if node.id in self.names:
            return _number(self.names[node.id])
        raise ir.Unsupported(f"'{node.id}' before it has a value")

    def _attribute(self, node: ast.Attribute) -> Value:
        if node.attr == "size" and self.array(node.value) is not None:
            return ir.FAN_IN
        return _number(self._meant(node))

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.MatMult):
            return self._dot(left, right)
        return self.operation(node.op, left, right)

    def operation(self, operator: ast.AST, *operands: Value) -> Value:
        """Applies an operator to numbers or arrays."""
        sign = _SIGNS.get(type(operator))
        if sign is None:
            raise ir.Unsupported(type(operator).__name__)
        return _lifted(lambda *values: ir.Operation(sign, values), *operands)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        operand = self.read(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(operand, ir.Constant) and isinstance(node.op, ast.USub):
            return ir.Constant(-operand.value)
        sign = {ast.USub: "-", ast.Not: "not"}.get(type(node.op))
        if sign is None or (sign == "not" and isinstance(operand, ir.Elements)):
            raise ir.Unsupported(type(node.op).__name__)
        return _lifted(lambda value: ir.Operation(sign, (value,)), operand)

    def _boolop(self, node: ast.BoolOp) -> Value:
        values = list(map(self.number, node.values))
        if not all(isinstance(value, ir.Operation) and value.sign in ir.TRUTHS for value in values):
            raise ir.Unsupported("'and' and 'or' of numbers, which give one of them")
        return ir.Operation(_SIGNS[type(node.op)], tuple(values))

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.read(side) for side in (node.left, *node.comparators)]
        if len(values) > 2 and any(isinstance(value, ir.Elements) for value in values):
            raise ir.Unsupported("a chain of comparisons of arrays")
        pairs = zip(node.ops, values[:-1], values[1:], strict=True)
        found = [self.operation(operator, left, right) for operator, left, right in pairs]
        return found[0] if len(found) == 1 else ir.Operation("and", tuple(map(_plain, found)))

    def _ifexp(self, node: ast.IfExp) -> Value:
        condition = self.condition(node.test)
        return chosen(condition, self.read(node.body), self.read(node.orelse))

    def _subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            if self.array(node.value.value) is not None and self.number(node.slice) == ir.Constant(0):
                return ir.FAN_IN
            raise ir.Unsupported("a shape")
        template = self.array(node.value)
        if template is None or isinstance(node.slice, ast.Slice | ast.Tuple):
            raise ir.Unsupported("a slice, or an index into something that is no array of numbers")
        index = self.number(node.slice)
        self.lines.setdefault(index, node)
        return ir.at(template, index)

    def _call(self, node: ast.Call) -> Value:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise ir.Unsupported("arguments by name")
        method = isinstance(node.func, ast.Attribute) and self.array(node.func.value) is not None
        if isinstance(node.func, ast.Attribute) and (method or not self._is_module(node.func.value)):
            return self._method(self.read(node.func.value), node.func.attr, node.args)
        return self._applied(self._meant(node.func), node.args)

    def _method(self, array: Value, name: str, arguments: list[ast.expr]) -> Value:
        if isinstance(array, ir.Elements) and not arguments:
            if name == "copy":
                return ir.Elements(ir.Operation("+", (array.template,)))
            known = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean}
            if name in known:
                return self._over_edges(known[name], array)
        if isinstance(array, ir.Elements) and name == "dot" and len(arguments) == 1:
            return self._dot(array, self.read(arguments[0]))
        raise ir.Unsupported(f"the method {name}")

    def _applied(self, function: Any, arguments: list[ast.expr]) -> Value:
        """Reads a call of a function, by its value."""
        if not callable(function) or not isinstance(function, Hashable):
            raise ir.Unsupported(f"a call of {_shown(function)}")
        values = [self.read(argument) for argument in arguments]
        for table in (_SIZED, _ALIKE):
            if function in table and len(values) == 1 and (table is _SIZED) == (values[0] == ir.FAN_IN):
                return ir.Elements(ir.Constant(table[function]))
        if function is len and isinstance(values[0], ir.Elements):
            return ir.FAN_IN
        if function in _DOTS and len(values) == 2:
            return self._dot(*values)
        if len(values) == 1 and isinstance(values[0], ir.Elements) and function not in EVERYWHERE:
            return self._over_edges(function, values[0])
        if function in EVERYWHERE:
            return _made(EVERYWHERE[function], values)
        numbers = list(map(_plain, values))
        if function in NUMBERS:
            return _made(NUMBERS[function], numbers)
        if isinstance(function, FunctionType):
            return self._helper(function, numbers)
        raise ir.Unsupported(f"a call of {_shown(function)}")

    def _dot(self, left: Value, right: Value) -> Value:
        if not isinstance(left, ir.Elements) or not isinstance(right, ir.Elements):
            raise ir.Unsupported("a product of matrices")
        return self._over_edges(np.sum, self.operation(ast.Mult(), left, right))

    def _over_edges(self, function: Any, array: Value) -> ir.Expression:
        """Reduces a number of every edge to one, by a loop before the expression."""
        assert isinstance(array, ir.Elements)
        if function is np.mean:
            return ir.Operation("/", (self._over_edges(np.sum, array), ir.FAN_IN))
        if function in _SUMS:
            return self._folded(
                array.template, ir.Constant(0.0), lambda a, b: ir.Operation("+", (a, b)), start=0
            )
        if function in _LARGEST or function in _SMALLEST:
            first = ir.at(array.template, ir.Constant(0))
            return self._folded(array.template, first, larger if function in _LARGEST else smaller, start=1)
        raise ir.Unsupported(f"{_shown(function)} of an array")

    def _folded(
        self, template: ir.Expression, first: ir.Expression, fold: Fold, *, start: int
    ) -> ir.Expression:
        name, place = self.fresh("total"), ir.Variable(self.fresh("k"))
        total = ir.Variable(name)
        step = ir.Assign(name, fold(total, ir.at(template, place)))
        self.statements += [
            ir.Assign(name, first),
            ir.Loop(place.name, ir.Constant(start), ir.FAN_IN, 1, (step,)),
        ]
        return total

    def _is_module(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and isinstance(self.names.get(node.id), ModuleType)

    def _meant(self, node: ast.expr) -> Any:
        """Returns the value of a name, or of a name in a module."""
        if isinstance(node, ast.Name) and node.id not in self.arrays and node.id not in self.numbers:
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and self._is_module(node.value):
            assert isinstance(node.value, ast.Name)
            return getattr(self.names[node.value.id], node.attr, None)
        raise ir.Unsupported(f"{ast.unparse(node)}, which is neither an array's nor a module's")


def chosen(condition: ir.Expression, yes: Value, no: Value) -> Value:
    """Chooses one of two numbers, or of two arrays for every edge alike."""
    return _lifted(lambda a, b: ir.Choice(condition, a, b), yes, no)


def _lifted(make: Callable[..., ir.Expression], *values: Value) -> Value:
    """Applies to numbers; or to arrays edge by edge, numbers being the same for every edge."""
    made = make(*(value.template if isinstance(value, ir.Elements) else value for value in values))
    return ir.Elements(made) if any(isinstance(value, ir.Elements) for value in values) else made


def _made(make: Callable[..., ir.Expression], values: list[Any]) -> Value:
    try:
        return _lifted(make, *values)
    except TypeError:  # too many arguments, or too few: Numba says so better
        raise ir.Unsupported("a call with other arguments") from None


def _plain(value: Value) -> ir.Expression:
    if isinstance(value, ir.Elements):
        raise ir.Unsupported("an array where a number is meant")
    return value


def _shown(function: Any) -> str:
    return str(getattr(function, "__name__", repr(function)))


def _number(value: Any) -> ir.Constant:
    if plain_number(value):
        if isinstance(value, int) and abs(value) >= 2**53:
            raise ir.Unsupported("a very large number")
        return ir.Constant(value)
    raise ir.Unsupported(f"a value of type {type(value).__name__}, where a number is meant")
