"""Random small node functions, as a user might write them; and generated loops played as plain Python."""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from partita.engine.kernels import Array
from partita.engine.kernels.node_tiles import TILE
from partita.engine.kernels.node_vectors import IMPORTS

_numbers = itertools.count()
HELPERS = '''
import math
import numpy as np

SLOPE = 0.25

def leak(total):
    if total > 0:
        return total
    return SLOPE * total

def clipped(value, limit=None):
    return value

def limited(value, limit):
    count = 0
    while value > limit and count < 3:
        value -= 1
        count += 1
    return value

def smooth(a, b):
    total = 0.0
    for i in range(3):
        if i == 1:
            total += a
        else:
            total += b / (1 + i)
    return leak(total) + 1
'''


def function_of(text: str, name: str = "function") -> FunctionType:
    """The function that a text defines, with its source where Python looks for it."""
    filename = f"<drawn {next(_numbers)}>"
    text = f"{HELPERS}\n{text}"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"__name__": "drawn"}
    exec(compile(text, filename, "exec"), names)
    function: FunctionType = names[name]
    return function


class Writer:
    """Draws statements; knows which names have a value."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], numbers: list[str]) -> None:
        self._draw, self.numbers, self.arrays = draw, list(numbers), ["incoming", "weight"]
        self._own: list[str] = []
        self._loops: list[str] = []
        self._fresh = itertools.count()

    def one_of(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def number(self, depth: int = 2) -> str:
        """An expression of a number, of moderate size."""
        if depth == 0:
            items = [f"{array}[{self.index()}]" for array in self.arrays]
            return str(self.one_of(*self.numbers, *items, "0.5", "-1", "2", "len(incoming)", "SLOPE"))
        a, b = self.number(depth - 1), self.number(depth - 1)
        return str(
            self.one_of(
                *(f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / (1 + {b} * {b}))", f"(-{a})"),
                *(f"math.tanh({a})", f"abs({a})", f"max({a}, {b})", f"min({a}, 1, {b})", f"leak({a})"),
                *(f"math.exp(-abs({a}))", f"({a} if {self.truth(depth - 1)} else {b})", f"np.where({a} > 0, {a}, {b})"),
                *(f"math.sqrt(1 + ({a}) ** 2)", f"float({self.truth(depth - 1)})", f"smooth({a}, {b})"),
                *(f"({self.array(depth - 1)}).sum()", f"np.dot(weight, {self.array(depth - 1)})"),
                f"max({self.one_of(*self.arrays)})",
            )
        )

    def truth(self, depth: int = 1) -> str:
        a, b = self.number(depth), self.number(0)
        c = self.one_of("bias > 0", f"{b} <= {a}", "len(incoming) > 2")
        return str(self.one_of(f"{a} > {b}", f"not {a} < {b}", f"({a} > 0 and {c})", f"0 < {a} < 2", "bias > 0"))

    def index(self) -> str:
        return str(self.one_of("0", "-1", "len(incoming) - 1", *self._loops))

    def array(self, depth: int = 1) -> str:
        """An expression of an array."""
        if depth == 0:
            return str(self.one_of(*self.arrays))
        a, b, c = self.array(depth - 1), self.array(depth - 1), self.number(depth - 1)
        return str(
            self.one_of(
                *(f"({a} + {b})", f"({a} * {c})", f"({c} * {b})", f"({a} / (1 + {c} * {c}))"),
                *(f"np.tanh({a})", f"np.maximum({a}, {c})", f"{a}.copy()", f"np.where({a} > 0, {b}, {c})"),
            )
        )

    def block(self, depth: int, room: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self._draw(st.integers(1, room))):
            lines += self.statement(depth)
        return lines

    def statement(self, depth: int) -> list[str]:
        kinds = ["assign", "assign", "add", "array", "change"] + (["if", "if", "for", "items"] if depth else [])
        match self.one_of(*kinds):
            case "assign":
                name = self.one_of("a", "b", "c")
                line = f"{name} = {self.number()}"
                self.numbers += [] if name in self.numbers else [name]
                return [line]
            case "add":
                name = self.one_of(*(n for n in self.numbers if n in "abc"), "a")
                first = [] if name in self.numbers else [f"{name} = {self.one_of('0', 'bias', '0.0')}"]
                self.numbers += [name] if first else []
                return [*first, f"{name} {self.one_of('+=', '-=')} {self.number()}"]
            case "array":
                name = f"list_{next(self._fresh)}"
                line = f"{name} = {self.array()}"
                if self._own_level(depth):
                    self.arrays.append(name)
                return [line]
            case "change":
                return self.change()
            case "if":
                return self.branch(depth)
            case "for":
                return self.loop(depth)
        return self.over_items(depth)

    def _own_level(self, depth: int) -> bool:
        return depth == DEPTH

    def change(self) -> list[str]:
        if not self._own:
            return []
        name = self.one_of(*self._own)
        return [self.one_of(f"{name}[{self.index()}] = {self.number()}", f"{name} += {self.array()}")]

    def own(self) -> list[str]:
        name = f"own_{next(self._fresh)}"
        line = f"{name} = {self.one_of('0 * incoming', 'np.zeros(len(incoming))', 'incoming.copy()', 'weight * bias')}"
        self._own.append(name)
        self.arrays.append(name)
        return [line]

    def branch(self, depth: int) -> list[str]:
        before = list(self.numbers)
        lines = [f"if {self.truth()}:", *_indented(self.block(depth - 1, 2))]
        self.numbers = list(before)
        if self.one_of(True, False):
            lines += ["else:", *_indented(self.block(depth - 1, 2))]
        self.numbers = before
        return lines

    def loop(self, depth: int) -> list[str]:
        name, before = f"k{len(self._loops)}", list(self.numbers)
        over = self.one_of("len(incoming)", "len(incoming)", "1, len(incoming)", "0, len(incoming), 2")
        self._loops.append(name)
        body = self.block(depth - 1, 2)
        if self.one_of(False, False, True):
            way = self.one_of("break", "continue")
            body = [f"if {self.truth(0)}:", *_indented([*self.statement(0), way]), *body]
        self._loops.pop()
        self.numbers = before
        return [f"for {name} in range({over}):", *_indented(body)]

    def over_items(self, depth: int) -> list[str]:
        before = list(self.numbers)
        head = self.one_of(
            "for x in incoming:", "for i, x in enumerate(incoming):", "for w, x in zip(weight, incoming):"
        )
        self.numbers.append("x")
        body = self.block(depth - 1, 2)
        self.numbers = before
        return [head, *_indented(body)]


DEPTH = 2


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines or ["pass"]]


@st.composite
def upward(draw: st.DrawFn) -> str:
    """The text of an upward function."""
    writer = Writer(draw, ["bias"])
    lines = [*(writer.own() if draw(st.booleans()) else []), *writer.block(DEPTH, 4)]
    if draw(st.booleans()):
        lines += [f"if {writer.truth()}:", f"    return {writer.number()}"]
    lines.append(f"return {writer.number()}")
    return "\n".join(["def function(incoming, weight, bias):", *_indented(lines)])


@st.composite
def downward(draw: st.DrawFn) -> str:
    """The text of a downward function."""
    writer = Writer(draw, ["bias", "state", "error"])
    lines = [*(writer.own() if draw(st.booleans()) else []), *writer.block(DEPTH, 3)]

    def results() -> str:
        return f"return {writer.array()}, {writer.array()}, {writer.number()}"

    if draw(st.booleans()):
        lines += [f"if {writer.truth()}:", f"    {results()}"]
    lines.append(results())
    return "\n".join(["def function(incoming, weight, bias, state, error):", *_indented(lines)])


def as_plain_python(text: str, *, tile: int) -> dict[str, Any]:
    """Runs generated text without a compiler, with tiles of this many examples; what is not set is NaN."""
    assert text.startswith(IMPORTS)

    def stack(length: int, kind: Any) -> Array:
        return np.full(length, np.nan if kind is np.float64 else 1).astype(kind)

    names: dict[str, Any] = {
        "math": math,
        "np": np,
        "compiled": lambda function: function,
        "stack": stack,
        "row": lambda x, zeros, i, at, m: x[i, at : at + m] if i >= 0 else zeros[at : at + m],
        "part": lambda array, i, at, m: array[i, at : at + m],
        "widen": lambda value: value,
        "narrow": lambda value, like: value,
        "fma": lambda a, b, c: a * b + c,
        "multiply_add_freely": lambda a, b, total: a * b + total,
        "add_freely": lambda total, value: total + value,
        "within": _within,
        "exponential": math.exp,
        "hyperbolic_tangent": math.tanh,
    }
    exec(text.removeprefix(IMPORTS).replace(str(TILE), str(tile)), names)
    return names


def _within(index: int, length: int) -> int:
    assert -length <= index < length
    return index % length
