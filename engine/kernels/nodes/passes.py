"""Passes over a node's function before it is written as loops over examples.

A number is uniform if it is the same for every example (weights, counts), else varying. Loops and indices are
uniform; varying statements run example by example, innermost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import replace
from typing import TypeAlias

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.kinds import kind_of, kinds_of

Body: TypeAlias = ir.Body


def useful(body: Body) -> Body:
    """Keeps the statements on which an output depends."""
    needed: set[ir.Operand | str] = set()
    before = -1
    while len(needed) != before:
        before = len(needed)
        _need(body, needed)
    return _kept(body, needed)


def _need(body: Body, needed: set[ir.Operand | str]) -> bool:
    """Adds what useful statements read; returns whether there is one."""
    found = False
    for statement in reversed(body):
        inner = [_need(one, needed) for one in ir.bodies(statement)]
        match statement:
            case ir.Value():
                is_useful = statement in needed
                needed |= {statement.array} if is_useful and statement.array else set()
            case ir.Store(array):
                is_useful = array in needed
            case ir.Loop() | ir.While():
                carried = [one for one in statement.carried if one in needed]
                needed.update(operand for one in carried for operand in (one.start, one.end))
                is_useful = any(inner) or bool(carried)
            case ir.Branch():
                merged = [one for one in statement.merged if one in needed]
                needed.update(operand for one in merged for operand in (one.yes, one.no))
                is_useful = any(inner) or bool(merged)
            case _:
                is_useful = True
        if is_useful:
            needed.update(ir.operands(statement))
        found = found or is_useful
    return found


def _kept(body: Body, needed: Set[ir.Operand | str]) -> Body:
    found: Body = []
    for statement in body:
        statement = ir.with_bodies(statement, lambda inner: _kept(inner, needed))
        match statement:
            case ir.Value() if statement not in needed:
                continue
            case ir.Store(array) if array not in needed:
                continue
            case ir.Loop() | ir.While():
                statement = replace(statement, carried=[one for one in statement.carried if one in needed])
                if not statement.body and not statement.carried:
                    continue
            case ir.Branch():
                statement = replace(statement, merged=[one for one in statement.merged if one in needed])
                if not statement.yes and not statement.no and not statement.merged:
                    continue
        found.append(statement)
    return found


def with_results(body: Body, wanted: Set[int]) -> Body:
    """Keeps what some of the results need."""

    def change(inner: Body) -> Body:
        others = (one for one in inner if not isinstance(one, ir.Output) or one.result in wanted)
        return [ir.with_bodies(one, change) for one in others]

    return useful(change(body))


def varying_of(body: Body, given: Iterable[ir.Operand | str]) -> set[ir.Operand | str]:
    """Finds the numbers and arrays that differ between examples.

    Args:
        body: any.
        given: the arguments and arrays that do.
    """
    found = set(given)
    before = -1
    while len(found) != before:
        before = len(found)
        _spread(body, found, under=False)
    return found


def _spread(body: Body, varying: set[ir.Operand | str], *, under: bool) -> None:
    """Adds the numbers that follow from others; `under` a varying condition, whatever differs by path."""
    for statement in body:
        inner = under
        match statement:
            case ir.Value():
                if statement.array in varying or varying & set(statement.operands):
                    varying.add(statement)
            case ir.Store(array, _, value) if under or value in varying:
                varying.add(array)
            case ir.Loop():
                if statement.scalar:
                    varying.add(statement.counter)
                inner = under or statement.scalar
                for one in statement.carried:
                    if under or statement.scalar or one.start in varying or one.end in varying:
                        varying.add(one)
            case ir.Branch(condition, _, _, merged):
                inner = under or condition in varying
                varying |= {one for one in merged if inner or one.yes in varying or one.no in varying}
        for one_body in ir.bodies(statement):
            _spread(one_body, varying, under=inner)


def check(body: Body, varying: Set[ir.Operand | str]) -> None:
    """Refuses what cannot be written with the examples innermost.

    Raises:
        Unsupported: examples would read other places, or run through loops more or less often.
    """
    kinds = kinds_of(body)
    for statement in ir.every(body):
        counts: tuple[ir.Operand, ...] = ()
        match statement:
            case ir.While(_, condition):
                raise ir.Unsupported("a loop that may end earlier for some examples", condition)
            case ir.Value("item", (index,)) | ir.Store(_, index):
                counts = (index,)
            case ir.Loop(_, start, stop) if not statement.scalar:
                counts = (start, stop)
        for one in counts:
            if one in varying or kind_of(one, kinds) != "int":
                raise ir.Unsupported("a loop or a place that depends on an example", one)


def hoisted(body: Body, varying: Set[ir.Operand | str]) -> Body:
    """Moves varying numbers that are the same in every iteration of a loop out of it."""
    found: Body = []
    for statement in body:
        statement = ir.with_bodies(statement, lambda inner: hoisted(inner, varying))
        if isinstance(statement, ir.Loop):
            changing: set[ir.Operand] = {statement.counter, *statement.carried}
            inner = _without_fixed(statement.body, changing, varying, found)
            statement = replace(statement, body=inner)
        found.append(statement)
    return found


def _without_fixed(
    body: Body, changing: set[ir.Operand], varying: Set[ir.Operand | str], fixed: Body
) -> Body:
    """Moves numbers that never change in a loop's body to `fixed`; those that do are added to `changing`."""
    found: Body = []
    for statement in body:
        match statement:
            case ir.Value() if not statement.array and statement in varying:
                if not changing & set(statement.operands):
                    fixed.append(statement)
                    continue
                changing.add(statement)
            case ir.Value():
                changing.add(statement)
            case ir.Loop():
                changing.update((statement.counter, *statement.carried))
        statement = ir.with_bodies(statement, lambda inner: _without_fixed(inner, changing, varying, fixed))
        if isinstance(statement, ir.Branch):
            changing.update(statement.merged)
        found.append(statement)
    return found


