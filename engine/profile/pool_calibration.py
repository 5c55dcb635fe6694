"""Calibration of a pool: the kernels and the runtime of every machine, and the links between machines.

Hosts of the engine measure them at the workers themselves. Plans for the pool are made from the cluster that
a calibration describes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from msgspec import structs

from partita.engine.launch.pool.inspect import ask_pool
from partita.engine.launch.pool.pool import Pool
from partita.engine.profile.calibration import Calibration, Progress, calibrate
from partita.engine.profile.host_questions import Facts
from partita.engine.profile.links import LinkMeasurement, measure_link
from partita.engine.profile.pool_bench import PoolBench
from partita.engine.profile.pool_pairs import MOST_PAIRS, Pairs, groups_of, pairs_of
from partita.engine.profile.store import Store
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.pool.messages import Inspect, WorkerStatus
from partita.engine.run.phases import OnPhase, silent
from partita.layers.arguments import Arguments, takes
from partita.layers.checks import check_whole
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.partitioner import SHARED_MEMORY, Between, Cluster, Link, Machine

_COMPARED_BYTES: Final = 1 << 18
"""Size of the message by which links are compared."""


def _silent(what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class PoolCalibration:
    """Measurements of a pool.

    Args:
        workers: the pool's workers, by name.
        groups: names of workers, one for each machine; those of a group are alike, and the first was
            measured.
        hosts: name of the first worker on each worker's machine.
        machines: measurements of each machine that was measured, by the first worker of its group.
        links: measured links, by the two workers at their ends; those of one machine share memory.
        pairs: pairs that were measured, and how many were not.
        threads: kernel threads of a machine, at most.
    """

    workers: Mapping[str, WorkerStatus]
    groups: tuple[tuple[str, ...], ...]
    hosts: Mapping[str, str]
    machines: Mapping[str, Calibration]
    links: Mapping[tuple[str, str], LinkMeasurement]
    pairs: Pairs
    threads: int

    def cluster(self) -> Cluster:
        """Returns a cluster with a machine for each worker, by its name, and the measured links."""
        between = [found for pair in self.pairs.pairs for found in self._between(*pair)]
        measured = {first: found.machine(first) for first, found in self.machines.items()}
        own = [m.link for (a, b), m in self.links.items() if self.hosts[a] == self.hosts[b]]
        far = [m.link for (a, b), m in self.links.items() if self.hosts[a] != self.hosts[b]]
        return Cluster(
            tuple(self._machine(worker, measured) for worker in self.workers.values()),
            _middle(far) if far else Link(),
            tuple(between) if len(between) > 1 else (),
            _middle(own) if own else SHARED_MEMORY,
        )

    def _machine(self, worker: WorkerStatus, measured: Mapping[str, Machine]) -> Machine:
        """The machine of a worker, with the measurements of its group."""
        host = self.hosts[worker.name]
        group = next(group for group in self.groups if host in group)
        threads = threads_of(worker, self.threads)
        starts = [link.start_s for pair, link in self.links.items() if group[0] in pair]
        found = measured[group[0]]
        return replace(
            found,
            instruction_s=_rounded(found.instruction_s),
            step_s=_rounded(statistics.mean(starts) if starts else found.step_s),
            cold_s=_rounded(found.cold_s),
            name=worker.name,
            threads=threads,
            worker=worker.name,
            host=host if list(self.hosts.values()).count(host) > 1 else "",
            kind=group[0] if len(group) > 1 else "",
            cores=max(worker.resources.cpu, threads),
            memory_bytes=worker.resources.memory or None,
        )

    def _between(self, one: str, other: str, first: str, second: str) -> Iterator[Between]:
        measured = self.links[one, other]
        directions = measured.directions
        if directions is None or first == second:
            yield Between(first, second, measured.link)
        else:
            yield Between(first, second, directions[0], one_way=True)
            yield Between(second, first, directions[1], one_way=True)


def cluster_of(pool: Pool, *, threads: int = 1) -> Cluster:
    """Describes the workers of a pool that was not calibrated: their cores and memory; all else is guessed.

    Args:
        pool: the pool; its registry runs.
        threads: kernel threads of each machine, but no more than its worker's cores.

    Raises:
        ValueError: no worker has joined, or the number of threads is not a whole number of at least 1.
        OSError: the pool does not answer.
    """
    check_whole(threads, "the number of threads is")
    return Cluster(
        tuple(
            Machine(
                worker.name,
                threads=threads_of(worker, threads),
                cores=max(worker.resources.cpu, 1),
                memory_bytes=worker.resources.memory or None,
                worker=worker.name,
            )
            for worker in _workers_of(pool).values()
        )
    )


@dataclass(frozen=True)
class PoolCalibrationArguments(Arguments):
    """The arguments of `calibrate_pool`.

    Args:
        pool: the pool; its registry runs, and its workers have nothing else to do.
        network: network whose kernels are measured on every machine; None: only runtimes and links.
        batch: examples in a minibatch.
        precision: precision of activations and gradients.
        threads: kernel threads of each machine, but no more than its worker's cores.
        like: names of workers whose machines are like that of another worker, by its name: they are not
            measured.
        most_pairs: number of pairs of machines up to which all links are measured.
        products: whether the libraries that compute matrix products are measured too, on quiet machines.
        progress: called with what is being measured, how many of it are done, and how many there are.
        on_phase: called with the phases of hosts that start and compile.

    Raises:
        ValueError: there are no workers, or `like` names another one.
        OSError: the pool does not answer, or nothing can be kept.
        HostError, RunFailed: a host fails, or cannot be started.
    """

    pool: Pool
    network: Network | Graph | None = None
    _: KW_ONLY
    batch: int = 32
    precision: str = "float32"
    threads: int = 1
    like: Mapping[str, Sequence[str]] = field(default_factory=dict)
    most_pairs: int = MOST_PAIRS
    products: bool = True
    progress: Progress = _silent
    on_phase: OnPhase = silent


@takes(PoolCalibrationArguments)
def calibrate_pool(arguments: PoolCalibrationArguments) -> PoolCalibration:
    """Measures the machines of a pool and the links between them; kernels that are known are not measured
    again.
    """
    given = arguments
    check_whole(given.threads, "the number of threads is")
    workers = _workers_of(given.pool)
    given.progress("machines", 0, len(workers))
    facts = _facts(given, list(workers.values()))
    labels = {name: fact.label or name for name, fact in facts.items()}
    groups = groups_of(list(workers), labels, given.like)
    pairs = pairs_of(groups, most=given.most_pairs)
    first_at = {label: name for name, label in reversed(labels.items())}
    hosts = {name: first_at[label] for name, label in labels.items()}
    machines = {}
    for n, group in enumerate(groups):
        first, which = group[0], f"{n + 1} of {len(groups)}"
        threads = [threads_of(workers[name], given.threads) for name, host in hosts.items() if host in group]
        machines[first] = _machine(given, workers[first], facts[first], threads, which)
    near = _neighbours(hosts)
    ends = [*near, *(pair[:2] for pair in pairs.pairs)]
    links = {}
    for n, (one, other) in enumerate(ends):
        given.progress(f"the link between {one} and {other}", n, len(ends))
        links[one, other] = _link(given, workers[one], workers[other], machines, groups, shared=n < len(near))
    return PoolCalibration(workers, tuple(map(tuple, groups)), hosts, machines, links, pairs, given.threads)


def _workers_of(pool: Pool) -> dict[str, WorkerStatus]:
    """Returns the workers of a pool by their names. Raises ValueError if there are none."""
    found = {worker.name: worker for worker in ask_pool(pool.address, pool.keyring, Inspect()).workers}
    if not found:
        raise ValueError(f"no worker has joined the pool at {pool.address}; `partita worker --join` it")
    return found


def threads_of(worker: WorkerStatus, most: int) -> int:
    """Returns the kernel threads of a worker's machine: as many as are wanted and it has cores for."""
    return max(min(most, worker.resources.cpu), 1)


