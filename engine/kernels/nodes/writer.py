"""Writes a node's body as loops over the examples of a tile, in text that Numba compiles.

Names in the text: `v` a number (uniform, or of the example at hand), `t_` a tile of a varying one, `a_` an
array of the function's own, `p_` a parameter, `n_` the node's number of one, `y` a row of examples, `s_` a
sum over them; `first` and `edge` are where the node's senders and its parameters begin, `set_` where those do
that it shares, `at` and `m` where the tile begins and its number of examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.grouping import (
    Varying,
    assigned_in,
    is_read_again,
    kept,
    read_in,
    set_first_in,
    uniform_in,
)
from partita.engine.kernels.nodes.kinds import kinds_of
from partita.engine.kernels.nodes.text import Constants, Writing
from partita.engine.kernels.nodes.tiles import TILE

UNROLLED = 4
"""Iterations of a loop over edges that share one loop over the examples."""

_TYPES: dict[ir.Kind, str] = {"real": "R", "int": "np.int64", "bool": "np.bool_"}


@dataclass
class Lines:
    """Text that grows line by line."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

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


class BodyWriter(Writing):
    """Writes the body of a node's function.

    Args:
        body: grouped into loops over the examples.
        varying: the varying numbers and arrays.
        constants: of the whole module.
        places: of each parameter in order, where a node's numbers begin, and what is to be taken away for
            the place in its gradient.
        into: receives the text.
        sums_in_place: whether weighted sums are read where activations are to be written.
    """

    def __init__(
        self,
        body: ir.Body,
        varying: Varying,
        constants: Constants,
        places: Mapping[str, tuple[str, str]],
        into: Lines,
        *,
        sums_in_place: bool = False,
    ) -> None:
        super().__init__(kinds_of(body), constants)
        self._body, self._varying, self._places, self._into = body, varying, places, into
        self._sums_in_place = sums_in_place
        self.tiles = kept(body, varying)
        self._views, self._n_views = dict[str, str](), 0
        self._inside, self._copy = set[ir.Operand](), ""
        self._counter, self._shift = ir.Counter(), 0
        self._factors = set[ir.Operand]()
        uses = Counter(operand for one in ir.every(body) for operand in ir.operands(one))
        self._used_once = {one for one, count in uses.items() if count == 1}
        for one in ir.every(body):  # in their order, so that equal functions have equal texts
            match one:
                case ir.Assign(target):
                    self.name(target)
                case ir.Loop(counter):
                    self.name(counter)
                case ir.Value():
                    self.name(one)

    def stacks(self) -> None:
        """Writes the arrays that all nodes use: the tiles, and those of the function."""
        for one in sorted(self.tiles, key=self.name):
            self._into(f"t_{self.name(one)} = stack({TILE}, {_TYPES[self.kind(one)]})")
        for name in sorted({one.array for one in ir.every(self._body) if isinstance(one, ir.Store)}):
            shape = f"(width, {TILE})" if name in self._varying else "width"
            self._into(f"a_{name} = np.empty({shape}, R)")

    def write(self) -> None:
        """Writes the statements, for a tile of examples of one node."""
        self._outer(self._body)

    def name(self, operand: ir.Operand) -> str:
        """Returns the name of a variable, in the copy of a loop's body that is being written."""
        return super().name(operand) + (self._copy if operand in self._inside else "")

    def known(self, operand: ir.Operand) -> str:
        """Writes a number where it is known: in a row of examples, or a variable."""
        if operand is self._counter and self._shift:
            return f"({self.name(operand)} + {self._shift})"
        if isinstance(operand, ir.Argument) and operand in self._varying:
            if operand.name == "@sums" and self._sums_in_place:
                return "result[e]"
            return f"upcast({self._view(f'part({operand.name[1:]}, n, at, m)')}[e])"
        return super().known(operand)

    def computed(self, value: ir.Value) -> str:
        """Writes how a number is computed, or where it is read."""
        if value.operator != "item":
            return super().computed(value)
        (index,) = value.operands
        if value in self._varying:
            text = f"{self._row(value.array, index)}[e]"
            return f"upcast({text})" if value.array == ir.INCOMING else text
        if value.array in self._places:
            return f"upcast(p_{value.array}[{self._places[value.array][0]} + {self.known(index)}])"
        return f"a_{value.array}[{self.known(index)}]"

    def _row(self, array: str, index: ir.Operand) -> str:
        place = self.known(index)
        if array == ir.INCOMING:
            return self._view(f"row(x, padding, senders[first + {place}], at, m)")
        return self._view(f"part(a_{array}, {place}, 0, m)")

    def _view(self, text: str) -> str:
        """Names a row of examples, which is looked up before the loop over them."""
        if text not in self._views:
            self._n_views += 1
            self._views[text] = f"y{self._n_views}"
        return self._views[text]

    def _outer(self, body: ir.Body) -> None:
        """Writes statements outside of loops over the examples."""
        into = self._into
        for statement in body:
            match statement:
                case ir.Value() | ir.Assign() | ir.Store():
                    into(self._simple(statement))
                case ir.Branch(condition, yes, no):
                    for head, side in ((f"if {self.truth(condition)}:", yes), ("else:", no)):
                        with into.inside(head):
                            self._outer(side)
                            into("pass")
                case ir.Loop(_, _, _, 1, [ir.Each(inner)]) if _can_be_unrolled(inner):
                    self._unrolled(statement, inner)
                case ir.Loop():
                    with into.inside(self._head(statement)):
                        self._outer(statement.body)
                        into("pass")
                case ir.Each(inner):
                    self._each(inner)

    def _head(self, loop: ir.Loop) -> str:
        bounds = f"{self.known(loop.start)}, {self.known(loop.stop)}, {loop.step}"
        return f"for {self.name(loop.counter)} in range({bounds}):"

    def _simple(self, statement: ir.Statement) -> str:
        match statement:
            case ir.Value():
                return f"{self.name(statement)} = {self.computed(statement)}"
            case ir.Assign(target, value):
                return f"{self.name(target)} = {self.of_kind(value, self.kind(target))}"
            case ir.Store(array, index, value) if array in self._varying:
                return f"{self._row(array, index)}[e] = {self.real(value)}"
            case ir.Store(array, index, value):
                return f"a_{array}[{self.known(index)}] = {self.real(value)}"
            case ir.Output(0, None, value):
                return f"result[e] = downcast({self.real(value)}, result[e])"
        raise AssertionError(f"{statement} is not of numbers alone")

    def _unrolled(self, loop: ir.Loop, body: ir.Body) -> None:
        """Writes several iterations at once, then the rest one by one. The order stays."""
        into, name = self._into, self.name(loop.counter)
        into(f"begin, end = {self.known(loop.start)}, {self.known(loop.stop)}")
        into(f"cut = end - (end - begin) % {UNROLLED} if end > begin else begin")
        self._inside, self._counter = (
            {one for one in ir.every(body) if isinstance(one, ir.Value)},
            loop.counter,
        )
        with into.inside(f"for {name} in range(begin, cut, {UNROLLED}):"):
            self._each(body, copies=UNROLLED)
        with into.inside(f"for {name} in range(cut, end):"):
            self._each(body)
        self._inside = set()

    def _each(self, body: ir.Body, *, copies: int = 1) -> None:
        """Writes a loop over the examples: tiles are read, the statements run, tiles written."""
        sends = [one for one in body if isinstance(one, ir.Output) and one.result == 0 and one.index]
        if sends:
            assert sends[0].index is not None
            self._into(f"sender = senders[first + {self.known(sends[0].index)}]")
            with self._into.inside("if low <= sender < high:"):
                self._into("sums = part(out, sender - low, at, m)")
                self._examples(body, copies)
        else:
            self._examples(body, copies)

    def _examples(self, body: ir.Body, copies: int) -> None:
        into, made = self._into, assigned_in(body)
        self._views, self._into = {}, Lines(depth=into.depth + 1)
        uniform, sums = list[str](), list[str]()
        outputs = [one for one in body if isinstance(one, ir.Output)]
        self._factors = {one.value for one in outputs if self._is_added_at_once(one, made)}
        used = read_in(body) | made
        for one in sorted(used - made & self._varying, key=self.name):
            if isinstance(one, ir.Value) and is_read_again(one):
                self._into(self._simple(one))
        tiles = sorted(f"{self.name(one)}" for one in used & self.tiles - set_first_in(body))
        self._into(*(f"{name} = t_{name}[e]" for name in tiles))
        for i in range(copies):
            self._copy, self._shift = f"_{i}" if i else "", i
            uniform += [self._simple(one) for one in uniform_in(body, self._varying)]
            self._inner(body, sums)
        self._copy, self._shift = "", 0
        tiles = sorted(self.name(one) for one in made & self.tiles)
        self._into(*(f"t_{name}[e] = {name}" for name in tiles))
        inner, self._into = self._into, into
        into(*uniform, *(f"{name} = {text}" for text, name in self._views.items()))
        into(*(f"s_{i} = {self.constants.name(0)}" for i in range(len(sums))))
        into("for e in range(m):")
        into.lines += inner.lines
        into(*sums)

    def _inner(self, body: ir.Body, sums: list[str]) -> None:
        """Writes statements for an example; `sums` receives what is summed over the examples."""
        into = self._into
        for statement in body:
            match statement:
                case ir.Value() if statement not in self._varying or statement in self._factors:
                    pass
                case ir.Branch(condition, yes, no):
                    for head, side in ((f"if {self.truth(condition)}:", yes), ("else:", no)):
                        with into.inside(head):
                            self._inner(side, sums)
                            into("pass")
                case ir.Loop():
                    with into.inside(self._head(statement)):
                        self._inner(statement.body, sums)
                        into("pass")
                case ir.Output(0, None):
                    into(self._simple(statement))
                case ir.Output(0, _, value):
                    total = "sums[e]"
                    added = f"fma({self._factors_of(value)}, {total})" if value in self._factors else ""
                    into(f"{total} = {added or f'{total} + {self.real(value)}'}")
                case ir.Output(result, index, value):
                    total = f"s_{len(sums)}"
                    place = "".join(list(self._places.values())[result - 1])
                    edge = "" if index is None else f" + {self.known(index)}"
                    sums.append(f"g_{result}[{place}{edge}] += {total}")
                    if value in self._factors:
                        into(f"{total} = multiply_add_freely({self._factors_of(value)}, {total})")
                    else:
                        into(f"{total} = add_freely({total}, {self.real(value)})")
                case _:
                    into(self._simple(statement))

    def _factors_of(self, product: ir.Operand) -> str:
        assert isinstance(product, ir.Value)
        return ", ".join(map(self.real, product.operands))

    def _is_added_at_once(self, output: ir.Output, made: set[ir.Operand]) -> bool:
        """Returns whether an output is a product, computed here, that nothing else uses."""
        value = output.value
        is_product = isinstance(value, ir.Value) and value.operator == "*" and value in made
        is_sum = output.result > 0 or output.index is not None
        return is_product and is_sum and value in self._used_once and self.kind(value) == "real"


def _can_be_unrolled(body: ir.Body) -> bool:
    """Returns whether several iterations may share a loop over the examples."""
    statements = list(ir.every(body))
    sends = [one for one in statements if isinstance(one, ir.Output) and one.result == 0]
    return not sends and not any(isinstance(one, ir.Store) for one in statements)
