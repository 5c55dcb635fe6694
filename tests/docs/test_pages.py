"""Every block of code in the README and in `docs/` runs and prints what the page shows."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from partita.engine import cli
from tests.docs.pages import (
    PAGES,
    PICTURES,
    ROOT,
    Block,
    Step,
    blocks,
    commands,
    demo,
    expected,
    is_run,
    links,
    minutes_of,
    pictures,
    play,
    steps,
)

LANGUAGES = {
    "python",
    "shell",
    "text",
    "toml",
    "yaml",
    "{eval-rst}",
    "{toctree}",
    "{image}",
    "{include}",
    "{note}",
    "{math}",
    "{pages-of-names}",
    "{command-line}",
    "{container}",
}


def page_names() -> list[str]:
    return [str(page.relative_to(ROOT)) for page in PAGES]


def shell_lines() -> list[tuple[str, list[str]]]:
    """Every command of every page, and where it stands."""
    found = [block for page in PAGES for block in blocks(page) if block.language == "shell"]
    return [(block.name, words) for block in found for words in commands(block)]


LONG = {
    f"docs/{name}.md"
    for name in (
        "all_reduce",
        "batch_methods",
        "callbacks",
        "checkpoints",
        "codistillation",
        "command_line",
        "compression",
        "data",
        "drivers",
        "dynamic_averaging",
        "early_exits",
        "elastic",
        "elastic_averaging",
        "federated",
        "how_it_works",
        "index",
        "layers/embedding",
        "local_sgd",
        "metrics",
        "profiling",
        "pytorch",
        "pytorch_out",
        "quickstart",
        "resolution",
        "simulator",
        "staleness",
        "two_functions",
        "watching",
        "write_your_own_layer",
    )
}
"""Pages whose runs take seconds: `make slow` plays them, and the others look at their names and calls."""

PLAYED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
    for name in page_names()
    if list(steps(ROOT / name))
]


@pytest.mark.parametrize("name", PLAYED)
def test_a_page_does_what_it_shows(name: str, tmp_path: Path) -> None:
    """If an output or a picture is stale: `python -m tests.docs.refresh`."""
    check_page(name, tmp_path)


@pytest.mark.parametrize("name", page_names())
def test_what_a_page_imports_exists_and_takes_these_arguments(name: str) -> None:
    """Also of pages whose runs take seconds."""
    imported: dict[str, Any] = {}
    for step in steps(ROOT / name):
        if step.code.language == "python":
            tree = ast.parse(step.code.text, step.code.name)
            imported |= imported_by(tree)
            check_calls(tree, imported, step.code.name)


def imported_by(tree: ast.AST) -> dict[str, Any]:
    """What a block imports from the three rooms and from the examples, by the names that it has there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("partita", "examples"):
            module = importlib.import_module(node.module or "")
            found |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    return found


