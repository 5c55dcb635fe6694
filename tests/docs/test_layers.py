"""The pages about layers name every built-in layer, its arguments with their defaults, and its kernels."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from inspect import isabstract, isclass
from pathlib import Path

import pytest

from partita import layers
from partita.engine.kernels.registry import KERNELS as ALL_KERNELS
from partita.layers import Layer, Node
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "layers"
KERNELS = "Precision and kernels"
PUBLIC = [getattr(layers, name) for name in layers.__all__]
BUILT_IN = [
    kind
    for kind in PUBLIC
    if isclass(kind) and issubclass(kind, Layer) and not isabstract(kind) and kind is not Node
]


def sections(page: Path) -> dict[str, str]:
    """The text under each heading of the second level."""
    parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def described(kind: type[Layer]) -> list[str]:
    """Section with the arguments of a layer: under its own name, or under "Arguments" for several."""
    found = [found for page in FOLDER.glob("*.md") for found in sections(page).items()]
    own = [text for heading, text in found if heading == kind.__name__]
    return own or [text for heading, text in found if heading == "Arguments" and f"`{kind.__name__}`" in text]


def arguments(text: str) -> dict[str, str]:
    """Default of each argument in a table."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, flags=re.MULTILINE)
    return {name: default.strip() for name, default in rows}


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_a_layer_is_described_with_its_arguments(kind: type[Layer]) -> None:
    (text,) = described(kind)
    declared = {
        setting.name: "required" if setting.default is MISSING else f"`{setting.default!r}`"
        for setting in fields(kind)  # type: ignore[arg-type]
        if setting.init
    }
    assert arguments(text) == declared


def test_the_index_names_every_layer_and_page() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [kind.__name__ for kind in BUILT_IN if f"`{kind.__name__}`" not in index] == []
    pages = {page.name for page in FOLDER.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"^\| \[[^]]+\]\((\w+\.md)\)", index, flags=re.MULTILINE)) == pages


@pytest.mark.parametrize("kind", sorted(kernel.layer.__name__ for kernel in ALL_KERNELS))
def test_the_page_of_a_layer_names_the_files_of_its_kernels(kind: str) -> None:
    files = {
        kernel.__module__.removeprefix("partita.").replace(".", "/") + ".py"
        for kernel in ALL_KERNELS
        if kernel.layer.__name__ == kind
    }
    (page,) = (page for page in FOLDER.glob("*.md") if f"`{kind}`" in sections(page).get(KERNELS, ""))
    assert [file for file in files if f"`{file}`" not in sections(page)[KERNELS]] == []
