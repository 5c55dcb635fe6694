"""The command `partita watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from partita.engine.cli.fields import command
from partita.engine.run.live_page import check_page, has_page
from partita.engine.watch.file import StreamReader, newest_path
from partita.engine.watch.text import screen

EVERY_S: Final = 0.5
"""Seconds between two looks at the file."""

Source = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of checkpoints of a run that was started with --watch; or its file of records.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Prints the present state in the terminal and ends.")]
Page = Annotated[
    bool | None,
    typer.Option(
        "--page/--text",
        help="Serves a page for browsers of this machine, or draws in the terminal. Default: the page where "
        "the extra `page` is installed.",
        show_default=False,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(help="Keeps the page as one file when the run ends; implies --page."),
]
Port = Annotated[int, typer.Option(help="Port of the page, on loopback; 0 for any free one.")]


@command()
def watch(
    run: Source, *, once: Once = False, page: Page = None, save_page: Save = None, port: Port = 0
) -> None:
    """Shows a run on a page, or in the terminal, from the records that it writes or has written."""
    if page is False and save_page is not None:
        raise ValueError("--text draws no page that --save-page could keep; leave one of them out")
    if once and (page or save_page is not None):
        raise ValueError("--once prints the present state in the terminal; leave out --page and --save-page")
    stream = newest_path(run)
    asked = page or save_page is not None
    if asked or (page is None and not once and has_page()):
        _serve(stream, save_page, port)
        return
    _draw(stream, once=once)


def _draw(stream: Path, *, once: bool) -> None:
    """Draws the run in the terminal until it ends, or once."""
    reader = StreamReader(stream)
    try:
        reader.read()
        if once:
            Console().print(screen(reader.state))
            return
        with Live(screen(reader.state), auto_refresh=False) as live:
            while not reader.state.is_over:
                time.sleep(EVERY_S)
                if reader.read():
                    live.update(screen(reader.state), refresh=True)
    finally:
        reader.close()


def _serve(stream: Path, save: Path | None, port: int) -> None:
    """Serves the page until Ctrl-C."""
    check_page()
    from partita.engine.page.server import PageServer, Serving  # needs the extra `page`

    def ready(address: str) -> None:
        print(f"page of this run: {address}\nCtrl-C ends it", flush=True)

    PageServer(Serving(stream=stream, port=port, save=save, ready=ready)).serve()
