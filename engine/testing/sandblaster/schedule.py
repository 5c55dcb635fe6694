"""One schedule under Sandblaster: a method played by one coordinator after another, until it has ended.

A coordinator that crashes, that the user stops, or that ends with an error of the user's is followed by the
next one, which goes on from the journal and the newest checkpoint, with hosts of a new run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from typing_extensions import override

from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.protocol.batch_messages import Assignment, Command
from partita.engine.protocol.commands import POINT, Iterated
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    AppendJournal,
    Commit,
    CoordinatorEffect,
    EndRun,
    Progress,
    Restart,
    RunSettings,
)
from partita.engine.protocol.evaluation_mode import EvaluationMode
from partita.engine.protocol.messages import Message
from partita.engine.protocol.names import part_indices, shard_index
from partita.engine.protocol.views import Outline
from partita.engine.testing import faults
from partita.engine.testing.disk import File
from partita.engine.testing.elastic import draw_least, leaving
from partita.engine.testing.invariants import require
from partita.engine.testing.layout import Layout
from partita.engine.testing.log import LogFolder
from partita.engine.testing.sandblaster.function import Function
from partita.engine.testing.sandblaster.invariants import RunInvariants, SandblasterInvariants
from partita.engine.testing.sandblaster.reference import Reference, layout_start
from partita.engine.testing.sandblaster.scenario import Scenario, draw
from partita.engine.testing.schedule import Build, CoordinatorHost, Schedule
from partita.engine.testing.user import StopModel, draw_user
from partita.engine.testing.vectors import Vector
from partita.engine.testing.world import Process, World


class SandblasterCoordinatorHost(CoordinatorHost):
    """A coordinator, which begins from the run's folder, and keeps the journal.

    Attributes:
        invariants: of its run.
        start: the checkpoint that its run began with; None: the start of the method.
        logs: of its shards; none where nobody keeps records there.
    """

    schedule: SandblasterSchedule

    def __init__(self, schedule: SandblasterSchedule, *, run: int) -> None:
        super().__init__(schedule, incarnation=run)
        scenario, disk = schedule.scenario, schedule.disk
        self.invariants = RunInvariants(schedule.invariants, self.writers)
        self.start = disk.newest()
        stops = schedule.stops
        if run:
            checkpoint = None if self.start is None else self.start.checkpoint
            stops.resumes(checkpoint, schedule.iterations(self.start))
        sizes = schedule.layout.sizes if schedule.durability == "log" else ()
        self.logs = {name: LogFolder() for name in sizes}
        self.machine = leaving(schedule.kind(Coordinator), schedule.least)(
            stops.pacing.around(lambda run: scenario.begin(), works=False, replicas=1),
            Outline(0, scenario.portions.examples, 1, schedule.environment.topology.replicas),
            schedule.kind(EvaluationMode)(
                unit_size=scenario.unit_size,
                position=0 if self.start is None else self.start.position or 0,
                backups=scenario.backups,
            ),
            schedule.environment.topology,
            journal=list(disk.journal),
            settings=RunSettings(
                next_checkpoint=disk.next_checkpoint(),
                timeouts=schedule.timeouts(),
                least=schedule.least,
                keeps_records=schedule.durability != "checkpoint",
                validated=stops.validated,
            ),
        )
        self._left: int | None = None  # effects until it crashes

    def crash(self) -> None:
        """Ends the process at once, or in the middle of what it does next."""
        if self.world.random.random() < 0.4:
            self.exit()
        else:
            self._left = self.world.random.randrange(12)

    def perform(self, effect: CoordinatorEffect) -> None:
        """Carries out one effect, unless the process crashes before."""
        if self._left == 0:
            self.world.note(self, "crashes before", effect)
            self.exit()
            return
        if self._left is not None:
            self._left -= 1
        match effect:
            case Restart(hosts=hosts, from_backup=from_backup):
                started = any(shard_index(name) is not None and incarnation for name, incarnation in hosts)
                if started and not from_backup and not self.logs:
                    self.invariants.goes_back = True
                super().perform(effect)
            case AppendJournal():
                self.schedule.invariants.records(effect)
                self.schedule.disk.append(effect.digest, effect.scalars)
            case Progress(step=iteration, values=values, note=note):
                loss, norm, step = (values[name] for name in ("loss", "gradient_norm", "step"))
                iterated = Iterated(iteration, loss, norm, step, int(values["evaluations"]), note)
                self.schedule.invariants.advances(iterated)
            case _:
                super().perform(effect)

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Sends a message, and checks an order."""
        if isinstance(message, Command):
            self.invariants.commands_shard(message)
        elif isinstance(message, Assignment):
            indices = part_indices(to)
            assert indices is not None
            self.invariants.assigns(indices[0], self.current[to], message)
        super().send(to, message, payload)

    def start_of(self, shard: str, checkpoint: int | None) -> File | None:
        """A shard's file of a committed checkpoint; None: the one with which the run began, if any."""
        if checkpoint is None and self.start is not None:
            checkpoint = self.start.checkpoint
        return None if checkpoint is None else self.schedule.disk.committed(shard, checkpoint)


