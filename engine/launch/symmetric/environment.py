"""`Environment`: hosts run at the ranks of the job that this process belongs to, as an argument of `train`.

All ranks run the same program. Rank 0 coordinates: it serves a pool, starts a worker beside itself, and
trains. In every other rank the first call that needs hosts serves as a worker, until the process of rank 0
has ended; then it ends its own process with status 0. So a script is written as if for one process, and what
follows the training happens once.
"""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

from partita.engine.launch.launcher import Launcher
from partita.engine.launch.own_pool import OwnPool
from partita.engine.launch.request import Launching, LaunchRequest, Log
from partita.engine.launch.symmetric.job import Job, job_of
from partita.engine.launch.symmetric.rank_worker import serve_rank
from partita.engine.launch.symmetric.rank_zero import serve_job, wait_for_ranks
from partita.engine.launch.symmetric.rendezvous import Rendezvous, rendezvous_of
from partita.engine.protocol.failure import RunFailed
from partita.layers.checks import check_fields, check_seconds, check_whole

WAIT_S: Final = 300.0
"""Default of the seconds that ranks wait for one another."""


@dataclass(frozen=True)
class Environment:
    """The ranks of a job that Slurm, MPI, torchrun or Kubernetes has started, by environment variables.

    Rank 0 coordinates and computes; `train`, `evaluate`, `predict` and `Session` raise SystemExit in all
    other ranks, after they have served as workers until the process of rank 0 has ended.

    Args:
        keys: folder of keys that all machines share. If not given: the secret of the job in
            PARTITA_JOB_SECRET; or nothing, where all ranks are on one machine; or the user's own folder.
        port: at which rank 0 listens; MASTER_PORT or a chosen one if not given.
        interface: network interface on which ranks reach one another; the one of rank 0's name, and those
            that lead there, if not given.
        wait_s: seconds that ranks wait for one another.

    Raises:
        ValueError: an argument is out of range.
    """

    _: KW_ONLY
    keys: str | Path | None = None
    port: int | None = None
    interface: str | None = None
    wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        if self.port is not None:
            check_fields(self, check_whole, "port", of="Environment's ")
        check_fields(self, check_seconds, "wait_s", of="Environment's ")

    def rendezvous(self) -> tuple[Job, Rendezvous]:
        """Returns this rank and where it meets the others.

        Raises:
            ValueError, OSError: see `job_of` and `rendezvous_of`.
        """
        job = job_of(os.environ, socket.getfqdn())
        keys = None if self.keys is None else Path(self.keys)
        return job, rendezvous_of(job, os.environ, keys=keys, port=self.port)


class _Jobs:
    """The job of this process, if it is rank 0 and serves it: workers outlive runs, as those of a pool do."""

    open: tuple[Job, OwnPool] | None = None


def begin_job(settings: Environment) -> None:
    """Lets rank 0 serve its job from now on, and all other ranks serve it until its end.

    Raises:
        SystemExit: in all other ranks.
        RunFailed: rank 0 cannot be found, or refuses this rank, or is gone.
        ValueError, OSError: see `Environment.rendezvous`.
    """
    if _Jobs.open is not None:
        return
    job, rendezvous = settings.rendezvous()
    if job.rank == 0:
        _Jobs.open = job, serve_job(job, rendezvous, settings.interface, log=_print)
        atexit.register(end_job)
        return
    end = serve_rank(job, rendezvous, settings.interface, wait_s=settings.wait_s, log=_print)
    if end.failed:
        raise RunFailed(end.reason)
    _print(end.reason)
    raise SystemExit(0)


def end_job() -> None:
    """Ends the workers of all ranks, if this process is rank 0 and serves a job."""
    if _Jobs.open is not None:
        _, pool = _Jobs.open
        _Jobs.open = None
        pool.close()


@contextmanager
def opened_job(settings: Environment, log: Log) -> Iterator[Launching]:
    """Launches runs at the ranks of this process's job."""
    begin_job(settings)
    assert _Jobs.open is not None
    job, pool = _Jobs.open

    def launching(request: LaunchRequest) -> Launcher:
        wait_for_ranks(pool, job, settings.wait_s)
        return pool.launch(request)

    with pool.shown_by(log):
        yield launching


def _print(text: str) -> None:
    print(text, flush=True)
