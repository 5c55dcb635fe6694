"""Properties of a function's syntax tree: its names, and the exits of its statements."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from partita.engine.kernels.nodes import ir


def arguments_of(tree: ast.FunctionDef) -> list[str]:
    """Lists the names of a function's arguments, all of which are plain."""
    plain = tree.args
    if plain.vararg or plain.kwarg or plain.kwonlyargs or plain.defaults:
        raise ir.Unsupported("arguments with defaults, or any number of them")
    return [argument.arg for argument in (*plain.posonlyargs, *plain.args)]


def bindings(tree: ast.AST) -> Counter[str]:
    """Counts how often each local name is assigned, or an array of that name is written to."""
    found = Counter(argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found.update(inner.id for inner in [node.value] if isinstance(inner, ast.Name))
        if isinstance(node, ast.AugAssign):
            found.update(inner.id for inner in ast.walk(node.target) if isinstance(inner, ast.Name))
    return found


def loops_over(tree: ast.FunctionDef, name: str) -> int:
    """Counts the loops over a name."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    return sum(isinstance(loop.target, ast.Name) and loop.target.id == name for loop in loops)


def leaves(statements: Sequence[ast.stmt]) -> Literal["always", "maybe", "never"]:
    """Returns whether statements end in an exit."""
    found: Literal["maybe", "never"] = "never"
    for statement in statements:
        if isinstance(statement, ast.Return | ast.Break | ast.Continue):
            return "always"
        if isinstance(statement, ast.If):
            sides = {leaves(statement.body), leaves(statement.orelse)}
            if sides == {"always"}:
                return "always"
            found = "never" if found == "never" and sides == {"never"} else "maybe"
        elif any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            found = "maybe"
    return found


def breaks(statements: Sequence[ast.stmt]) -> bool:
    """Returns whether a loop with this body is ever left before its end."""
    for statement in statements:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.If) and (breaks(statement.body) or breaks(statement.orelse)):
            return True
    return False


def name_of(node: ast.expr) -> str:
    """Returns the name that a loop assigns."""
    if not isinstance(node, ast.Name):
        raise ir.Unsupported("a loop over something else")
    return node.id
