"""The command `partita worker`."""

from __future__ import annotations

import sys
from pathlib import Path
from socket import gethostname
from typing import Annotated

import typer
from typer import Argument, Option

from partita.engine.cli.fields import command
from partita.engine.cli.keys import Keys, keyring_of
from partita.engine.launch.pool import JoinFile, PoolWorker, WorkerSettings
from partita.engine.launch.pool.facts import resources as resources_here
from partita.engine.launch.pool.worker import DEATH_TIMEOUT_S, stop_on_signals
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool import Resources
from partita.engine.transport.addresses import address_of, address_towards
from partita.engine.transport.sockets import check_endpoint


@command()
def worker(
    address: Annotated[str | None, Argument(help="The pool's address, tcp://HOST:PORT.")] = None,
    *,
    join: Annotated[str | None, Option(help="The pool's address, too.")] = None,
    join_file: Annotated[
        Path | None, Option(help="File with the pool's address and key, written by `partita pool serve`.")
    ] = None,
    keys: Keys = None,
    name: Annotated[str | None, Option(help="Name of this worker; the machine's if not given.")] = None,
    threads: Annotated[
        int | None,
        Option(help="Kernel threads of all its hosts, as --resources cpu=; all cores if not given."),
    ] = None,
    interface: Annotated[
        str | None, Option(help="Network interface on which others reach this worker, for example eth1.")
    ] = None,
    contact_address: Annotated[
        str | None,
        Option(
            help="Address at which others reach this worker; the one that leads to the pool if "
            "neither this nor --interface is given."
        ),
    ] = None,
    resources: Annotated[
        str,
        Option(help="What its hosts may use up, as cpu=8,gpu=1,memory=32GiB; the rest is as found."),
    ] = "",
    death_timeout: Annotated[
        float, Option(help="Seconds without an answer of the pool after which the worker ends.")
    ] = DEATH_TIMEOUT_S,
) -> None:
    """Starts hosts for the runs of a pool, until Ctrl-C or until the pool drains it."""
    keyring = keyring_of(keys)
    found = _pool(address, join, join_file)
    key = found.public_key or keyring.trusted("pool").public_key
    own_address = _own_address(found.address, interface, contact_address)
    settings = WorkerSettings(
        Peer("the pool", 0, found.address, key),
        keyring.pair("worker"),
        own_address,
        name or gethostname(),
        _resources(resources, threads),
        death_timeout,
    )
    with PoolWorker(settings, log=log) as here:
        stop_on_signals(here)
        log(f"worker '{settings.name}' at {own_address} with {settings.resources} joins {found.address}")
        end = here.run()
    if end.failed:
        print(f"partita: {end.reason}", file=sys.stderr)
        raise typer.Exit(1)
    log(end.reason)


def log(text: str) -> None:
    """Prints a line at once: a worker's output is often a file."""
    print(text, flush=True)


def _pool(address: str | None, join: str | None, join_file: Path | None) -> JoinFile:
    """Returns the pool's address, and its key if a file says it."""
    given = [one for one in (address, join, join_file) if one is not None]
    if len(given) != 1:
        raise ValueError(
            "give the pool's address once: partita worker tcp://HOST:PORT, --join tcp://HOST:PORT, or "
            "--join-file FILE"
        )
    if join_file is not None:
        return JoinFile.read(join_file)
    found = str(given[0])
    check_endpoint(found, listening=False)
    return JoinFile(found, "")


def _own_address(pool: str, interface: str | None, contact: str | None) -> str:
    if interface is None:
        return contact or address_towards(pool)
    found = address_of(interface)
    if contact not in (None, found):
        raise ValueError(f"interface {interface} has the address {found}, not {contact}; give one of the two")
    return found


def _resources(text: str, threads: int | None) -> Resources:
    found = Resources.parse(text, resources_here())
    if threads is None:
        return found
    if threads < 1 or ("cpu=" in text.replace(" ", "") and found.cpu != threads):
        raise ValueError(f"--threads is {threads}; give at least 1, and the same as --resources cpu=")
    return Resources(cpu=threads, gpu=found.gpu, memory=found.memory)
