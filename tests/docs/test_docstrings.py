"""Docstrings are sentences: what can be held mechanically of how the project writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT
from tests.docs.pictures import ROOMS

FRAGMENTS = ("As", "Its", "Of", "That", "What", "Who")
"""First words that begin no sentence: they continue the name of the function, which does not stand there."""

FEWEST_WORDS = 4
"""Of the docstring of a public name: fewer repeat the name."""


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Name, line and text of every docstring; below an assignment it belongs to what was assigned."""
    for node in ast.walk(tree):
        before: ast.AST = node
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield _name(before), statement.lineno, text
            before = statement


def _name(node: ast.AST) -> str:
    match node:
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return getattr(node, "name", "")


def faults(source: str) -> list[str]:
    found = []
    for name, line, text in docstrings(ast.parse(source)):
        words = text.replace("`", "").split()
        if not words or words[0].rstrip(",:;.") in FRAGMENTS:
            found.append(f"{line}: '{' '.join(words[:6])}' begins like no sentence")
        elif not name.startswith("_") and len(words) < FEWEST_WORDS:
            found.append(f"{line}: '{' '.join(words)}' says no more than '{name}'")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_begin_as_sentences_do_and_say_more_than_the_name(room: str) -> None:
    modules = sorted((ROOT / room).rglob("*.py"))
    assert modules
    assert [f"{path}:{fault}" for path in modules for fault in faults(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Of a module."""',
        'class Kind:\n    """What it is."""',
        'def f():\n    """As its name says."""',
        'SIZE = 3\n"""That of a chunk."""',
        'SIZE: int = 3\n"""Its size."""',
        'def name():\n    """The name."""',
    ],
)
def test_fragments_are_found(source: str) -> None:
    assert len(faults(source)) == 1


def test_sentences_pass() -> None:
    source = '"""Sends chunks, one by one."""\nN = 1\n"""Number of chunks in flight."""\n'
    assert faults(source + 'def _send():\n    """Sends."""\n') == []
