"""A user's function as text that stands for itself: with the numbers it closes over, and all it calls.

Such text can be compiled in another process. A function that needs what text cannot hold has none.
"""

from __future__ import annotations

import ast
import copy
import math
from types import ModuleType
from typing import Any, Final

import numpy as np

from partita.engine.kernels.nodes.source import Written, is_builtin, is_plain, written

_MODULES: Final = (math, np)
_OWN_SCOPES = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class _NotPortable(Exception):
    """The function needs what text cannot hold."""


def portable(source: Written, name: str) -> str | None:
    """The text of a module in which the function has this name, without imports of ours; None if there is
    none.
    """
    parts: list[str] = []
    try:
        _write(source, name, parts, {source.function: name})
    except _NotPortable:
        return None
    return "\n\n".join(parts) + "\n"


def _write(source: Written, name: str, parts: list[str], known: dict[Any, str]) -> None:
    tree = copy.deepcopy(source.tree)
    if any(isinstance(node, _OWN_SCOPES) for node in ast.walk(tree) if node is not tree):
        raise _NotPortable
    if tree.args.defaults or tree.args.kwonlyargs:
        raise _NotPortable
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    renamed = {old: _meant(old, value, name, parts, known) for old, value in source.names.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed and node.id not in _locals(source):
            node.id = renamed[node.id]
    tree.name = name
    parts.append(f"@compiled_checked\n{ast.unparse(tree)}")


def _locals(source: Written) -> tuple[str, ...]:
    return source.function.__code__.co_varnames


def _meant(old: str, value: Any, owner: str, parts: list[str], known: dict[Any, str]) -> str:
    """The name in the text for what a name stands for, which goes into `parts`."""
    if is_builtin(old, value):
        return old
    new = f"{owner}_{old}"
    if any(value is module for module in _MODULES):
        parts.append(f"import {value.__name__} as {new}")
    elif is_plain(value):
        if value in known:
            return known[value]
        source = written(value)
        if source is None:
            raise _NotPortable
        known[value] = new
        _write(source, new, parts, known)
    elif isinstance(value, ModuleType) or not _is_number(value):
        raise _NotPortable
    else:
        parts.append(f"{new} = {value!r}" if math.isfinite(value) else f'{new} = float("{value}")')
    return new


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)
