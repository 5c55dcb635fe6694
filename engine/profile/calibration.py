"""Calibration: what a network's kernels, the runtime and the links of this machine take, measured once; and
which library computes which of its matrix products.

`calibrate` asks for the signature of every kernel that a network may need; those that are known already, of
whatever network, are not measured again. Products come first, because kernels are timed with the libraries
that then compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

from msgspec import structs

from partita.engine.profile.bench import Bench, HostBench
from partita.engine.profile.choices import with_products
from partita.engine.profile.kernel_benchmark import BenchmarkPart
from partita.engine.profile.links import measure_link, measure_runtime
from partita.engine.profile.sizes import groups, plans_of_all_sizes, works
from partita.engine.profile.store import Contention, Record, Store, Transport
from partita.layers.checks import check_whole
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.partitioner import Cluster, KernelTimes, Link, Machine, Plan, StepKind
from partita.partitioner.cluster.kernel_times import Timed
from partita.partitioner.predict.work import family_of

Progress = Callable[[str, int, int], object]
"""Called with what is being measured, how many of it are done, and how many there are."""

HOST: Final = "here"


@dataclass(frozen=True)
class Calibration:
    """What is known of this machine.

    Args:
        record: as it is kept.
        cores: of the machine.
        memory_bytes: of the machine.
        measured: how many kernels were measured now; all others were known.
        refused: why products were not measured, in a sentence; None where all are known.
    """

    record: Record
    cores: int
    memory_bytes: int
    measured: int = 0
    refused: str | None = None

    def machine(self, name: str, *, threads: int = 1, contention: Contention = "alone") -> Machine:
        """This machine under a name, as a host of its own.

        Args:
            name: of the machine.
            threads: kernel threads.
            contention: "beside": others are at work on the same host.
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
            products=self.record.choices(),
        )

    def cluster(self, machines: int = 2, *, threads: int = 1, shared_memory: bool = True) -> Cluster:
        """So many processes on this machine, which share its cores and its memory.

        As many as it has cores for; of more, each is taken to have what one of these has.

        Args:
            machines: how many.
            threads: kernel threads of each.
            shared_memory: whether messages go through it; else by TCP.

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
        """Between two hosts of this machine."""
        return self.record.links[transport].link

    def _times(self, contention: Contention) -> KernelTimes:
        """What was measured in this company; of families that were not, what was measured alone."""
        alone = self.record.times("alone")
        if contention == "alone":
            return alone
        beside = self.record.times(contention)
        known = {family_of(signature) for signature in beside.table}
        others = {s: timed for s, timed in alone.table.items() if family_of(s) not in known}
        return beside.with_more(others)


def calibrate(
    network: Network | Graph | None = None,
    *,
    batch: int = 32,
    precision: str = "float32",
    threads: int = 1,
    plans: Iterable[Plan] = (),
    products: bool = True,
    progress: Progress | None = None,
    bench: Bench | None = None,
    store: Store | None = None,
) -> Calibration:
    """Measures what is not known yet, and keeps it.

    Args:
        network: whose layers are measured, whole and in pieces; None: only the runtime and the links.
        batch: examples in a minibatch.
        precision: of states and errors.
        threads: kernel threads of a machine.
        plans: whose every kernel is measured besides.
        products: whether the libraries that compute matrix products are measured too, if the machine is
            quiet.
        progress: hears what is going on.
        bench: makes the measurements; hosts of this machine if not given.
        store: where they are kept; the user's cache folder if not given.

    Raises:
        OSError: nothing can be kept, or another process measures for too long.
        HostError: a host fails.
        ArithmeticError: two libraries do not agree on a product.
    """
    bench, store, progress = bench or HostBench(), store or Store(), progress or _silent
    graph, plans = network.graph() if isinstance(network, Network) else network, list(plans)
    with store.locked():
        sized: Iterable[Plan] = ()
        if graph is not None:
            sized = list(plans_of_all_sizes(graph, batch=batch, precision=precision, threads=threads))
        contentions, refused = _contentions(bench, threads), None
        record = _with_links(store.read(), bench, progress)
        store.write(record)
        if products:
            asked = [_wanted(sized, plans, contention, bench) for contention in contentions]
            record, refused = with_products(record, chain(*chain(*asked)), bench, progress)
            store.write(record)
        choices, before = record.choices(), sum(map(len, record.kernels.values()))
        sized, plans = ([plan.multiplying_by(choices) for plan in some] for some in (sized, plans))
        for contention in contentions:
            record = _with_kernels(
                record, contention, _wanted(sized, plans, contention, bench), bench, progress
            )
            store.write(record)
    measured = sum(map(len, record.kernels.values())) - before
    return Calibration(record, bench.cores, bench.memory_bytes, measured, refused)


def known(*, bench: Bench | None = None, store: Store | None = None) -> Calibration | None:
    """What was measured before; None where that says nothing of the runtime or the links."""
    record = (store or Store()).read()
    if record.runtime is None or len(record.links) < 2:
        return None
    bench = bench or HostBench()
    return Calibration(record, bench.cores, bench.memory_bytes)


def _contentions(bench: Bench, threads: int) -> tuple[Contention, ...]:
    return ("alone", "beside") if bench.cores >= 2 * threads else ("alone",)


def _wanted(
    sized: Iterable[Plan], plans: Iterable[Plan], contention: Contention, bench: Bench
) -> list[tuple[BenchmarkPart, ...]]:
    """The parts to rehearse in this company: the first of a ladder's plans, all being alike; else all."""
    found = [group for plan in sized for group in islice(_groups(plan, contention, bench), 1)]
    return found + [group for plan in plans for group in _groups(plan, contention, bench)]