class SandblasterSchedule(Schedule):
    """Everything that the hosts of a scenario share."""

    coordinator: SandblasterCoordinatorHost
    coordinator_may_end = True
    kinds = (*faults.KINDS, faults.CRASH_THE_COORDINATOR, faults.CRASH_THE_COORDINATOR)

    def __init__(
        self,
        driver: Sandblaster | None,
        seed: int,
        world: World,
        machines: Iterable[type],
        scenario: Scenario | None,
        *,
        part: Build,
        shard: Build,
        hostile: bool = False,
        durability: str = "checkpoint",
    ) -> None:
        is_drawn = scenario is None
        self.scenario = scenario = scenario or draw(world.random, driver)
        self.durability, environment = durability, scenario.environment
        if durability == "replicated":
            environment = replace(environment, topology=replace(environment.topology, replicated=True))
        super().__init__(world, environment, machines, part=part, shard=shard, hostile=hostile)
        self.sync_s = 0.0
        if durability == "log":
            self.sync_s = world.beside.choice((0.0, 0.1, 0.5, 2.0))
            self.power_losses = (0, 1, 1, 2, 3)
        self.layout = Layout(scenario.machines, self.environment.topology)
        self.least = draw_least(seed, driver, self.environment.topology.replicas)
        self.function = Function(world.random, scenario.machines, scenario.portions)
        reference = Reference(scenario.begin, self.function, self.layout, unit_size=scenario.unit_size)
        self.invariants = SandblasterInvariants(
            reference,
            self.function,
            self.layout,
            self.disk,
            unit_size=scenario.unit_size,
        )
        self.start = layout_start(self.function, self.layout)
        if is_drawn:
            user = draw_user(seed, steps=4, chaos_s=self.environment.chaos_s, has_rate=False)
            self.stops = StopModel(self, user, has_rate=False)
        self.coordinator = SandblasterCoordinatorHost(self, run=0)

    @override
    def lost_power(self, computer: int) -> None:
        """Takes from the logs on a computer what was not synced."""
        for name, log in self.coordinator.logs.items():
            if faults.computer_of(name, self.computers) == computer:
                log.lose_power(self.world.beside)

    def exited(self, process: Process) -> None:
        """Handles the end of a process; a coordinator is followed by another one."""
        super().exited(process)
        if process is self.coordinator and not self.world.over:
            self.follow(
                self._resume, restart_s=self.scenario.restart_s, loses_power=self.scenario.loses_power
            )

    def end(self, order: EndRun | AbortRun) -> None:
        """Ends the run. One that the user has stopped goes on, and so does one that an error of the user's
        has ended, once it is mended.
        """
        if isinstance(order, EndRun) and order.complete and not self._ends_early(order):
            super().end(order)
            return
        if isinstance(order, EndRun):
            require(order.complete or self.stopped, "I8", "the run ended early", order)
        else:
            self.check_failure(order)
            self.mended = True
        self.world.note(self.coordinator, type(order).__name__, order)
        self.coordinator.exit()

    def _ends_early(self, order: EndRun) -> bool:
        """Returns whether callbacks or a limit have ended the run behind an iteration (E4)."""
        if order.outcome == self.invariants.reference.outcome:
            require(not self.stops.reason, "E4", order, "and the callbacks ended it:", self.stops.reason)
            return False
        newest, (iterations,) = self.disk.newest(), order.steps
        reported = [one.iteration for one in self.invariants.reference.iterations]
        most = self.stops.pacing.most or 0
        first = next((one for one in reported if one >= most), 0)
        self.stops.require_end(iterations, limit=first)
        held = 0 if newest is None else newest.position
        recorded = len(self.disk.journal)
        require(held == recorded, "E4", "the last checkpoint holds", held, "of", recorded, "requests")
        return True

    @override
    def agreed_parameters(self, machine: int) -> Vector:
        state = self.invariants.reference.states[len(self.disk.journal)]
        found: Vector = ()
        for shard, _, _ in self.layout.of_machine[machine]:
            start, stop = self.layout.of_shard[shard][machine]
            found += state[shard][POINT][start:stop]
        return found

    @override
    def check_stop(self, at: int) -> None:
        """Requires that the journal ends where the method reports this iteration."""
        reference, n = self.invariants.reference, len(self.disk.journal)
        both = zip(reference.iterations, reference.behind, strict=True)
        done = [one.iteration for one, requests in both if requests == n]
        require(at in done, "E3", n, "requests are done at the stop", at, "and end iterations", done)

    @override
    def position_of(self, order: Commit) -> int:
        return order.steps[0]

    def iterations(self, start: Commit | None) -> int:
        """The iterations that a run goes on from, by the answers in its journal."""
        return 0 if start is None else self.position_of(start)

    def _resume(self, _: object) -> None:
        """Starts the next coordinator from what is on disk, and nothing else (I10)."""
        self.invariants.resumes()
        self.coordinator = SandblasterCoordinatorHost(self, run=self.coordinator.incarnation + 1)
        self.world.note(self.coordinator, "resumes after", len(self.disk.journal))
        self.coordinator.begin()

    def check_commit(self, order: Commit) -> None:
        """Requires that a checkpoint holds what the journal says that it does."""
        self.invariants.commits(order)

    def check_end(self, ending: EndRun) -> None:
        """Requires that the method has ended as it does without faults."""
        self.invariants.ends(ending)
