"""Derives the backward function of a node from its forward function: reverse differentiation of `ir`.

The derived function runs the forward pass first (`named`), then its statements backwards, each of which adds
to the gradients of what it read. A number that a loop carries from one iteration to the next is kept for each
edge. Passes over the result (`useful`) drop what no gradient needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.derivatives import SLOPES, negative, times
from partita.engine.kernels.nodes.kinds import kind_of, kinds_of
from partita.engine.kernels.nodes.named import Named, is_of_edges, named
from partita.engine.kernels.nodes.templates import templates

_OF_ARGUMENT = "0argument_"


def backward_of(upward: ir.Function, parameters: tuple[tuple[str, str], ...]) -> ir.Function:
    """Derives `downward` of a node.

    Args:
        upward: returns one number.
        parameters: pairs of a name and "e" (a number for each edge) or "n" (a number for each node).

    Raises:
        Unsupported: a loop whose numbers are too many to keep, or a function whose slope is not known.
    """
    if upward.returns_tuple or isinstance(upward.results[0], ir.Elements):
        raise ir.Unsupported("not one number")
    arrays = [ir.INCOMING, *(name for name, kind in parameters if kind == "e")]
    for array, count in _stores(upward.body).items():
        if count > 1:
            item = ir.Item(array, ir.PLACE)
            raise ir.Unsupported("an array whose numbers change more than once", item).within(upward.lines)
    forward = named(upward, frozenset(arrays))
    gradients = _Gradients(forward, arrays, upward.arrays)
    results: list[ir.Expression | ir.Elements] = [_of_edges(gradients, ir.INCOMING)]
    for name, kind in parameters:
        if kind == "e":
            results.append(_of_edges(gradients, name))
        else:
            results.append(gradients.of(f"{_OF_ARGUMENT}{name}") or ir.Constant(0.0))
    own = upward.arrays | gradients.arrays
    return templates(ir.Function(tuple(gradients.body), tuple(results), True, own, upward.helpers))


def _of_edges(gradients: _Gradients, array: str) -> ir.Elements:
    kept = _of(array) in gradients.arrays
    return ir.Elements(ir.Item(_of(array), ir.PLACE) if kept else ir.Constant(0.0))


def _of(name: str) -> str:
    """Names a variable's or an array's gradient."""
    return f"0d_{name.removeprefix('@')}"


def _stores(body: tuple[ir.Statement, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in ir.every(body):
        if isinstance(one, ir.Store):
            counts[one.array] = counts.get(one.array, 0) + 1
    return counts


class _Gradients:
    """The statements of the forward and the backward pass.

    Attributes:
        body: all statements.
        arrays: of gradients, and of carried numbers.
    """

    def __init__(self, forward: Named, given: list[str], own: frozenset[str]) -> None:
        self._loops, self._kinds = forward.loops, kinds_of(tuple(forward.body))
        self._given, self._own, self.arrays = given, own, set[str]()
        self._touched, self._n_bound = set[str](), 0
        self._same: dict[str, ir.Expression] = {}
        carried = {name for loop in forward.loops.values() for name in loop.carried}
        result = forward.result
        self._result = result if isinstance(result, ir.Variable) and result.name not in carried else None
        back: list[ir.Statement] = []
        self._add(forward.result, ir.ERROR, back)
        back += self._reversed(forward.body)
        zeros = []
        for array in sorted(array for array in self.arrays if array.startswith("0d_")):
            back, is_set = _with_first(back, array)
            zeros += [] if is_set else [_zeros(array)]
        kept = self._with_kept(forward.body)
        self.body = [*kept, *zeros, *(ir.edited(one, self._with_state) for one in back)]

    def of(self, name: str) -> ir.Expression | None:
        """The gradient of a variable; None if it has none."""
        return self._same.get(name, ir.Variable(_of(name))) if name in self._touched else None

    def _gradient(self, name: str) -> ir.Expression:
        found = self.of(name)
        assert found is not None, f"{name} has no gradient"
        return found

    def _with_state(self, expression: ir.Expression) -> ir.Expression:
        """Reads the result where the backward pass needs it as `state`."""
        if expression == self._result:
            return ir.STATE
        return ir.rebuilt(expression, self._with_state)

    def _start(self, name: str, out: list[ir.Statement]) -> None:
        """Sets a gradient to zero, unless there is one; from now on it has a name of its own."""
        if name not in self._touched or name in self._same:
            out.append(ir.Assign(_of(name), self._same.pop(name, ir.Constant(0.0))))
            self._touched.add(name)

    def _add_to(self, name: str, gradient: ir.Expression, out: list[ir.Statement]) -> None:
        known = self.of(name)
        self._touched.add(name)
        self._same.pop(name, None)
        if known is None and isinstance(gradient, ir.Variable | ir.Argument):
            self._same[name] = gradient
        else:
            total = gradient if known is None else ir.Operation("+", (known, gradient))
            out.append(ir.Assign(_of(name), total))

    def _add(self, value: ir.Expression, gradient: ir.Expression, out: list[ir.Statement]) -> None:
        """Adds the gradient of a value to those of the numbers in it."""
        if kind_of(value, self._kinds) != "real" or value == ir.FAN_IN:
            return
        match value:
            case ir.Variable(name):
                self._add_to(name, gradient, out)
            case ir.Argument(name):
                self._add_to(f"{_OF_ARGUMENT}{name}", gradient, out)
            case ir.Item(array, index):
                self._store(array, index, gradient, out)
            case ir.Operation("+" | "-", (only,)) as one:
                self._add(only, negative(gradient) if one.sign == "-" else gradient, out)
            case ir.Operation("+" | "-" | "*" as sign, (left, right)):
                gradient = self._bound(gradient, value, out)
                if sign == "*":
                    for factor, other in ((left, right), (right, left)):
                        if not (isinstance(other, ir.Constant) and other.value == 0):
                            self._add(factor, times(gradient, other), out)
                else:
                    self._add(left, gradient, out)
                    self._add(right, negative(gradient) if sign == "-" else gradient, out)

    def _bound(self, gradient: ir.Expression, value: ir.Expression, out: list[ir.Statement]) -> ir.Expression:
        """Gives a gradient a name where it would be computed several times."""
        leaves = sum(isinstance(one, ir.Variable | ir.Item | ir.Argument) for one in ir.walk(value))
        if leaves < 3 or isinstance(gradient, ir.Variable | ir.Argument | ir.Constant):
            return gradient
        self._n_bound += 1
        out.append(ir.Assign(f"0gradient_{self._n_bound}", gradient))
        return ir.Variable(f"0gradient_{self._n_bound}")

    def _store(
        self, array: str, index: ir.Expression, gradient: ir.Expression, out: list[ir.Statement]
    ) -> None:
        place = ir.Item(_of(array), index)
        self.arrays.add(place.array)
        out.append(ir.Store(place.array, index, ir.Operation("+", (place, gradient))))

    def _reversed(self, body: Sequence[ir.Statement]) -> list[ir.Statement]:
        """Writes the backward pass of statements."""
        out: list[ir.Statement] = []
        for statement in reversed(body):
            match statement:
                case ir.Assign(name, ir.Operation("+", (ir.Variable(old), rest))) if old == name:
                    if name in self._touched:
                        self._add(rest, self._gradient(name), out)
                case ir.Assign(name, value) if name in self._touched:
                    self._assigned(name, value, out)
                case ir.Store(array, index, value) if _of(array) in self.arrays:
                    self._n_bound += 1
                    bound = ir.Variable(f"0gradient_{self._n_bound}")
                    out.append(ir.Assign(bound.name, ir.Item(_of(array), index)))
                    self._add(value, bound, out)
                case ir.Branch(condition, yes, no):
                    self._branch(condition, (yes, no), out)
                case ir.Loop():
                    self._loop(statement, out)
        return out

    def _assigned(self, name: str, value: ir.Expression, out: list[ir.Statement]) -> None:
        gradient, variable = self._gradient(name), ir.Variable(name)
        self._touched.discard(name)
        self._same.pop(name, None)
        match value:
            case ir.Operation(sign, operands) if sign in SLOPES:
                key, parts = sign, operands
            case ir.Call(sign, arguments) if sign in SLOPES:
                key, parts = sign, arguments
            case ir.Call(sign, _):
                raise ir.Unsupported(f"{sign}, whose slope is not known here")
            case _:
                self._add(value, gradient, out)
                return
        for part, found in zip(parts, SLOPES[key](gradient, variable, *parts), strict=False):
            self._add(part, found, out)

    def _branch(
        self, condition: ir.Expression, sides: tuple[tuple[ir.Statement, ...], ...], out: list[ir.Statement]
    ) -> None:
        both = (*sides[0], *sides[1])
        if not self._matters(both):
            return
        self._open(both, out)
        before, same, found = set(self._touched), dict(self._same), []
        for side in sides:
            self._touched, self._same = set(before), dict(same)
            found.append(tuple(self._reversed(side)))
        self._touched = before - {one.name for one in ir.every(both) if _is_set(one)}
        self._same = {name: value for name, value in same.items() if name in self._touched}
        out.append(ir.Branch(condition, *found))

    def _loop(self, loop: ir.Loop, out: list[ir.Statement]) -> None:
        names, place = self._loops[loop.variable], ir.Variable(loop.variable)
        if not self._matters(loop.body):
            return
        if names.carried and not is_of_edges(loop.start, loop.stop, loop.step):
            raise ir.Unsupported("a loop that carries numbers, and does not count edges")
        self._open(loop.body, out, names.carried)
        before, same, body = set(self._touched), dict(self._same), list[ir.Statement]()
        body += [ir.Assign(name, ir.Item(_kept(name), place)) for name in names.carried]
        body += self._with_kept(_without(loop.body, {*names.carried, *names.accumulated}))
        rest = []
        for one in loop.body:
            match one:
                case ir.Assign(name, ir.Variable(end)) if name in names.carried:  # for the next iteration
                    body += [
                        ir.Assign(_of(end), ir.Variable(_of(name))),
                        ir.Assign(_of(name), ir.Constant(0.0)),
                    ]
                    self._touched.add(end)
                case _:
                    rest.append(one)
        body += self._reversed(rest)
        self._touched, self._same = before, same
        ordered = bool(names.carried) or any(isinstance(one, ir.Store) for one in ir.every(loop.body))
        bounds = _backwards(loop) if ordered else (loop.start, loop.stop, loop.step)
        again = {one.name for one in ir.every(loop.body) if isinstance(one, ir.Assign)}
        again -= {*names.carried, *names.accumulated}
        out.append(ir.Loop(loop.variable, *bounds, _renamed(body, again)))

    def _matters(self, body: tuple[ir.Statement, ...]) -> bool:
        """Returns whether statements assign something that has a gradient."""
        for one in ir.every(body):
            match one:
                case ir.Assign(name) if name in self._touched:
                    return True
                case ir.Store(array) if _of(array) in self.arrays:
                    return True
        return False

    def _open(
        self, body: tuple[ir.Statement, ...], out: list[ir.Statement], also: Sequence[str] = ()
    ) -> None:
        """Sets the gradients of what statements read from outside to zero, unless they have some."""
        inside = {one.name for one in ir.every(body) if isinstance(one, ir.Assign)}
        for name in [*also, *sorted(set(_read(body)) - inside)]:
            if self._kinds.get(name, "real") == "real":
                self._start(name, out)

    def _with_kept(self, body: Sequence[ir.Statement]) -> list[ir.Statement]:
        """Adds statements that keep what each loop carries, for each edge."""
        found: list[ir.Statement] = []
        for one in body:
            match one:
                case ir.Loop(variable, start, stop, step, inner) if is_of_edges(start, stop, step):
                    place, names = ir.Variable(variable), self._loops[variable].carried
                    self.arrays.update(map(_kept, names))
                    stores = [ir.Store(_kept(name), place, ir.Variable(name)) for name in names]
                    found.append(ir.Loop(variable, start, stop, step, (*stores, *inner)))
                case ir.Branch(condition, yes, no):
                    sides = (tuple(self._with_kept(side)) for side in (yes, no))
                    found.append(ir.Branch(condition, *sides))
                case _:
                    found.append(one)
        return found


def _zeros(array: str) -> ir.Statement:
    place = ir.Variable(f"{array}_zero")
    store = ir.Store(array, place, ir.Constant(0.0))
    return ir.Loop(place.name, ir.Constant(0), ir.FAN_IN, 1, (store,))


def _kept(name: str) -> str:
    """Names the array with what a loop carries, as each edge found it."""
    return f"0kept_{name}"


def _is_set(statement: ir.Statement) -> TypeGuard[ir.Assign]:
    """Returns whether a statement assigns something else than a sum that grows."""
    match statement:
        case ir.Assign(name, ir.Operation("+", (ir.Variable(old), _))) if old == name:
            return False
    return isinstance(statement, ir.Assign)


def _read(body: tuple[ir.Statement, ...]) -> Iterator[str]:
    for statement in ir.every(body):
        for whole in ir.expressions(statement):
            for part in ir.walk(whole):
                match part:
                    case ir.Variable(name):
                        yield name
                    case ir.Argument(name) if part != ir.FAN_IN:
                        yield f"{_OF_ARGUMENT}{name}"


def _renamed(body: Sequence[ir.Statement], names: set[str]) -> tuple[ir.Statement, ...]:
    """Gives names that both passes assign another name in the backward pass."""

    def change(expression: ir.Expression) -> ir.Expression:
        match expression:
            case ir.Variable(name) if name in names:
                return ir.Variable(f"{name}_again")
        return ir.rebuilt(expression, change)

    def of(statement: ir.Statement) -> ir.Statement:
        match statement:
            case ir.Assign(name, value) if name in names:
                return ir.Assign(f"{name}_again", value)
            case ir.Branch(condition, yes, no):
                return ir.Branch(condition, tuple(map(of, yes)), tuple(map(of, no)))
            case ir.Loop():
                return replace(statement, body=tuple(map(of, statement.body)))
        return statement

    return tuple(of(ir.edited(one, change)) for one in body)


def _without(body: Sequence[ir.Statement], names: set[str]) -> list[ir.Statement]:
    """Leaves out the assignments to some names."""
    found: list[ir.Statement] = []
    for one in body:
        match one:
            case ir.Assign(name) if name in names:
                continue
            case ir.Branch(condition, yes, no):
                found.append(ir.Branch(condition, *(tuple(_without(side, names)) for side in (yes, no))))
            case ir.Loop(variable, start, stop, step, inner):
                found.append(ir.Loop(variable, start, stop, step, tuple(_without(inner, names))))
            case _:
                found.append(one)
    return found


def _backwards(loop: ir.Loop) -> tuple[ir.Expression, ir.Expression, int]:
    """The range of a loop in the other direction."""
    match loop.start, loop.stop, loop.step:
        case start, stop, 1:
            last: ir.Expression = ir.Operation("-", (stop, ir.Constant(1)))
        case start, stop, step:
            length = ir.Operation("-", (ir.Operation("-", (stop, ir.Constant(1))), start))
            turns = ir.Operation("//", (length, ir.Constant(step)))
            last = ir.Operation("+", (start, ir.Operation("*", (turns, ir.Constant(step)))))
    return last, ir.Operation("-", (start, ir.Constant(1))), -loop.step


def _with_first(body: list[ir.Statement], array: str) -> tuple[list[ir.Statement], bool]:
    """Sets an array where a loop over all edges is the first to add to it; else it has to be zero before."""
    for i, one in enumerate(body):
        stores = [inner for inner in ir.every((one,)) if isinstance(inner, ir.Store) and inner.array == array]
        if not stores:
            continue
        if isinstance(one, ir.Loop) and (one.start, one.stop, one.step) == (ir.Constant(0), ir.FAN_IN, 1):
            item = ir.Item(array, ir.Variable(one.variable))
            match stores, [inner for inner in one.body if inner in stores]:
                case [ir.Store(_, index, ir.Operation("+", (old, added)))], [_] if (
                    index == item.index and old == item
                ):
                    changed = [
                        ir.Store(array, index, added) if inner == stores[0] else inner for inner in one.body
                    ]
                    return [*body[:i], replace(one, body=tuple(changed)), *body[i + 1 :]], True
        return body, False
    return body, True