def fused(body: Body) -> Body:
    """Rounds a sum with a product once, where nothing else uses the product."""
    kinds = kinds_of(body)
    uses = Counter(operand for one in ir.every(body) for operand in ir.all_operands(one))

    def change(inner: Body) -> Body:
        found: Body = []
        for statement in inner:
            statement = ir.with_bodies(statement, change)
            if isinstance(statement, ir.Value) and statement.operator == "+" and kinds[statement] == "real":
                for *total, product in (statement.operands, statement.operands[::-1]):
                    if not total or not isinstance(product, ir.Value) or product not in found:
                        continue
                    if product.operator == "*" and uses[product] == 1 and kinds[product] == "real":
                        found.remove(product)
                        statement.operator, statement.operands = "fma", (*product.operands, *total)
                        break
            found.append(statement)
        return found

    return change(body)


def without_arrays(body: Body, arrays: Set[str]) -> Body:
    """Hands over a result that one loop over all edges stores without its array.

    Args:
        body: of a function.
        arrays: of its own.
    """
    found: Body = []
    for i, statement in enumerate(body):
        match statement:
            case ir.Loop(
                counter, body=[ir.Value("item", (index,)) as item, ir.Output(value=value) as output]
            ) if index is counter and value is item:
                made = _last_stored(body[:i], item.array, arrays, counter)
                if made is not None:
                    copied, number = made
                    output = ir.Output(output.result, counter, number)
                    statement = replace(statement, body=[*copied, output])
        found.append(statement)
    return useful(found)


def _last_stored(
    body: Body, array: str, arrays: Set[str], place: ir.Counter
) -> tuple[Body, ir.Operand] | None:
    """Finds how the last loop that writes an array computes its number of an edge."""
    for loop in reversed(body):
        stores = [one for one in ir.every([loop]) if isinstance(one, ir.Store) and one.array == array]
        if not stores:
            continue
        if not isinstance(loop, ir.Loop) or not loop.is_of_all_edges or len(stores) > 1:
            return None
        (store,) = stores
        behind = ir.behind(store.value)
        needed = {one for one in loop.body if isinstance(one, ir.Value) and one in behind}
        read = {operand for one in needed for operand in one.operands} | {store.value}
        inside = read & ir.made([loop]).keys() - needed - {loop.counter}
        if store not in loop.body or store.index is not loop.counter or inside:
            return None
        if any(one.array in arrays for one in needed):
            return None
        copy = ir.Copy({loop.counter: place})
        return copy.body(one for one in loop.body if one in needed), copy.of(store.value)
    return None
