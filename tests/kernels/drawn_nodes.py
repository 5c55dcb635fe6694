"""Random small node functions, as a user might write them; and generated loops played as plain Python."""

from __future__ import annotations

import itertools
import linecache
import math
import random
import re
import zlib
from types import FunctionType
from typing import Any

import numpy as np

from partita.engine.kernels import Array
from partita.engine.kernels.nodes.tiles import TILE
from partita.engine.kernels.nodes.vectors import IMPORTS

HELPERS = """
import math
import numpy as np

SLOPE = 0.25

def leak(total):
    if total > 0:
        return total
    return SLOPE * total

def smooth(a, b):
    total = 0.0
    for i in range(3):
        if i == 1:
            total += a
        else:
            total += b / (1 + i)
    return leak(total) + 1
"""


def function_of(text: str, name: str = "function") -> FunctionType:
    """The function that a text defines, with its source where Python looks for it."""
    text = f"{HELPERS}\n{text}"
    filename = f"<drawn {zlib.crc32(text.encode())}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"__name__": "drawn"}
    exec(compile(text, filename, "exec"), names)
    function: FunctionType = names[name]
    return function


_NUMBERS = (
    *(
        "({n} + {n})",
        "({n} - {n})",
        "({n} * {n})",
        "({n} / (1 + ({n}) ** 2))",
        "(-{n})",
        "abs({n})",
        "max({n}, {n})",
    ),
    *("min({n}, 1, {n})", "math.tanh({n})", "math.exp(-abs({n}))", "math.sqrt(1 + ({n}) ** 2)", "leak({n})"),
    *("({n} if {t} else {n})", "np.where({t}, {n}, {n})", "float({t})", "smooth({n}, {n})", "({v}).sum()"),
    *("np.dot(weight, {v})", "max({v})", "({v} @ weight)", "np.sum({v})", "({v}).mean()"),
)
_LEAVES = ("{name}", "{name}", "{name}", "{array}[{i}]", "0.5", "-1", "2", "len(incoming)", "SLOPE")
_TRUTHS = (
    *("{n} > {n}", "not {n} < {n}", "({n} > 0 and {n} <= 1)", "0 < {n} < 2", "bias > 0", "len(incoming) > 2"),
    *("(bias > 0 or {n} > 0)", "{n} != 0"),
)
_PLACES = ("0", "-1", "len(incoming) - 1", "{loop}", "{loop}")
_ARRAYS = (
    *(
        "({v} + {v})",
        "({v} * {n})",
        "({n} * {v})",
        "({v} / (1 + ({n}) ** 2))",
        "np.tanh({v})",
        "({v}).copy()",
    ),
    *("np.maximum({v}, {n})", "np.where({v} > 0, {n}, {v})", "-{v}"),
)
_OWN = (
    "0 * incoming",
    "np.zeros(len(incoming))",
    "incoming.copy()",
    "weight * bias",
    "np.zeros_like(weight)",
)
_DEPTH = 2


