"""Errors and warnings that a user reads of a node definition that does not run, or not fast."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from partita.engine.kernels.nodes.ir import Unsupported
from partita.engine.kernels.nodes.source import first_line, written


class NodeCompileError(ValueError):
    """A node definition gives other numbers when it is compiled, or has no derivative.

    The message names the layer and shows the user's line.
    """


class SlowNodeWarning(UserWarning):
    """A node definition runs in a slow form, because of one of its lines."""


@dataclass(frozen=True)
class Place:
    """The line of a user's file that decides how a node runs, and why."""

    filename: str
    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        shown = f"\n    {self.text}" if self.text else ""
        return f'  File "{self.filename}", line {self.line}{shown}\n  {self.reason}'


def place_of(refused: Unsupported | None, function: Callable[..., Any]) -> Place:
    """Finds the line of a function that was refused; its first one where that is not known."""
    if refused is None:
        filename, line = first_line(function)
        return Place(filename, line, "", "Its source cannot be read.")
    if refused.function is not None:
        function = refused.function
    filename, line = first_line(function)
    source = written(function)
    if source is None or refused.place is None:
        return Place(
            filename, line, linecache.getline(filename, line).strip(), f"{_sentence(refused.reason)}."
        )
    at: Any = refused.place
    line += at.lineno - source.begins
    return Place(filename, line, ast.unparse(at).partition("\n")[0], f"{_sentence(refused.reason)}.")


def underivable(label: str, upward: Callable[..., Any], refused: Unsupported) -> NodeCompileError:
    """Makes the error of a node without `downward` that has a line for which none can be derived."""
    name = upward.__name__
    return NodeCompileError(
        f"{label} cannot be trained: no downward function can be derived from {name}.\n"
        f"{place_of(refused, upward)}\n"
        f"Write it in other words, or give the node a downward function with @{name}.downward."
    )


def _sentence(reason: str) -> str:
    kind = getattr(ast, reason, None)
    return f"{reason} is not understood" if inspect.isclass(kind) else f"It has {reason}"
