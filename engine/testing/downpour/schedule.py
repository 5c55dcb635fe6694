"""One schedule under Downpour: steps, how often parts fetch and push, and the checks of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from typing_extensions import override

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import Commit, CoordinatorEvent, EndRun, RunSettings
from partita.engine.protocol.events import Received
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.leased_mode import LeasedMode
from partita.engine.protocol.messages import LostPushes, UnitRange
from partita.engine.protocol.names import Topology, part_indices, part_name
from partita.engine.protocol.views import Outline
from partita.engine.testing.downpour.model import Lineage, ReferenceModel
from partita.engine.testing.downpour.work import WorkModel
from partita.engine.testing.elastic import draw_least, leaving
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.layout import Layout
from partita.engine.testing.scenario import Environment, draw_environment, small_count
from partita.engine.testing.schedule import Build, CoordinatorHost, Schedule
from partita.engine.testing.world import World

NUMBERS_OF_A_MACHINE: Final = 4
"""Parameters of each machine: enough to be cut over shards, few enough to be summed at every event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule's draw. Times in seconds of virtual time.

    Attributes:
        environment: the draw that all drivers share.
        driver: the driver; a seed draws how often its parts fetch and push.
        steps: for each replica, which share them all; of those, ranges of `done` are from a resumed run.
        step_s: the longest step of a part; the slowest part takes `straggler` times as long.
        apply_s: the longest update of a shard.
    """

    environment: Environment
    driver: Driver
    steps: int
    done: tuple[int, ...]
    step_s: float
    straggler: float
    apply_s: float


def draw(random: Random, driver: Driver | None) -> Scenario:
    """The scenario of a seed; one in ten resumes an earlier run. None: the driver is drawn, too."""
    topology = Topology(small_count(random), small_count(random), small_count(random))
    if driver is not None:
        topology = Topology(driver.replicas, topology.machines, driver.shards)
    environment = draw_environment(random, topology)
    steps, resumes = random.randint(1, 10), random.random() < 0.1
    done = tuple(random.randint(0, steps) if resumes else 0 for _ in range(topology.replicas))
    every = random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 3))
    return Scenario(
        environment=environment,
        driver=driver or Downpour(fetch_every=every[0], push_every=every[1]),
        steps=steps,
        done=done,
        step_s=random.choice((0.2, 0.6, 1.2)),
        straggler=random.choice((1.0, 1.0, 1.0, 4.0)),
        apply_s=random.choice((0.0, 0.0, 0.0, 0.1, 1.5)),
    )


class PushLog:
    """The acknowledged pushes that parts have noted on disk, which outlive them."""

    def __init__(self) -> None:
        self._noted: dict[ProcessId, dict[str, PushRecord]] = {}

    def begin(self, part: ProcessId) -> None:
        """Adds a process that has noted nothing."""
        self._noted[part] = {}

    def note(self, part: str, shard: str, settled: PushRecord) -> None:
        """Notes what a shard has settled for a process of this part."""
        self._noted[part, settled.incarnation][shard] = settled

    def of_part(self, part: ProcessId) -> dict[str, tuple[PushRecord, ...]]:
        """For each shard, the notes of the processes of a part before this one."""
        found: dict[str, tuple[PushRecord, ...]] = {}
        for (name, incarnation), noted in sorted(self._noted.items()):
            if name == part[0] and incarnation < part[1]:
                for shard, settled in noted.items():
                    found[shard] = (*found.get(shard, ()), settled)
        return found

    def of_shard(self, shard: str) -> dict[str, tuple[PushRecord, ...]]:
        """For each part, the notes of its processes about this shard."""
        found: dict[str, tuple[PushRecord, ...]] = {}
        for (name, incarnation), noted in sorted(self._noted.items()):
            settled = noted.get(shard, PushRecord(incarnation, 0))
            found[name] = (*found.get(name, ()), settled)
        return found


class DownpourCoordinatorHost(CoordinatorHost):
    """A coordinator whose newest manifest counts every push that is known to be lost."""

    @override
    def _do(self, event: CoordinatorEvent) -> bool:
        did = super()._do(event)
        newest = self.schedule.disk.newest() if isinstance(event, Received) else None
        if newest is None or not isinstance(event.message, LostPushes):  # type: ignore[union-attr]
            return did
        if all(self.current[entry.shard] == entry.incarnation for entry in newest.entries):
            lost = self.machine.lost
            require(
                newest.lost >= lost, "I2", "checkpoint", newest.checkpoint, "counts", newest.lost, "of", lost
            )
        return did


class DownpourSchedule(Schedule):
    """Everything that the hosts of a seed share."""

    def __init__(
        self,
        driver: Driver | None,
        seed: int,
        machines: Iterable[type],
        *,
        part: Build,
        shard: Build,
        keep_all: bool = False,
    ) -> None:
        world = World(seed, keep_all=keep_all)
        self.scenario = draw(world.random, driver)
        super().__init__(world, self.scenario.environment, machines, part=part, shard=shard)
        topology = self.environment.topology
        self.layout = Layout([NUMBERS_OF_A_MACHINE] * topology.machines, topology)
        self.push_log = PushLog()
        steps = self.scenario.steps
        self.units = steps * topology.replicas
        done = [(n * steps, n * steps + before) for n, before in enumerate(self.scenario.done) if before]
        self.work = WorkModel(self.units, done)
        self.coordinator = DownpourCoordinatorHost(self)
        least = draw_least(seed, driver, topology.replicas)
        self.coordinator.machine = leaving(self.kind(Coordinator), least)(
            self.scenario.driver.coordinator,
            Outline(1, self.units, 1, topology.replicas),
            self.kind(LeasedMode)(done=done),
            topology,
            settings=RunSettings(timeouts=self.timeouts(), least=least),
        )
        self.model = ReferenceModel(self.layout.sizes.items(), self.coordinator.writers)

    def left(self, names: Sequence[str]) -> None:
        """Notes that a replica's work is given to others."""
        indices = part_indices(names[0])
        assert indices is not None
        self.work.leaves(indices[0], self.coordinator.current[names[0]])

    def check_commit(self, order: Commit) -> None:
        """Requires that the files hold the work that counts as done, and that lost pushes are counted."""
        lineages = self._lineages(order)
        if order.checkpoint in self.disk.manifests:
            living = {
                entry.shard: self.model.lineages[entry.shard, entry.incarnation] for entry in order.entries
            }
            most = sum(len(lineage.lost) for lineage in living.values())
            require(order.lost <= most, "I2", order, "counts more than the shards, which have lost", most)
            return
        self.model.require_lost(lineages, order.lost)
        self.model.holds(lineages, self._steps_of(order.done))

    def _lineages(self, order: Commit) -> dict[str, Lineage]:
        return {entry.shard: self.disk.files[entry.file].contents.reference for entry in order.entries}

    def _steps_of(self, units: Iterable[UnitRange]) -> Iterator[tuple[str, str, int]]:
        """Yields (part, shard, step) of everything that these units are."""
        for replica, step in self.work.steps_of(units):
            for machine in range(self.environment.topology.machines):
                for shard, _, _ in self.layout.of_machine[machine]:
                    yield part_name(replica, machine), shard, step

    def check_end(self, ending: EndRun) -> None:
        """Requires that all work was done, and that only pushes counted as lost are missing."""
        if not ending.complete:
            require(self.stopped, "I8", "the run ended early", ending)
            return
        if all(done >= self.scenario.steps for done in self.scenario.done):
            return
        require(ending.checkpoint is not None, "I2", "the run ended without a last checkpoint")
        assert ending.checkpoint is not None
        last = self.disk.manifests[ending.checkpoint]
        require(last.done == ((0, self.units),), "I15", "the run ended with", last.done, "of", self.units)
        files = self._lineages(last)
        self.model.require_lost(files, ending.lost)
        self.model.require_complete(files)
