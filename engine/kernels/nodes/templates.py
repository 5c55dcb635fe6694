"""Replaces arrays that one loop fills edge by edge by the loop's expression for an edge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from partita.engine.kernels.nodes import ir

Body = tuple[ir.Statement, ...]


def templates(function: ir.Function) -> ir.Function:
    """Replaces those of a function's arrays that a loop over all edges fills by templates."""
    known = {array: _template(function.body, array, function.arrays) for array in function.arrays}

    def change(value: ir.Expression | ir.Elements) -> ir.Expression | ir.Elements:
        if isinstance(value, ir.Elements) and isinstance(value.template, ir.Item):
            found = known.get(value.template.array)
            if found is not None and value.template.index == ir.PLACE:
                return ir.Elements(found)
        return value

    return replace(function, results=tuple(map(change, function.results)))


def _template(body: Body, array: str, arrays: frozenset[str]) -> ir.Expression | None:
    """Finds the value of an edge in the last statements that write to an array."""
    for i, statement in reversed([*enumerate(body)]):
        if not any(isinstance(one, ir.Store) and one.array == array for one in ir.every((statement,))):
            continue
        if not isinstance(statement, ir.Loop) or (statement.start, statement.stop) != (
            ir.Constant(0),
            ir.FAN_IN,
        ):
            return None
        stores = substituted(statement.body)
        place = ir.Variable(statement.variable)
        if stores is None or statement.step != 1:
            return None
        own = [store for store in stores if isinstance(store, ir.Store) and store.array == array]
        changed = arrays | {one.name for one in ir.every(body[i:]) if isinstance(one, ir.Assign)}
        if len(own) != 1 or own[0].index != place or _reads(own[0].value, changed):
            return None
        return ir.put(own[0].value, place, ir.PLACE)
    return None


def _reads(value: ir.Expression, names: frozenset[str]) -> bool:
    """Returns whether a value depends on one of these variables or arrays."""
    for part in ir.walk(value):
        match part:
            case ir.Variable(name) | ir.Item(name, _) if name in names:
                return True
    return False


def substituted(body: Body) -> Body | None:
    """Substitutes the values of assigned variables where these are read.

    Only what is assigned from itself, and what is stored, is left. None if there is more than assignments and
    stores, or if a value would move behind a change of its operands.
    """
    values: dict[str, ir.Expression] = {}
    found: list[ir.Statement] = []
    for statement in body:
        for name, value in values.items():
            statement = ir.edited(statement, partial(ir.put, variable=ir.Variable(name), value=value))
        if not isinstance(statement, ir.Assign | ir.Store):
            return None
        changed = statement.name if isinstance(statement, ir.Assign) else statement.array
        if any(_reads(value, frozenset([changed])) for value in values.values()):
            return None
        if isinstance(statement, ir.Assign) and ir.Variable(changed) not in ir.walk(statement.value):
            values[changed] = statement.value
        else:
            found.append(statement)
    return tuple(found)
