"""Reads a user's function into statements of `ir`.

`return`, `break` and `continue` become branches: statements behind a branch that leaves move into the other
one. A function that is not understood is refused, and then compiled as it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import FunctionType

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.expressions import ExpressionReader, Value, chosen
from partita.engine.kernels.nodes.kinds import kind_of, kinds_of
from partita.engine.kernels.nodes.source import Written, is_plain, written
from partita.engine.kernels.nodes.syntax import arguments_of, bindings, breaks, leaves, loops_over, name_of
from partita.engine.kernels.nodes.templates import templates


def read_function(
    source: Written, given: Sequence[ir.Argument | ir.Item], *, calls: tuple[FunctionType, ...] = ()
) -> ir.Function:
    """Reads a function into `ir`.

    Args:
        source: as written.
        given: the value of each argument: a number, or the template of an array.
        calls: the functions that are being read, to which this one must not lead back.

    Raises:
        Unsupported: it uses what an `ir.Function` cannot express.
    """
    try:
        reader = _Reader(source, given, calls)
        results = reader.block(source.tree.body)
        if results is None or len(reader.tuples) != 1:
            raise ir.Unsupported("a way through without a return, or with one of another form")
    except ir.Unsupported as refused:
        refused.function = refused.function or source.function
        raise
    body = tuple(reader.expressions.statements)
    arrays, is_tuple = frozenset(reader.own_arrays), reader.tuples == {True}
    lines = reader.expressions.lines
    return templates(ir.Function(body, tuple(results), is_tuple, arrays, reader.helpers, lines))


class _Reader:
    def __init__(
        self, source: Written, given: Sequence[ir.Argument | ir.Item], calls: tuple[FunctionType, ...]
    ) -> None:
        arguments = dict(zip(arguments_of(source.tree), given, strict=True))
        arrays = {name: what for name, what in arguments.items() if isinstance(what, ir.Item)}
        self._tree, self._bound = source.tree, bindings(source.tree)
        if any(self._bound[name] > 1 for name in arrays):
            raise ir.Unsupported("an array of the node's that is replaced or changed")
        self._calls = (*calls, source.function)
        self._given, self.own_arrays = set(arguments), set[str]()
        self.helpers: dict[str, ir.Helper] = {}
        self.tuples: set[bool] = set()
        self._names_of_helpers: dict[FunctionType, str] = {}
        self._depth, self._loops = 0, list[str]()
        self.expressions = ExpressionReader(
            {name: value for name, value in source.names.items() if name not in self._bound},
            {name: what for name, what in arguments.items() if name not in arrays},
            dict(arrays),
            self._called,
        )
        for name, what in arguments.items():
            if self._bound[name] > 1:
                self._set(name, what)

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
                return [self.expressions.read(one) for one in each]
            case ast.Break():
                self._emit(ir.Assign(self._loops[-1], ir.Constant(False)))
                return None
            case ast.Continue():
                return None
            case ast.If():
                return self._fork(statement, rest)
        raise ir.Unsupported(f"{type(statement).__name__}, with a return in it or without a value")

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                held = [self.expressions.number(value) for value in values]
                names = [self._keep(value) for value in held]
                for target, name in zip(targets, names, strict=True):
                    self._assign(target, name)
            case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
                given = self.expressions.read(value)
                if isinstance(given, ir.Elements):
                    self._check_aliases(target, value)
                    self.expressions.lines.setdefault(ir.Item(ast.unparse(target), ir.PLACE), statement)
                self._assign(target, given)
            case ast.AugAssign(target, operator, value):
                old, other = self.expressions.read(target), self.expressions.read(value)
                self._assign(target, self.expressions.operation(operator, old, other))
            case ast.If(test, yes, no):
                condition = self.expressions.condition(test)
                self._emit(ir.Branch(condition, self._inside(yes)[0], self._inside(no)[0]))
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
        condition = self.expressions.condition(statement.test)
        if not all(map(self._settled, ir.walk(condition))):
            condition = self._keep(condition)
        sides = [
            self._inside([*side, *(rest if leaves(side) != "always" else ())])
            for side in (statement.body, statement.orelse)
        ]
        (yes, these), (no, those) = sides
        self._emit(ir.Branch(condition, yes, no))
        if self._loops:
            return None
        if these is None or those is None or len(these) != len(those):
            raise ir.Unsupported("ways through with and without results")
        return [chosen(condition, a, b) for a, b in zip(these, those, strict=True)]

    def _inside(self, statements: Sequence[ast.stmt]) -> tuple[tuple[ir.Statement, ...], list[Value] | None]:
        outer, self.expressions.statements = self.expressions.statements, []
        self._depth += 1
        results = self.block(statements)
        self._depth -= 1
        inner, self.expressions.statements = self.expressions.statements, outer
        return tuple(inner), results

    def _for(self, statement: ast.For) -> None:
        index, bounds, items = self._header(statement)
        if index in self._given or index in self.expressions.numbers:
            raise ir.Unsupported("a loop over a name that is used otherwise")
        going = self.expressions.fresh("going")
        has_break = breaks(statement.body)
        if has_break:
            self._emit(ir.Assign(going, ir.Constant(True)))
        self.expressions.numbers[index] = ir.Variable(index)
        self._loops.append(going)
        firsts = tuple(self._bind(name, value) for name, value in items)
        body, _ = self._inside(statement.body)
        self._loops.pop()
        del self.expressions.numbers[index]
        body = (*firsts, *body)
        self._emit(ir.Loop(index, *bounds, (ir.Branch(ir.Variable(going), body, ()),) if has_break else body))

    def _while(self, statement: ast.While) -> None:
        going = self.expressions.fresh("going")
        self._emit(ir.Assign(going, ir.Constant(True)))
        self._loops.append(going)
        outer, self.expressions.statements = self.expressions.statements, []
        condition = self.expressions.condition(statement.test)
        body, _ = self._inside(statement.body)
        self._loops.pop()
        end = (ir.Assign(going, ir.Constant(False)),)
        inner = (*self.expressions.statements, ir.Branch(condition, body, end))
        self.expressions.statements = outer
        self.expressions.lines[ir.Variable(going)] = statement
        self._emit(ir.While(ir.Variable(going), inner))

    def _header(
        self, statement: ast.For
    ) -> tuple[str, tuple[ir.Expression, ir.Expression, int], list[tuple[str, ir.Expression]]]:
        """Returns the loop's counter, its range, and other names that each iteration assigns."""
        target, over = statement.target, statement.iter
        called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
        meant = self.expressions.names.get(called)
        if meant is range and isinstance(target, ast.Name) and isinstance(over, ast.Call):
            if self._bound[target.id] > loops_over(self._tree, target.id):
                raise ir.Unsupported("a loop whose number is set by hand")
            return target.id, self._range(over.args), []
        index = self.expressions.fresh("k")
        names: list[ast.expr] = [target]
        arrays: list[ast.expr] = [over]
        first: list[tuple[str, ir.Expression]] = []
        if meant is enumerate and isinstance(over, ast.Call) and isinstance(target, ast.Tuple):
            count, *names = target.elts
            arrays = over.args
            first = [(name_of(count), ir.Variable(index))]
        elif meant is zip and isinstance(over, ast.Call) and isinstance(target, ast.Tuple):
            names, arrays = target.elts, over.args
        if len(names) != len(arrays):
            raise ir.Unsupported("a loop over something else")
        items = []
        for name, array in zip(names, arrays, strict=True):
            template = self.expressions.array(array)
            if template is None:
                raise ir.Unsupported("a loop over something else")
            items.append((name_of(name), ir.at(template, ir.Variable(index))))
        return index, (ir.Constant(0), ir.FAN_IN, 1), first + items

    def _range(self, arguments: list[ast.expr]) -> tuple[ir.Expression, ir.Expression, int]:
        values = [self.expressions.number(argument) for argument in arguments]
        for value, argument in zip(values, arguments, strict=True):
            self.expressions.lines.setdefault(value, argument)
        if not 1 <= len(values) <= 3:
            raise ir.Unsupported("a range")
        step = values[2] if len(values) == 3 else ir.Constant(1)
        if not isinstance(step, ir.Constant) or not isinstance(step.value, int) or step.value == 0:
            raise ir.Unsupported("a step that is no plain number")
        return (ir.Constant(0), values[0], 1) if len(values) == 1 else (values[0], values[1], step.value)

    def _assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(name) if isinstance(value, ir.Elements):
                self._set_array(name, value.template)
            case ast.Name(name) if name not in self.expressions.arrays:
                assert not isinstance(value, ir.Elements)
                self._set(name, value)
            case ast.Subscript(ast.Name(array), index) if array in self.own_arrays:
                if isinstance(value, ir.Elements):
                    raise ir.Unsupported("an array in the place of a number")
                self._emit(ir.Store(array, self.expressions.number(index), value))
            case _:
                raise ir.Unsupported("an assignment to something else")

    def _set(self, name: str, value: ir.Expression) -> None:
        self._emit(self._bind(name, value))

    def _bind(self, name: str, value: ir.Expression) -> ir.Assign:
        self.expressions.numbers[name] = ir.Variable(name)
        return ir.Assign(name, value)

    def _set_array(self, name: str, template: ir.Expression) -> None:
        """Keeps an array that never changes as a template; any other is filled in a loop."""
        if name in self._given or name in self.expressions.numbers:
            raise ir.Unsupported("a name of a number and of an array")
        if self._bound[name] == 1 and not self._depth and all(map(self._settled, ir.walk(template))):
            self.expressions.arrays[name] = template
            return
        self.own_arrays.add(name)
        self.expressions.arrays[name] = ir.Item(name, ir.PLACE)
        place = ir.Variable(self.expressions.fresh("k"))
        store = ir.Store(name, place, ir.at(self._without_fixed_items(template), place))
        self._emit(ir.Loop(place.name, ir.Constant(0), ir.FAN_IN, 1, (store,)))

    def _check_aliases(self, target: ast.expr, value: ast.expr) -> None:
        """Refuses two names of one array unless it never changes."""
        if isinstance(value, ast.Name | ast.IfExp):
            names = [node.id for node in (target, *ast.walk(value)) if isinstance(node, ast.Name)]
            arrays = [name for name in names if name in self.expressions.arrays]
            if arrays and any(self._bound[name] > 1 for name in (*names[:1], *arrays)):
                raise ir.Unsupported("two names of an array that changes")

    def _settled(self, part: ir.Expression) -> bool:
        """Returns whether a part of a template never changes any more."""
        match part:
            case ir.Variable(name) | ir.Item(name, _):
                return self._bound[name] <= 1
        return True

    def _without_fixed_items(self, template: ir.Expression) -> ir.Expression:
        """Reads single numbers of arrays before the loop that may change them."""
        if isinstance(template, ir.Item) and ir.PLACE not in ir.walk(template):
            return self._keep(template)
        return ir.rebuilt(template, self._without_fixed_items)

    def _keep(self, value: ir.Expression) -> ir.Variable:
        name = self.expressions.fresh("kept")
        self._emit(ir.Assign(name, value))
        return ir.Variable(name)

    def _called(self, function: FunctionType, arguments: list[ir.Expression]) -> ir.Expression:
        """Reads a call of another function of the user's, which takes and returns numbers."""
        name = self._names_of_helpers.get(function)
        if name is None:
            name = str(len(self.helpers))
            self.helpers[name] = self._helper(function)
            self._names_of_helpers[function] = name
        helper = self.helpers[name]
        if len(arguments) != len(helper.arguments):
            raise ir.Unsupported("a call with other arguments")
        return ir.Call(name, tuple(arguments), helper.kind)

    def _helper(self, function: FunctionType) -> ir.Helper:
        source = written(function) if is_plain(function) and function not in self._calls else None
        if source is None:
            raise ir.Unsupported(f"a call of {function.__name__}")
        names = arguments_of(source.tree)
        read = read_function(source, [ir.Argument(name) for name in names], calls=self._calls)
        if read.returns_tuple or isinstance(read.results[0], ir.Elements):
            raise ir.Unsupported("a function that returns several numbers")
        return ir.Helper(tuple(names), read, kind_of(read.results[0], kinds_of(read.body)))

    def _emit(self, statement: ir.Statement) -> None:
        self.expressions.statements.append(statement)
