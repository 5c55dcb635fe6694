"""Writes a node's body as loops over the examples of a tile, in text that Numba compiles.

Names in the text: `v_` a number that the function assigns (uniform, or of the example at hand), `t_` a tile
of a varying one, `a_` an array of the function's own, `p_` a parameter, `n_` the node's number of one, `u` a
uniform number, `y` a row of examples, `s_` a sum over them; `first` and `edge` are where the node's senders
and its parameters begin, `set_` where those do that it shares, `at` and `m` where the tile begins and its
number of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.grouping import Flow, stores
from partita.engine.kernels.nodes.kinds import kinds_of
from partita.engine.kernels.nodes.passes import Varying
from partita.engine.kernels.nodes.text import Constants, Writing

UNROLLED = 4
"""Iterations of a loop over edges that share one loop over the examples."""

TILE_TYPES: dict[ir.Kind, str] = {"real": "R", "int": "np.int64", "bool": "np.bool_"}


@dataclass
class Lines:
    """Text that grows line by line."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1
    n_names: int = 0

    def fresh(self, prefix: str) -> str:
        """Returns a new name, so that no name has two types."""
        self.n_names += 1
        return f"{prefix}{self.n_names}"

    def __call__(self, *lines: str) -> None:
        """Adds lines at this depth."""
        self.lines += ["    " * self.depth + line for line in lines]

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        """Indents what is added in the block below this line."""
        self(head)
        self.depth += 1
        yield
        self.depth -= 1


@dataclass
class Outside(Writing):
    """Writes uniform expressions in generated code.

    Args:
        own: the names of the function's own arrays.
        places: of each parameter in order, where a node's numbers begin, and what is to be taken away for
            the place in its gradient.
        sums_in_place: whether weighted sums are read where activations are to be written.
    """

    own: frozenset[str] = frozenset()
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sums_in_place: bool = False

    def leaf(self, expression: ir.Expression) -> str | None:
        """Writes a uniform number: a parameter's, or one that the function keeps."""
        match expression:
            case ir.Item(array, index) if array in self.own:
                return f"a_{array}[{self.text(index)}]"
            case ir.Item(array, index):
                return f"upcast(p_{array}[{self.places[array][0]} + {self.text(index)}])"
        return super().leaf(expression)


class Inside(Outside):
    """Writes expressions in a loop over examples; their uniform parts are computed before it."""

    def __init__(self, outside: Outside, varying: Varying, lines: Lines) -> None:
        super().__init__(
            outside.kinds,
            outside.constants,
            outside.helpers,
            outside.own,
            outside.places,
            outside.sums_in_place,
        )
        self._outside, self._varying, self._before = outside, varying, lines
        self._known: dict[tuple[str, str], str] = {}

    def leaf(self, expression: ir.Expression) -> str | None:
        """Computes uniform parts before the loop; reads numbers of arrays for the example."""
        if not self._varying(expression):
            if isinstance(expression, ir.Constant):
                return None
            return self._known_before("u", self._outside.text(expression))
        match expression:
            case ir.Item(array, index):
                return self.item(array, index)
            case ir.Argument("@sums") if self.sums_in_place:
                return "result[e]"
            case ir.Argument(name):
                view = self._known_before("y", f"part({name.removeprefix('@')}, n, at, m)")
                return f"upcast({view}[e])"
        return super().leaf(expression)

    def item(self, array: str, index: ir.Expression) -> str:
        """Writes an array's number for the example at hand."""
        place = self._outside.text(index)
        if array in self.own:
            return f"{self._known_before('y', f'part(a_{array}, {place}, 0, m)')}[e]"
        return f"upcast({self._known_before('y', f'row(x, padding, senders[first + {place}], at, m)')}[e])"

    def _known_before(self, prefix: str, text: str) -> str:
        if text.isidentifier():
            return text
        if (prefix, text) not in self._known:
            self._known[prefix, text] = self._before.fresh(prefix)
            self._before(f"{self._known[prefix, text]} = {text}")
        return self._known[prefix, text]


