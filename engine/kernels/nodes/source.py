"""The syntax tree of a user's function, and the values of the names in it.

A tree is only believed if it compiles to the very code that the function runs: files change after they were
imported, and test runners rewrite what they import. Without a tree a function is compiled from its code.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from types import CodeType, FunctionType, ModuleType
from typing import Any

_CARRIED = "__partita_source__"
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
_PARSING = Lock()


@dataclass(frozen=True)
class Written:
    """A function as it was written.

    Args:
        function: the function.
        tree: without decorators; a lambda is a function that returns its expression.
        names: the value of each name that is not local to it.
        begins: the line of the tree's text in which it begins.
    """

    function: FunctionType
    tree: ast.FunctionDef
    names: dict[str, Any]
    begins: int = 1


def written(function: Callable[..., Any]) -> Written | None:
    """Finds the tree of a plain Python function and its names; None where none can be trusted."""
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    for tree, imports, begins in _candidates(function):
        if _same(_compiled(tree, imports, code), code):
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names = {name: value for name, value in _names(function).items() if name in used}
            return Written(function, tree, names, begins)
    return None


def carry_source(function: FunctionType) -> None:
    """Attaches its source to a user's function, for processes that do not have its file."""
    ours = (function.__module__ or "").startswith("partita.")
    source = written(function) if is_plain(function) and not ours else None
    if source is not None:
        vars(function)[_CARRIED] = _block(source) or ast.unparse(source.tree)


def _block(source: Written) -> str | None:
    """Returns the lines of a function as they stand in its file, by which errors name lines; else None."""
    with suppress(OSError, SyntaxError):
        lines, start = inspect.findsource(source.function)
        text = textwrap.dedent("".join(inspect.getblock(lines[start:])))
        if any(ast.dump(tree) == ast.dump(source.tree) for tree in _functions(_parsed(text), 1)):
            return text
    return None


def _names(function: FunctionType) -> dict[str, Any]:
    """Finds the values of a function's names that are not local to it; names without a value yet are left
    out.
    """
    code, scope = function.__code__, function.__globals__
    own = vars(builtins)
    found = {name: scope.get(name, own.get(name)) for name in code.co_names if name in scope or name in own}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def meaning(function: Callable[..., Any] | None) -> Hashable:
    """Returns the values of the names in a function, and in those that it calls, as of now.

    Two meanings are equal where compiled code may be the same. A global may change between two uses of one
    function, and Python looks it up anew each time.
    """
    found: list[Hashable] = []
    waiting: list[Any] = [function]
    seen: set[FunctionType] = set()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, FunctionType) or one in seen:
            continue
        seen.add(one)
        for name, value in _names(one).items():
            if is_plain(value):
                waiting.append(value)
            found.append((name, type(value), repr(value) if plain_number(value) else id(value)))
    return tuple(found)


def first_line(function: Callable[..., Any]) -> tuple[str, int]:
    """Returns the file and the line where a function begins."""
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else ("?", 0)


def _candidates(function: FunctionType) -> Iterator[tuple[ast.FunctionDef, frozenset[str], int]]:
    """Yields functions and lambdas that begin where this one does, names imported there, and that line."""
    modules = {name for name, value in function.__globals__.items() if isinstance(value, ModuleType)}
    for text, line in _texts(function):
        try:
            module = _parsed(text)
        except SyntaxError:  # a page of documentation, or half a statement
            continue
        for tree in _functions(module, line):
            for imports in {frozenset(_imported(module)), frozenset(modules), frozenset[str]()}:
                yield tree, imports, line


def _parsed(text: str) -> ast.Module:
    """Parses in one thread at a time: CPython 3.11 counts the depth of all threads' trees in one place, and
    ends with a SystemError where they alternate (python/cpython issue 106905).
    """
    with _PARSING:
        return ast.parse(text)


def _texts(function: FunctionType) -> Iterator[tuple[str, int]]:
    """Yields texts to search, each with the line in which the function begins."""
    carried = vars(function).get(_CARRIED)
    if isinstance(carried, str):
        yield carried, 1
    with suppress(OSError, SyntaxError, IndentationError):
        lines, start = inspect.findsource(function)
        yield "".join(lines), function.__code__.co_firstlineno
        yield textwrap.dedent("".join(inspect.getblock(lines[start:]))), 1


def _functions(module: ast.Module, line: int) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and _begins(node) == line:
            yield _plain(node.name, node.args, node.body, node)
        elif isinstance(node, ast.Lambda) and node.lineno == line:
            returned = ast.copy_location(ast.Return(node.body), node.body)
            yield _plain("function", node.args, [returned], node)


def _imported(module: ast.Module) -> Iterator[str]:
    """Yields names that a module imports: Python calls what is in them by other code."""
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _begins(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _plain(name: str, arguments: ast.arguments, body: list[ast.stmt], at: ast.AST) -> ast.FunctionDef:
    tree = ast.FunctionDef(name=name, args=arguments, body=body, decorator_list=[])
    return ast.fix_missing_locations(ast.copy_location(tree, at))


def _compiled(tree: ast.FunctionDef, imports: frozenset[str], code: CodeType) -> CodeType | None:
    """Compiles a tree below these imports, and inside a function that has the names over which the original
    closes.
    """
    names = [ast.arg(name) for name in code.co_freevars]
    empty = ast.arguments(posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[])
    around = ast.FunctionDef(name="around", args=empty, body=[tree], decorator_list=[])
    above = [ast.Import([ast.alias(name)]) for name in sorted(imports & set(code.co_names))]
    module = ast.fix_missing_locations(ast.Module([*above, around], type_ignores=[]))
    flags = code.co_flags & _FUTURE
    found: CodeType = compile(module, "?", "exec", flags, dont_inherit=True)
    for name in ("around", tree.name):
        inner = [c for c in found.co_consts if isinstance(c, CodeType) and c.co_name == name]
        if len(inner) != 1:
            return None
        found = inner[0]
    return found


def _same(one: CodeType | None, other: CodeType) -> bool:
    return one is not None and _bare(one) == _bare(other)


def _bare(code: CodeType) -> CodeType:
    """Strips a function's code of its name and place."""
    constants = tuple(_bare(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(
        co_consts=constants,
        co_filename="",
        co_name="",
        co_qualname="",
        co_firstlineno=1,
        co_linetable=b"",
        co_flags=code.co_flags & ~inspect.CO_NESTED,
    )


def is_plain(value: Any) -> bool:
    """Returns whether a value is a user's function, which is compiled with those that call it."""
    module = (getattr(value, "__module__", None) or "").partition(".")[0]
    return isinstance(value, FunctionType) and module not in ("numpy", "numba")


def plain_number(value: Any) -> bool:
    """Returns whether a value is one of Python's own numbers, whose text means the same everywhere."""
    return type(value) in (bool, int, float)
