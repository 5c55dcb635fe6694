"""The intermediate representation of a node's function: statements in which every value is assigned once.

A statement names its operands by the statements that make them. What an iteration of a loop takes over from
the one before is a `Carried`, which after the loop has the last value; what a branch leaves is a `Merged`.
Every array has one number for each incoming edge. Only arrays of the function's own change.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Final, Literal, TypeAlias

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
class Argument:
    """A number that the node is given: a parameter's, `state`, `error`, the number of its edges."""

    name: str


@dataclass(frozen=True)
class Array:
    """An array that the node is given, as an argument of a function."""

    name: str


@dataclass(eq=False, repr=False)
class Value:
    """A number computed from others.

    Args:
        operator: Python's sign of one or two operands; "choice" of (condition, yes, no); "item", which is the
            number of an array at a place; or a function by its name in compiled code.
        operands: in their order.
        kind: of what a function returns.
        array: of an item.
    """

    operator: str
    operands: tuple[Operand, ...]
    kind: Kind = "real"
    array: str = ""


@dataclass(eq=False)
class Counter:
    """The number with which a loop counts."""


@dataclass(eq=False, repr=False)
class Carried:
    """A number that a loop assigns again: at first `start`, after an iteration `end` of this iteration.

    Args:
        start: before the loop.
        end: made in the loop, as soon as that is read.
        kept: the array that keeps it for each edge, for a backward pass.
    """

    start: Operand
    end: Operand = Constant(False)
    kept: str = ""


@dataclass(eq=False, repr=False)
class Merged:
    """A number that a branch leaves: that of the side which ran."""

    yes: Operand
    no: Operand


Operand: TypeAlias = Constant | Argument | Value | Counter | Carried | Merged

INCOMING: Final = "@incoming"
FAN_IN, STATE, ERROR = Argument("@fan_in"), Argument("@state"), Argument("@error")
TRUTHS: Final = frozenset({"<", "<=", ">", ">=", "==", "!=", "and", "or", "not"})
"""Operators whose result is true or false."""


@dataclass(eq=False)
class Store:
    """Writes a number of an array of the function's own."""

    array: str
    index: Operand
    value: Operand


@dataclass(eq=False)
class Output:
    """Hands over number `result` of the function's results, for an edge or for the node."""

    result: int
    index: Operand | None
    value: Operand


@dataclass(eq=False, repr=False)
class Loop:
    """The statement `for counter in range(start, stop, step)`.

    Args:
        counter: the number of the iteration.
        start: the first.
        stop: the end of the range.
        step: a number that is not zero.
        body: of an iteration.
        carried: what iterations take over.
        scalar: whether it runs for one example after the other, and uses no arrays.
    """

    counter: Counter
    start: Operand
    stop: Operand
    step: int
    body: Body
    carried: list[Carried] = field(default_factory=list)
    scalar: bool = False

    @property
    def is_of_all_edges(self) -> bool:
        """Returns whether it counts every edge of the node once, in their order."""
        return (self.start, self.stop, self.step) == (Constant(0), FAN_IN, 1)


@dataclass(eq=False, repr=False)
class While:
    """The statement `while condition`, which `head` computes before each iteration."""

    head: Body
    condition: Operand
    body: Body
    carried: list[Carried]


@dataclass(eq=False, repr=False)
class Branch:
    """The statement `if condition: yes else: no`, and the numbers that it leaves."""

    condition: Operand
    yes: Body
    no: Body
    merged: list[Merged] = field(default_factory=list)


@dataclass(eq=False)
class Assign:
    """Gives a carried or a merged number its value; only functions to be written as text have these."""

    target: Carried | Merged
    value: Operand


@dataclass(eq=False)
class Each:
    """Runs its statements for each example of a tile, one example after the other; likewise."""

    body: Body


Statement: TypeAlias = Value | Store | Output | Loop | While | Branch | Assign | Each
Body: TypeAlias = list[Statement]


@dataclass(frozen=True)
class Line:
    """A place in the text of a user's function."""

    function: FunctionType
    node: ast.AST


@dataclass(frozen=True)
class Function:
    """A function of a node, with all functions that it calls written in their places.

    Args:
        body: its statements, with an `Output` of each result at the end: of an array, in a loop of all edges.
        are_arrays: of each result, whether it is one.
        returns_tuple: whether it returns a tuple; if not, there is one result.
        arrays: the names of its own arrays.
        lines: where it counts loops and places, and of its arrays: the user's text.
    """

    body: Body
    are_arrays: tuple[bool, ...]
    returns_tuple: bool
    arrays: frozenset[str]
    lines: Mapping[Any, Line] = field(default_factory=dict, repr=False)


class Unsupported(Exception):
    """A function uses what cannot be written in this form, or not in the form that is wanted.

    Args:
        reason: what that is.
        whole: the operand or array in which it is found, where it was read already.

    Attributes:
        place: the same in the user's text.
        function: the user's function, or one that it calls.
    """

    def __init__(self, reason: str, whole: Any = None) -> None:
        super().__init__(reason)
        self.reason, self.whole = reason, whole
        self.place: ast.AST | None = None
        self.function: FunctionType | None = None

    def at(self, place: ast.AST) -> Unsupported:
        """Notes the place, unless a part of it is known."""
        self.place = self.place or place
        return self

    def within(self, lines: Mapping[Any, Line]) -> Unsupported:
        """Notes the place of `whole`, where it is one of these lines."""
        found = None if self.whole is None else lines.get(self.whole)
        if found is not None:
            self.function = self.function or found.function
            self.at(found.node)
        return self