class BodyWriter:
    """Writes statements of a node's function.

    Args:
        outside: writer of uniform expressions.
        varying: the varying names.
        tiles: varying variables that are kept in tiles.
        into: receives the text.
    """

    def __init__(self, outside: Outside, varying: Varying, tiles: set[str], into: Lines) -> None:
        self._outside, self._varying, self._tiles, self._into = outside, varying, tiles, into

    def body(self, body: Sequence[ir.Statement]) -> None:
        """Writes statements in their order."""
        text, into = self._outside, self._into
        for statement in body:
            match statement:
                case ir.Assign(name, value):
                    into(f"v_{name} = {text.assigned(name, value)}")
                case ir.Store(array, index, value):
                    into(f"a_{array}[{text.text(index)}] = {text.real(value)}")
                case ir.Branch(condition, yes, no):
                    with into.inside(f"if {text.truth(condition)}:"):
                        self._some(yes)
                    with into.inside("else:"):
                        self._some(no)
                case ir.Loop(_, _, _, 1, (ir.Each(inner),)) if not stores(inner):
                    self._unrolled(statement)
                case ir.Loop(_, _, _, 1, (ir.Output(result), *_)) if result > 0:
                    self._unrolled(statement)
                case ir.Loop(variable, start, stop, step, inner):
                    bounds = f"{text.text(start)}, {text.text(stop)}, {step}"
                    with into.inside(f"for v_{variable} in range({bounds}):"):
                        self._some(inner)
                case ir.Each(inner):
                    self._each(inner)
                case ir.Output(result, index, value):
                    if result == 0:
                        assert index is not None
                        self._send(index, value)
                    else:
                        self._sum((statement,))

    def _some(self, body: Sequence[ir.Statement]) -> None:
        self.body(body)
        if not body:
            self._into("pass")

    def _unrolled(self, loop: ir.Loop) -> None:
        """Writes several iterations at once, then the rest one by one. The order stays."""
        into, text, name = self._into, self._outside, loop.variable
        into(f"begin, end = {text.text(loop.start)}, {text.text(loop.stop)}")
        into(f"cut = end - (end - begin) % {UNROLLED} if end > begin else begin")
        with into.inside(f"for v_{name} in range(begin, cut, {UNROLLED}):"):
            self._turns(loop, [_shifted(ir.Variable(name), i) for i in range(UNROLLED)])
        with into.inside(f"for v_{name} in range(cut, end):"):
            self._turns(loop, [ir.Variable(name)])

    def _turns(self, loop: ir.Loop, places: Sequence[ir.Expression]) -> None:
        first, *_ = loop.body
        body = first.body if isinstance(first, ir.Each) else loop.body
        found_backward = tuple(
            _moved(statement, loop.variable, place) for place in places for statement in body
        )
        if isinstance(first, ir.Each):
            self._each(found_backward)
        else:
            self._sum(found_backward)

    def _each(self, body: Sequence[ir.Statement]) -> None:
        """Writes a loop over the examples: tiles are read, the statements run, tiles written."""
        inside, flow = Inside(self._outside, self._varying, self._into), Flow(body)
        lines = Lines(depth=self._into.depth + 1)
        lines(*(f"v_{name} = t_{name}[e]" for name in sorted(flow.entering & self._tiles)))

        def special(statement: ir.Store | ir.Output) -> str:
            value = inside.real(statement.value)
            if isinstance(statement, ir.Store):
                return f"{inside.item(statement.array, statement.index)} = {value}"
            return f"result[e] = downcast({value}, result[e])"

        statements(body, inside, lines, special)
        lines(*(f"t_{name}[e] = v_{name}" for name in sorted(flow.assigned & self._tiles)))
        self._into("for e in range(m):")
        self._into.lines += lines.lines

    def _send(self, index: ir.Expression, value: ir.Expression) -> None:
        """Adds the errors of an edge to those of its sender, if these are asked for."""
        into = self._into
        into(f"sender = senders[first + {self._outside.text(index)}]")
        with into.inside("if low <= sender < high:"):
            inside = Inside(self._outside, self._varying, into)
            factors = inside.product(value)
            text = f"fma({', '.join(factors)}, sums[e])" if factors else f"sums[e] + {inside.real(value)}"
            into("sums = part(out, sender - low, at, m)")
            with into.inside("for e in range(m):"):
                into(*self._loads(value), f"sums[e] = {text}")

    def _sum(self, outputs: Sequence[ir.Statement]) -> None:
        """Writes sums over the examples, side by side."""
        into, lines = self._into, Lines(depth=self._into.depth + 1)
        places = list(self._outside.places.values())
        inside = Inside(self._outside, self._varying, into)
        loads: set[str] = set()
        for i, output in enumerate(outputs):
            assert isinstance(output, ir.Output)
            into(f"s_{i} = {self._outside.constants.name(0)}")
            factors = inside.product(output.value)
            if factors:
                lines(f"s_{i} = multiply_add_freely({', '.join(factors)}, s_{i})")
            else:
                lines(f"s_{i} = add_freely(s_{i}, {inside.real(output.value)})")
            loads.update(self._loads(output.value))
        with into.inside("for e in range(m):"):
            into(*sorted(loads))
        into.lines += lines.lines
        for i, output in enumerate(outputs):
            assert isinstance(output, ir.Output)
            place = "".join(places[output.result - 1])
            edge = "" if output.index is None else f" + {self._outside.text(output.index)}"
            into(f"g_{output.result}[{place}{edge}] += s_{i}")

    def _loads(self, value: ir.Expression) -> list[str]:
        """Reads the tiles that an expression needs."""
        return [
            f"v_{name} = t_{name}[e]" for name in sorted(Flow((ir.Assign("", value),)).exposed & self._tiles)
        ]