def _facts(given: PoolCalibrationArguments, workers: Sequence[WorkerStatus]) -> dict[str, Facts]:
    bench = PoolBench(given.pool, workers, on_phase=given.on_phase)
    return dict(zip((worker.name for worker in workers), bench.facts(), strict=True))


def _machine(
    given: PoolCalibrationArguments, worker: WorkerStatus, facts: Facts, threads: Iterable[int], which: str
) -> Calibration:
    """Measures one machine with each number of threads; what is known of machines with its signature is not
    measured again.
    """
    store = Store(of=facts.signature)
    with store.locked():
        store.write(structs.replace(store.read(), processor=facts.processor))

    def progress(what: str, done: int, total: int) -> None:
        given.progress(f"{what} of {worker.name}, machine {which}", done, total)

    found: Calibration | None = None
    for count in sorted(set(threads)):
        with closing(PoolBench(given.pool, [worker], threads=count, on_phase=given.on_phase)) as bench:
            found = calibrate(
                given.network,
                batch=given.batch,
                precision=given.precision,
                threads=count,
                products=given.products,
                links=False,
                progress=progress,
                bench=bench,
                store=store,
            )
    assert found is not None, f"{worker.name} has no threads"
    return found


def _link(
    given: PoolCalibrationArguments,
    one: WorkerStatus,
    other: WorkerStatus,
    machines: Mapping[str, Calibration],
    groups: Sequence[Sequence[str]],
    *,
    shared: bool,
) -> LinkMeasurement:
    """Measures the link between two workers, in both directions."""
    first = next(group[0] for group in groups if one.name in group)
    runtime = machines[first].record.runtime
    if runtime is None:
        raise RunFailed(f"the runtime of {first} was not measured")
    with closing(PoolBench(given.pool, [one, other], on_phase=given.on_phase)) as bench:
        return measure_link(bench, runtime, shared_memory=shared, directions=not shared)


def _neighbours(hosts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The first two workers on one machine, if there are two anywhere."""
    pairs = [(host, name) for name, host in hosts.items() if host != name]
    return pairs[:1]


def _middle(links: Sequence[Link]) -> Link:
    """Returns the link that is in the middle by the time of a message."""
    ordered = sorted(links, key=lambda link: sum(link.times(_COMPARED_BYTES)) + link.latency_s)
    return ordered[len(ordered) // 2]


def _rounded(seconds: float) -> float:
    """Returns seconds that a file shows in a few digits."""
    return float(f"{seconds:.4g}")