def check_calls(tree: ast.AST, imported: dict[str, Any], where: str) -> None:
    """The calls of what is imported have arguments that are taken."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
            if any(isinstance(one, ast.Starred) for one in node.args):
                continue
            named = {one.arg: None for one in node.keywords if one.arg}
            signature = inspect.signature(imported[node.func.id])
            try:
                signature.bind_partial(*node.args, **named)
            except TypeError as error:
                pytest.fail(f"{where}: {ast.unparse(node)}: {error}")


def test_a_call_with_what_is_not_taken_is_found() -> None:
    block = "from partita.engine import SGD\nSGD(0.1, momentums=1)"
    with pytest.raises(pytest.fail.Exception, match="momentums"):
        check_calls(ast.parse(block), imported_by(ast.parse(block)), "here")
    with pytest.raises(AttributeError, match="Nobody"):
        imported_by(ast.parse("from partita.engine import Nobody"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in page_names() if minutes_of(ROOT / name)])
def test_a_page_does_what_it_shows_and_takes_minutes(name: str, tmp_path: Path) -> None:
    """If an output or a picture is stale: `python -m tests.docs.refresh PAGE`."""
    check_page(name, tmp_path, minutes=True)


def check_page(name: str, tmp_path: Path, *, minutes: bool = False) -> None:
    for step, printed in play(ROOT / name, tmp_path, minutes=minutes):
        shown, said = expected(step, printed)
        assert said == shown, f"{step.code.name} prints\n{printed}"
    for drawn in pictures(tmp_path):
        kept = PICTURES / drawn.name
        assert drawn.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), f"{kept} is stale"


@pytest.mark.parametrize("name", [*page_names(), "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_row_of_a_table_has_a_cell_for_each_head(name: str) -> None:
    """A bar that is not escaped, in code too, begins another cell, and what is too much is cut off."""
    prose = re.sub(r"^```.*?^```", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", prose, flags=re.MULTILINE):
        rows = table.splitlines()
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        assert [row for row, n in zip(rows, cells, strict=True) if n != cells[0]] == []


def test_a_machine_that_is_slow_prints_what_a_page_shows() -> None:
    """The output is the same for any number of progress lines and any pause of a host."""
    shown = ("toy: 2 replicas", "step 440/440  loss 0.25  staleness 2.6", "done in 4.6 s")
    page = PAGES[0]
    code = Block(page, ("python",), 0, 1, ())
    step = Step(code, Block(page, ("text", "varies"), 2, 5, shown))
    slow = """
toy: 2 replicas
starting 6 processes
starting 6 processes: 2 ready, 14 functions compiled
compiling: 20 functions so far
step 9/440  loss 1.50  staleness 0.2  accuracy 0.1
part 1.0 has been silent for 2.0 s
step 11/440  loss 1.2e-05  staleness 0.30
part 1.0 sends again after 3.1 s
step 440/440  loss 0.2  staleness 12,345
done in 1,004.6 s
"""
    for printed, equal in (
        (slow, True),
        (slow.replace("staleness", "age"), False),
        (slow + "Warning", False),
    ):
        found, said = expected(step, printed)
        assert (found == said) == equal


def test_every_block_says_what_it_is() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    assert [block.name for block in found if block.language not in LANGUAGES] == []


@pytest.mark.parametrize(("where", "words"), shell_lines())
def test_a_command_exists_and_takes_its_options(where: str, words: list[str]) -> None:
    check = {"partita": check_partita, "make": check_make, "python": check_module}
    check |= dict.fromkeys(("cd", "export", "git", "pip", "ray"))
    assert words[0] in check, f"{where}: nothing is known of '{words[0]}'"
    checked = check[words[0]]
    if checked is not None:
        checked(words[1:])


def check_partita(arguments: list[str]) -> None:
    """Parses the arguments as the command itself does, without running it."""
    name, *rest = arguments
    if "--help" not in arguments:
        command: Any = typer.main.get_command(cli.app_of())
        command.commands[name].make_context(name, rest)


def check_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [word for word in arguments if "=" not in word and word not in targets] == []


def check_module(arguments: list[str]) -> None:
    """`python -m MODULE ...`, or a script."""
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]) is not None, arguments[1]
    else:
        assert (ROOT / arguments[0]).is_file(), arguments[0]


@pytest.mark.parametrize("name", page_names())
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def named_paths(page: Path) -> set[str]:
    """Every `path/of.py` or `folder/` of the rooms that a page's prose names."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inside = re.findall(r"`((?:layers|partitioner|engine|examples|tests|docs|benchmarks)/[\w./]*)`", prose)
    return set(inside)


@pytest.mark.parametrize("name", [*page_names(), "CONTRIBUTING.md"])
def test_named_files_exist(name: str) -> None:
    assert [path for path in sorted(named_paths(ROOT / name)) if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows() -> None:
    """The one command of the README that is not run above."""
    (step,) = (step for step in steps(ROOT / "README.md") if step.code.text.startswith("make demo"))
    shown, said = expected(step, demo())
    assert said == shown


def test_what_is_not_run_is_only_setting_up() -> None:
    left = {words[0] for _, words in shell_lines() if not is_run(words)}
    assert left <= {"make", "python", "git", "cd", "pip", "export", "ray"}
