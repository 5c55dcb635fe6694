"""Sphinx directive `pages-of-names`: a table of pages of the reference, with the public names on each."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class PagesOfNames(SphinxDirective):
    """Replaces itself by a table of the pages that are named in its lines, in that order."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.doc2path(self.env.docname)).parent
        lines = ["| page | names |", "| --- | --- |"]
        for page in self.content:
            text = (folder / f"{page}.md").read_text(encoding="utf-8")
            self.env.note_dependency(str(folder / f"{page}.md"))
            title = text.splitlines()[0].removeprefix("# ")
            lines.append(f"| [{title}]({page}.md) | {_names_on(text)} |")
        return self.parse_text_to_nodes("\n".join(lines))


def _names_on(text: str) -> str:
    """The names that a page shows, each a link to where it stands."""
    room, found = "", []
    for line in text.splitlines():
        if line.startswith(".. currentmodule:: "):
            room = line.split()[-1]
        elif directive := re.match(r"\.\. auto\w+:: ([\w.]+)$", line):
            name = directive[1] if "." in directive[1] else f"{room}.{directive[1]}"
            found.append(f"{{py:obj}}`~{name}`")
    return ", ".join(found)


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    sphinx.add_directive("pages-of-names", PagesOfNames)
    return {"parallel_read_safe": True}
