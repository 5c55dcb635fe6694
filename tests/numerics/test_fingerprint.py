"""A function's fingerprint changes with everything that it is compiled from, and with nothing else."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
from numba import types
from numba.extending import intrinsic

from partita.engine import LARS, SGD, Adagrad, Adam, Momentum, RMSProp
from partita.engine.kernels import activations, local_loops, loss_loops, normalisation_loops, position_loops
from partita.engine.kernels.convolution import gradient, loops
from partita.engine.numerics import compiled
from partita.engine.numerics.fingerprint import Unidentified, fingerprint
from partita.engine.parameters.optimizers import update_loop

HELPERS = """
from typing import NamedTuple
import numpy as np
from numba import types
from numba.extending import intrinsic, register_jitable
from partita.engine.numerics import compiled

LIMIT = 3.0
TABLE = np.arange(3.0)

class Pair(NamedTuple):
    one: float
    other: float

class Writer:
    def write(self, builder, value):
        return builder.fadd(value, value)

@register_jitable
def helper(x):
    return x + 1.0

@compiled
def called(x):
    return helper(x) * 2.0

def _generate(typing_context, x):
    def generate(context, builder, signature, arguments):
        return Writer().write(builder, arguments[0])
    return x(x), generate

written = intrinsic(_generate)

def closing(over):
    @compiled
    def closed(x):
        return x - over
    return closed
"""
CALLERS = """
from numba import types
from partita.engine.numerics import compiled
from {helpers} import LIMIT, TABLE, Pair, called, closing, written
closed = closing(4.0)

@compiled
def caller(x):
    if x > LIMIT:
        return called(x) + TABLE[1]
    return closed(written(Pair(x, x).one))
"""

numbers = count()


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes two modules, edited, into a folder of their own, and imports the one that calls the other."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def make(old: str = "", new: str = "") -> ModuleType:
        assert not old or old in HELPERS
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        (folder / "some_helpers.py").write_text(HELPERS.replace(old, new) if old else HELPERS)
        (folder / "some_callers.py").write_text(CALLERS.format(helpers="some_helpers"))
        for name in ("some_helpers", "some_callers"):
            sys.modules.pop(name, None)
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        return importlib.import_module("some_callers")

    yield make
    for name in ("some_helpers", "some_callers"):
        sys.modules.pop(name, None)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3.0", "LIMIT = 4.0"),
        ("np.arange(3.0)", "np.ones(3)"),
        ("other: float", "other: float\n    third: float = 0.0"),
        ("builder.fadd(value, value)", "builder.fmul(value, value)"),
        ("x + 1.0", "x + 1.5"),
        ("* 2.0", "* 2.5"),
        ("x - over", "over - x"),
    ],
    ids=["a global", "an array", "a class", "an intrinsic's class", "a helper", "a callee", "a closure"],
)
def test_an_edit_of_what_a_function_uses_changes_it(
    imported: Callable[..., ModuleType], old: str, new: str
) -> None:
    assert fingerprint(imported().caller) != fingerprint(imported(old, new).caller)


def test_what_was_compiled_before_an_edit_is_not_loaded(imported: Callable[..., ModuleType]) -> None:
    assert imported().caller(5.0) == 13.0
    assert imported("x + 1.0", "x + 1.5").caller(5.0) == 14.0
    assert imported().caller(5.0) == 13.0


def test_another_folder_other_lines_and_comments_change_nothing(imported: Callable[..., ModuleType]) -> None:
    first = fingerprint(imported().caller)
    assert fingerprint(imported("LIMIT = 3.0", "# how far\n\n\nLIMIT = 3.0").caller) == first


def test_closures_of_one_code_differ() -> None:
    found = {
        fingerprint(getattr(activations.LOOPS[name], loop))
        for name in activations.LOOPS
        for loop in ("activate", "finish", "finish_into", "multiply", "write")
    }
    assert len(found) == 20


def test_functions_may_call_themselves_and_one_another() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n > 0 and even(n - 1)

    def odd_from_one(n: int) -> bool:
        return n > 1 and even(n - 1)

    first = fingerprint(even)
    assert len({first, fingerprint(odd), fingerprint(odd_from_one)}) == 3


def test_what_has_no_content_is_not_identified() -> None:
    stream = object()

    def function() -> object:
        return stream

    with pytest.raises(Unidentified, match=r"object has no content"):
        fingerprint(function)


def test_a_function_without_a_fingerprint_is_compiled_all_the_same() -> None:
    nothing = object()

    def generate_length(typing_context, x):  # type: ignore[no-untyped-def]
        assert nothing is not None
        return types.intp(x), lambda context, builder, signature, arguments: arguments[0]

    same = intrinsic(generate_length)

    @compiled
    def function(x: int) -> int:
        return same(x)  # type: ignore[no-any-return]

    assert function(3) == 3


MODULES = [
    activations,
    local_loops,
    loss_loops,
    normalisation_loops,
    position_loops,
    gradient,
    loops,
]


OPTIMIZERS = [SGD(1), Momentum(1), Adagrad(1), RMSProp(1), RMSProp(1, centered=True), Adam(1), LARS(1)]


def test_every_loop_of_an_optimizer_has_its_own() -> None:
    loops_of = [update_loop.update_loop(optimizer._arithmetic, optimizer._scale) for optimizer in OPTIMIZERS]
    assert len({fingerprint(loop) for loop in loops_of}) == len(OPTIMIZERS)


@pytest.mark.parametrize("module", [*MODULES, update_loop], ids=lambda module: module.__name__)
def test_every_function_of_this_project_has_one(module: ModuleType) -> None:
    functions = [value for value in vars(module).values() if hasattr(value, "py_func")]
    assert functions or module is activations
    assert len({fingerprint(function) for function in functions}) == len(functions)
