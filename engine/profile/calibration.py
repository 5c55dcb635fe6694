"""Calibration: seconds of a network's kernels, of this machine's runtime and of its links, measured once; and
the library that computes each matrix product, and the least work of each of several threads.

`calibrate` collects the signature of every kernel that a network may need; those that are known already, of
whatever network, are not measured again. Products come first, because kernels are timed with the libraries
that then compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain, islice
from typing import Final

from msgspec import structs

from partita.engine.profile.bench import Bench
from partita.engine.profile.choices import with_products, with_shares
from partita.engine.profile.kernel_benchmark import BenchmarkPart
from partita.engine.profile.links import measure_link, measure_runtime
from partita.engine.profile.sizes import groups, plans_of_all_sizes, works
from partita.engine.profile.store import Contention, Record, Store, Transport
from partita.layers.arguments import Arguments, takes
from partita.layers.checks import check_whole
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.partitioner import Cluster, KernelTimes, Link, Machine, Plan, StepKind
from partita.partitioner.cluster.kernel_times import Timed
from partita.partitioner.cluster.work import family_of

Progress = Callable[[str, int, int], object]
"""Called with what is being measured, how many of it are done, and how many there are."""


def _silent(what: str, done: int, total: int) -> None: ...


HOST: Final = "here"


@dataclass(frozen=True)
class Calibration:
    """Measurements of this machine.

    Args:
        record: the measurements, as they are kept.
        cores: cores of the machine.
        memory_bytes: memory of the machine.
        measured: number of kernels that were measured now; all others were known.
        refused: the reason why products were not measured, in a sentence; None where all are known.
    """

    record: Record
    cores: int
    memory_bytes: int
    measured: int = 0
    refused: str | None = None

    def machine(self, name: str, *, threads: int = 1, contention: Contention = "alone") -> Machine:
        """Returns this machine under a name, as a host of its own.

        Args:
            name: name of the machine.
            threads: kernel threads.
            contention: "beside": other parts compute on the same host.
        """
        runtime = self.record.runtime
        assert runtime is not None, "a calibration has measured the runtime"
        return Machine(
            name,
            threads=threads,
            cores=max(self.cores, threads),
            memory_bytes=self.memory_bytes,
            instruction_s=runtime.instruction_s,
            step_s=runtime.step_s,
            cold_s=runtime.cold_s,
            times=self._times(contention),
            products=self.record.choices(threads),
        )

    def cluster(self, machines: int = 2, *, threads: int = 1, shared_memory: bool = True) -> Cluster:
        """Returns a cluster of processes on this machine, which share its cores and its memory.

        The cores are divided among as many machines as there are cores for; each further machine is taken to
        have what one of these has.

        Args:
            machines: number of machines.
            threads: kernel threads of each.
            shared_memory: whether messages go through shared memory; else by TCP.

        Raises:
            ValueError: one of them is not a whole number of at least 1.
        """
        at_once = min(check_whole(machines, "the number of machines is"), max(self.cores // threads, 1))
        transport: Transport = "memory" if shared_memory else "tcp"
        one = self.machine(HOST, threads=threads, contention="beside" if at_once > 1 else "alone")
        one = replace(
            one,
            host=HOST if shared_memory else "",
            cores=max(self.cores // at_once, threads),
            memory_bytes=self.memory_bytes // at_once,
            step_s=self.record.links[transport].start_s if machines > 1 else one.step_s,
        )
        return Cluster(
            tuple(replace(one, name=f"{HOST}{n}") for n in range(machines)),
            link=self.link("tcp"),
            memory=self.link("memory"),
        )

    def link(self, transport: Transport) -> Link:
        """Returns the link between two hosts of this machine."""
        return self.record.links[transport].link

    def _times(self, contention: Contention) -> KernelTimes:
        """The times under this contention; for families that were not measured so, those measured alone."""
        alone = self.record.times("alone")
        if contention == "alone":
            return alone
        beside = self.record.times(contention)
        known = {family_of(signature) for signature in beside.table}
        others = {s: timed for s, timed in alone.table.items() if family_of(s) not in known}
        return beside.with_more(others)


@dataclass(frozen=True)
class CalibrationArguments(Arguments):
    """The arguments of `calibrate`.

    Args:
        network: network whose layers are measured, whole and in pieces; None: only the runtime and the links.
        batch: examples in a minibatch.
        precision: precision of activations and gradients.
        threads: kernel threads of a machine.
        plans: plans whose every kernel is measured as well.
        products: whether the libraries that compute matrix products are measured too, and the least work of
            each of several threads, if the machine is quiet.
        links: whether the links between hosts of one machine are measured too.
        progress: called with what is being measured, how many of it are done, and how many there are.
        bench: makes the measurements; on hosts of this machine if not given.
        store: keeps the measurements; in the user's cache folder if not given.

    Raises:
        OSError: nothing can be kept, or another process measures for too long.
        HostError: a host fails.
        ArithmeticError: two libraries do not agree on a product.
    """

    network: Network | Graph | None = None
    _: KW_ONLY
    batch: int = 32
    precision: str = "float32"
    threads: int = 1
    plans: Iterable[Plan] = ()
    products: bool = True
    links: bool = True
    progress: Progress = _silent
    bench: Bench = field(default_factory=Bench)
    store: Store = field(default_factory=Store)


@takes(CalibrationArguments)
def calibrate(arguments: CalibrationArguments) -> Calibration:
    """Measures the kernels, products, runtime and links that are not known yet, and keeps the results."""
    given, bench, store, plans = arguments, arguments.bench, arguments.store, list(arguments.plans)
    graph = given.network.graph() if isinstance(given.network, Network) else given.network
    with store.locked():
        sized: list[Plan] = []
        if graph is not None:
            size = {"batch": given.batch, "threads": given.threads}
            sized = list(plans_of_all_sizes(graph, precision=given.precision, **size))
        contentions, refused = _contentions(bench, given.threads), None
        record = _with_runtime(store.read(), bench, given.progress)
        if given.links:
            record = _with_links(record, bench, given.progress)
        store.write(record)
        if given.products:
            wanted = [_wanted(sized, plans, contention, bench) for contention in contentions]
            record, refused = with_products(record, chain(*chain(*wanted)), bench, given.progress)
            record, unshared = with_shares(record, given.threads, bench, given.progress)
            refused = refused or unshared
            store.write(record)
        choices, before = record.choices(given.threads), sum(map(len, record.kernels.values()))
        sized, plans = ([plan.multiplying_by(choices) for plan in some] for some in (sized, plans))
        for contention in contentions:
            groups = _wanted(sized, plans, contention, bench)
            record = _with_kernels(record, contention, groups, bench, given.progress)
            store.write(record)
    measured = sum(map(len, record.kernels.values())) - before
    return Calibration(record, bench.cores, bench.memory_bytes, measured, refused)


def known(*, bench: Bench | None = None, store: Store | None = None) -> Calibration | None:
    """Returns earlier measurements; None where the runtime or the links were never measured."""
    record = (store or Store()).read()
    if record.runtime is None or len(record.links) < 2:
        return None
    bench = bench or Bench()
    return Calibration(record, bench.cores, bench.memory_bytes)


def _contentions(bench: Bench, threads: int) -> tuple[Contention, ...]:
    return ("alone", "beside") if bench.cores >= 2 * threads else ("alone",)


def _wanted(
    sized: Iterable[Plan], plans: Iterable[Plan], contention: Contention, bench: Bench
) -> list[tuple[BenchmarkPart, ...]]:
    """The groups of parts to time: the first of each plan of a size, whose parts are alike; all of other
    plans.
    """
    found = [group for plan in sized for group in islice(_groups(plan, contention, bench), 1)]
    return found + [group for plan in plans for group in _groups(plan, contention, bench)]


def _groups(plan: Plan, contention: Contention, bench: Bench) -> Iterator[tuple[BenchmarkPart, ...]]:
    """The parts of a plan in groups that are timed side by side."""
    threads = plan.cluster.machines[0].threads
    size = 1 if contention == "alone" else max(bench.cores // threads, 1)
    return groups(plan, StepKind().of(plan.graph), size=size)


def _with_runtime(record: Record, bench: Bench, progress: Progress) -> Record:
    """Adds the runtime to a record, if it is not known."""
    if record.runtime is not None:
        return record
    progress("the runtime", 0, 1)
    return structs.replace(record, runtime=measure_runtime(bench))


def _with_links(record: Record, bench: Bench, progress: Progress) -> Record:
    """Adds the links between hosts of one machine to a record, where they are not known."""
    runtime = record.runtime
    assert runtime is not None
    links = dict(record.links)
    transports: tuple[Transport, ...] = ("memory", "tcp")
    for n, transport in enumerate(transports):
        if transport not in links:
            progress("messages by shared memory" if transport == "memory" else "messages by TCP", n, 2)
            links[transport] = measure_link(bench, runtime, shared_memory=transport == "memory")
    return structs.replace(record, links=links)


def _with_kernels(
    record: Record,
    contention: Contention,
    wanted: Sequence[tuple[BenchmarkPart, ...]],
    bench: Bench,
    progress: Progress,
) -> Record:
    """Adds the kernels of the groups in which at least one kernel is unknown."""
    covered = set(record.times(contention).table)
    chosen: dict[int, list[tuple[BenchmarkPart, ...]]] = {}
    for group in wanted:
        signatures = {work.signature for part in group for work in works(part).values()}
        if not signatures <= covered:
            chosen.setdefault(group[0].threads, []).append(group)
            covered |= signatures
    if not chosen:
        return record
    samples: dict[str, list[Timed]] = {}
    for threads, some in chosen.items():
        what = f"kernels {'alone' if contention == 'alone' else 'side by side'}"
        seconds = bench.time_kernels(some, threads=threads, on_group=_on_group(progress, what, len(some)))
        for group, taken in zip(some, seconds, strict=True):
            for part, times in zip(group, taken, strict=True):
                for position, work in works(part).items():
                    timed = Timed(float(times[position]), work.reference_s)
                    samples.setdefault(work.signature, []).append(timed)
    return record.with_kernels(contention, {signature: _mean(some) for signature, some in samples.items()})


def _on_group(progress: Progress, what: str, total: int) -> Callable[[int], object]:
    return lambda n: progress(what, n, total)


def _mean(several: Sequence[Timed]) -> Timed:
    """Returns the mean, so that a step with several kernels of one signature takes the sum of their times."""
    return Timed(sum(timed.seconds for timed in several) / len(several), several[0].reference_s)