def _shifted(place: ir.Expression, by: int) -> ir.Expression:
    return ir.Operation("+", (place, ir.Constant(by))) if by else place


def _moved(statement: ir.Statement, variable: str, place: ir.Expression) -> ir.Statement:
    return ir.edited(statement, lambda expression: ir.put(expression, ir.Variable(variable), place))


def statements(
    body: Sequence[ir.Statement],
    writing: Writing,
    lines: Lines,
    special: Callable[[ir.Store | ir.Output], str] | None = None,
) -> None:
    """Writes statements of numbers; `special` writes those that store or hand over."""
    for statement in body:
        match statement:
            case ir.Assign(name, value):
                lines(f"v_{name} = {writing.assigned(name, value)}")
            case ir.Branch(condition, yes, no):
                for head, side in ((f"if {writing.truth(condition)}:", yes), ("else:", no)):
                    with lines.inside(head):
                        statements(side, writing, lines, special)
                        lines("pass")
            case ir.Loop(variable, start, stop, step, inner):
                bounds = f"{writing.text(start)}, {writing.text(stop)}, {step}"
                with lines.inside(f"for v_{variable} in range({bounds}):"):
                    statements(inner, writing, lines, special)
                    lines("pass")
            case ir.Store() | ir.Output() if special is not None:
                lines(special(statement))
            case _:
                raise AssertionError(f"{statement} is not of numbers alone")


def helper_functions(function: ir.Function, constants: Constants, prefix: str = "h_") -> Iterator[str]:
    """Writes the functions that a function calls, each after those that it calls itself."""
    for name, helper in function.helpers.items():
        inner, lines = helper.function, Lines()
        yield from helper_functions(inner, constants, f"{prefix}{name}_")
        writing = Writing(kinds_of(inner.body), constants, f"{prefix}{name}_")
        statements(inner.body, writing, lines)
        (result,) = inner.results
        assert not isinstance(result, ir.Elements)
        lines(f"return {writing.of_kind(result, helper.kind)}")
        arguments = ", ".join(f"n_{argument}" for argument in helper.arguments)
        yield "\n".join([f"def {prefix}{name}({arguments}):", *lines.lines])
