"""`profile_network`: plans a network for several numbers of machines, measures and simulates them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Final

from partita.engine.kernels.kernel import Array
from partita.engine.launch.on import On, on_of
from partita.engine.profile.bench import Bench
from partita.engine.profile.calibration import Calibration, calibrate
from partita.engine.profile.changes import best_changes
from partita.engine.profile.measure import drawn_batch, first_batch, measure, reading_remark
from partita.engine.profile.profile import Point, Profile
from partita.engine.run.data import Data
from partita.engine.run.phases import OnPhase, silent
from partita.engine.run.session import Hosts
from partita.layers.arguments import Arguments, takes
from partita.layers.checks import check_fields, check_whole
from partita.layers.graph import Graph
from partita.layers.network import Network
from partita.layers.text import counted
from partita.partitioner.assign.cuts import Cut, Cuts, Whole
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan

QUICK: Final = "balanced"
"""Strategy for changed clusters instead of a search: many are tried, and each search would take seconds."""


@dataclass(frozen=True)
class ProfileArguments(Arguments):
    """The arguments of `profile_network`.

    Args:
        network: as declared.
        machines: numbers of machines; one is added, to compare with, if the network fits there.
        threads: kernel threads of each machine.
        batch: examples in a step.
        precision: "float32", "float64" or "bfloat16".
        cluster: simulates its first machines; `threads` is ignored then. If not given, machines are processes
            of this one.
        calibrated: measures first the kernels and links of this machine that are not known yet; otherwise
            predictions stand on guesses. A described cluster holds its own measurements, or guesses.
        cuts: cuts by hand. Plans of fewer machines than the largest number leave out those that name others.
        strategy: decides for all other layers, as in `partition`. Where clusters are changed for a trial,
            "balanced" stands for "automatic".
        micro_batches: micro-batches into which a minibatch is divided, as in `partition`.
        data: arrays for each input and target; random numbers if not given.
        steps: steps to measure of each plan.
        on: where plans are played, as in `train`: then all are measured, on the machines that are there.
            Predictions stand on `cluster`, or on this machine's kernels and links. If not given, plans are
            played here.
        hosts: "processes", or "threads" of this process, for tests.
        cores: cores that may be used; all that this process may use if not given.
        on_phase: called with each phase of the work, in a few words.

    Raises:
        ValueError: the network cannot be cut so, or the data does not fit it.
        HostError: a host fails.
        RunFailed: there are no hosts to be had for a plan, see `on`.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "batch_size": ("batch",),
        "tell": ("on_phase",),
        "progress": ("on_phase",),
    }

    network: Network | Graph
    machines: Sequence[int] = (1, 2, 4, 8)
    _: KW_ONLY
    threads: int = 1
    batch: int = 32
    precision: str = "float32"
    cluster: Cluster | None = None
    calibrated: bool = True
    cuts: Cuts | None = None
    strategy: str = "automatic"
    micro_batches: int | None = None
    data: Data | None = None
    steps: int = 20
    on: On | str | None = None
    hosts: Hosts = "processes"
    cores: int | None = None
    on_phase: OnPhase = silent

    def __post_init__(self) -> None:
        counts = sorted({check_whole(count, "the number of machines is") for count in self.machines})
        if not counts:
            raise ValueError("there are no numbers of machines to profile; give for example (1, 2, 4)")
        object.__setattr__(self, "machines", counts)
        check_fields(self, check_whole, "steps", of="the number of ")
        if isinstance(self.on, str):
            object.__setattr__(self, "on", on_of(self.on))
        if self.cores is None:
            object.__setattr__(self, "cores", len(os.sched_getaffinity(0)))


@takes(ProfileArguments)
def profile_network(arguments: ProfileArguments) -> Profile:
    """Says what a network gains on more machines, and what keeps it from gaining more.

    Every number of machines is simulated. Those whose threads this machine has cores for are played on
    processes as well, and measured; of a described cluster none is, because it is not here. With `on` all
    are measured, on the machines that are there.
    """
    profiler, given = _Profiler(arguments), arguments
    plans = profiler.plans()
    rate = None
    if given.data is None:
        fed = drawn_batch(plans[0].graph, batch=plans[0].batch, precision=given.precision)
    else:
        fed, rate = first_batch(plans[0], given.data)
    assert given.cores is not None, "set with the arguments"
    points = tuple(profiler.point(plan, fed, given.cores) for plan in plans)
    remarks = reading_remark(rate, [point.measured for point in points if point.measured is not None])
    return Profile(points, given.cores, given.steps, elsewhere=given.on is not None, remarks=remarks)


