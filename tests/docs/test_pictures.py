"""The pictures say what is so: the data flow names the folders of the tree, the others are drawn by pages."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import PAGES, PICTURES, ROOT, links, minutes_of, steps
from tests.docs.pictures import FLOW, folders_drawn, folders_of_the_flow

GALLERY = ROOT / "docs" / "gallery.md"

SCREENSHOTS = {"live_page.png"}
"""Pictures of a page in a browser; the page names the command of the run."""


def test_the_data_flow_names_every_folder_of_the_rooms_and_no_other() -> None:
    drawn = folders_drawn()
    assert set(drawn) == folders_of_the_flow()
    assert all((ROOT / folder).is_dir() for folder in drawn)
    assert [text for folder, text in drawn.items() if text != f"{Path(folder).name}/"] == []


def test_every_other_picture_is_drawn_and_shown_by_a_page() -> None:
    """The test that runs the page compares the pictures."""
    code = [step.code.text for page in PAGES for step in steps(page) if step.code.language == "python"]
    drawn = {name for text in code for name in re.findall(r"""\.draw(?:_timeline)?\(\s*"([^"]+)""", text)}
    examples = [ROOT / f"{words[2].replace('.', '/')}.py" for page in PAGES for words in minutes_of(page)]
    drawn |= {
        name for file in examples for name in re.findall(r"docs/pictures/(\w+\.svg)\"", file.read_text())
    }
    others = [page for page in PAGES if page != GALLERY]
    shown = {Path(link).name for page in others for link in links(page) if link.endswith((".svg", ".png"))}
    kept = {picture.name for picture in PICTURES.iterdir()}
    assert drawn | {FLOW.name} | SCREENSHOTS == kept
    assert shown == kept


def test_the_gallery_shows_every_picture_once() -> None:
    targets = [Path(link) for link in links(GALLERY)]
    shown = [target.name for target in targets if target.parent.name == "pictures"]
    assert sorted(shown) == sorted(picture.name for picture in PICTURES.iterdir())
