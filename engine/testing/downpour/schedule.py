"""One schedule under Downpour: steps, how often parts fetch and push, and the checks of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from typing_extensions import override

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.protocol.apply_on_arrival import ApplyOnArrival
from partita.engine.protocol.checkpoint_messages import LostPushes
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    CoordinatorEffect,
    CoordinatorEvent,
    EndRun,
    RunSettings,
)
from partita.engine.protocol.events import Received, stream_of
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.leased_mode import LeasedMode
from partita.engine.protocol.message_base import UnitRange
from partita.engine.protocol.messages import Push as PushMessage
from partita.engine.protocol.names import Topology, part_indices, stream_name
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.shard_effects import ShardRanges
from partita.engine.protocol.views import Outline
from partita.engine.testing import faults
from partita.engine.testing.downpour.lineage import Lineage, Push
from partita.engine.testing.downpour.model import ReferenceModel
from partita.engine.testing.downpour.resuming import begun
from partita.engine.testing.downpour.work import WorkModel
from partita.engine.testing.elastic import draw_least, leaving
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.layout import Layout
from partita.engine.testing.log import LogFolder
from partita.engine.testing.scenario import Environment, draw_environment, small_count
from partita.engine.testing.schedule import Build, CoordinatorHost, Schedule
from partita.engine.testing.shards import ShardState
from partita.engine.testing.user import StopModel, User, draw_user
from partita.engine.testing.world import Process, World

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


def draw_crashes(seed: int, chaos_s: float) -> tuple[float, ...]:
    """Draws when coordinators crash, beside all else that a seed draws: in a fifth of the seeds."""
    random = Random(-5 - seed)
    if random.random() > 0.2:
        return ()
    return tuple(random.uniform(0.0, chaos_s) for _ in range(random.choice((1, 1, 2, 3))))


def draw_compresses(seed: int, driver: Driver | None) -> bool:
    """Draws whether pushes are compressed, beside all else that a seed draws, unless the driver says so."""
    return Random(-9 - seed).random() < 0.25 if driver is None else driver.compress is not None


class PushLog:
    """The acknowledged pushes that parts have noted on disk, which outlive them."""

    def __init__(self) -> None:
        self._noted: dict[ProcessId, dict[str, PushRecord]] = {}

    def begin(self, part: ProcessId) -> None:
        """Adds a process that has noted nothing."""
        self._noted[part] = {}

    def note(self, part: str, stream: str, settled: PushRecord) -> None:
        """Notes what a shard has settled of a stream for a process of this part."""
        self._noted[part, settled.incarnation][stream] = settled

    def of_part(self, part: ProcessId) -> dict[str, tuple[PushRecord, ...]]:
        """For each stream, the notes of the processes of a part before this one."""
        found: dict[str, tuple[PushRecord, ...]] = {}
        for (name, incarnation), noted in sorted(self._noted.items()):
            if name == part[0] and incarnation < part[1]:
                for stream, settled in noted.items():
                    found[stream] = (*found.get(stream, ()), settled)
        return found

    def of_shard(self, shard: str, *, fragments: int) -> dict[str, tuple[PushRecord, ...]]:
        """For each stream, as this shard names it, the notes of its part's processes."""
        found: dict[str, tuple[PushRecord, ...]] = {}
        for (part, incarnation), noted in sorted(self._noted.items()):
            for fragment in range(fragments):
                settled = noted.get(stream_name(shard, fragment), PushRecord(incarnation, 0))
                name = stream_name(part, fragment)
                found[name] = (*found.get(name, ()), settled)
        return found


