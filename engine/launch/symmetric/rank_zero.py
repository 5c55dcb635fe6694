"""Rank 0 of a job: serves a pool for the other ranks, and has a worker beside itself."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import Final

from partita.engine.launch.own_pool import DRAINED_S, OwnPool
from partita.engine.launch.pool.facts import resources
from partita.engine.launch.pool.join_file import JoinFile
from partita.engine.launch.request import Log
from partita.engine.launch.spawned_worker import SpawnedWorker, WorkerBootstrap, end_all, own_command
from partita.engine.launch.symmetric.job import Job
from partita.engine.launch.symmetric.rendezvous import Rendezvous
from partita.engine.protocol.pool.resources import Resources
from partita.engine.transport.addresses import address_of, own_address

_DRAINED_S: Final = 10.0  # a rank that has not been told ends late, and with an error


def serve_job(job: Job, rendezvous: Rendezvous, interface: str | None, *, log: Log) -> OwnPool:
    """Listens, lets the other ranks know where, and starts a worker beside this process.

    Raises:
        OSError: no address or port can be used.
        ValueError, InsecureKeyFile, MalformedKeyFile: see `Keyring`.
    """
    address = _address(job, interface)
    endpoints = rendezvous.endpoints(address)
    pool = OwnPool(rendezvous.keyring, endpoints, address, log=log, drained_s=_DRAINED_S)
    try:
        pool.at_end(rendezvous.withdraw)
        rendezvous.publish(JoinFile(pool.endpoint, pool.public_key))
        pool.say(
            f"rank 0 of {job.size} ({job.starter}) serves its job at {pool.endpoint}; other ranks look at "
            f"{rendezvous.where}"
        )
        pair = rendezvous.keyring.pair("worker")
        bootstrap = WorkerBootstrap(
            pool.endpoint, pool.public_key, pair.public, pair.secret, "rank 0", share(job), address
        )
        worker = SpawnedWorker(own_command(), bootstrap, title="rank 0", log=pool.say)
        pool.at_end(end_all, [worker], DRAINED_S)
    except BaseException:
        pool.close()
        raise
    return pool


def wait_for_ranks(pool: OwnPool, job: Job, wait_s: float) -> None:
    """Waits until all ranks have joined, and says for which. Raises RunFailed where some did not come."""
    ranks = {f"rank {rank}": partial(_worded, job, rank) for rank in range(job.size)}
    pool.wait_for(ranks, wait_s, what="ranks")


def _worded(job: Job, rank: int) -> str:
    """Words a rank with host name and address."""
    host = job.hosts[rank]
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host) if host else ""
        if address not in ("", host):
            return f"rank {rank} ({host}, {address})"
    return job.named(rank)


def _address(job: Job, interface: str | None) -> str:
    """Returns the address of this machine that its name among the ranks means, or that of an interface."""
    if job.is_local:
        return "127.0.0.1"
    return own_address(job.hosts[job.rank]) if interface is None else address_of(interface)


def share(job: Job) -> Resources:
    """Returns what this rank's worker offers: its own cores if its starter says so, else an equal share."""
    here, ranks = resources(), max(job.local_size, 1)
    return Resources(
        cpu=job.cpus or max(here.cpu // ranks, 1), gpu=here.gpu // ranks, memory=here.memory // ranks
    )