def _groups(plan: Plan, contention: Contention, bench: Bench) -> Iterator[tuple[BenchmarkPart, ...]]:
    """The parts of a plan that are rehearsed side by side."""
    threads = plan.cluster.machines[0].threads
    size = 1 if contention == "alone" else max(bench.cores // threads, 1)
    return groups(plan, StepKind().of(plan.graph), size=size)


def _with_links(record: Record, bench: Bench, progress: Progress) -> Record:
    """With the runtime and the links, if they are not known."""
    if record.runtime is None:
        progress("the runtime", 0, 1)
        record = structs.replace(record, runtime=measure_runtime(bench))
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
    """With the kernels of these parts, of which those are rehearsed that have an unknown one."""
    promised = set(record.times(contention).table)
    chosen: dict[int, list[tuple[BenchmarkPart, ...]]] = {}
    for group in wanted:
        signatures = {work.signature for part in group for work in works(part).values()}
        if not signatures <= promised:
            chosen.setdefault(group[0].threads, []).append(group)
            promised |= signatures
    if not chosen:
        return record
    samples: dict[str, list[Timed]] = {}
    for threads, some in chosen.items():
        told = f"kernels {'alone' if contention == 'alone' else 'side by side'}"
        seconds = bench.time_kernels(some, threads=threads, on_group=_on_group(progress, told, len(some)))
        for group, taken in zip(some, seconds, strict=True):
            for part, times in zip(group, taken, strict=True):
                for position, work in works(part).items():
                    timed = Timed(float(times[position]), work.reference_s)
                    samples.setdefault(work.signature, []).append(timed)
    return record.with_kernels(contention, {signature: _mean(some) for signature, some in samples.items()})


def _on_group(progress: Progress, told: str, total: int) -> Callable[[int], object]:
    return lambda n: progress(told, n, total)


def _mean(several: Sequence[Timed]) -> Timed:
    """So that a step in which a kernel comes several times takes what it took."""
    return Timed(sum(timed.seconds for timed in several) / len(several), several[0].reference_s)


def _silent(told: str, done: int, total: int) -> None:
    """For those who do not want to hear."""