def operands(statement: Statement) -> tuple[Operand, ...]:
    """Returns the operands of a statement, without those inside it and those of what it carries or merges."""
    match statement:
        case Value():
            return statement.operands
        case Store(_, index, value):
            return index, value
        case Loop(_, start, stop):
            return start, stop
        case Branch(condition) | While(_, condition):
            return (condition,)
        case Output(_, index, value):
            return (value,) if index is None else (index, value)
        case Assign(_, value):
            return (value,)
    return ()


def all_operands(statement: Statement) -> tuple[Operand, ...]:
    """Returns the operands of a statement, those of what it carries or merges too."""
    match statement:
        case Loop() | While():
            carried = tuple(operand for one in statement.carried for operand in (one.start, one.end))
            return (*operands(statement), *carried)
        case Branch():
            merged = tuple(operand for one in statement.merged for operand in (one.yes, one.no))
            return (*operands(statement), *merged)
    return operands(statement)


def bodies(statement: Statement) -> tuple[Body, ...]:
    """Returns the bodies inside a statement."""
    match statement:
        case Loop() | Each():
            return (statement.body,)
        case While(head, _, body):
            return head, body
        case Branch(_, yes, no):
            return yes, no
    return ()


def every(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yields all statements, nested ones too."""
    for statement in body:
        yield statement
        for inner in bodies(statement):
            yield from every(inner)


def made(body: Iterable[Statement]) -> dict[Operand, None]:
    """Finds all numbers that statements make, nested ones too, in their order."""
    found: list[Operand] = []
    for statement in every(body):
        match statement:
            case Value():
                found.append(statement)
            case Loop():
                found += [statement.counter, *statement.carried]
            case While():
                found += statement.carried
            case Branch():
                found += statement.merged
    return dict.fromkeys(found)


def behind(value: Operand) -> set[Operand]:
    """Finds a number and those from which it is computed, as far as they are `Value`s."""
    found, waiting = set[Operand](), [value]
    while waiting:
        one = waiting.pop()
        if one not in found and isinstance(one, Value):
            waiting += one.operands
        found.add(one)
    return found


def with_bodies(statement: Statement, change: Callable[[Body], Body]) -> Statement:
    """Returns the statement with each body inside it changed."""
    match statement:
        case Loop() | Each():
            return replace(statement, body=change(statement.body))
        case Branch(_, yes, no):
            return replace(statement, yes=change(yes), no=change(no))
        case While(head, _, body):
            return replace(statement, head=change(head), body=change(body))
    return statement


class Copy:
    """Copies statements; every number that they make is a new one.

    Args:
        instead: numbers to be replaced, and by which.
    """

    def __init__(self, instead: Mapping[Operand, Operand]) -> None:
        self._instead = dict(instead)
        self._new: dict[Operand, Operand] = {}

    def of(self, operand: Operand) -> Operand:
        """Returns what stands for a number in the copy."""
        while operand in self._instead:
            operand = self._instead[operand]
        return self._new.get(operand, operand)

    def put(self, old: Operand, new: Operand) -> None:
        """Replaces one more number, where it is read from now on."""
        self._instead[old] = new

    def body(self, body: Iterable[Statement]) -> Body:
        """Copies statements; the numbers that they make have new ones from now on."""
        return [self._statement(statement) for statement in body]

    def _statement(self, statement: Statement) -> Statement:
        match statement:
            case Value():
                new = replace(statement, operands=tuple(map(self.of, statement.operands)))
                self._new[statement] = new
                return new
            case Store(array, index, value):
                return Store(array, self.of(index), self.of(value))
            case Output(result, index, value):
                return Output(result, None if index is None else self.of(index), self.of(value))
            case Branch(condition, yes, no, merged):
                branch = Branch(self.of(condition), self.body(yes), self.body(no))
                branch.merged = [Merged(self.of(one.yes), self.of(one.no)) for one in merged]
                self._new.update(zip(merged, branch.merged, strict=True))
                return branch
            case Loop():
                counter = Counter()
                self._new[statement.counter] = counter
                start, stop = self.of(statement.start), self.of(statement.stop)
                carried, (body,) = self._carried(statement.carried, statement.body)
                return Loop(counter, start, stop, statement.step, body, carried, statement.scalar)
            case While(head, condition, body, carried):
                carried, (head, body) = self._carried(carried, head, body)
                return While(head, self.of(condition), body, carried)
        raise AssertionError("statements are copied before they are written as text")

    def _carried(self, carried: list[Carried], *bodies: Body) -> tuple[list[Carried], list[Body]]:
        old = [one for one in carried if one not in self._instead]
        new = [replace(one, start=self.of(one.start)) for one in old]
        self._new.update(zip(old, new, strict=True))
        copied = [self.body(body) for body in bodies]
        for one, copy in zip(old, new, strict=True):
            copy.end = self.of(one.end)
        return new, copied
