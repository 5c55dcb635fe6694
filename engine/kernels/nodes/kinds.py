"""The kind of each number in a node's function: bool, int or real."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from partita.engine.kernels.nodes import ir

_ORDER: Final[tuple[ir.Kind, ...]] = ("bool", "int", "real")
Kinds: TypeAlias = Mapping[ir.Operand, ir.Kind]


def kinds_of(body: ir.Body, known: Kinds = MappingProxyType({})) -> dict[ir.Operand, ir.Kind]:
    """Finds the kind of each number: the widest of all values that it ever has.

    Args:
        body: any.
        known: the kinds of numbers that are made elsewhere.
    """
    kinds, before = dict(known), None
    while before != kinds:
        before = dict(kinds)
        for statement in ir.every(body):
            match statement:
                case ir.Value():
                    kinds[statement] = _of_value(statement, kinds)
                case ir.Loop() | ir.While():
                    for carried in statement.carried:
                        kinds[carried] = widest(kind_of(carried.start, kinds), kind_of(carried.end, kinds))
                case ir.Branch():
                    for one in statement.merged:
                        kinds[one] = widest(kind_of(one.yes, kinds), kind_of(one.no, kinds))
                case ir.Assign(target, value):
                    kinds[target] = widest(kinds.get(target, "bool"), kind_of(value, kinds))
    return kinds


def kind_of(operand: ir.Operand, kinds: Kinds) -> ir.Kind:
    """Returns the kind of a number, given those of all that are computed."""
    match operand:
        case ir.Constant(value):
            return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "real"
        case ir.Argument():
            return "int" if operand == ir.FAN_IN else "real"
        case ir.Counter():
            return "int"
    return kinds.get(operand, "bool")


def widest(*kinds: ir.Kind) -> ir.Kind:
    """Returns the kind that can hold numbers of all of these."""
    return max(kinds, key=_ORDER.index)


def _of_value(value: ir.Value, kinds: Kinds) -> ir.Kind:
    operands = [kind_of(operand, kinds) for operand in value.operands]
    match value.operator:
        case "choice":
            return widest(*operands[1:])
        case "abs" | "+" | "-" | "*" | "//" | "%":
            return widest("int", *operands)
        case "**":
            exponent = value.operands[1]
            is_whole = isinstance(exponent, ir.Constant) and exponent.value >= 0
            return widest("int", *operands) if is_whole else "real"
    return "bool" if value.operator in ir.TRUTHS else value.kind
