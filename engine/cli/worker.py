"""The command `partita worker`."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Annotated

import msgspec
import typer
from typer import Argument

from partita.engine.cli.fields import command
from partita.engine.cli.keys import keyring_of
from partita.engine.launch.pool.facts import resources as resources_here
from partita.engine.launch.pool.join_file import JoinFile
from partita.engine.launch.pool.worker import DEATH_TIMEOUT_S, PoolWorker, WorkerSettings, stop_on_signals
from partita.engine.launch.spawned_worker import WorkerBootstrap
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool import Resources
from partita.engine.transport.addresses import address_of, address_towards
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import check_endpoint


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker.

    Args:
        join: the pool's address, too.
        join_file: file with the pool's address and key, written by `partita pool serve`.
        keys: folder of keys; the user's own if not given.
        name: name of this worker; the machine's if not given.
        threads: kernel threads of all its hosts, as --resources cpu=; all cores if not given.
        interface: network interface on which others reach this worker, for example eth1.
        contact_address: address at which others reach this worker; the one that leads to the pool if neither
            this nor --interface is given.
        resources: amounts that its hosts may use up, as cpu=8,gpu=1,memory=32GiB; the rest is as found.
        death_timeout_s: seconds without an answer of the pool after which the worker ends.
        stdin: read all of this, and the keys, from standard input, and end when that closes; for programs
            that start workers.
    """

    join: str | None = None
    join_file: Path | None = None
    keys: Path | None = None
    name: str | None = None
    threads: int | None = None
    interface: str | None = None
    contact_address: str | None = None
    resources: str = ""
    death_timeout_s: float = DEATH_TIMEOUT_S
    stdin: bool = False

    def settings(self, address: str | None) -> WorkerSettings:
        """Returns the settings of a worker that joins the pool at an address, if it is given here.

        Raises:
            ValueError, OSError: an option cannot be used, or a key cannot be read.
        """
        if not 0.0 < self.death_timeout_s < float("inf"):
            raise ValueError(f"--death-timeout is {self.death_timeout_s}; give a positive number of seconds")
        keyring = keyring_of(self.keys)
        found = _pool(address, self.join, self.join_file)
        key = found.public_key or keyring.trusted("pool").public_key
        return WorkerSettings(
            Peer("the pool", 0, found.address, key),
            keyring.pair("worker"),
            _own_address(found.address, self.interface, self.contact_address),
            self.name or gethostname(),
            _resources(self.resources, self.threads),
            self.death_timeout_s,
        )


@command()
def worker(
    address: Annotated[str | None, Argument(help="The pool's address, tcp://HOST:PORT.")] = None,
    *,
    options: WorkerOptions,
) -> None:
    """Starts hosts for the runs of a pool, until Ctrl-C or until the pool drains it."""
    settings = _from_stdin() if options.stdin else options.settings(address)
    with PoolWorker(settings, log=log) as here:
        stop_on_signals(here)
        if options.stdin:
            threading.Thread(target=_stop_at_end_of_input, args=(here,), daemon=True).start()
        offers = f"at {settings.address} with {settings.resources}"
        log(f"worker '{settings.name}' {offers} joins {settings.pool.endpoint}")
        end = here.run()
    if end.failed:
        print(f"partita: {end.reason}", file=sys.stderr)
        raise typer.Exit(1)
    log(end.reason)


def _from_stdin() -> WorkerSettings:
    """Reads a `WorkerBootstrap`. Raises ValueError where standard input has none."""
    try:
        given = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerBootstrap)
    except msgspec.MsgspecError:
        # Without the cause, which could quote the secret.
        raise ValueError("standard input does not describe a worker; leave out --stdin") from None
    here = resources_here()
    some = {name: getattr(given.resources, name) or getattr(here, name) for name in here.__struct_fields__}
    return WorkerSettings(
        Peer("the pool", 0, given.pool, given.pool_key),
        KeyPair(given.public_key, given.secret_key),
        given.address or address_towards(given.pool),
        given.name,
        Resources(**some),
    )


def _stop_at_end_of_input(here: PoolWorker) -> None:
    while sys.stdin.buffer.readline():
        pass
    here.stop()


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