class DownpourCoordinatorHost(CoordinatorHost):
    """A coordinator, which begins from the run's folder, and whose manifests count every lost push.

    Attributes:
        start: the newest checkpoint when its run began; None: there was none.
        begins: what its shards begin with.
        push_log: of its run.
        work, model: the references of its run.
        logs: of its shards; none where nobody keeps records.
    """

    schedule: DownpourSchedule

    def __init__(self, schedule: DownpourSchedule, *, run: int = 0) -> None:
        super().__init__(schedule, incarnation=run)
        topology, disk, least = schedule.environment.topology, schedule.disk, schedule.least
        self.start = disk.newest()
        self.push_log = PushLog()
        self.begins = {name: self._begun(name) for name in schedule.layout.sizes}
        lineages: dict[str, Lineage] = {name: state.reference for name, state in self.begins.items()}
        done = Ranges(schedule.before if self.start is None else self.start.done)
        stops = schedule.stops
        if run:
            stops.resumes(None if self.start is None else self.start.checkpoint, done.size)
        held = [unit for unit in range(schedule.units) if schedule.held_by_all(unit, lineages)]
        self.work = WorkModel(schedule.units, [*done, *((unit, unit + 1) for unit in held)])
        self.logs = {name: LogFolder() for name in lineages} if schedule.keeps else {}
        twice, keeps = schedule.is_of_two, schedule.keeps
        self.model = ReferenceModel(
            lineages,
            self.writers,
            twice=twice,
            keeps=keeps,
            waits=schedule.replicated,
            staleness=schedule.scenario.driver.staleness,
            compresses=schedule.compresses,
            alone=topology.replicas == 1,
            machines=topology.machines,
        )
        self.machine = leaving(schedule.kind(Coordinator), least)(
            stops.pacing.around(schedule.scenario.driver.coordinator, works=True, replicas=1),
            Outline(1, schedule.units, 1, topology.replicas),
            schedule.kind(LeasedMode)(
                done=tuple(done),
                resumes=run > 0,
                most_ahead=schedule.scenario.driver.staleness.most_ahead,
            ),
            topology,
            settings=RunSettings(
                next_checkpoint=disk.next_checkpoint(),
                timeouts=schedule.timeouts(),
                least=least,
                keeps_records=schedule.keeps,
                validated=stops.validated,
                scale=stops.scale,
            ),
        )

    def _begun(self, shard: str) -> ShardState:
        """Returns the state with which a shard begins, in a run from the start or one that goes on."""
        schedule = self.schedule
        if not self.incarnation:
            size = schedule.layout.sizes[shard]
            return ShardState({POINT: (0.0,) * size}, reference=Lineage([0.0] * size))
        machines = schedule.environment.topology.machines
        own = ShardRanges(shard, 0, schedule.layout.of_shard[shard], machines=machines)
        kind = schedule.kind(ApplyOnArrival)
        return begun(
            schedule.coordinator, self.start, schedule.disk, own, kind=kind, random=self.world.beside
        )

    def look(self, shard: str) -> None:
        """Requires now and then that what a shard has acknowledged would be there after a power loss.

        The next run goes on from what there was when it began.
        """
        random = self.world.beside
        if not self.logs or random.random() >= 0.2 or self.schedule.coordinator is not self:
            return
        newest = self.schedule.disk.newest()
        is_of_run = newest is not None and newest is not self.start
        files = [one for one in newest.entries if one.shard == shard] if newest and is_of_run else []
        held: set[Push] = set()
        for file in files:
            held |= self.schedule.disk.files[file.file].contents.reference.applied
        for record in self.logs[shard].left(random).above(files[0].version if files else 0):
            request, message = record.request, record.request.message
            assert isinstance(message, PushMessage), message
            push = (stream_of(request), request.incarnation, message.sequence)
            self.model.requires_payload(shard, push, request.payload)
            held.add(push)
        self.model.requires_promises(shard, held)

    @override
    def _do(self, event: CoordinatorEvent) -> Sequence[CoordinatorEffect]:
        effects = super()._do(event)
        if isinstance(event, Received) and isinstance(event.message, LostPushes):
            self._requires_count()
        return effects

    def _requires_count(self) -> None:
        """Requires that the newest checkpoint of this run counts all that is known to be lost (I2)."""
        newest = self.schedule.disk.newest()
        if newest is None:
            return
        is_of_run = self.start is None or newest.checkpoint > self.start.checkpoint
        if is_of_run and all(self.current[entry.shard] == entry.incarnation for entry in newest.entries):
            lost = self.machine.lost
            require(
                newest.lost >= lost, "I2", "checkpoint", newest.checkpoint, "counts", newest.lost, "of", lost
            )


