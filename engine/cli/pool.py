"""The commands `partita pool`: a standing registry, its state, and its end."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from partita.engine.cli.fields import Command
from partita.engine.cli.keys import Keys, keyring_of
from partita.engine.cli.worker import log
from partita.engine.launch.pool import JoinFile, PoolServer, ask_pool
from partita.engine.protocol.pool.messages import Inspect, Status

app = typer.Typer(help="Serves a pool of workers, shows it, and empties it.", no_args_is_help=True)

Address = Annotated[str, Argument(help="The pool's address, tcp://HOST:PORT.")]


@app.command(cls=Command)
def serve(
    address: Annotated[
        str, Argument(help="Address of this machine at which to listen, tcp://HOST:PORT or tcp://HOST:*.")
    ],
    *,
    keys: Keys = None,
    join_file: Annotated[
        Path | None,
        Option(help="Write address and public key to this file, for workers' --join-file."),
    ] = None,
) -> None:
    """Knows the workers that join, and gives runs their places, until Ctrl-C. Runs survive its restart."""
    with PoolServer(keyring_of(keys), address, log=_stamped) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: server.stop())
        if join_file is not None:
            JoinFile(server.endpoint, server.public_key).write(join_file)
        log(f"serves a pool at {server.endpoint} with the key {server.public_key}")
        server.serve()


@app.command(cls=Command)
def status(address: Address, *, keys: Keys = None) -> None:
    """Prints the workers of a pool, what they have left, and the runs on them."""
    _print(ask_pool(address, keyring_of(keys), Inspect()))


@app.command(cls=Command)
def drain(
    address: Address,
    workers: Annotated[list[str] | None, Argument(help="Names of workers; all if none is given.")] = None,
    *,
    keys: Keys = None,
) -> None:
    """Lets workers end after the runs that they have; none gets another."""
    _print(ask_pool(address, keyring_of(keys), Inspect(drain=tuple(workers or ()))))


def _print(status: Status) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("worker", "address", "free", "of", "runs"):
        table.add_column(heading)
    for one in status.workers:
        runs = ", ".join(one.runs) or ("ends" if one.draining else "waits")
        state = f"{runs} ({one.note})" if one.note else runs
        table.add_row(one.name, one.endpoint, str(one.free), str(one.resources), state)
    Console(highlight=False, soft_wrap=True).print(table)
    print(f"{len(status.workers)} workers, {len(status.runs)} runs")
    for title, hosts in status.runs:
        print(f"run of {title}: {hosts} hosts")


def _stamped(text: str) -> None:
    log(f"{time.strftime('%H:%M:%S')} {text}")
