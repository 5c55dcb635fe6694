"""`profile_network`: plans a network for several numbers of machines, measures and simulates them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from partita.engine.drivers.checks import whole
from partita.engine.drivers.data import Data
from partita.engine.drivers.session import Hosts
from partita.engine.profile.bench import HostBench
from partita.engine.profile.calibration import calibrate
from partita.engine.profile.changes import best_changes
from partita.engine.profile.measure import batch_for, measure
from partita.engine.profile.profile import Point, Profile
from partita.engine.profile.timeline import Timeline
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.layers.text import counted
from partita.partitioner.assign.cuts import Cut, Cuts, Whole
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan

Tell = Callable[[str], object]

QUICK: Final = "balanced"
"""The strategy that plans for changed clusters instead of a search: many are tried, and each would take
seconds."""


def profile_network(
    network: Network | Graph,
    machines: Sequence[int] = (1, 2, 4, 8),
    *,
    threads: int = 1,
    batch: int = 32,
    precision: str = "float32",
    cluster: Cluster | None = None,
    calibrated: bool = True,
    cuts: Cuts | None = None,
    strategy: str = "automatic",
    micro_batches: int | None = None,
    data: Data | None = None,
    steps: int = 20,
    hosts: Hosts = "processes",
    cores: int | None = None,
    tell: Tell = lambda said: None,
) -> Profile:
    """Says what a network gains on more machines, and what keeps it from gaining more.

    Every number of machines is simulated. Those whose threads this machine has cores for are played on
    processes as well, and measured; of a cluster that was described, none is, because it is not here.

    Args:
        network: as declared.
        machines: numbers of machines; one is added, to compare with, if the network fits there.
        threads: kernel threads of each.
        batch: examples in a step.
        precision: "float32", "float64" or "bfloat16".
        cluster: simulates so many of its first machines; `threads` is ignored then. If not given, machines
            are processes of this one.
        calibrated: measures first what is not known yet of this machine's kernels and links; otherwise
            predictions stand on guesses. A described cluster holds its own measurements, or guesses.
        cuts: by hand. Plans of fewer machines than were asked for at most do without those that name others.
        strategy: decides for all other layers, as in `partition`. Where clusters are changed for a trial,
            "balanced" stands for "automatic".
        micro_batches: into how many portions a minibatch is divided, as in `partition`.
        data: arrays for each input and target; random numbers if not given.
        steps: to measure of each plan.
        hosts: "processes", or "threads" of this process, for tests.
        cores: that may be used; all that this process may use if not given.
        tell: is told how it gets on, in a few words.

    Raises:
        ValueError: the network cannot be cut so, or the data does not fit it.
        HostError: a host fails.
    """
    counts = sorted({whole(count, "the number of machines is", least=1) for count in machines})
    if not counts:
        raise ValueError("there are no numbers of machines to profile; give for example (1, 2, 4)")
    steps = whole(steps, "the number of steps is", least=1)
    cores = len(os.sched_getaffinity(0)) if cores is None else cores

    def planned(on: Cluster, how: str = QUICK if strategy == "automatic" else strategy) -> Plan:
        return partition(
            network,
            on,
            batch=batch,
            cuts=cuts if len(on) >= counts[-1] else _within(cuts, len(on)),
            strategy=how,
            precision=precision,
            micro_batches=micro_batches,
        )

    measuring = (
        _Measuring(network, batch, precision, threads, tell) if calibrated and cluster is None else None
    )
    plans = []
    for count in (1, *counts) if counts[0] > 1 else counts:
        tell(f"planning {count} of {counted(counts[-1], 'machine')}")
        try:
            plans.append(planned(_cluster_for(count, threads, cluster, measuring), strategy))
        except ValueError:
            if count in counts:
                raise
    if measuring is not None:
        plans = measuring.completed(plans)
    fed = batch_for(plans[0].graph, data, batch=plans[0].batch, precision=precision)
    points = []
    for plan in plans:
        name = f"{len(plan.cluster)} of {counted(counts[-1], 'machine')}"
        measured = None
        if cluster is None and _played_here(plan, cores):
            measured = measure(
                plan,
                fed,
                steps=steps,
                hosts=hosts,
                tell=partial(_tell, tell, name, steps),
                tell_phase=partial(_tell_phase, tell, name),
            )
        tell(f"{name}: simulating")
        predicted = Timeline.of_playback(plan)
        points.append(Point(plan, predicted, measured, best_changes(plan, planned)))
    return Profile(tuple(points), cores, steps)


def _cluster_for(machines: int, threads: int, given: Cluster | None, measuring: _Measuring | None) -> Cluster:
    """What predictions stand on."""
    if measuring is not None:
        return measuring.calibration.cluster(machines, threads=threads)
    return Cluster.local(machines, threads=threads) if given is None else _first(given, machines)


def _first(cluster: Cluster, machines: int) -> Cluster:
    """The first so many machines, and the links between them."""
    if machines > len(cluster):
        raise ValueError(
            f"the cluster has {counted(len(cluster), 'machine')}, not {machines}; ask for fewer, or add some"
        )
    chosen = cluster.machines[:machines]
    names = {name for machine in chosen for name in (machine.site, machine.kind)}
    between = tuple(pair for pair in cluster.between if {pair.one, pair.other} <= names)
    return replace(cluster, machines=chosen, between=between)


class _Measuring:
    """Measures this machine's runtime and links, and kernels, as far as they are not known."""

    def __init__(
        self, network: Network | Graph, batch: int, precision: str, threads: int, tell: Tell
    ) -> None:
        def progress(told: str, done: int, total: int) -> None:
            tell(f"calibrating {told}: {done} of {total}")

        self._again = partial(
            calibrate,
            precision=precision,
            threads=threads,
            batch=batch,
            products=False,
            progress=progress,
            bench=HostBench(tell=partial(_tell_phase, tell, "calibrating")),
        )
        self.calibration = self._again(network)

    def completed(self, plans: Sequence[Plan]) -> list[Plan]:
        """The same cuts, with every kernel of theirs measured."""
        self.calibration = self._again(plans=plans)
        return [
            plan.on(self.calibration.cluster(len(plan.cluster), threads=plan.cluster.machines[0].threads))
            for plan in plans
        ]


def _tell_phase(tell: Tell, name: str, phase: str) -> None:
    tell(f"{name}: {phase}")


def _tell(tell: Tell, name: str, steps: int, done: int) -> None:
    tell(f"{name}: step {done} of {steps}")


def _played_here(plan: Plan, cores: int) -> bool:
    """Whether all of its threads can run side by side."""
    machines = plan.cluster.machines
    return all(m.device == "cpu" for m in machines) and sum(m.threads for m in machines) <= cores


def _within(cuts: Cuts | None, machines: int) -> Cuts:
    return {name: cut for name, cut in (cuts or {}).items() if _highest(cut) < machines}


def _highest(cut: Cut) -> int:
    """The highest number of a machine in a cut."""
    if isinstance(cut, Whole):
        return cut.machine
    return cut.machines - 1 if isinstance(cut.machines, int) else max(cut.machines, default=0)
