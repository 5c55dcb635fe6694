"""Rewrites a node's function so that every value has a name of its own, and keeps it until the end.

Then the values of a forward pass are there for the backward pass. Only a loop assigns a name again: an
*accumulator*, to which it only adds, or a number that one iteration *carries* to the next. Functions that the
user's function calls stand where they were called, and loops with few fixed iterations are written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.grouping import Flow, variables
from partita.engine.kernels.nodes.kinds import kind_of, kinds_of

Env = dict[str, ir.Expression]
_FEW = 32
"""Iterations of a loop that is written out."""


@dataclass(frozen=True)
class Repeated:
    """The names that a loop assigns again and again.

    Attributes:
        accumulated: the loop only adds to them.
        carried: it also reads them.
    """

    accumulated: frozenset[str]
    carried: tuple[str, ...]


@dataclass
class Named:
    """A function in this form.

    Attributes:
        body: its statements.
        result: what it returns.
        loops: the names that each loop assigns again, by its counter.
    """

    body: list[ir.Statement] = field(default_factory=list)
    result: ir.Expression = field(default_factory=lambda: ir.Constant(0.0))
    loops: dict[str, Repeated] = field(default_factory=dict)


def named(function: ir.Function, given: frozenset[str]) -> Named:
    """Rewrites a function that returns one number.

    Args:
        function: any.
        given: the arrays that it is given.
    """
    found, (result,) = Named(), function.results
    assert not isinstance(result, ir.Elements)
    renaming, env = _Renaming(function, given, found), Env()
    renaming.block(function.body, env, found.body, variables(result))
    found.result = renaming.value(result, env, found.body)
    return found


class _Renaming:
    """Renames in one function; those that it calls have renamings of their own."""

    def __init__(
        self, function: ir.Function, given: frozenset[str], into: Named, names: Iterator[int] | None = None
    ) -> None:
        self._kinds, self._helpers = kinds_of(function.body), function.helpers
        self._given, self._into = given, into
        self._names = names if names is not None else iter(range(1 << 30))
        self._arguments: Env = {}
        self._adding: frozenset[str] | set[str] = frozenset()
        self._loads: dict[tuple[str, ir.Expression], ir.Expression] = {}

    def fresh(self, prefix: str) -> str:
        """Returns a name that nobody else has, as it begins with 0."""
        return f"0{next(self._names)}_{prefix.lstrip('0123456789_')}"

    def block(self, body: Sequence[ir.Statement], env: Env, out: list[ir.Statement], after: set[str]) -> None:
        """Rewrites statements; `env` has the value of each name here, `after` the names read behind them."""
        for i, statement in enumerate(body):
            match statement:
                case ir.Assign(name, value):
                    self._assign(name, value, env, out)
                case ir.Store(array, index, value):
                    read = self.value(value, env, out)
                    out.append(ir.Store(array, self._plain(index, env), read))
                case ir.Branch(condition, yes, no):
                    read_later = Flow(body[i + 1 :]).exposed | after
                    sides = [self._side(side, env, read_later) for side in (yes, no)]
                    self._branch(self._plain(condition, env), sides, env, out)
                case ir.Loop():
                    self._loop(statement, env, out, Flow(body[i + 1 :]).exposed | after)
                case _:
                    raise ir.Unsupported("a loop that may end earlier for some examples")

    def _assign(self, name: str, value: ir.Expression, env: Env, out: list[ir.Statement]) -> None:
        rest, kept = added(name, value), env.get(name)
        if rest is not None and isinstance(kept, ir.Variable) and kept.name in self._adding:
            read = self.value(rest, env, out)
            out.append(ir.Assign(kept.name, ir.Operation("+", (kept, read))))
        else:
            env[name] = self._kept(name, self.value(value, env, out), out)

    def _kept(self, name: str, value: ir.Expression, out: list[ir.Statement]) -> ir.Expression:
        if isinstance(value, ir.Variable | ir.Constant):
            return value
        variable = ir.Variable(self.fresh(name))
        out.append(ir.Assign(variable.name, value))
        return variable

    def _side(
        self, body: Sequence[ir.Statement], env: Env, after: set[str]
    ) -> tuple[list[ir.Statement], Env]:
        inner, own = list[ir.Statement](), dict(env)
        self.block(body, own, inner, after)
        return inner, own

    def _branch(
        self,
        condition: ir.Expression,
        sides: list[tuple[list[ir.Statement], Env]],
        env: Env,
        out: list[ir.Statement],
    ) -> None:
        """Ends a branch: names with different values on its two sides have a new one behind it."""
        test = self._kept("test", condition, out)
        (yes, first), (no, second) = sides
        for name in sorted(first.keys() | second.keys()):
            values = first.get(name), second.get(name)
            if values[0] != values[1]:
                merged = self.fresh(name)
                for side, value in ((yes, values[0]), (no, values[1])):
                    if value is not None:
                        side.append(ir.Assign(merged, value))
                env[name] = ir.Variable(merged)
        if yes or no:
            out.append(ir.Branch(test, tuple(yes), tuple(no)))

    def _loop(self, loop: ir.Loop, env: Env, out: list[ir.Statement], after: set[str]) -> None:
        after = after | Flow(loop.body).exposed
        start, stop = self._plain(loop.start, env), self._plain(loop.stop, env)
        if isinstance(start, ir.Constant) and isinstance(stop, ir.Constant):
            counts = range(int(start.value), int(stop.value), loop.step)
            if len(counts) <= _FEW:
                for count in counts:
                    env[loop.variable] = ir.Constant(count)
                    self.block(loop.body, env, out, after)
                return
        assigned = sorted({one.name for one in ir.every(loop.body) if isinstance(one, ir.Assign)})
        carried, accumulated = dict[str, str](), set[str]()
        for name in assigned:
            kept, adds = env.get(name), _only_adds(name, loop.body)
            if name not in after:
                continue  # each iteration begins anew with it
            if adds and isinstance(kept, ir.Variable) and kept.name in self._adding:
                accumulated.add(kept.name)  # a loop around this one adds to it, too
                continue
            new = self.fresh(name)
            if kept is not None:
                out.append(ir.Assign(new, kept))
            env[name] = ir.Variable(new)
            if adds:
                accumulated.add(new)
            else:
                carried[name] = new
        place = ir.Variable(self.fresh(loop.variable))
        self._into.loops[place.name] = Repeated(frozenset(accumulated), tuple(carried.values()))
        inner, own = list[ir.Statement](), {**env, loop.variable: place}
        before, self._loads, self._adding = (
            (self._loads, self._adding),
            {**self._loads},
            self._adding | accumulated,
        )
        if is_of_edges(start, stop, loop.step):
            for array in sorted(self._given & _read_at(loop.variable, loop.body)):
                item = ir.Item(array, place)
                self._loads[array, place] = self._kept("item", item, inner)
        self.block(loop.body, own, inner, after)
        self._loads, self._adding = before
        ends = {new: ir.Variable(self.fresh(name)) for name, new in carried.items()}
        inner += [ir.Assign(end.name, own[name]) for name, end in zip(carried, ends.values(), strict=True)]
        inner += [ir.Assign(new, end) for new, end in ends.items()]
        out.append(ir.Loop(place.name, start, stop, loop.step, tuple(inner)))

    def value(self, expression: ir.Expression, env: Env, out: list[ir.Statement]) -> ir.Expression:
        """Rewrites an expression whose gradient is needed: calls, quotients and choices have names."""
        if kind_of(expression, self._kinds) != "real":
            return self._plain(expression, env)

        def read(part: ir.Expression) -> ir.Expression:
            return self.value(part, env, out)

        match expression:
            case ir.Operation("+" | "-" | "*"):
                return ir.rebuilt(expression, read)
            case ir.Operation():
                return self._kept("value", ir.rebuilt(expression, read), out)
            case ir.Choice(condition, yes, no):
                sides = list[tuple[list[ir.Statement], Env]]()
                for side in (yes, no):
                    inner, own = list[ir.Statement](), dict(env)
                    own["0chosen"] = self.value(side, own, inner)
                    sides.append((inner, own))
                self._branch(self._plain(condition, env), sides, env, out)
                return env.pop("0chosen", sides[0][1]["0chosen"])
            case ir.Call(name, arguments) if name[0].isdigit():
                return self._called(self._helpers[name], [read(argument) for argument in arguments], out)
            case ir.Call():
                return self._kept("value", ir.rebuilt(expression, read), out)
        return self._plain(expression, env)

    def _called(
        self, helper: ir.Helper, arguments: list[ir.Expression], out: list[ir.Statement]
    ) -> ir.Expression:
        inner = _Renaming(helper.function, frozenset(), self._into, self._names)
        kept = [self._kept("argument", argument, out) for argument in arguments]
        inner._arguments = dict(zip(helper.arguments, kept, strict=True))
        env, (result,) = Env(), helper.function.results
        assert not isinstance(result, ir.Elements)
        inner.block(helper.function.body, env, out, variables(result))
        return inner.value(result, env, out)

    def _plain(self, expression: ir.Expression, env: Env) -> ir.Expression:
        """Puts the values of names into an expression."""
        match expression:
            case ir.Variable(name):
                return env.get(name, ir.Constant(0.0))
            case ir.Argument(name) if name in self._arguments:
                return self._arguments[name]
            case ir.Call(name) if name[0].isdigit() and self._arguments:
                raise ir.Unsupported("a condition with a call, in a function that is called itself")
            case ir.Item(array, index):
                place = self._plain(index, env)
                return self._loads.get((array, place), ir.Item(array, place))
        return ir.rebuilt(expression, lambda part: self._plain(part, env))


def is_of_edges(start: ir.Expression, stop: ir.Expression, step: int) -> bool:
    """Returns whether a loop counts edges of the node, each once at most."""
    inside = isinstance(start, ir.Constant) and start.value >= 0
    match stop:
        case ir.Operation("-", (end, ir.Constant(less))) if less >= 0:
            stop = end
    return inside and stop == ir.FAN_IN and step > 0


def _read_at(counter: str, body: Sequence[ir.Statement]) -> set[str]:
    """Finds the arrays that a loop reads at its counter."""
    place = ir.Variable(counter)
    return {
        part.array
        for statement in ir.every(tuple(body))
        for whole in ir.expressions(statement)
        for part in ir.walk(whole)
        if isinstance(part, ir.Item) and part.index == place
    }


def added(name: str, value: ir.Expression) -> ir.Expression | None:
    """Finds what an assignment adds to a name; None if it does more."""
    variable = ir.Variable(name)
    match value:
        case ir.Operation("+", (first, second)):
            for one, other in ((first, second), (second, first)):
                if variable in ir.walk(other):
                    continue
                if one == variable:
                    return other
                rest = added(name, one)
                if rest is not None:
                    return ir.Operation("+", (rest, other))
        case ir.Operation("-", (first, second)) if variable not in ir.walk(second):
            if first == variable:
                return ir.Operation("-", (second,))
            rest = added(name, first)
            return None if rest is None else ir.Operation("-", (rest, second))
    return None


def _only_adds(name: str, body: Sequence[ir.Statement]) -> bool:
    """Returns whether statements only ever add to a name."""
    for statement in ir.every(tuple(body)):
        if isinstance(statement, ir.Assign) and statement.name == name:
            if added(name, statement.value) is None:
                return False
        elif any(ir.Variable(name) in ir.walk(whole) for whole in ir.expressions(statement)):
            return False
    return True
