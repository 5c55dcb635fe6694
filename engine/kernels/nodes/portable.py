"""Writes a user's function as text that stands alone: with the numbers it closes over, and all functions it
calls.

Such text can be compiled in another process. A function that needs what text cannot hold has none. The names
that the text adds are used by no function in it.
"""

from __future__ import annotations

import ast
import copy
import itertools
import math
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

import numpy as np

from partita.engine.kernels.nodes.source import Written, is_builtin, is_plain, plain_number, written

_MODULES: Final = (math, np)
_OWN_SCOPES = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OTHER_SCOPES = (ast.Global, ast.Nonlocal)


class _NotPortable(Exception):
    """The function needs what text cannot hold."""


def portable(source: Written, name: str) -> str | None:
    """Writes a module in which the function has this name; None if there is none.

    The text imports nothing of Partita's.
    """
    try:
        functions = _reached(source)
    except _NotPortable:
        return None
    own = _own_names(functions)
    names = {function: next(own) for function in functions}
    parts = [_definition(one, names, own) for one in functions.values()]
    return "\n\n".join([*parts, f"{name} = {names[source.function]}"]) + "\n"


def _reached(source: Written) -> dict[FunctionType, Written]:
    """Collects a function and all that it calls, directly or not.

    Raises:
        _NotPortable: one of them needs what text cannot hold.
    """
    found: dict[FunctionType, Written] = {}
    waiting = [source]
    while waiting:
        one = waiting.pop()
        if one.function in found:
            continue
        _check(one)
        found[one.function] = one
        for value in one.names.values():
            if is_plain(value):
                called = written(value)
                if called is None:
                    raise _NotPortable
                waiting.append(called)
    return found


def _check(source: Written) -> None:
    tree = source.tree
    inner = [node for node in ast.walk(tree) if node is not tree]
    if any(isinstance(node, (*_OWN_SCOPES, *_OTHER_SCOPES)) for node in inner):
        raise _NotPortable
    if tree.args.defaults or tree.args.kwonlyargs:
        raise _NotPortable
    for name, value in source.names.items():
        is_known = any(value is module for module in _MODULES) or is_plain(value) or plain_number(value)
        if not is_known and not is_builtin(name, value):
            raise _NotPortable


def _own_names(functions: dict[FunctionType, Written]) -> Iterator[str]:
    """Yields names that no function uses, be it for a local or for anything else."""
    codes = [function.__code__ for function in functions]
    used = {name for code in codes for name in (*code.co_varnames, *code.co_names)}
    used |= {name for code in codes for name in (*code.co_freevars, *code.co_cellvars)}
    return (name for name in map("own_{}".format, itertools.count()) if name not in used)


def _definition(source: Written, functions: dict[FunctionType, str], own: Iterator[str]) -> str:
    """Writes one function, after the modules and numbers that it uses."""
    lines: list[str] = []
    renamed: dict[str, str] = {}
    for old, value in source.names.items():
        if is_builtin(old, value):
            continue
        if is_plain(value):
            renamed[old] = functions[value]
            continue
        renamed[old] = next(own)
        if any(value is module for module in _MODULES):
            lines.append(f"import {value.__name__} as {renamed[old]}")
        else:
            lines.append(f"{renamed[old]} = {_number(value)}")
    tree, local = copy.deepcopy(source.tree), source.function.__code__.co_varnames
    for argument in ast.walk(tree.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed and node.id not in local:
            node.id = renamed[node.id]
    tree.name = functions[source.function]
    return "\n".join([*lines, "", "", "@compiled_checked", ast.unparse(tree)])


def _number(value: Any) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'
