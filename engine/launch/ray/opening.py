"""Runs on a Ray cluster: a registry in this process, a worker in each bundle, and the launcher of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec

from partita.engine.launch.launcher import Launcher
from partita.engine.launch.own_pool import launch_on
from partita.engine.launch.pool.needs import needs_of
from partita.engine.launch.pool.pool import Door
from partita.engine.launch.pool.server import PoolServer, PoolThread
from partita.engine.launch.ray.bundles import Bundle, bundles_of
from partita.engine.launch.ray.connection import connected, own_address
from partita.engine.launch.ray.introduced import IntroducedKeys
from partita.engine.launch.ray.settings import Ray
from partita.engine.launch.request import Launching, LaunchRequest, Log
from partita.engine.protocol.messages import Peer
from partita.engine.transport.keys import KeyPair


@contextmanager
def opened_ray(settings: Ray, log: Log) -> Iterator[Launching]:
    """Connects to the cluster; each run reserves its own bundles.

    Raises:
        ImportError: Ray is not installed.
        RunFailed: there is no cluster.
    """

    def launching(request: LaunchRequest) -> Launcher:
        found = needs_of(request.plan, request.topology)
        # Ray chooses the nodes: a plan may name workers of a standing pool, and none of those is here.
        needs = [msgspec.structs.replace(one, workers=(), strict=False) for one in found]
        bundles: tuple[Bundle, ...] = tuple(settings.bundles or bundles_of(needs))
        workers = RayWorkers(settings, bundles + bundles[:1] * settings.spare, len(bundles))
        return launch_on(workers, request, needs)

    with connected(settings.address, log):
        yield launching


@dataclass(frozen=True)
class RayWorkers:
    """The workers of one run, in the place of a `Pool`.

    Args:
        settings: of the cluster.
        bundles: amounts for each worker.
        workers: number of workers for which the run waits.
    """

    settings: Ray
    bundles: Sequence[Bundle]
    workers: int

    @property
    def wait_s(self) -> float:
        """Seconds to wait for workers."""
        return self.settings.wait_s

    @contextmanager
    def door(self, log: Callable[[str], object]) -> Iterator[Door]:
        """Reserves bundles, serves a registry for their workers, and yields how the run reaches it.

        Raises:
            RunFailed: the cluster does not have what the bundles need, or an actor cannot run.
        """
        # These modules import Ray, which is there: this process is connected.
        from partita.engine.launch.ray.reservation import reserved
        from partita.engine.launch.ray.supervisor import Supervisor

        with ExitStack() as stack:
            reservation = stack.enter_context(reserved(self.settings, self.bundles, log))
            keys, client, address = IntroducedKeys(), KeyPair.generate(), own_address()
            server = PoolServer(keys, f"tcp://{address}:*", own_clients=[client.public], log=log)
            stack.callback(PoolThread(server).close)
            pool = Peer("the pool", 0, server.endpoint, server.public_key)
            supervisor = Supervisor(reservation, pool, keys, log=log)
            stack.callback(supervisor.close)
            supervisor.introduce_all(self.wait_s)
            yield Door(pool, client, address)