class Writer:
    """Draws statements; knows which names have a value.

    Args:
        seed: of the draws.
        numbers: the arguments that are numbers.
    """

    def __init__(self, seed: int, numbers: list[str]) -> None:
        self._random = random.Random(seed)
        self._numbers, self._arrays = list(numbers), ["incoming", "weight"]
        self._own: list[str] = []
        self._loops: list[str] = []
        self._fresh = itertools.count()

    def choose(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def filled(self, form: str, depth: int) -> str:
        """The form with something drawn for each word in braces."""
        return re.sub(r"\{(\w+)\}", lambda found: self._drawn(found[1], depth), form)

    def _drawn(self, what: str, depth: int) -> str:
        match what:
            case "n":
                return self.number(depth - 1)
            case "t":
                return self.filled(self.choose(*_TRUTHS), depth - 1)
            case "v":
                return self.array(depth - 1)
            case "i":
                return self.filled(self.choose(*_PLACES), 0)
            case "loop":
                return str(self.choose(*self._loops, "0"))
            case "name":
                return str(self.choose(*self._numbers))
        return str(self.choose(*self._arrays))

    def number(self, depth: int = 2) -> str:
        return self.filled(self.choose(*_NUMBERS) if depth > 0 else self.choose(*_LEAVES), depth)

    def array(self, depth: int = 1) -> str:
        return self.filled(self.choose(*_ARRAYS) if depth > 0 else "{array}", depth)

    def truth(self) -> str:
        return self._drawn("t", 2)

    def block(self, depth: int, buffer: int) -> list[str]:
        return [line for _ in range(self._random.randint(1, buffer)) for line in self.statement(depth)]

    def statement(self, depth: int) -> list[str]:
        """A statement; those inside it are less deep."""
        simple = [self._assign, self._assign, self._add, self._change]
        if depth == _DEPTH:
            simple.append(self._list)
        inner = [self._branch, self._branch, self._loop, self._loop, self._items]
        made: list[str] = self.choose(*simple, *(inner if depth else ()))(depth)
        return made

    def own(self) -> list[str]:
        """An array that other statements change."""
        name = f"own_{next(self._fresh)}"
        lines = [f"{name} = {self.choose(*_OWN)}"]
        self._own.append(name)
        self._arrays.append(name)
        return lines

    def _assign(self, depth: int) -> list[str]:
        name, value = self.choose("a", "b", "c"), self.number()
        self._numbers += [] if name in self._numbers else [name]
        return [f"{name} = {value}"]

    def _add(self, depth: int) -> list[str]:
        name = self.choose("a", "b", "c")
        lines = [] if name in self._numbers else [f"{name} = {self.choose('0', 'bias', '0.0')}"]
        self._numbers += [name] if lines else []
        return [*lines, f"{name} {self.choose('+=', '-=', '*=')} {self.number()}"]

    def _list(self, depth: int) -> list[str]:
        name, value = f"list_{next(self._fresh)}", self.array(2)
        self._arrays.append(name)
        return [f"{name} = {value}"]

    def _change(self, depth: int) -> list[str]:
        if not self._own:
            return self._assign(depth)
        name = self.choose(*self._own)
        return [self.choose(f"{name}[{self._drawn('i', 0)}] = {self.number()}", f"{name} += {self.array()}")]

    def _branch(self, depth: int) -> list[str]:
        before = list(self._numbers)
        lines = [f"if {self.truth()}:", *_indented(self.block(depth - 1, 2))]
        self._numbers = list(before)
        if self.choose(True, False):
            lines += ["else:", *_indented(self.block(depth - 1, 2))]
        self._numbers = before
        return lines

    def _loop(self, depth: int) -> list[str]:
        name, before = f"k{len(self._loops)}", list(self._numbers)
        ranges = "len(incoming)", "len(incoming)", "1, len(incoming)", "0, len(incoming), 2"
        over = self.choose(*ranges, "len(incoming) - 1, -1, -1", "len(incoming) - 1, 0, -2")
        self._loops.append(name)
        body = []
        if self.choose(False, False, True):
            body = [f"if {self.truth()}:", *_indented([*self.statement(0), self.choose("break", "continue")])]
            self._numbers = list(before)
        body += self.block(depth - 1, 2)
        self._loops.pop()
        self._numbers = before
        return [f"for {name} in range({over}):", *_indented(body)]

    def _items(self, depth: int) -> list[str]:
        before = list(self._numbers)
        head = self.choose("x in incoming", "i, x in enumerate(incoming)", "w, x in zip(weight, incoming)")
        self._numbers.append("x")
        body = self.block(depth - 1, 2)
        self._numbers = before
        return [f"for {head}:", *_indented(body)]


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def upward(seed: int) -> str:
    """The text of an upward function."""
    writer = Writer(seed, ["bias"])
    lines = [*(writer.own() if writer.choose(True, False) else []), *writer.block(_DEPTH, 4)]
    if writer.choose(True, False):
        lines += [f"if {writer.truth()}:", f"    return {writer.number()}"]
    lines.append(f"return {writer.number()}")
    return "\n".join(["def function(incoming, weight, bias):", *_indented(lines)])


def downward(seed: int) -> str:
    """The text of a downward function."""
    writer = Writer(seed, ["bias", "state", "error"])
    lines = [*(writer.own() if writer.choose(True, False) else []), *writer.block(_DEPTH, 3)]
    results = [f"return {writer.array()}, {writer.array()}, {writer.number()}" for _ in range(2)]
    if writer.choose(True, False):
        lines += [f"if {writer.truth()}:", f"    {results[1]}"]
    lines.append(results[0])
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
        "upcast": lambda value: value,
        "downcast": lambda value, like: value,
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
