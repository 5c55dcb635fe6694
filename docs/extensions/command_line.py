"""Sphinx directive `command-line`: the reference of the command `partita`, as Typer writes it."""

from __future__ import annotations

import re
import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from partita.engine.cli import app_of

app = app_of()
"""The command, where `typer FILE utils docs` looks for it."""


class CommandLine(SphinxDirective):
    """Replaces itself by a section for each command, with its arguments and options."""

    def run(self) -> list[nodes.Node]:
        written = [sys.executable, "-m", "typer", __file__, "utils", "docs", "--name", "partita"]
        text = subprocess.run(written, capture_output=True, text=True, check=True).stdout
        return self.parse_text_to_nodes(_sections_of_commands(text), allow_section_headings=True)


def _sections_of_commands(text: str) -> str:
    """The text without its title and the lists of commands: the page has a title, and a list of sections."""
    return re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+", "", text.partition("\n")[2])


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    sphinx.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
