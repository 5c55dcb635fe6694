"""The command `partita watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from partita.engine.cli.fields import command
from partita.engine.run.live_page import check_page
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
Once = Annotated[bool, typer.Option("--once", help="Shows the present state and ends.")]


Page = Annotated[bool, typer.Option("--page", help="Serves a page for browsers of this machine instead.")]
Save = Annotated[
    Path | None,
    typer.Option(help="With --page: keep the page as one file when the run ends; implies --page."),
]
Port = Annotated[int, typer.Option(help="With --page: port of loopback; 0 for any free one.")]


@command()
def watch(
    run: Source, *, once: Once = False, page: Page = False, save_page: Save = None, port: Port = 0
) -> None:
    """Shows a run in the terminal, or on a page, from the records that it writes or has written."""
    stream = newest_path(run)
    if page or save_page is not None:
        _serve(stream, save_page, port)
        return
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