class DownpourSchedule(Schedule):
    """Everything that the hosts of a seed share.

    A coordinator that crashes, or that the user stops, is followed by the next one, which goes on from the
    newest checkpoint, with hosts of a new run.
    """

    coordinator: DownpourCoordinatorHost

    def __init__(
        self,
        driver: Driver | None,
        seed: int,
        machines: Iterable[type],
        *,
        part: Build,
        shard: Build,
        durability: str = "checkpoint",
        hostile: bool = False,
        keep_all: bool = False,
    ) -> None:
        world = World(seed, keep_all=keep_all)
        self.scenario = self.draw_scenario(world.random, driver)
        environment = self.scenario.environment
        if durability == "replicated":
            topology = replace(environment.topology, replicated=True)
            environment = replace(environment, topology=topology)
        super().__init__(world, environment, machines, part=part, shard=shard, hostile=hostile)
        topology = self.environment.topology
        fragments = self.scenario.driver.n_fragments
        self.layout = Layout([NUMBERS_OF_A_MACHINE] * topology.machines, topology, fragments=fragments)
        steps = self.scenario.steps
        self.units = steps * topology.replicas
        self.before = [(n * steps, n * steps + done) for n, done in enumerate(self.scenario.done) if done]
        self.least = draw_least(seed, driver, topology.replicas)
        self._crashes = draw_crashes(seed, self.environment.chaos_s)
        if not self.before:
            self.stops = StopModel(self, self.draw_user(seed))
        self._runs: list[WorkModel] = []
        self.compresses = draw_compresses(seed, driver)
        self.keeps, self.replicated = durability == "log", durability == "replicated"
        self.sync_s = world.beside.choice((0.0, 0.1, 0.5, 2.0))
        if self.keeps:
            self.power_losses = (0, 1, 1, 2, 3)
        self.coordinator_may_end = True
        self.coordinator = DownpourCoordinatorHost(self)
        self._runs.append(self.coordinator.work)

    def draw_scenario(self, random: Random, driver: Driver | None) -> Scenario:
        """Returns the scenario of the seed."""
        return draw(random, driver)

    def draw_user(self, seed: int) -> User:
        """Returns the user of the seed."""
        return draw_user(seed, steps=self.units, chaos_s=self.environment.chaos_s)

    @override
    def _plan(self) -> None:
        super()._plan()
        for time in self._crashes:
            self.world.at(time, None, self._crash, None)

    def _crash(self, _: object) -> None:
        self.world.note(self.coordinator, "crashes", None)
        self.coordinator.crash()

    @override
    def exited(self, process: Process) -> None:
        """Handles the end of a process; a coordinator is followed by another one."""
        super().exited(process)
        if process is self.coordinator and not self.world.over:
            self.follow(self._resume, restart_s=2.0)

    @override
    def end(self, order: EndRun | AbortRun) -> None:
        """Ends the run. One that the user, a callback or a limit has stopped goes on."""
        if isinstance(order, AbortRun) or (order.complete and not self._ends_early()):
            super().end(order)
            return
        require(order.complete or self.stopped, "I8", "the run ended early", order)
        self.world.note(self.coordinator, type(order).__name__, order)
        self.coordinator.exit()

    def _ends_early(self) -> bool:
        """Returns whether callbacks or a limit have ended the run; a checkpoint must hold all of it (E4)."""
        newest, most = self.disk.newest(), self.stops.pacing.most
        if newest is None or (most is None and not self.stops.reason):
            return False
        held = Ranges(newest.done)
        self.stops.require_end(held.size, limit=self.units if most is None else min(most, self.units))
        require([*held] == [(0, held.size)], "E4", "the run ends with", [*held])
        return held.size < self.units

    def _resume(self, _: object) -> None:
        """Starts the next coordinator from what is on disk, and nothing else (I10)."""
        self.coordinator = DownpourCoordinatorHost(self, run=self.coordinator.incarnation + 1)
        self._runs.append(self.coordinator.work)
        self.world.note(self.coordinator, "resumes from", self.coordinator.start)
        self.coordinator.begin()

    # Logs.

    @override
    def lost_power(self, computer: int) -> None:
        """Takes from the logs on a computer what was not synced."""
        for name, log in self.coordinator.logs.items():
            if faults.computer_of(name, self.computers) == computer:
                log.lose_power(self.world.beside)

    @override
    def damaged(self) -> None:
        for log in self.coordinator.logs.values():
            log.sync_all()

    def left(self, names: Sequence[str]) -> None:
        """Notes that a replica's work is given to others."""
        indices = part_indices(names[0])
        assert indices is not None
        self.coordinator.work.leaves(indices[0], self.coordinator.current[names[0]])

    def is_of_two(self, unit: int) -> bool:
        """Returns whether a replica has left that may have done this unit."""
        return any(work.is_of_two(unit) for work in self._runs)

    # Stops.

    @override
    def agreed_parameters(self, machine: int) -> list[float]:
        found: list[float] = []
        for shard, number in self.layout.places[machine]:
            start, stop = self.layout.of_shard[shard][number]
            found += self._present(shard).values[start:stop]
        return found

    def _present(self, shard: str) -> Lineage:
        """The values of the process that is a shard now."""
        life = shard, self.coordinator.current[shard]
        lineages = self.coordinator.model.lineages
        require(life in lineages, "E2", "a stop, and", life, "has no parameters yet")
        return lineages[life]

    @override
    def check_stop(self, at: int) -> None:
        before = Ranges(self.before)
        wanted = {unit for unit in range(at) if unit not in before}
        for number, shard in self._ranges:
            lineage = self._present(shard)
            gone = self.coordinator.model.gone(shard, lineage)
            held = {unit for of, unit in lineage.units | gone if of == number}
            require(held - wanted == set(), "E3", shard, "holds", sorted(held - wanted), "at the stop", at)
            require(wanted - held == set(), "E3", shard, "lacks", sorted(wanted - held), "at the stop", at)

    @override
    def position_of(self, order: Commit) -> int:
        return Ranges(order.done).size

    # Files.

    def held_by_all(self, unit: int, lineages: Mapping[str, Lineage]) -> bool:
        """Returns whether all numbers that these shards hold contain a unit."""
        every = ((number, shard) for number, shard in self._ranges if self.environment.topology.shards)
        return all((number, unit) in lineages[shard].units for number, shard in every)

    @property
    def _ranges(self) -> Iterator[tuple[int, str]]:
        for machine in range(self.environment.topology.machines):
            yield from ((number, shard) for shard, number in self.layout.places[machine])

    def check_commit(self, order: Commit) -> None:
        """Requires that the files hold the work that counts as done, and that lost pushes are counted."""
        lineages, model = self._lineages(order), self.coordinator.model
        if order.checkpoint in self.disk.manifests:
            living = {entry.shard: model.lineages[entry.shard, entry.incarnation] for entry in order.entries}
            most = sum(len(lineage.lost) for lineage in living.values())
            require(order.lost <= most, "I2", order, "counts more than the shards, which have lost", most)
            return
        model.require_lost(lineages, order.lost)
        self.coordinator.work.require_computed(order.done)
        model.holds(lineages, self._units_of(order.done))

    def _lineages(self, order: Commit) -> dict[str, Lineage]:
        return {entry.shard: self.disk.files[entry.file].contents.reference for entry in order.entries}

    def _units_of(self, done: Iterable[UnitRange]) -> Iterator[tuple[int, str, int]]:
        """Yields (number, shard, unit) of everything that these units are, but for those done at first."""
        before = Ranges(self.before)
        for unit in (unit for one in done for unit in range(*one) if unit not in before):
            yield from ((number, shard, unit) for number, shard in self._ranges)

    def check_end(self, ending: EndRun) -> None:
        """Requires that all work was done, each unit once, and that only counted pushes are missing."""
        if all(done >= self.scenario.steps for done in self.scenario.done):
            return
        require(bool(self.disk.manifests), "I2", "the run ended without a last checkpoint")
        last, model = self.disk.manifests[max(self.disk.manifests)], self.coordinator.model
        require(last.done == ((0, self.units),), "I15", "the run ended with", last.done, "of", self.units)
        if ending.checkpoint is None:
            require(self.coordinator.start is last, "I2", "the run ended without a last checkpoint")
            return  # it was complete when it began
        files = self._lineages(last)
        model.require_lost(files, ending.lost)
        model.require_complete(files)
