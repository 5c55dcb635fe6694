"""What kind of number each expression of a node's function is: true or false, whole, or real."""

from __future__ import annotations

from typing import Final

from partita.engine.kernels.nodes.arithmetic import (
    FAN_IN,
    TRUTHS,
    Assign,
    Call,
    Choice,
    Constant,
    Expression,
    Kind,
    Loop,
    Operation,
    Statement,
    Variable,
    every,
)

_ORDER: Final[tuple[Kind, ...]] = ("bool", "int", "real")


def kinds_of(body: tuple[Statement, ...]) -> dict[str, Kind]:
    """The kind of each variable: the widest of all that is ever assigned to it."""
    kinds: dict[str, Kind] = {}
    settled = False
    while not settled:
        before = dict(kinds)
        for statement in every(body):
            if isinstance(statement, Loop):
                kinds[statement.variable] = "int"
            elif isinstance(statement, Assign):
                kinds[statement.name] = _widest(
                    kinds.get(statement.name, "bool"), kind_of(statement.value, kinds)
                )
        settled = kinds == before
    return kinds


def kind_of(expression: Expression, kinds: dict[str, Kind]) -> Kind:
    """The kind of an expression whose variables have these kinds."""
    match expression:
        case Constant(value):
            return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "real"
        case Variable(name):
            return kinds.get(name, "bool")
        case Choice(_, yes, no):
            return _widest(kind_of(yes, kinds), kind_of(no, kinds))
        case Call("abs", (argument,)):
            return _widest("int", kind_of(argument, kinds))
        case Call(_, _, kind):
            return kind
        case Operation(sign, operands):
            return _of_operation(sign, operands, kinds)
    return "int" if expression == FAN_IN else "real"


def _of_operation(sign: str, operands: tuple[Expression, ...], kinds: dict[str, Kind]) -> Kind:
    if sign in TRUTHS:
        return "bool"
    if sign == "/":
        return "real"
    if sign == "**" and not (isinstance(operands[1], Constant) and operands[1].value >= 0):
        return "real"
    return _widest("int", *(kind_of(operand, kinds) for operand in operands))


def _widest(*kinds: Kind) -> Kind:
    return max(kinds, key=_ORDER.index)
