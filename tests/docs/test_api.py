"""The reference shows every public name of the three rooms once, and the rooms' maps are complete."""

from __future__ import annotations

import importlib
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.pictures import BESIDE, ROOMS, folders_of_the_tree


def packages() -> list[str]:
    return [f"partita.{folder.replace('/', '.')}" for folder in sorted(folders_of_the_tree() - set(BESIDE))]


PAGES = sorted(page for page in (ROOT / "docs" / "reference").glob("*.md") if page.stem != "index")


def shown() -> dict[str, Counter[str]]:
    """Number of times that the pages show each name, by the package of its block."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for page in PAGES:
        room = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                room = line.split()[-1]
            elif directive := re.match(r"\.\. auto\w+:: (\w+)$", line):
                found[room][directive[1]] += 1
    return found


@pytest.mark.parametrize("room", [f"partita.{room}" for room in ROOMS])
def test_every_public_name_is_shown_once(room: str) -> None:
    assert shown()[room] == Counter(importlib.import_module(room).__all__)


def test_the_index_of_the_reference_names_every_page_in_its_tables_and_in_its_contents() -> None:
    lines = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8").splitlines()
    named = Counter(line for line in lines if re.fullmatch(r"\w+", line))
    assert named == {page.stem: 2 for page in PAGES}


@pytest.mark.parametrize("name", packages())
def test_a_package_is_a_map(name: str) -> None:
    """A paragraph, then the public names, which exist and stand in order."""
    package = importlib.import_module(name)
    assert package.__doc__ and len(package.__doc__.split()) > 5
    assert sorted(package.__all__, key=_as_ruff_sorts) == package.__all__
    assert [public for public in package.__all__ if not hasattr(package, public)] == []


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants first, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_maps_of_the_engine_name_their_modules() -> None:
    """A map that has forgotten a module is a wrong map."""
    folders = [path for path in (ROOT / "engine").iterdir() if (path / "__init__.py").is_file()]
    forgotten = [f"{folder.name}/{module.name}" for folder in folders for module in _unnamed(folder)]
    assert forgotten == []


def _unnamed(folder: Path) -> list[Path]:
    map_of_it = (folder / "__init__.py").read_text(encoding="utf-8")
    return [
        path
        for path in sorted(folder.glob("*.py"))
        if not path.name.startswith("__") and f"`{path.stem}`" not in map_of_it
    ]
