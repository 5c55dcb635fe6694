"""The page as one file that needs no server, no network and no other file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from partita.engine.page.panels import TEMPLATES, Panels
from partita.engine.view import theme
from partita.engine.watch.state import State


def style() -> str:
    """Returns the style sheet of the page."""
    view = files("partita.engine.view").joinpath("templates/page.css").read_text(encoding="utf-8")
    return (
        theme.rules()
        + view
        + files("partita.engine.page").joinpath("templates/live.css").read_text(encoding="utf-8")
    )


def script() -> str:
    """Returns what makes pictures tell and grow."""
    return files("partita.engine.view").joinpath("templates/pictures.js").read_text(encoding="utf-8")


def title_of(state: State) -> str:
    """Returns the title of the page."""
    return f"{state.run.network}: {state.phase}" if state.run else "a run"


def frozen_page(state: State) -> str:
    """Writes the page of a state as it is now, with all machines and rows."""
    panels = Panels(state)
    shown = {
        name: html.replace('<a href="all">All machines</a>', "")
        for name, html in panels.render(state.at_s, whole=True).items()
    }
    return TEMPLATES.get_template("frozen.html").render(
        title=title_of(state), css=style(), script=script(), panels=shown
    )


def freeze(state: State, path: Path) -> Path:
    """Writes the page into a file, which is there whole or not at all. Raises OSError."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(frozen_page(state), encoding="utf-8")
    partial.replace(path)
    return path
