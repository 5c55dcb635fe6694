"""Reads a user's function into statements of `ir`.

`return`, `break` and `continue` become branches: statements behind a branch that leaves move into the other
one. A call of another function of the user's is read in its place. A function that is not understood is
refused, and then runs as it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.expressions import ExpressionReader, Side, Template, Value, of_array
from partita.engine.kernels.nodes.passes import useful, without_arrays
from partita.engine.kernels.nodes.source import Written, is_plain, written
from partita.engine.kernels.nodes.syntax import arguments_of, bindings, breaks, leaves, loops_over, name_of

Given = Sequence[ir.Operand | ir.Array]


@dataclass
class _Text:
    """State that a function shares with those that it calls.

    Args:
        calls: the functions that are being read, to which none must lead back.
        lines: the user's text of what is counted.
        sources: of functions that were read.
    """

    calls: list[FunctionType] = field(default_factory=list)
    lines: dict[Any, ir.Line] = field(default_factory=dict)
    sources: dict[FunctionType, Written | None] = field(default_factory=dict)


def read_function(source: Written, given: Given) -> ir.Function:
    """Reads a function into `ir`.

    Args:
        source: as written.
        given: the value of each argument: a number or an array.

    Raises:
        Unsupported: it uses what an `ir.Function` cannot express.
    """
    text = _Text()
    reader = _Reader(source, given, [], text)
    results = reader.results()
    for i, result in enumerate(results):
        reader.hand_over(i, result)
    are_arrays = tuple(isinstance(result, Template) for result in results)
    arrays = frozenset(reader.own_arrays)
    body = without_arrays(useful(reader.statements), arrays)
    return ir.Function(body, are_arrays, reader.tuples == {True}, arrays, text.lines)


class _Reader(ExpressionReader):
    def __init__(self, source: Written, given: Given, statements: ir.Body, text: _Text) -> None:
        arguments = dict(zip(arguments_of(source.tree), given, strict=True))
        arrays = {name: of_array(one.name) for name, one in arguments.items() if isinstance(one, ir.Array)}
        values = {name: one for name, one in arguments.items() if not isinstance(one, ir.Array)}
        self._source, self._text, self._bound = source, text, bindings(source.tree)
        names = {name: value for name, value in source.names.items() if name not in self._bound}
        super().__init__(names, values, arrays, statements)
        if any(self._bound[name] > 1 for name in arrays):
            raise ir.Unsupported("an array of the node's that is replaced or changed")
        self._given, self.own_arrays = set(arguments), set[str]()
        self.tuples, self._loops = set[bool](), list[str]()

    def results(self) -> list[Value]:
        """Reads the function; returns its results."""
        self._text.calls.append(self._source.function)
        try:
            found = self.block(self._source.tree.body)
            if found is None or len(self.tuples) != 1:
                raise ir.Unsupported("a way through without a return, or with one of another form")
        except ir.Unsupported as refused:
            refused.function = refused.function or self._source.function
            raise
        self._text.calls.pop()
        return found

    def hand_over(self, result: int, value: Value) -> None:
        """Ends the function with one of its results."""
        if isinstance(value, Template):
            self._over_all(value, lambda place, number: ir.Output(result, place, number))
        else:
            self.statements.append(ir.Output(result, None, value))

    def _over_all(self, array: Template, end: Callable[[ir.Counter, ir.Operand], ir.Statement]) -> None:
        place = ir.Counter()
        with self.side() as side:
            number = self.at(array, place)
            self.statements.append(end(place, number))
        self.statements.append(ir.Loop(place, ir.Constant(0), ir.FAN_IN, 1, side.body))

    def note(self, what: Any, node: ast.AST) -> None:
        """Remembers the text of something that is counted."""
        self._text.lines.setdefault(what, ir.Line(self._source.function, node))

    def block(self, statements: Sequence[ast.stmt]) -> list[Value] | None:
        """Reads statements; returns the results, if they end in a return."""
        for i, statement in enumerate(statements):
            try:
                if leaves([statement]) == "never":
                    self._statement(statement)
                    continue
                return self._exit(statement, statements[i + 1 :])
            except ir.Unsupported as refused:
                raise refused.at(statement) from None
        return None

    def _exit(self, statement: ast.stmt, rest: Sequence[ast.stmt]) -> list[Value] | None:
        """Reads a statement that may be the last, and those behind it."""
        match statement:
            case ast.Return(value) if value is not None and not self._loops:
                self.tuples.add(isinstance(value, ast.Tuple))
                each = value.elts if isinstance(value, ast.Tuple) else [value]
                return [self.read(one) for one in each]
            case ast.Break():
                self.values[self._loops[-1]] = ir.Constant(False)
                return None
            case ast.Continue():
                return None
            case ast.If():
                return self._fork(statement, rest)
        raise ir.Unsupported(f"{type(statement).__name__}, with a return in it or without a value")

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                for target, value in zip(targets, list(map(self.number, values)), strict=True):
                    self._assign(target, value)
            case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                given = self.read(value)
                if isinstance(given, Template):
                    self._check_aliases(target, value)
                    self.note(_own(ast.unparse(target)), statement)
                self._assign(target, given)
            case ast.AugAssign(target, operator, value):
                old, other = self.read(target), self.read(value)
                self._assign(target, self.operation(operator, old, other))
            case ast.If(test, yes, no):
                self.join(self.condition(test), self._inside(yes), self._inside(no))
            case ast.For(orelse=[]):
                self._for(statement)
            case ast.While(orelse=[]):
                self._while(statement)
            case ast.Pass() | ast.Expr(ast.Constant()):
                pass
            case _:
                raise ir.Unsupported(type(statement).__name__)

    def _fork(self, statement: ast.If, rest: Sequence[ast.stmt]) -> list[Value] | None:
        """Reads a branch with an exit; the statements behind it belong to the paths that stay."""
        condition = self.condition(statement.test)
        yes, no = (
            self._inside([*side, *(rest if leaves(side) != "always" else ())])
            for side in (statement.body, statement.orelse)
        )
        if not self._loops and (
            yes.results is None or no.results is None or len(yes.results) != len(no.results)
        ):
            raise ir.Unsupported("ways through with and without results")
        found = self.join(condition, yes, no)
        return None if self._loops else found

    def _inside(self, statements: Sequence[ast.stmt]) -> Side:
        with self.side() as side:
            side.results = self.block(statements)
        return side

    def _for(self, statement: ast.For) -> None:
        index, bounds, items = self._header(statement)
        if index in self._given or index in self.values:
            raise ir.Unsupported("a loop over a name that is used otherwise")
        counter, ends_early = ir.Counter(), breaks(statement.body)

        def read(going: str) -> None:
            self.values[index] = counter
            for name, array in items:
                self.values[name] = counter if array is None else self.at(array, counter)
            if ends_early:
                body = self._inside(statement.body)
                self.join(self.values[going], body, Side(values=dict(self.values)))
            else:
                self.block(statement.body)
            del self.values[index]

        names = [name for name, _ in items]
        carried, side = self._repeated(statement.body, names, read, ends_early=ends_early)
        is_scalar = len(self._text.calls) > 1
        self.statements.append(ir.Loop(counter, *bounds, side.body, carried, is_scalar))

    def _while(self, statement: ast.While) -> None:
        ends_early, head, condition = breaks(statement.body), list[ir.Statement](), list[ir.Operand]()

        def read(going: str) -> None:
            found = self.condition(statement.test)
            condition.append(self.emit("and", self.values[going], found) if ends_early else found)
            head.extend(self.statements)
            self.statements.clear()
            self.block(statement.body)

        carried, side = self._repeated(statement.body, [], read, ends_early=ends_early)
        self.note(condition[0], statement)
        self.statements.append(ir.While(head, condition[0], side.body, carried))

    def _repeated(
        self, body: list[ast.stmt], names: list[str], read: Callable[[str], None], *, ends_early: bool
    ) -> tuple[list[ir.Carried], Side]:
        """Reads the body of a loop; what it assigns is carried from one iteration to the next.

        Args:
            body: as written.
            names: that each iteration assigns before it.
            read: reads it, given the name of a number that says whether the loop goes on.
            ends_early: whether the loop has such a number.
        """
        going = f"@going {len(self._loops)}"
        assigned = {*bindings(ast.Module(body, [])), *names}
        if ends_early:
            self.values[going] = ir.Constant(True)
            assigned.add(going)
        carried, unset = dict[str, ir.Carried](), dict[str, ir.Operand]()
        for name in sorted(assigned):
            known = self.values.get(name)
            carried[name] = ir.Carried(known or self.earlier.get(name, ir.Constant(False)))
            if known is None:
                unset[name] = carried[name]
        before, self.earlier = self.earlier, {**self.earlier, **unset}
        self._loops.append(going)
        with self.side() as side:
            self.values.update({name: one for name, one in carried.items() if name not in unset})
            read(going)
        self._loops.pop()
        self.earlier = before
        found = []
        for name, one in carried.items():
            if name in side.values:
                one.end, self.values[name] = side.values[name], one
                found.append(one)
            elif any(one in ir.operands(inner) for inner in ir.every(side.body)):
                raise ir.Unsupported(f"'{name}' before it has a value")
        self.values.pop(going, None)
        return found, side

    def _header(
        self, statement: ast.For
    ) -> tuple[str, tuple[ir.Operand, ir.Operand, int], list[tuple[str, Template | None]]]:
        """Returns the loop's counter, its range, and other names that each iteration assigns: None for the
        counter.
        """
        target, over = statement.target, statement.iter
        called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
        meant = self.names.get(called)
        if meant is range and isinstance(target, ast.Name) and isinstance(over, ast.Call):
            if self._bound[target.id] > loops_over(self._source.tree, target.id):
                raise ir.Unsupported("a loop whose number is set by hand")
            return target.id, self._range(over.args), []
        names: list[ast.expr] = [target]
        arrays: list[ast.expr] = [over]
        items: list[tuple[str, Template | None]] = []
        if meant is enumerate and isinstance(over, ast.Call) and isinstance(target, ast.Tuple):
            count, *names = target.elts
            arrays = over.args
            items = [(name_of(count), None)]
        elif meant is zip and isinstance(over, ast.Call) and isinstance(target, ast.Tuple):
            names, arrays = target.elts, over.args
        if len(names) != len(arrays):
            raise ir.Unsupported("a loop over something else")
        for name, node in zip(names, arrays, strict=True):
            array = self.array(node)
            if array is None:
                raise ir.Unsupported("a loop over something else")
            items.append((name_of(name), array))
        return f"@{len(self._loops)}", (ir.Constant(0), ir.FAN_IN, 1), items

    def _range(self, arguments: list[ast.expr]) -> tuple[ir.Operand, ir.Operand, int]:
        values = [self.number(argument) for argument in arguments]
        for value, argument in zip(values, arguments, strict=True):
            self.note(value, argument)
        if not 1 <= len(values) <= 3:
            raise ir.Unsupported("a range")
        step = values[2] if len(values) == 3 else ir.Constant(1)
        if not isinstance(step, ir.Constant) or not isinstance(step.value, int) or step.value == 0:
            raise ir.Unsupported("a step that is no plain number")
        return (ir.Constant(0), values[0], 1) if len(values) == 1 else (values[0], values[1], step.value)

    def _assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(name) if isinstance(value, Template):
                self._set_array(name, value)
            case ast.Name(name) if name not in self.arrays:
                assert not isinstance(value, Template)
                self.values[name] = value
            case ast.Subscript(ast.Name(name), index) if _own(name) in self.own_arrays:
                if isinstance(value, Template):
                    raise ir.Unsupported("an array in the place of a number")
                self.statements.append(ir.Store(_own(name), self.number(index), value))
            case _:
                raise ir.Unsupported("an assignment to something else")

    def _set_array(self, name: str, array: Template) -> None:
        """Keeps an array that never changes as a template; any other is filled in a loop."""
        if name in self._given or name in self.values:
            raise ir.Unsupported("a name of a number and of an array")
        read = {one.array for one in array.body if isinstance(one, ir.Value)}
        if self._bound[name] == 1 and not self.depth and not read & self.own_arrays:
            self.arrays[name] = array
            return
        own = _own(name)
        self.own_arrays.add(own)
        self.arrays[name] = of_array(own)
        self._over_all(array, lambda place, number: ir.Store(own, place, number))

    def _check_aliases(self, target: ast.expr, value: ast.expr) -> None:
        """Refuses two names of one array unless it never changes."""
        if isinstance(value, ast.Name | ast.IfExp):
            names = [node.id for node in (target, *ast.walk(value)) if isinstance(node, ast.Name)]
            arrays = [name for name in names if name in self.arrays]
            if arrays and any(self._bound[name] > 1 for name in (*names[:1], *arrays)):
                raise ir.Unsupported("two names of an array that changes")

    def called(self, function: FunctionType, operands: list[ir.Operand]) -> ir.Operand:
        """Reads another function of the user's, which takes and returns numbers, where it is called."""
        sources = self._text.sources
        if function not in sources:
            sources[function] = written(function) if is_plain(function) else None
        source = sources[function]
        if source is None or function in self._text.calls:
            raise ir.Unsupported(f"a call of {function.__name__}")
        if len(operands) != len(arguments_of(source.tree)):
            raise ir.Unsupported("a call with other arguments")
        given = [
            ir.Constant(float(one.value)) if isinstance(one, ir.Constant) else self.emit("float", one)
            for one in operands
        ]
        reader = _Reader(source, given, self.statements, self._text)
        found = reader.results()
        if reader.tuples == {True} or isinstance(found[0], Template):
            raise ir.Unsupported("a function that returns several numbers")
        return found[0]


def _own(name: str) -> str:
    """Names an array of the function's own, as no parameter is called."""
    return f"0{name}"