class _Profiler:
    """Plans for every number of machines, then measures and simulates each plan."""

    def __init__(self, given: ProfileArguments) -> None:
        self._given: Final = given
        self._most: Final = max(given.machines)
        self._calibration: Calibration | None = None
        if given.calibrated and given.cluster is None:
            self._calibration = self._calibrate(given.network)

    def _calibrate(self, network: Network | Graph | None = None, plans: Sequence[Plan] = ()) -> Calibration:
        given = self._given
        return calibrate(
            network,
            batch=given.batch,
            precision=given.precision,
            threads=given.threads,
            plans=plans,
            products=False,
            progress=lambda what, n, total: given.on_phase(f"calibrating {what}: {n} of {total}"),
            bench=Bench(on_phase=lambda phase: given.on_phase(f"calibrating: {phase}")),
        )

    def plans(self) -> list[Plan]:
        """A plan for each number of machines, with every kernel measured where calibration is asked for."""
        given, found = self._given, []
        for count in sorted({1, *given.machines}):
            given.on_phase(f"planning {count} of {counted(self._most, 'machine')}")
            try:
                found.append(self._planned(self._cluster(count), given.strategy))
            except ValueError:
                if count in given.machines:
                    raise
        if self._calibration is None:
            return found
        self._calibration = self._calibrate(plans=found)
        return [plan.on(self._cluster(len(plan.cluster))) for plan in found]

    def _planned(self, cluster: Cluster, strategy: str) -> Plan:
        given = self._given
        return partition(
            given.network,
            cluster,
            batch=given.batch,
            cuts=given.cuts if len(cluster) >= self._most else _within(given.cuts, len(cluster)),
            strategy=strategy,
            precision=given.precision,
            micro_batches=given.micro_batches,
        )

    def _cluster(self, machines: int) -> Cluster:
        """The cluster that predictions stand on."""
        given = self._given
        if self._calibration is not None:
            return self._calibration.cluster(machines, threads=given.threads)
        if given.cluster is not None:
            return _first(given.cluster, machines)
        return Cluster.local(machines, threads=given.threads)

    def point(self, plan: Plan, fed: Mapping[str, Array], cores: int) -> Point:
        """Measures a plan where this machine has the cores for it, and simulates it."""
        given, measured = self._given, None
        assert not isinstance(given.on, str), "read with the arguments"
        name = f"{len(plan.cluster)} of {counted(self._most, 'machine')}"
        if given.on is not None or (given.cluster is None and _played_here(plan, cores)):
            measured = measure(
                plan,
                fed,
                steps=given.steps,
                hosts=given.hosts if given.on is None else given.on,
                on_step=lambda done: given.on_phase(f"{name}: step {done} of {given.steps}"),
                on_phase=lambda phase: given.on_phase(f"{name}: {phase}"),
            )
        given.on_phase(f"{name}: simulating")
        quick = QUICK if given.strategy == "automatic" else given.strategy
        changes = best_changes(plan, lambda cluster: self._planned(cluster, quick))
        return Point(plan, measured, changes)


def _first(cluster: Cluster, machines: int) -> Cluster:
    """The first machines of a cluster, and the links between them."""
    if machines > len(cluster):
        raise ValueError(
            f"the cluster has {counted(len(cluster), 'machine')}, not {machines}; ask for fewer, or add some"
        )
    chosen = cluster.machines[:machines]
    names = {name for machine in chosen for name in (machine.site, machine.kind)}
    between = tuple(pair for pair in cluster.between if {pair.one, pair.other} <= names)
    return replace(cluster, machines=chosen, between=between)


def _played_here(plan: Plan, cores: int) -> bool:
    """Returns whether all threads of the plan can run side by side."""
    machines = plan.cluster.machines
    return all(m.device == "cpu" for m in machines) and sum(m.threads for m in machines) <= cores


def _within(cuts: Cuts | None, machines: int) -> Cuts:
    return {name: cut for name, cut in (cuts or {}).items() if _highest(cut) < machines}


def _highest(cut: Cut) -> int:
    """The highest index of a machine in a cut."""
    if isinstance(cut, Whole):
        return cut.machine
    return cut.machines - 1 if isinstance(cut.machines, int) else max(cut.machines, default=0)
