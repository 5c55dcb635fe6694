"""The README and the pages of `docs/`: their code blocks, what those print, and how that is compared.

A block of `python` is run, one of `shell` if the page shows what it prints; a block of `text` that follows
it, with nothing but blank lines between, is what it prints. After "text varies", numbers may differ from run
to run and lines that differ in nothing else count once. The blocks of a page share one namespace and one
folder, as if a reader typed them one after another. A picture that a page draws is the one of that name in
`docs/pictures/`. An example that is run as a module may take minutes; it is run only where that is asked for.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "docs" / "_build"
PAGES = (
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if BUILT not in page.parents),
)
PICTURES = ROOT / "docs" / "pictures"

_NUMBER = re.compile(r"\b\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?\b")
_RULE = re.compile(r"^(products|threads): fixed rule .*\)$", re.MULTILINE)
"""The rule follows from the processor on which a plan is made."""

_PASSING = re.compile(
    r"starting \d+ (process|thread)|planning |(evaluating|predicting|compiling): |\w+: \d+ of \d+ schedules|"
    r"\w+ [\d.]+ (has been silent for|sends again after) |step (?P<now>[\d,]+)/(?!(?P=now) )"
)
"""Lines that say what is being waited for, or how far a run is before its last step. How many come depends on
what else the machine does, and on what was compiled before, so none is compared.
"""


@dataclass(frozen=True)
class Block:
    """Lines `[first, last)` of a page between two fences, counted from 0, and the words behind the first."""

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
    if opened is not None:
        raise ValueError(f"{page}: the block of line {opened[0]} never ends; close it")


def steps(page: Path) -> Iterator[Step]:
    """Code blocks that a reader runs, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = list(blocks(page))
    follower = dict(pairwise(found))
    for block in found:
        if block.language in ("python", "shell"):
            after = follower.get(block)
            if after is not None and (
                after.language != "text"
                or any(line.strip() for line in lines[block.last + 1 : after.first - 1])
            ):
                after = None
            yield Step(block, after)


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, without the folder in front of `partita` and without comments."""
    found = [shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines()]
    return [[words[0].removeprefix(".venv/bin/"), *words[1:]] for words in found if words]


def prints(code: Block, names: dict[str, Any]) -> str:
    """Runs a Python block in a namespace; what it writes to standard output and error, with paths as they are
    seen from the root of the checkout.
    """
    said = io.StringIO()
    program = compile("\n" * code.first + code.text, str(code.page), "exec")
    with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings():
        exec(program, names)
    return said.getvalue().replace(f"{ROOT}/", "")


def answers(words: list[str]) -> str:
    """Runs a command `partita ...` or `python -m ...`; what it writes, and fails if it does."""
    arguments = words[1:] if words[0] == "python" else ["-m", "partita.engine.cli", *words[1:]]
    return _written_by(*arguments, timeout_s=900 if takes_minutes(words) else 280)


def demo() -> str:
    """Output of `make demo` after the installation."""
    command = ".venv/bin/python examples/digits.py"
    return f"{command}\n{_written_by(str(ROOT / 'examples' / 'digits.py'))}"


def _written_by(*arguments: str, timeout_s: float = 280) -> str:
    command = [sys.executable, "-u", *arguments]
    run = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_s,
        env=dict(os.environ),  # what readline puts into the environment behind Python's back stays out
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


def is_run(words: list[str]) -> bool:
    """Whether the tests run a command. (What sets up, tests or measures this checkout is looked at only.)"""
    return words[0] == "partita" or (words[:2] == ["python", "-m"] and words[2].startswith("partita."))


def takes_minutes(words: list[str]) -> bool:
    """Whether a command is an example that is run as a module."""
    return words[:2] == ["python", "-m"] and words[2].startswith("examples.")


def minutes_of(page: Path) -> list[list[str]]:
    """The commands of a page that take minutes."""
    found = [words for step in steps(page) if step.code.language == "shell" for words in commands(step.code)]
    return [words for words in found if takes_minutes(words)]


def play(page: Path, folder: Path, *, minutes: bool = False) -> Iterator[tuple[Step, str]]:
    """Runs a page in a folder that holds the examples; each step that can be run, and what it printed.

    Args:
        page: which.
        folder: an empty one.
        minutes: also what takes minutes.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "docs" / "pictures").mkdir(parents=True)
    names: dict[str, Any] = {"__name__": "__main__"}  # as a reader has it
    for step in steps(page):
        with chdir(folder):
            if step.code.language == "python":
                yield step, prints(step.code, names)
            elif step.output is not None and all(
                is_run(words) or (minutes and takes_minutes(words)) for words in commands(step.code)
            ):
                yield step, "\n".join(answers(words) for words in commands(step.code))


def links(page: Path) -> list[str]:
    """Links of a page within this checkout: paths, without anchors."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    return [target for target in targets if "://" not in target]


def pictures(folder: Path) -> list[Path]:
    """Pictures that a page has drawn in its folder."""
    return sorted([*folder.glob("*.svg"), *folder.glob("docs/pictures/*.svg")])


def expected(step: Step, printed: str) -> tuple[str, str]:
    """Shown and printed text, in a form in which both must be equal."""
    shown, printed = _settled(step.output.text if step.output is not None else ""), _settled(printed)
    if step.output is not None and "varies" in step.output.words:
        return _without_numbers(shown), _without_numbers(printed)
    return "\n".join(trimmed(shown)), "\n".join(trimmed(printed))


def _settled(text: str) -> str:
    """An output without what is only said while something takes its time, and without the processor."""
    lines = "\n".join(line for line in text.splitlines() if not _PASSING.match(line))
    return _RULE.sub(r"\1: fixed rule", lines)


def trimmed(text: str) -> list[str]:
    """The lines of an output as a page shows them."""
    return [line.rstrip() for line in text.rstrip().strip("\n").splitlines()]


def _without_numbers(text: str) -> str:
    said = text.strip().splitlines()
    lines = [re.sub(r" +", " ", _NUMBER.sub("#", line)).strip() for line in said]
    return "\n".join(line for line, before in zip(lines, [None, *lines], strict=False) if line != before)
