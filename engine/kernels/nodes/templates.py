"""Arrays that a loop fills edge by edge, once, are what the loop says of an edge: no array is needed."""

from __future__ import annotations

from dataclasses import replace

from partita.engine.kernels.nodes.arithmetic import (
    FAN_IN,
    PLACE,
    Assign,
    Constant,
    Elements,
    Expression,
    Function,
    Item,
    Loop,
    Statement,
    Store,
    Variable,
    edited,
    every,
    put,
    walk,
)

Body = tuple[Statement, ...]


def templates(function: Function) -> Function:
    """The function with templates instead of those of its arrays that a loop over all edges fills."""
    known = {array: _template(function.body, array, function.arrays) for array in function.arrays}

    def change(value: Expression | Elements) -> Expression | Elements:
        if isinstance(value, Elements) and isinstance(value.template, Item):
            found = known.get(value.template.array)
            if found is not None and value.template.index == PLACE:
                return Elements(found)
        return value

    return replace(function, results=tuple(map(change, function.results)))


def _template(body: Body, array: str, arrays: frozenset[str]) -> Expression | None:
    """What the last statements that write to an array say of an edge."""
    for i, statement in reversed([*enumerate(body)]):
        if not any(isinstance(one, Store) and one.array == array for one in every((statement,))):
            continue
        if not isinstance(statement, Loop) or (statement.start, statement.stop) != (Constant(0), FAN_IN):
            return None
        stores = substituted(statement.body)
        place = Variable(statement.variable)
        if stores is None or statement.step != 1:
            return None
        own = [store for store in stores if isinstance(store, Store) and store.array == array]
        changed = arrays | {one.name for one in every(body[i:]) if isinstance(one, Assign)}
        if len(own) != 1 or own[0].index != place or _reads(own[0].value, changed):
            return None
        return put(own[0].value, place, PLACE)
    return None


def _reads(value: Expression, names: frozenset[str]) -> bool:
    """Whether a value depends on one of these variables or arrays."""
    for part in walk(value):
        match part:
            case Variable(name) | Item(name, _) if name in names:
                return True
    return False


def substituted(body: Body) -> Body | None:
    """Statements with the values of the variables that they assign put where these are read.

    Only what is assigned from itself, and what is stored, is left. None if there is more than assignments and
    stores, or if a value would move behind a change of what it is made of.
    """
    values: dict[str, Expression] = {}
    found: list[Statement] = []
    for statement in body:
        for name, value in values.items():
            statement = edited(statement, lambda e, name=name, value=value: put(e, Variable(name), value))  # type: ignore[misc]
        if not isinstance(statement, Assign | Store):
            return None
        changed = statement.name if isinstance(statement, Assign) else statement.array
        if any(_reads(value, frozenset([changed])) for value in values.values()):
            return None
        if isinstance(statement, Assign) and Variable(changed) not in walk(statement.value):
            values[changed] = statement.value
        else:
            found.append(statement)
    return tuple(found)
