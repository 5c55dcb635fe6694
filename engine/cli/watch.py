"""The command `partita watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live

from partita.engine.cli.fields import command
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


@command()
def watch(run: Source, *, once: Once = False) -> None:
    """Shows a run in the terminal while it goes on, from the records that it writes."""
    reader = StreamReader(newest_path(run))
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
