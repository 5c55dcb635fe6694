"""Groups statements that share a loop over the examples, and finds varying numbers that outlive one."""

from __future__ import annotations

from collections.abc import Iterable

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.passes import Body, Varying, is_of_examples


def grouped(body: Body, varying: Varying) -> Body:
    """Returns the body with as few loops over the examples (`ir.Each`) as their order allows."""
    found: list[ir.Statement] = []
    run: list[ir.Statement] = []
    for statement in body:
        if is_of_examples(statement, varying) and not _is_uniform_branch(statement, varying):
            run.append(statement)
            continue
        found += _flushed(run)
        match statement:
            case ir.Loop(variable, start, stop, step, inner):
                found.append(ir.Loop(variable, start, stop, step, grouped(inner, varying)))
            case ir.Branch(condition, yes, no):
                found.append(ir.Branch(condition, grouped(yes, varying), grouped(no, varying)))
            case _:
                found.append(statement)
    return (*found, *_flushed(run))


def _flushed(run: list[ir.Statement]) -> list[ir.Statement]:
    found: list[ir.Statement] = [ir.Each(tuple(run))] if run else []
    run.clear()
    return found


def _is_uniform_branch(statement: ir.Statement, varying: Varying) -> bool:
    return isinstance(statement, ir.Branch) and not varying(statement.condition)


class Flow:
    """The data flow of a run of statements.

    Attributes:
        exposed: variables that are, or may be, read before it assigns them.
        assigned: variables assigned somewhere.
        surely: variables assigned on every path.
    """

    def __init__(self, body: Iterable[ir.Statement]) -> None:
        self.exposed: set[str] = set()
        self.assigned: set[str] = set()
        self.surely = self._through(body, set())

    @property
    def entering(self) -> set[str]:
        """Variables whose values from before matter."""
        return self.exposed | (self.assigned - self.surely)

    def _through(self, body: Iterable[ir.Statement], known: set[str]) -> set[str]:
        known = set(known)
        for statement in body:
            for expression in ir.expressions(statement):
                self.exposed |= variables(expression) - known
            match statement:
                case ir.Assign(name, _):
                    self.assigned.add(name)
                    known.add(name)
                case ir.Branch(_, yes, no):
                    known |= self._through(yes, known) & self._through(no, known)
                case ir.Loop(variable, _, _, _, inner):
                    self._through(inner, known | {variable})
                case ir.Each(inner):
                    known |= self._through(inner, known)
        return known


def kept(body: Body, varying: Varying) -> set[str]:
    """Finds the varying variables that pass from one loop over the examples to another, or to its next
    iteration.
    """
    outside: set[str] = set()
    users: dict[str, int] = {}
    for statement in ir.every(body):
        if not isinstance(statement, ir.Each):
            continue
        flow = Flow(statement.body)
        outside |= flow.exposed
        for name in flow.assigned | flow.exposed:
            users[name] = users.get(name, 0) + 1
    for statement in _outside_loops(body):
        for expression in ir.expressions(statement):
            outside |= variables(expression)
    return {
        name for name in outside | {n for n, count in users.items() if count > 1} if name in varying.names
    }


def _outside_loops(body: Body) -> Iterable[ir.Statement]:
    """Yields the statements that are in no `Each`."""
    for statement in body:
        if not isinstance(statement, ir.Each):
            yield statement
            for inner in ir.bodies(statement):
                yield from _outside_loops(inner)


def variables(expression: ir.Expression) -> set[str]:
    """Finds the variables in an expression."""
    return {part.name for part in ir.walk(expression) if isinstance(part, ir.Variable)}


def stores(body: Iterable[ir.Statement]) -> bool:
    """Returns whether statements write to arrays."""
    return any(isinstance(statement, ir.Store) for statement in ir.every(tuple(body)))
