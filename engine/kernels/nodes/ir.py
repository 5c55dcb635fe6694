"""The intermediate representation of a node's function: numbers, the node's edges and structured control.

Every array has one number for each incoming edge. A value for every edge is a template: an expression in
which `PLACE` stands for the number of the edge.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["bool", "int", "real"]


@dataclass(frozen=True, eq=False)
class Constant:
    """A number in the function: 1, 1.0 and True are three of them, 0.0 and -0.0 two, NaN is one."""

    value: bool | int | float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)


@dataclass(frozen=True)
class Variable:
    """A number that the function assigns, or counts with."""

    name: str


@dataclass(frozen=True)
class Argument:
    """A number that the node is given: a parameter's, `state`, `error`, the number of its edges."""

    name: str


@dataclass(frozen=True)
class Item:
    """One number of an array."""

    array: str
    index: Expression


@dataclass(frozen=True)
class Operation:
    """Python's operator of one or two operands, by its sign."""

    sign: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Choice:
    """The expression `yes if condition else no`."""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True)
class Call:
    """A function of numbers, by its name in compiled code; returns a number of a kind."""

    name: str
    arguments: tuple[Expression, ...]
    kind: Kind = "real"


Expression: TypeAlias = Constant | Variable | Argument | Item | Operation | Choice | Call

PLACE = Variable("@")
INCOMING = "@incoming"
FAN_IN, STATE, ERROR = Argument("@fan_in"), Argument("@state"), Argument("@error")
TRUTHS = frozenset({"<", "<=", ">", ">=", "==", "!=", "and", "or", "not"})
"""Operators whose result is true or false."""


@dataclass(frozen=True)
class Assign:
    """The statement `name = value`."""

    name: str
    value: Expression


@dataclass(frozen=True)
class Store:
    """The statement `array[index] = value`, of an array of the function's own."""

    array: str
    index: Expression
    value: Expression


@dataclass(frozen=True)
class Loop:
    """The statement `for variable in range(start, stop, step)`."""

    variable: str
    start: Expression
    stop: Expression
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class While:
    """The statement `while condition`."""

    condition: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Branch:
    """The statement `if condition: yes else: no`."""

    condition: Expression
    yes: tuple[Statement, ...]
    no: tuple[Statement, ...]


@dataclass(frozen=True)
class Output:
    """Hands over number `result` of the function's results, for an edge or for the node."""

    result: int
    index: Expression | None
    value: Expression


@dataclass(frozen=True)
class Each:
    """Runs its statements for each example of a tile, one example after the other."""

    body: tuple[Statement, ...]


Statement: TypeAlias = Assign | Store | Loop | While | Branch | Output | Each


@dataclass(frozen=True)
class Elements:
    """A value for every edge, as a template."""

    template: Expression


@dataclass(frozen=True)
class Function:
    """A function of a node, or one that such a function calls.

    Args:
        body: its statements.
        results: what it returns after them.
        returns_tuple: whether it returns a tuple; if not, there is one result.
        arrays: the names of its own arrays.
        helpers: the functions that it calls, by the names of the calls.
        lines: where it counts loops and places: the user's text of an expression.
    """

    body: tuple[Statement, ...]
    results: tuple[Expression | Elements, ...]
    returns_tuple: bool
    arrays: frozenset[str]
    helpers: Mapping[str, Helper]
    lines: Mapping[Expression, ast.AST] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Helper:
    """A user's function of numbers, with one result and named arguments."""

    arguments: tuple[str, ...]
    function: Function
    kind: Kind


class Unsupported(Exception):
    """A function uses what cannot be written as such a tree, or not in the form that is wanted.

    Args:
        reason: what that is.
        whole: the expression in which it is found, where it was read already.

    Attributes:
        place: the same in the user's text.
        function: the user's function, or one that it calls.
    """

    def __init__(self, reason: str, whole: Expression | None = None) -> None:
        super().__init__(reason)
        self.reason, self.whole = reason, whole
        self.place: ast.AST | None = None
        self.function: FunctionType | None = None

    def at(self, place: ast.AST) -> Unsupported:
        """Notes the place, unless a part of it is known."""
        self.place = self.place or place
        return self

    def within(self, lines: Mapping[Expression, ast.AST]) -> Unsupported:
        """Notes the place of `whole`, where it is one of these lines."""
        found = None if self.whole is None else lines.get(self.whole)
        return self if found is None else self.at(found)


def parts(expression: Expression) -> tuple[Expression, ...]:
    """Returns the operands of an expression."""
    match expression:
        case Item(_, index):
            return (index,)
        case Operation(_, operands) | Call(_, operands):
            return operands
        case Choice(condition, yes, no):
            return condition, yes, no
    return ()


def rebuilt(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Returns the expression with each of its operands changed."""
    match expression:
        case Item(_, index):
            return replace(expression, index=change(index))
        case Operation(_, operands):
            return replace(expression, operands=tuple(map(change, operands)))
        case Call(_, arguments):
            return replace(expression, arguments=tuple(map(change, arguments)))
        case Choice(condition, yes, no):
            return Choice(change(condition), change(yes), change(no))
    return expression


def walk(expression: Expression) -> Iterator[Expression]:
    """Yields the expression and everything in it."""
    yield expression
    for part in parts(expression):
        yield from walk(part)


def put(expression: Expression, variable: Variable, value: Expression) -> Expression:
    """Replaces a variable in an expression by a value."""
    if expression == variable:
        return value
    return rebuilt(expression, lambda part: put(part, variable, value))


def at(template: Expression, index: Expression) -> Expression:
    """Returns a template's value for one edge."""
    return put(template, PLACE, index)


def expressions(statement: Statement) -> tuple[Expression, ...]:
    """Returns the expressions that a statement evaluates itself, without those inside it."""
    match statement:
        case Assign(_, value):
            return (value,)
        case Store(_, index, value):
            return index, value
        case Loop(_, start, stop):
            return start, stop
        case Branch(condition) | While(condition):
            return (condition,)
        case Output(_, index, value):
            return (value,) if index is None else (index, value)
    return ()


def bodies(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Returns the bodies inside a statement."""
    match statement:
        case Loop() | While() | Each():
            return (statement.body,)
        case Branch(_, yes, no):
            return yes, no
    return ()


def every(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yields all statements, nested ones too."""
    for statement in statements:
        yield statement
        for body in bodies(statement):
            yield from every(body)


def edited(statement: Statement, change: Callable[[Expression], Expression]) -> Statement:
    """Returns the statement with every expression changed, nested ones too."""

    def inside(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(edited(one, change) for one in body)

    match statement:
        case Assign(name, value):
            return Assign(name, change(value))
        case Store(array, index, value):
            return Store(array, change(index), change(value))
        case Loop(variable, start, stop, step, body):
            return Loop(variable, change(start), change(stop), step, inside(body))
        case While(condition, body):
            return While(change(condition), inside(body))
        case Branch(condition, yes, no):
            return Branch(change(condition), inside(yes), inside(no))
        case Output(result, index, value):
            return Output(result, None if index is None else change(index), change(value))
        case Each(body):
            return Each(inside(body))
