"""Rank 0 of a job: serves a pool for the other ranks, and has a worker beside itself."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from partita.engine.launch.pool.facts import resources
from partita.engine.launch.pool.inspect import ask
from partita.engine.launch.pool.pool import Door, JoinFile, Pool
from partita.engine.launch.pool.server import PoolServer, PoolThread
from partita.engine.launch.request import Log
from partita.engine.launch.spawned_worker import SpawnedWorker, WorkerBootstrap, own_command
from partita.engine.launch.symmetric.job import Job
from partita.engine.launch.symmetric.rendezvous import Rendezvous
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool.messages import Inspect
from partita.engine.protocol.pool.resources import Resources
from partita.engine.transport.addresses import address_of, interfaces
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import EndpointUnavailable

SAID_S: Final = 5.0
"""Seconds after which ranks that are missing are named, and then again and again."""

_LOOK_S: Final = 0.25
_DRAINED_S: Final = 5.0  # for workers to leave at the end


@dataclass(frozen=True)
class ServedPool(Pool):
    """A pool that this process serves already.

    Args:
        entry: how its runs reach it.
    """

    entry: Door | None = None

    @override
    @contextmanager
    def door(self, log: Log) -> Iterator[Door]:
        assert self.entry is not None
        yield self.entry


class RankZero:
    """The pool of a job, at work on a thread.

    Attributes:
        pool: for launchers.
    """

    def __init__(self, job: Job, rendezvous: Rendezvous, interface: str | None, *, log: Log) -> None:
        """Listens, lets the other ranks know where, and starts its own worker.

        Raises:
            OSError: no address or port can be used.
            ValueError, InsecureKeyFile, MalformedKeyFile: see `Keyring`.
        """
        self._job, self._log = job, log
        self._client = KeyPair.generate()
        self._complete = False
        address = "127.0.0.1" if job.is_local else own_address(job, interface)
        with ExitStack() as stack:
            server = self._listening(rendezvous, address)
            stack.callback(PoolThread(server).close)
            stack.callback(rendezvous.withdraw)
            rendezvous.publish(JoinFile(server.endpoint, server.public_key))
            self._say(
                f"rank 0 of {job.size} ({job.starter}) serves its job at {server.endpoint}; other ranks look "
                f"at {rendezvous.where}"
            )
            pair, self._door = (
                rendezvous.keyring.pair("worker"),
                Peer("rank 0", 0, server.endpoint, server.public_key),
            )
            bootstrap = WorkerBootstrap(
                server.endpoint, server.public_key, pair.public, pair.secret, "rank 0", share(job), address
            )
            worker = SpawnedWorker(own_command(), bootstrap, title="rank 0", log=self._say)
            stack.callback(worker.close, _DRAINED_S)
            stack.callback(self._drain)
            self._closing = stack.pop_all()
        entry = Door(self._door, self._client, address)
        self.pool = ServedPool(server.endpoint, workers=1, entry=entry)

    def _listening(self, rendezvous: Rendezvous, address: str) -> PoolServer:
        tried = []
        for endpoint in rendezvous.endpoints(address):
            try:
                return PoolServer(
                    rendezvous.keyring, endpoint, own_clients=[self._client.public], log=self._say
                )
            except EndpointUnavailable as error:
                tried.append(str(error))
        raise OSError(f"rank 0 can listen nowhere: {'; '.join(tried)}; give another --port")

    @contextmanager
    def shown_by(self, log: Log) -> Iterator[None]:
        """Lets another function show lines meanwhile."""
        before, self._log = self._log, log
        try:
            yield
        finally:
            self._log = before

    def wait_for_ranks(self, wait_s: float) -> None:
        """Waits until all ranks have joined, and says for whom. Afterwards, ranks that died are not waited
        for.

        Raises:
            RunFailed: some did not come.
        """
        began = time.monotonic()
        say_at = began + SAID_S
        while not self._complete:
            missing = self._missing()
            self._complete = not missing
            now = time.monotonic()
            if missing and now - began >= wait_s:
                raise RunFailed(
                    f"{_named(self._job, missing)} did not join within {wait_s:g} s; their own output says "
                    "why, if they have started"
                )
            if missing and now >= say_at:
                say_at = now + 2 * SAID_S
                self._say(f"waits for {_named(self._job, missing)}")
            time.sleep(_LOOK_S if missing else 0.0)

    def _missing(self) -> list[int]:
        """The ranks that have not joined, of which there is no worker named after them."""
        status = ask(self._door, self._client, Inspect())
        there = {one.name for one in status.workers}
        return [rank for rank in range(self._job.size) if f"rank {rank}" not in there]

    def _drain(self) -> None:
        """Lets all workers end, and waits until they have."""
        until = time.monotonic() + _DRAINED_S
        with contextlib.suppress(OSError, ValueError):
            while ask(self._door, self._client, Inspect(drain=())).workers and time.monotonic() < until:
                time.sleep(_LOOK_S)

    def close(self) -> None:
        """Ends the workers of all ranks, and serves no more."""
        with self.shown_by(lambda text: None):
            self._closing.close()

    def _say(self, text: str) -> None:
        self._log(text)


def _named(job: Job, ranks: list[int]) -> str:
    """Words ranks with host names and addresses."""
    found = []
    for rank in ranks[:8]:
        host, text = job.hosts[rank], job.named(rank)
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(host) if host else ""
            text = f"rank {rank} ({host}, {address})" if address not in ("", host) else text
        found.append(text)
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{len(ranks)} of {job.size} ranks: {', '.join(found)}{more}"


def own_address(job: Job, interface: str | None) -> str:
    """Returns the address of this machine that its name among the ranks means, or that of an interface.

    Raises:
        OSError: this machine has no address but loopback.
        ValueError: it has no such interface.
    """
    if interface is not None:
        return address_of(interface)
    here = interfaces()
    for name in filter(None, (job.hosts[job.rank], socket.gethostname())):
        with contextlib.suppress(OSError):
            found = socket.gethostbyname(name)
            if found in here.values() and not found.startswith("127."):
                return found
    others = [address for address in here.values() if not address.startswith("127.")]
    if not others:
        raise OSError("this machine has no address but loopback, at which other ranks cannot reach it")
    return others[0]


def share(job: Job) -> Resources:
    """Returns what this rank's worker offers: its own cores if its starter says so, else an equal share."""
    here, ranks = resources(), max(job.local_size, 1)
    return Resources(
        cpu=job.cpus or max(here.cpu // ranks, 1), gpu=here.gpu // ranks, memory=here.memory // ranks
    )
