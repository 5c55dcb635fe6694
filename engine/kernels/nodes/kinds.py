"""The kind of number of each expression in a node's function: bool, int or real."""

from __future__ import annotations

from typing import Final

from partita.engine.kernels.nodes import ir

_ORDER: Final[tuple[ir.Kind, ...]] = ("bool", "int", "real")


def kinds_of(body: tuple[ir.Statement, ...]) -> dict[str, ir.Kind]:
    """Finds the kind of each variable: the widest of all values that it is ever assigned."""
    kinds: dict[str, ir.Kind] = {}
    settled = False
    while not settled:
        before = dict(kinds)
        for statement in ir.every(body):
            if isinstance(statement, ir.Loop):
                kinds[statement.variable] = "int"
            elif isinstance(statement, ir.Assign):
                kinds[statement.name] = _widest(
                    kinds.get(statement.name, "bool"), kind_of(statement.value, kinds)
                )
        settled = kinds == before
    return kinds


def kind_of(expression: ir.Expression, kinds: dict[str, ir.Kind]) -> ir.Kind:
    """Finds the kind of an expression whose variables have these kinds."""
    match expression:
        case ir.Constant(value):
            return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "real"
        case ir.Variable(name):
            return kinds.get(name, "bool")
        case ir.Choice(_, yes, no):
            return _widest(kind_of(yes, kinds), kind_of(no, kinds))
        case ir.Call("abs", (argument,)):
            return _widest("int", kind_of(argument, kinds))
        case ir.Call(_, _, kind):
            return kind
        case ir.Operation(sign, operands):
            return _of_operation(sign, operands, kinds)
    return "int" if expression == ir.FAN_IN else "real"


def _of_operation(sign: str, operands: tuple[ir.Expression, ...], kinds: dict[str, ir.Kind]) -> ir.Kind:
    if sign in ir.TRUTHS:
        return "bool"
    if sign == "/":
        return "real"
    if sign == "**" and not (isinstance(operands[1], ir.Constant) and operands[1].value >= 0):
        return "real"
    return _widest("int", *(kind_of(operand, kinds) for operand in operands))


def _widest(*kinds: ir.Kind) -> ir.Kind:
    return max(kinds, key=_ORDER.index)
