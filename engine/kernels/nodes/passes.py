"""Passes over a node's function before it is written as loops over examples.

A number is uniform if it is the same for every example (weights, counts), else varying. Loops and indices are
uniform; varying statements run example by example, innermost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.kinds import kind_of, kinds_of

Body: TypeAlias = tuple[ir.Statement, ...]


def useful(body: Body) -> Body:
    """Keeps the statements on which an output depends."""
    needed: set[str] = set()
    while True:
        kept = _kept(body, needed)
        found = {name for statement in ir.every(kept) for name in _read(statement)}
        if found <= needed:
            return kept
        needed |= found


def _kept(body: Body, needed: set[str]) -> Body:
    found: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.Assign(name, _) if name not in needed:
                continue
            case ir.Store(array, _, _) if array not in needed:
                continue
            case ir.Loop(variable, start, stop, step, inner):
                statement = ir.Loop(variable, start, stop, step, _kept(inner, needed))
            case ir.Branch(condition, yes, no):
                statement = ir.Branch(condition, _kept(yes, needed), _kept(no, needed))
        if not ir.bodies(statement) or any(ir.bodies(statement)):
            found.append(statement)
    return tuple(found)


def _read(statement: ir.Statement) -> Iterator[str]:
    for expression in ir.expressions(statement):
        for part in ir.walk(expression):
            match part:
                case ir.Variable(name) | ir.Item(name, _):
                    yield name


@dataclass
class Varying:
    """The variables and arrays that differ between examples.

    Args:
        names: of variables and arrays; at first, those that the node is given.
        given: the arguments that vary.
    """

    names: set[str]
    given: set[str]
    _stable: bool = field(default=False, init=False)

    def settle(self, body: Body) -> None:
        """Adds all that follow from those given."""
        while not self._stable:
            self._stable = True
            self._spread(body, under=False)

    def __call__(self, expression: ir.Expression) -> bool:
        """Returns whether an expression varies."""
        for part in ir.walk(expression):
            match part:
                case ir.Variable(name) | ir.Item(name, _) if name in self.names:
                    return True
                case ir.Argument(name) if name in self.given:
                    return True
        return False

    def _spread(self, body: Body, *, under: bool) -> None:
        for statement in body:
            match statement:
                case ir.Assign(name, value) | ir.Store(name, _, value) if under or self(value):
                    self._stable = self._stable and name in self.names
                    self.names.add(name)
            inner = under or (isinstance(statement, ir.Branch) and self(statement.condition))
            for one in ir.bodies(statement):
                self._spread(one, under=inner)


def check(body: Body, varying: Varying) -> None:
    """Refuses what cannot be written with the examples innermost.

    Raises:
        Unsupported: examples would read other places, or run through loops more or less often.
    """
    kinds = kinds_of(body)
    for statement in ir.every(body):
        if isinstance(statement, ir.While):
            raise ir.Unsupported("a loop that may end earlier for some examples", statement.condition)
        whole = [
            part.index for e in ir.expressions(statement) for part in ir.walk(e) if isinstance(part, ir.Item)
        ]
        if isinstance(statement, ir.Loop):
            whole += [statement.start, statement.stop]
        if isinstance(statement, ir.Store):
            whole.append(statement.index)
        for expression in whole:
            if varying(expression) or kind_of(expression, kinds) != "int":
                raise ir.Unsupported("a loop or a place that depends on an example", expression)


def hoisted(body: Body, varying: Varying) -> Body:
    """Moves varying numbers that are the same in every iteration of a loop out of it."""
    kinds = kinds_of(body)
    found: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.Branch(condition, yes, no):
                found.append(ir.Branch(condition, hoisted(yes, varying), hoisted(no, varying)))
            case ir.Loop(variable, start, stop, step, inner):
                names: dict[ir.Expression, str] = {}
                inner = _without_constants(hoisted(inner, varying), variable, kinds, varying, names)
                found += [ir.Assign(name, value) for value, name in names.items()]
                found.append(ir.Loop(variable, start, stop, step, inner))
            case _:
                found.append(statement)
    return tuple(found)


def _without_constants(
    body: Body, variable: str, kinds: dict[str, ir.Kind], varying: Varying, names: dict[ir.Expression, str]
) -> Body:
    """Replaces expressions that never change in a loop's body by variables, which are added to `names`."""
    changed = {variable} | {s.name for s in ir.every(body) if isinstance(s, ir.Assign)}
    changed |= {s.variable for s in ir.every(body) if isinstance(s, ir.Loop)}

    def fixed(expression: ir.Expression) -> bool:
        within = list(ir.walk(expression))
        moves = any(
            isinstance(part, ir.Item) or (isinstance(part, ir.Variable) and part.name in changed)
            for part in within
        )
        return not moves and len(within) > 1 and varying(expression) and kind_of(expression, kinds) == "real"

    def change(expression: ir.Expression) -> ir.Expression:
        if not fixed(expression):
            return ir.rebuilt(expression, change)
        name = names.setdefault(expression, f"{len(varying.names)}_fixed")
        varying.names.add(name)
        return ir.Variable(name)

    return tuple(ir.edited(statement, change) for statement in body)


def masked(body: Body, varying: Varying) -> Body:
    """Makes loops run for all examples, with masks inside them: no loop stays in a varying branch."""
    found: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.Branch(condition, yes, no) if varying(condition) and not is_of_examples(
                statement, varying
            ):
                mask = f"{len(varying.names)}_mask"
                varying.names.add(mask)
                found.append(ir.Assign(mask, ir.Operation("not", (ir.Operation("not", (condition,)),))))
                found += _under(ir.Variable(mask), masked(yes, varying), varying)
                found += _under(ir.Operation("not", (ir.Variable(mask),)), masked(no, varying), varying)
            case ir.Branch(condition, yes, no):
                found.append(ir.Branch(condition, masked(yes, varying), masked(no, varying)))
            case ir.Loop(variable, start, stop, step, inner):
                found.append(ir.Loop(variable, start, stop, step, masked(inner, varying)))
            case _:
                found.append(statement)
    return tuple(found)


def _under(condition: ir.Expression, body: Body, varying: Varying) -> list[ir.Statement]:
    found: list[ir.Statement] = []
    for statement in body:
        match statement:
            case _ if is_of_examples(statement, varying):
                found.append(ir.Branch(condition, (statement,), ()))
            case ir.Loop(variable, start, stop, step, inner):
                found.append(ir.Loop(variable, start, stop, step, tuple(_under(condition, inner, varying))))
            case ir.Branch(uniform, yes, no):
                sides = (tuple(_under(condition, side, varying)) for side in (yes, no))
                found.append(ir.Branch(uniform, *sides))
            case _:
                raise AssertionError(f"{statement} is uniform, and done for some examples only")
    return found


def is_of_examples(statement: ir.Statement, varying: Varying) -> bool:
    """Returns whether a statement can stand in the loop over the examples: it assigns varying names only."""
    match statement:
        case ir.Assign(name, _) | ir.Store(name, _, _):
            return name in varying.names
        case ir.Branch(_, yes, no):
            return all(is_of_examples(inner, varying) for inner in (*yes, *no))
        case ir.Output(result, index, _):
            return result == 0 and index is None
    return False
