"""Compiles the plain Python functions of a node definition, and explains it clearly when that fails.

It knows functions and types, and nothing of wiring or arrays of a layer. Functions that a user's function
calls, by a global name or from a closure, are compiled with it and need no decorator.
"""

from __future__ import annotations

import linecache
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

import numba
from numba.core.errors import NumbaError

from partita.engine.kernels.nodes.source import first_line, is_plain

_SHORT_ENOUGH = 300


class NodeCompileError(ValueError):
    """A function of a node definition cannot be compiled, or gives other numbers when it is compiled.

    The message names the layer and shows the user's line.
    """


class Refusal(Exception, ABC):
    """A function of a node definition that does not run."""

    @abstractmethod
    def explain(self, *, layer: str, role: str, function: Callable[..., Any]) -> NodeCompileError:
        """Makes the error that a user reads."""


class Uncompilable(Refusal):
    """The line of a user's file that cannot be compiled, and why."""

    def __init__(self, filename: str, line: int, reason: str) -> None:
        super().__init__(filename, line, reason)
        self.filename, self.line, self.reason = filename, line, reason

    def explain(self, *, layer: str, role: str, function: Callable[..., Any]) -> NodeCompileError:
        """Makes the error that a user reads."""
        source = linecache.getline(self.filename, self.line).strip()
        return NodeCompileError(
            f"{layer}: its {role} function {function.__name__} cannot be compiled.\n"
            f'  File "{self.filename}", line {self.line}\n'
            + (f"    {source}\n" if source else "")
            + f"  {self.reason}\n"
            "Write it with what Numba compiles: numbers, loops, math, small arrays, and functions of these."
        )


@dataclass(frozen=True)
class CompiledFunction:
    """A compiled function, and the type that it returns."""

    call: Callable[..., Any]
    returns: Any


def compile_function(function: Callable[..., Any], argument_types: tuple[Any, ...]) -> CompiledFunction:
    """Compiles a function and everything that it calls, for these Numba types.

    Inside, array indices are checked: a mistake raises IndexError instead of reading elsewhere in memory.

    Raises:
        Uncompilable: Numba refuses it.
    """
    if not isinstance(function, FunctionType):
        raise Uncompilable("?", 0, f"{function!r} is not a plain Python function")
    known: dict[FunctionType, Any] = {}
    dispatcher = _with_helpers(function, known)
    try:
        dispatcher.compile(argument_types)
    except Exception as error:
        raise _located(error, function, known) from error
    (overload,) = dispatcher.overloads.values()
    return CompiledFunction(dispatcher, overload.signature.return_type)


def _with_helpers(function: FunctionType, known: dict[FunctionType, Any]) -> Any:
    """Makes a compiled twin of a function, which calls compiled twins of the functions that the original
    calls.
    """
    if function in known:
        return known[function]
    names: dict[str, Any] = {"__builtins__": __builtins__, "__name__": function.__module__}
    cells = tuple(CellType() for _ in function.__closure__ or ())
    twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    twin.__qualname__, twin.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
    known[function] = dispatcher = numba.njit(nogil=True, boundscheck=True, error_model="numpy")(twin)
    # Filled in only now, so that a function may call itself.
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            names[name] = _compilable(function.__globals__[name], known)
    for cell, original in zip(cells, function.__closure__ or (), strict=True):
        cell.cell_contents = _compilable(original.cell_contents, known)
    return dispatcher


def _compilable(value: Any, known: dict[FunctionType, Any]) -> Any:
    if is_plain(value):
        return _with_helpers(value, known)
    return value


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _located(error: Exception, function: FunctionType, known: dict[FunctionType, Any]) -> Uncompilable:
    """Finds the innermost line of the user's that Numba's message names."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    files = {os.path.abspath(user.__code__.co_filename) for user in known}
    places = re.findall(r'File "([^"]+)", line (\d+)', text) + re.findall(
        r"Raised from (\S+) \((\d+)\)", text
    )
    for filename, line in places:
        if os.path.abspath(filename) in files:
            return Uncompilable(os.path.abspath(filename), int(line), _reason(text))
    place = getattr(error, "loc", None) if isinstance(error, NumbaError) else None
    if place is not None and os.path.abspath(place.filename) in files:
        return Uncompilable(os.path.abspath(place.filename), place.line, _reason(text))
    return Uncompilable(*first_line(function), _reason(text))


def _reason(text: str) -> str:
    """Finds the first sentence of Numba's message that explains something."""
    said: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith(('File "', "During:", "There are ")) and said:
            break
        if line and not line.startswith("Failed in "):
            said.append(line)
    reason = re.sub(r"\.?\.? ?Raised from .*| Return of: IR name.*", ".", " ".join(said))
    reason = re.sub(
        r"^No implementation of function .* found for signature: >>> (.*)$", r"There is no \1.", reason
    )
    return reason if len(reason) <= _SHORT_ENOUGH else reason[:_SHORT_ENOUGH] + " ..."
