"""Pages of HTML: whole, and alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

NEVER_CLOSED = {"meta", "input"}
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class Reader(HTMLParser):
    """Refuses tags that are not closed in their order, and whatever would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        named = {name: value or "" for name, value in attrs}
        assert not named.keys() & {"src", "href", "srcset", "data", "action"}
        assert named.get("xlink:href", "#").startswith("#")  # a shape of the same picture
        self.tags.append(tag)
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert "@import" not in page and re.findall(r"url\([^#]", page) == []
    assert set(re.findall(r"https?://[^\s\"'<)]+", page)) <= NAMESPACES
    return reader
