"""The identity of a network: a text for each layer, by which a run knows its own network's checkpoints.

Two networks whose parameters have equal shapes may differ in an activation, in a stride or in the arithmetic
of a node. Names of initialisers are left out: they do not matter to a run that goes on, which may also
train other parameters than before.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType
from typing import Final

import numpy as np

from partita.engine.kernels.nodes.source import written
from partita.layers.graph import Graph
from partita.layers.initial import InitialValues

_LONGEST: Final = 400
"""Characters of a layer's text; a longer text is cut, and ends in a digest of all of it."""

_LEFT_OUT: Final = ("name", "initialiser", "bias_initialiser", "trainable")

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def identity(graph: Graph) -> dict[str, str]:
    """Returns a text for each layer, input and target, by name: its kind, its settings and its sources.

    A function of the user's is described by its name and a digest of its source and of the functions and
    numbers that it uses.
    """
    return {grid.name: _cut(f"{_text(grid.layer)}{_from(grid.sources)}") for grid in graph.grids}


def _from(sources: tuple[str, ...]) -> str:
    return f" of {', '.join(sources)}" if sources else ""


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... #{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _text(value: object) -> str:
    """The value as text, the same in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        settings = ((field.name, getattr(value, field.name)) for field in fields(value))
        given = ", ".join(f"{name}={_text(one)}" for name, one in settings if _matters(name, one))
        return f"{type(value).__name__}({given})"
    match value:
        case np.ndarray():
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
            return f"{value.dtype}{list(value.shape)} #{digest}"
        case tuple() | list():
            return f"({', '.join(map(_text, value))})"
        case Mapping():
            return f"({', '.join(f'{key}: {_text(one)}' for key, one in value.items())})"
        case FunctionType():
            return f"{value.__name__} #{_digest(value, {})}"
        case ModuleType() | type():
            return value.__name__
        case _ if callable(value):
            return getattr(value, "__name__", type(value).__name__)
        case _:
            return _ADDRESS.sub("", repr(value))


def _matters(name: str, setting: object) -> bool:
    """Returns whether a setting is part of the identity: initial values given as an array, and a
    regulariser.
    """
    if name == "regulariser":
        return setting is not None
    return name not in _LEFT_OUT or (isinstance(setting, InitialValues) and setting.shape is not None)


def _digest(function: Callable[..., object], seen: dict[FunctionType, str]) -> str:
    """Digest of a function's source, without comments, and of what it uses."""
    assert isinstance(function, FunctionType)
    if function in seen:
        return seen[function]
    seen[function] = function.__name__
    source = written(function)
    if source is None:
        code = function.__code__
        parts = [code.co_code.hex(), repr(code.co_names), repr([c for c in code.co_consts if _is_plain(c)])]
    else:
        parts = [_unparsed(source.tree)]
        for name, used in sorted(source.names.items()):
            digest = _digest(used, seen) if isinstance(used, FunctionType) else _text(used)
            parts.append(f"{name}={digest}")
    seen[function] = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return seen[function]


def _is_plain(constant: object) -> bool:
    return isinstance(constant, int | float | str | bytes | tuple | None)


def _unparsed(tree: ast.FunctionDef) -> str:
    """The source of a function under a fixed name, without its docstring."""
    tree = deepcopy(tree)
    tree.name = "function"
    first = tree.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(tree.body) > 1:
        del tree.body[0]
    return ast.unparse(tree)
