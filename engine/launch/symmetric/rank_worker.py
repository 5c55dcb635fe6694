"""Every rank of a job but the first: finds rank 0 and serves as a worker of its pool."""

from __future__ import annotations

import threading
import time
from typing import Final

from partita.engine.launch.own_pool import SAID_S
from partita.engine.launch.pool.join_file import JoinFile
from partita.engine.launch.pool.worker import PoolWorker, WorkerSettings, stop_on_signals
from partita.engine.launch.request import Log
from partita.engine.launch.symmetric.job import Job
from partita.engine.launch.symmetric.rank_zero import share
from partita.engine.launch.symmetric.rendezvous import Rendezvous
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool.worker_events import EndWorker
from partita.engine.transport.addresses import address_of, address_towards

_LOOK_S: Final = 0.2


def serve_rank(
    job: Job, rendezvous: Rendezvous, interface: str | None, *, wait_s: float, log: Log
) -> EndWorker:
    """Serves as a worker until rank 0 ends its job.

    Raises:
        RunFailed: rank 0 is not there.
        ValueError, OSError, InsecureKeyFile, MalformedKeyFile: a key or an address cannot be used.
    """
    found = _found(job, rendezvous, wait_s, log)
    settings = WorkerSettings(
        Peer("the pool", 0, found.address, found.public_key),
        rendezvous.keyring.pair("worker"),
        address_of(interface) if interface is not None else address_towards(found.address),
        f"rank {job.rank}",
        share(job),
    )
    with PoolWorker(settings, log=log) as worker:
        if threading.current_thread() is threading.main_thread():
            stop_on_signals(worker)
        log(f"rank {job.rank} of {job.size} at {settings.address} joins rank 0 at {found.address}")
        return worker.run()


def _found(job: Job, rendezvous: Rendezvous, wait_s: float, log: Log) -> JoinFile:
    """Waits until rank 0 listens, and says where it is looked for."""
    began = time.monotonic()
    say_at = began + SAID_S
    while (found := rendezvous.find()) is None:
        now = time.monotonic()
        text = f"rank {job.rank} of {job.size} waits for {job.named(0)}: it looks at {rendezvous.where}"
        if now - began >= wait_s:
            raise RunFailed(
                f"{text}, and nobody was there within {wait_s:g} s; the output of rank 0 says why"
            )
        if now >= say_at:
            say_at = now + 2 * SAID_S
            log(text)
        time.sleep(_LOOK_S)
    return found
