"""The sentences in tables of what is printed are sentences of the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import PAGES, ROOT

# Characters of a sentence that identify it.
SHORTEST = 9
HEAD = "| printed | cause and next step |"


@cache
def sentences_of_the_code() -> str:
    """Every string of the three rooms, with a line break, which no quoted sentence has, for each field."""
    texts = []
    for room in ("engine", "partitioner", "layers"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    texts.append(
                        "".join(
                            getattr(part, "value", None) if _is_text(part) else "\n" for part in node.values
                        )
                    )
                elif _is_text(node):
                    texts.append(node.value)
    return "\n\n".join(texts)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def printed() -> list[tuple[str, str]]:
    """The quoted sentences in the first column of such tables, with their page."""
    found = []
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        for head in (i for i, line in enumerate(lines) if line == HEAD):
            for line in lines[head + 2 :]:
                if not line.startswith("|"):
                    break
                first = line.split(" | ")[0]
                found += [(page.name, quoted) for quoted in re.findall(r"`([^`]+)`", first)]
    return found


def test_there_are_such_tables_on_three_pages() -> None:
    assert {"troubleshooting.md", "pools.md", "hosts.md"} <= {page for page, _ in printed()}


def longest_in(code: str, sentence: str) -> str:
    """The longest run of consecutive words of the sentence that a string of the code has."""
    words = sentence.replace("...", " ").split()
    runs = [" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    return max((run for run in runs if run in code), key=len, default="")


@pytest.mark.parametrize(("page", "sentence"), printed(), ids=lambda text: text[:40])
def test_a_quoted_sentence_is_in_the_code(page: str, sentence: str) -> None:
    found = longest_in(sentences_of_the_code(), sentence)
    assert len(found) >= min(SHORTEST, len(sentence.strip("."))), f"{page}: of {sentence!r} only {found!r}"
