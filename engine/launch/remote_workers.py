"""`HostFile`: workers that a run starts on the machines of a hostfile by ssh, as an argument of `train`.

No key is needed beyond those of ssh: each run makes a pair for itself and one for every worker, which gets
    its
own through the standard input of its ssh. When that closes, because the run or its process ends or because
the connection breaks, the worker ends with all of its hosts.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from partita.engine.launch.hostfile import Host, read_hostfile
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.own_pool import DRAINED_S, OwnPool
from partita.engine.launch.request import Launching, LaunchRequest, Log
from partita.engine.launch.spawned_worker import COMMAND, SpawnedWorker, WorkerBootstrap, end_all
from partita.engine.launch.symmetric.job_keys import JobKeyring, JobSecret
from partita.engine.protocol.failure import RunFailed
from partita.engine.transport.addresses import address_of, address_towards, own_address
from partita.layers.checks import check_fields, check_seconds

RSH: Final = "ssh -o BatchMode=yes"
"""Default of the command that runs another one on a machine."""

WAIT_S: Final = 60.0
"""Default of the seconds that a run waits for the workers that it starts."""

_ANY_PORT: Final = 22  # nothing is sent


@dataclass(frozen=True)
class HostFile:
    """Machines on which a run starts workers by ssh, and ends them.

    Args:
        path: of the hostfile: a line `HOST slots=N` for each machine.
        rsh: command that runs another one on a machine: name and command are appended. It must not ask for a
            password.
        python: Python on the machines, with the same Partita; that of this process if not given.
        interface: network interface of this machine on which the others reach it; the one that leads to the
            first of them if not given.
        wait_s: seconds to wait for the workers.

    Raises:
        ValueError: an argument is out of range.
    """

    path: str | Path
    _: KW_ONLY
    rsh: str = RSH
    python: str | None = None
    interface: str | None = None
    wait_s: float = WAIT_S

    def __post_init__(self) -> None:
        check_fields(self, check_seconds, "wait_s", of="HostFile's ")
        if not shlex.split(self.rsh):
            raise ValueError(f"rsh is '{self.rsh}'; give a command, for example '{RSH}'")

    def command(self, host: Host) -> list[str]:
        """Returns the command that starts a worker on a machine; what is to run there is one word."""
        there = shlex.join([self.python or sys.executable, *COMMAND])
        return [*shlex.split(self.rsh), host.name, there]


@contextmanager
def opened_hosts(settings: HostFile, log: Log) -> Iterator[Launching]:
    """Starts a worker on each machine, and launches runs there.

    Raises:
        OSError: the hostfile cannot be read, or `rsh` cannot be started, or no address can be used.
        ValueError: the hostfile cannot be read.
    """
    hosts = read_hostfile(Path(settings.path))
    address = _address(settings, hosts)
    keyring = JobKeyring(Path(settings.path), JobSecret.generate(), "hostfile", 0, len(hosts))
    pool = OwnPool(keyring, [f"tcp://{address}:*"], address, log=log)
    with ExitStack() as stack, pool.shown_by(log):
        stack.callback(pool.close)
        workers: dict[str, SpawnedWorker] = {}
        pool.at_end(lambda: end_all(workers.values(), DRAINED_S))
        for number, host in enumerate(hosts):
            pair = keyring.secret.pair(keyring.job, "worker", number)
            bootstrap = WorkerBootstrap(
                pool.endpoint, pool.public_key, pair.public, pair.secret, host.name, host.resources
            )
            worker = SpawnedWorker(settings.command(host), bootstrap, title=host.name, log=pool.say)
            workers[host.name] = worker

        def launching(request: LaunchRequest) -> Launcher:
            named = {host.name: partial(_worded, host.name) for host in hosts}
            check = partial(_check_started, workers)
            pool.wait_for(named, settings.wait_s, what="machines", check=check)
            return pool.launch(request)

        yield launching


def _check_started(workers: Mapping[str, SpawnedWorker], missing: frozenset[str]) -> None:
    """Raises RunFailed where a command has ended whose worker has not joined."""
    for name in sorted(missing):
        code = workers[name].poll()
        if code is not None:
            last = workers[name].last_line or "it printed nothing"
            raise RunFailed(f"machine '{name}' has no worker: its command ended with status {code}: {last}")


def _worded(name: str) -> str:
    """Words a machine with its address, if its name has one."""
    host = name.rpartition("@")[2]
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host)
        return name if address == host else f"{name} ({address})"
    return name


def _address(settings: HostFile, hosts: Sequence[Host]) -> str:
    """Returns the address of this machine at which the others reach it."""
    if settings.interface is not None:
        return address_of(settings.interface)
    for host in hosts:
        # A name may be one that only ssh's configuration knows.
        with contextlib.suppress(OSError):
            return address_towards(f"tcp://{host.name.rpartition('@')[2]}:{_ANY_PORT}")
    return own_address()
