"""The README and the pages of `docs/`: their code blocks, what those print, and how that is compared.

A block of `python` or `shell` is run; a block of `text` that follows it, with nothing but blank lines between, is what
it prints. After "text varies", numbers may differ from run to run and lines that differ in nothing else count once.
The blocks of a page share one namespace and one folder, as if a reader typed them one after another.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_NUMBER = re.compile(r"\b\d[\d,]*(?:\.\d+)?\b")


@dataclass(frozen=True)
class Block:
    """Lines `[first, last)` of a page between two fences, counted from 0, and the words behind the first of them."""

    page: Path
    words: tuple[str, ...]
    first: int
    last: int
    lines: tuple[str, ...]

    @property
    def language(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.first + 1}"


@dataclass(frozen=True)
class Step:
    """A block to run, and the block that shows what it prints."""

    code: Block
    output: Block | None


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: tuple[int, str, tuple[str, ...]] | None = None
    for number, line in enumerate(lines):
        fence = re.match(r"(`{3,}|:{3,})\s*(.*)$", line)
        if fence is None:
            continue
        if opened is None:
            opened = number + 1, fence[1], tuple(fence[2].split())
        elif line.strip() == opened[1]:
            yield Block(page, opened[2], opened[0], number, tuple(lines[opened[0] : number]))
            opened = None
    assert opened is None, f"{page}: the block of line {opened[0] if opened else 0} never ends"


def steps(page: Path) -> Iterator[Step]:
    """What a reader runs, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = list(blocks(page))
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language in ("python", "shell"):
            follows = after is not None and after.language == "text"
            follows = follows and not any(line.strip() for line in lines[block.last + 1 : after.first - 1])
            yield Step(block, after if follows else None)


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, without the folder in front of `partita` and without comments."""
    found = [shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines()]
    return [[words[0].removeprefix(".venv/bin/"), *words[1:]] for words in found if words]


def prints(code: Block, names: dict[str, Any]) -> str:
    """Runs a Python block in a namespace; what it writes to standard output and error."""
    said = io.StringIO()
    program = compile("\n" * code.first + code.text, str(code.page), "exec")
    with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings():
        exec(program, names)
    return said.getvalue()


def answers(words: list[str]) -> str:
    """Runs a command `partita ...`; what it writes, and fails if it does."""
    assert words[0] == "partita", words
    command = [sys.executable, "-m", "partita.engine.cli", *words[1:]]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def demo() -> str:
    """What `make demo` writes once everything is installed."""
    command = [sys.executable, str(ROOT / "examples" / "digits.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert run.returncode == 0, run.stdout + run.stderr
    plan, last = run.stdout.strip().rsplit("\n", 1)
    return "\n".join([".venv/bin/python examples/digits.py", plan, run.stderr.strip(), last])


def is_run(words: list[str]) -> bool:
    """Whether the tests run a command. (What sets up or tests this checkout is looked at only.)"""
    return words[0] == "partita"


def play(page: Path, folder: Path) -> Iterator[tuple[Step, str]]:
    """Runs a page in a folder that holds the examples; each step that can be run, and what it printed."""
    (folder / "examples").symlink_to(ROOT / "examples")
    names: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    for step in steps(page):
        with chdir(folder):
            if step.code.language == "python":
                yield step, prints(step.code, names)
            elif all(is_run(words) for words in commands(step.code)):
                yield step, "\n".join(answers(words) for words in commands(step.code))


def expected(step: Step, printed: str) -> tuple[str, str]:
    """What the page shows and what was printed, in a form in which they must be equal."""
    shown = step.output.text if step.output is not None else ""
    if step.output is not None and "varies" in step.output.words:
        return _without_numbers(shown), _without_numbers(printed)
    return _trimmed(shown), _trimmed(printed)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().strip("\n").splitlines())


def _without_numbers(text: str) -> str:
    lines = [re.sub(r"[ ]+", " ", _NUMBER.sub("#", line)).strip() for line in text.strip().splitlines()]
    return "\n".join(line for line, before in zip(lines, [None, *lines], strict=False) if line != before)
