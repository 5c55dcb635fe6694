"""Makes measurements on hosts that the workers of a pool start."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from partita.engine.launch.launcher import Launcher
from partita.engine.launch.pool.launcher import PoolLauncher
from partita.engine.launch.pool.pool import Pool
from partita.engine.profile.bench import Bench
from partita.engine.profile.host_questions import Facts, Interview, interviewed
from partita.engine.profile.products import ProductMeasurement
from partita.engine.profile.tiles import TileMeasurement
from partita.engine.protocol.names import part_name
from partita.engine.protocol.pool.messages import Need, WorkerStatus
from partita.engine.protocol.pool.resources import Resources
from partita.engine.run.phases import OnPhase, silent
from partita.partitioner.cluster.products import Choice, Products, ProductShape
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TiledLoop


class PoolBench(Bench):
    """Makes measurements on some workers of a pool; their hosts get the cores that kernels use."""

    def __init__(
        self,
        pool: Pool,
        workers: Sequence[WorkerStatus],
        *,
        threads: int = 1,
        on_phase: OnPhase = silent,
    ) -> None:
        """No host runs yet.

        Args:
            pool: the pool.
            workers: where hosts are put, in turn.
            threads: kernel threads of each host.
            on_phase: called with the phases of hosts that start and compile.
        """
        super().__init__(self._opened, on_phase=on_phase)
        self._pool, self._workers, self._threads = pool, tuple(workers), threads
        self._interview: Interview | None = None

    def facts(self) -> list[Facts]:
        """Returns the facts of each worker's machine.

        Raises:
            HostError, RunFailed: a host cannot be started.
        """
        return interviewed(self._idle(), len(self._workers), on_phase=self._on_phase)

    @override
    def busy(self) -> str | None:
        return self._asked().busy()

    @override
    def multiply(self, shape: ProductShape, usual: Choice) -> ProductMeasurement | None:
        return self._asked().multiply(shape, usual)

    @override
    def tiles(self, loop: TiledLoop) -> TileMeasurement | None:
        return self._asked().tiles(loop)

    @override
    def shares(self, rule: Products, threads: int, source: str) -> ThreadShares | None:
        return self._asked().shares(rule, threads, source)

    @property
    @override
    def cores(self) -> int:
        return self._threads  # a machine of a pool has one part: none is timed beside others

    @property
    @override
    def memory_bytes(self) -> int:
        return self._workers[0].resources.memory

    def close(self) -> None:
        """Ends the host that answers questions."""
        if self._interview is not None:
            self._interview.close()
            self._interview = None

    def _asked(self) -> Interview:
        if self._interview is None:
            self._interview = Interview(self._idle(), len(self._workers), on_phase=self._on_phase)
        return self._interview

    def _idle(self) -> Launcher:
        return self._launched(len(self._workers), Resources())

    def _opened(self, hosts: int, shared_memory: bool) -> Launcher:
        return self._launched(hosts, Resources(cpu=self._threads))

    def _launched(self, hosts: int, each: Resources) -> Launcher:
        names = [worker.name for worker in self._workers]
        needs = [
            Need(host=part_name(0, n), resources=each, workers=(names[n % len(names)],), strict=True)
            for n in range(hosts)
        ]
        return PoolLauncher(self._pool, needs, title="a calibration", log=self._on_phase)
