"""Reads Python's expressions into `ir`: looks names up, and turns sums over edges into loops.

What an expression computes is appended to the statements of the function, in Python's order. An array that
never changes is a template: how its number for an edge is computed, which is done where it is read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.functions import EVERYWHERE, NUMBERS, larger, smaller
from partita.engine.kernels.nodes.source import plain_number


@dataclass(frozen=True)
class Template:
    """The numbers of an array.

    Args:
        value: the number of an edge.
        place: the edge.
        body: what computes it.
    """

    value: ir.Operand
    place: ir.Counter = field(default_factory=ir.Counter)
    body: ir.Body = field(default_factory=list)


Value: TypeAlias = ir.Operand | Template
Fold: TypeAlias = Callable[..., ir.Operand]


def of_array(name: str) -> Template:
    """Makes the template of an array that the node has."""
    place = ir.Counter()
    item = ir.Value("item", (place,), array=name)
    return Template(item, place, [item])


@dataclass
class Side:
    """Statements that were read apart from those around them.

    Args:
        body: its statements.
        values: the numbers of names behind it.
        results: what it returns, or the value of an expression.
    """

    body: ir.Body = field(default_factory=list)
    values: dict[str, ir.Operand] = field(default_factory=dict)
    results: list[Value] | None = None


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
    """Reads expressions.

    Args:
        names: the values of names that are not local.
        values: the numbers of local names.
        arrays: the arrays of local names.
        statements: receives what is read.
    """

    def __init__(
        self,
        names: dict[str, Any],
        values: dict[str, ir.Operand],
        arrays: dict[str, Template],
        statements: ir.Body,
    ) -> None:
        self.names, self.values, self.arrays, self.statements = names, values, arrays, statements
        self.earlier: dict[str, ir.Operand] = {}
        self.depth = 0

    def called(self, function: FunctionType, operands: list[ir.Operand]) -> ir.Operand:
        """Reads a call of a user's function of numbers."""
        raise NotImplementedError

    def emit(self, operator: str, *operands: ir.Operand, kind: ir.Kind = "real", array: str = "") -> ir.Value:
        """Adds the statement that computes a number from others."""
        value = ir.Value(operator, operands, kind, array)
        self.statements.append(value)
        return value

    def note(self, what: Any, node: ast.AST) -> None:
        """Remembers the text of something that is counted."""

    @contextmanager
    def side(self) -> Iterator[Side]:
        """Reads what is in the block below apart from the statements here."""
        found = Side(values=dict(self.values))
        outer = self.statements, self.values
        self.statements, self.values = found.body, found.values
        self.depth += 1
        yield found
        self.depth -= 1
        self.statements, self.values = outer

    def join(self, condition: ir.Operand, yes: Side, no: Side) -> list[Value]:
        """Reads a branch of two sides; returns its results."""
        branch = ir.Branch(condition, yes.body, no.body)
        arrays = [one for side in (yes, no) for one in side.results or () if isinstance(one, Template)]
        for side in (yes, no) if arrays else ():
            side.results = self._outside(branch, side, side is yes)

        def merged(a: ir.Operand, b: ir.Operand) -> ir.Operand:
            if a == b:
                return a
            if not yes.body and not no.body:
                return self.emit("choice", condition, a, b)
            branch.merged.append(ir.Merged(a, b))
            return branch.merged[-1]

        for name in sorted(yes.values.keys() | no.values.keys()):
            before = self.earlier.get(name, ir.Constant(False))
            self.values[name] = merged(yes.values.get(name, before), no.values.get(name, before))
        pairs = list(zip(yes.results or (), no.results or (), strict=True))
        results: list[Value] = [
            merged(a, b) if not isinstance(a, Template) and not isinstance(b, Template) else ir.Constant(0.0)
            for a, b in pairs
        ]
        if yes.body or no.body:
            self.statements.append(branch)
        for i, (a, b) in enumerate(pairs):
            if isinstance(a, Template) or isinstance(b, Template):
                results[i] = self.lifted(lambda x, y: self.emit("choice", condition, x, y), a, b)
        return results

    def _outside(self, branch: ir.Branch, side: Side, is_yes: bool) -> list[Value]:
        """Lets arrays be computed behind a branch, from the numbers that it leaves."""
        nothing = ir.Constant(False)
        instead: dict[ir.Operand, ir.Operand] = {
            one: ir.Merged(one, nothing) if is_yes else ir.Merged(nothing, one) for one in ir.made(side.body)
        }
        found: list[Value] = []
        for one in side.results or ():
            if isinstance(one, Template):
                used = {operand for inner in one.body for operand in ir.operands(inner)} | {one.value}
                left = [new for old, new in instead.items() if old in used and isinstance(new, ir.Merged)]
                branch.merged += [new for new in left if new not in branch.merged]
                place = ir.Counter()
                copy = ir.Copy({**instead, one.place: place})
                body = copy.body(one.body)
                one = Template(copy.of(one.value), place, body)
            found.append(one)
        return found

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

    def number(self, node: ast.expr) -> ir.Operand:
        """Reads an expression that is a number."""
        return _plain(self.read(node))

    def condition(self, node: ast.expr) -> ir.Operand:
        """Reads an expression of which only the truth matters."""
        return self._logic(node, self.condition) if isinstance(node, ast.BoolOp) else self.number(node)

    def array(self, node: ast.expr) -> Template | None:
        """Returns an array; None where the expression is no name of one."""
        return self.arrays.get(node.id) if isinstance(node, ast.Name) else None

    def at(self, array: Template, index: ir.Operand) -> ir.Operand:
        """Computes an array's number of an edge."""
        copy = ir.Copy({array.place: index})
        self.statements += copy.body(array.body)
        return copy.of(array.value)

    def lifted(self, make: Callable[..., ir.Operand], *values: Value) -> Value:
        """Applies to numbers; or to arrays edge by edge, numbers being the same for every edge."""
        if not any(isinstance(value, Template) for value in values):
            return make(*values)
        place = ir.Counter()
        with self.side() as found:
            numbers = [self.at(value, place) if isinstance(value, Template) else value for value in values]
            value = make(*numbers)
        return Template(value, place, found.body)

    def _constant(self, node: ast.Constant) -> Value:
        return _number(node.value)

    def _name(self, node: ast.Name) -> Value:
        for known in (self.arrays, self.values, self.earlier):
            if node.id in known:
                return known[node.id]
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
        return self.lifted(lambda *values: self.emit(sign, *values), *operands)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        operand = self.read(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(operand, ir.Constant) and isinstance(node.op, ast.USub):
            return ir.Constant(-operand.value)
        sign = {ast.USub: "-", ast.Not: "not"}.get(type(node.op))
        if sign is None or (sign == "not" and isinstance(operand, Template)):
            raise ir.Unsupported(type(node.op).__name__)
        return self.lifted(lambda value: self.emit(sign, value), operand)

    def _boolop(self, node: ast.BoolOp) -> Value:
        return self._logic(node, self._truth)

    def _truth(self, node: ast.expr) -> ir.Operand:
        value = self.number(node)
        if not isinstance(node, ast.BoolOp) and not (
            isinstance(value, ir.Value) and value.operator in ir.TRUTHS
        ):
            raise ir.Unsupported("'and' and 'or' of numbers, which give one of them")
        return value

    def _logic(self, node: ast.BoolOp, read: Callable[[ast.expr], ir.Operand]) -> ir.Operand:
        """Reads `and` or `or`; an operand that may raise or takes long is read only where Python does."""
        sign, found = _SIGNS[type(node.op)], read(node.values[0])
        for operand in node.values[1:]:
            with self.side() as other:
                other.results = [read(operand)]
            if all(isinstance(one, ir.Value) and one.operator in ir.TRUTHS for one in other.body):
                self.statements += other.body
                (value,) = other.results
                found = self.emit(sign, found, _plain(value))
                continue
            nothing = Side(values=other.values, results=[ir.Constant(sign == "or")])
            sides = (other, nothing) if sign == "and" else (nothing, other)
            found = _plain(self.join(found, *sides)[0])
        return found

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.read(side) for side in (node.left, *node.comparators)]
        if len(values) > 2 and any(isinstance(value, Template) for value in values):
            raise ir.Unsupported("a chain of comparisons of arrays")
        pairs = zip(node.ops, values[:-1], values[1:], strict=True)
        found = [self.operation(operator, left, right) for operator, left, right in pairs]
        return found[0] if len(found) == 1 else self.emit("and", *map(_plain, found))

    def _ifexp(self, node: ast.IfExp) -> Value:
        return self._chosen(self.condition(node.test), node.body, node.orelse)

    def _chosen(self, condition: ir.Operand, *nodes: ast.expr) -> Value:
        sides = []
        for node in nodes:
            with self.side() as side:
                side.results = [self.read(node)]
            sides.append(side)
        return self.join(condition, *sides)[0]

    def _subscript(self, node: ast.Subscript) -> Value:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            if self.array(node.value.value) is not None and self.number(node.slice) == ir.Constant(0):
                return ir.FAN_IN
            raise ir.Unsupported("a shape")
        array = self.array(node.value)
        if array is None or isinstance(node.slice, ast.Slice | ast.Tuple):
            constant = isinstance(node.value, ast.Name) and self.names.get(node.value.id)
            if isinstance(constant, np.ndarray | list | tuple):
                raise ir.Unsupported("an index into a table of constants: choose its numbers by `if`")
            raise ir.Unsupported("a slice, or an index into something that is no array of numbers")
        index = self.number(node.slice)
        self.note(index, node)
        return self.at(array, index)

    def _call(self, node: ast.Call) -> Value:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise ir.Unsupported("arguments by name")
        method = isinstance(node.func, ast.Attribute) and self.array(node.func.value) is not None
        if isinstance(node.func, ast.Attribute) and (method or not self._is_module(node.func.value)):
            return self._method(self.read(node.func.value), node.func.attr, node.args)
        return self._applied(self._meant(node.func), node.args)

    def _method(self, array: Value, name: str, arguments: list[ast.expr]) -> Value:
        if isinstance(array, Template) and not arguments:
            if name == "copy":
                return self.lifted(lambda value: self.emit("+", value), array)
            known = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean}
            if name in known:
                return self._over_edges(known[name], array)
        if isinstance(array, Template) and name == "dot" and len(arguments) == 1:
            return self._dot(array, self.read(arguments[0]))
        raise ir.Unsupported(f"the method {name}")

    def _applied(self, function: Any, arguments: list[ast.expr]) -> Value:
        """Reads a call of a function, by its value."""
        if not callable(function) or not isinstance(function, Hashable):
            raise ir.Unsupported(f"a call of {_shown(function)}")
        if function is np.where and len(arguments) == 3:
            test = self.read(arguments[0])
            if not isinstance(test, Template):
                return self._chosen(test, *arguments[1:])
            return self.lifted(lambda *v: self.emit("choice", *v), test, *map(self.read, arguments[1:]))
        values = [self.read(argument) for argument in arguments]
        for table in (_SIZED, _ALIKE):
            if function in table and len(values) == 1 and (table is _SIZED) == (values[0] == ir.FAN_IN):
                return Template(ir.Constant(table[function]))
        if function is len and isinstance(values[0], Template):
            return ir.FAN_IN
        if function in _DOTS and len(values) == 2:
            return self._dot(*values)
        if len(values) == 1 and isinstance(values[0], Template) and function not in EVERYWHERE:
            return self._over_edges(function, values[0])
        if function in EVERYWHERE:
            return self._made(EVERYWHERE[function], values)
        numbers = list(map(_plain, values))
        if function in NUMBERS:
            return self._made(NUMBERS[function], numbers)
        if isinstance(function, FunctionType):
            return self.called(function, numbers)
        raise ir.Unsupported(f"a call of {_shown(function)}")

    def _made(self, make: Callable[..., ir.Operand], values: list[Any]) -> Value:
        try:
            return self.lifted(lambda *operands: make(self.emit, *operands), *values)
        except TypeError:  # too many arguments, or too few: Python says so better
            raise ir.Unsupported("a call with other arguments") from None

    def _dot(self, left: Value, right: Value) -> Value:
        if not isinstance(left, Template) or not isinstance(right, Template):
            raise ir.Unsupported("a product of matrices")
        return self._over_edges(np.sum, self.operation(ast.Mult(), left, right))

    def _over_edges(self, function: Any, array: Value) -> ir.Operand:
        """Reduces a number of every edge to one, by a loop."""
        assert isinstance(array, Template)
        if function is np.mean:
            return self.emit("/", self._over_edges(np.sum, array), ir.FAN_IN)
        if function in _SUMS:
            return self._folded(array, ir.Constant(0.0), lambda emit, a, b: emit("+", a, b), start=0)
        if function in _LARGEST or function in _SMALLEST:
            first = self.at(array, ir.Constant(0))
            return self._folded(array, first, larger if function in _LARGEST else smaller, start=1)
        raise ir.Unsupported(f"{_shown(function)} of an array")

    def _folded(self, array: Template, first: ir.Operand, fold: Fold, *, start: int) -> ir.Operand:
        total, place = ir.Carried(first), ir.Counter()
        with self.side() as found:
            total.end = fold(self.emit, total, self.at(array, place))
        self.statements.append(ir.Loop(place, ir.Constant(start), ir.FAN_IN, 1, found.body, [total]))
        return total

    def _is_module(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and isinstance(self.names.get(node.id), ModuleType)

    def _meant(self, node: ast.expr) -> Any:
        """Returns the value of a name, or of a name in a module."""
        if isinstance(node, ast.Name) and node.id not in self.arrays and node.id not in self.values:
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and self._is_module(node.value):
            assert isinstance(node.value, ast.Name)
            return getattr(self.names[node.value.id], node.attr, None)
        raise ir.Unsupported(f"{ast.unparse(node)}, which is neither an array's nor a module's")


def _plain(value: Value) -> ir.Operand:
    if isinstance(value, Template):
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
