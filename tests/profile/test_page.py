"""The page: whole, alone, and saying which is which."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from partita.engine.profile import Profile

SVG = "{http://www.w3.org/2000/svg}"
NEVER_CLOSED = {"meta", "input"}


class Reader(HTMLParser):
    """Refuses tags that are not closed in their order, and whatever would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert not {name for name, _ in attrs} & {"src", "href", "srcset", "xlink:href"}
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def page(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> str:
    return Path(profile.write_page(tmp_path_factory.mktemp("page") / "page.html")).read_text(encoding="utf-8")


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_is_whole_and_needs_nothing_else(page: str, profile: Profile) -> None:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "url(" not in page and "@import" not in page
    assert set(re.findall(r"https?://[^\"<\s]+", page)) == {"http://www.w3.org/2000/svg"}
    text = " ".join(reader.words)
    for point in profile.report().points:
        assert all(str(change) in text for change in point.changes)
    assert "Measured: " in text and "Simulated: " in text


def test_the_curve_marks_what_was_measured_and_what_was_not(page: str) -> None:
    """A disc and a diamond for each point, and one of each in the legend."""
    curve = pictures(page)[0]
    assert len(curve.findall(f"{SVG}circle")) == 2 + 1
    assert len(curve.findall(f"{SVG}polygon")) == 1 + 1
    titles = [title.text for title in curve.iter(f"{SVG}title")]
    assert any(title and title.startswith("4 machines, simulated: ") for title in titles)


def test_measured_and_predicted_steps_share_an_axis(page: str, profile: Profile) -> None:
    steps = pictures(page)[1:]
    for point in profile.points:
        mine, steps = steps[: 1 if point.measured is None else 2], steps[1 if point.measured is None else 2 :]
        told = [" ".join(t.text or "" for t in picture.iter(f"{SVG}text")) for picture in mine]
        assert ["measured step" in text for text in told] == [True, False][-len(mine) :]
        assert len({tuple(labels(picture)) for picture in mine}) == 1
    assert steps == []


def labels(picture: ElementTree.Element) -> list[str]:
    """Of the axis: the first group of what is stretched with time."""
    time = next(group for group in picture.findall(f"{SVG}g") if group.get("class") == "time")
    return [text.text or "" for text in time.iter(f"{SVG}text")]


def test_every_bar_lies_in_its_picture(page: str) -> None:
    for picture in pictures(page):
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        for box in picture.iter(f"{SVG}rect"):
            x, y, w, h = (float(box.attrib.get(name, 0.0)) for name in ("x", "y", "width", "height"))
            assert x >= -20 and y >= 0 and x + w <= width + 0.5 and y + h <= height + 0.5
