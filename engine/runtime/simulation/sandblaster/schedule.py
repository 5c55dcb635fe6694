"""One schedule under Sandblaster: a method played by one coordinator after another, until it has ended.

A coordinator that crashes, that the user stops, or that ends with an error of the user's is followed by the
next one: it goes on from the journal and the newest checkpoint, with hosts of a new run.
"""

from __future__ import annotations

from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    EndRun,
    Opened,
)
from partita.engine.protocol.names import shard_index
from partita.engine.protocol.sandblaster_client import RunAssignment
from partita.engine.runtime.simulation import accidents
from partita.engine.runtime.simulation.hosts import Host, Layout, Run
from partita.engine.runtime.simulation.judgement import Life, Outcome, demand
from partita.engine.runtime.simulation.sandblaster.coordinator import SandblasterCoordinatorHost
from partita.engine.runtime.simulation.sandblaster.disk import Disk, File
from partita.engine.runtime.simulation.sandblaster.function import Function, Vector
from partita.engine.runtime.simulation.sandblaster.ledger import Ledger, RunLedger
from partita.engine.runtime.simulation.sandblaster.part import MEANINGLESS, PartHost
from partita.engine.runtime.simulation.sandblaster.reference import Reference, layout_start
from partita.engine.runtime.simulation.sandblaster.scenario import Scenario, draw
from partita.engine.runtime.simulation.sandblaster.setting import Machines
from partita.engine.runtime.simulation.sandblaster.shard import ShardHost
from partita.engine.runtime.simulation.schedule import Schedule
from partita.engine.runtime.simulation.world import Process


class SandblasterSchedule(Schedule):
    """The setting of one scenario."""

    coordinator: SandblasterCoordinatorHost
    kinds = (*accidents.KINDS, accidents.CRASH_THE_COORDINATOR, accidents.CRASH_THE_COORDINATOR)

    def __init__(
        self, seed: int, machines: Machines, *, scenario: Scenario | None = None, keep_all: bool = False
    ) -> None:
        super().__init__(seed, keep_all=keep_all)
        self.machines = machines
        self.scenario = scenario or draw(self.world.random)
        self.surround(self.scenario.around)
        scenario, topology = self.scenario, self.around.topology
        self.layout = Layout(scenario.machines, topology)
        self.function = Function(self.world.random, scenario.machines, scenario.portions)
        self.disk = Disk()
        reference = Reference(scenario.begin, self.function, self.layout, unit_size=scenario.unit_size)
        self.ledger = Ledger(reference, self.function, self.layout, self.disk, unit_size=scenario.unit_size)
        self._start = layout_start(self.function, self.layout)
        self._meetings: dict[tuple[int, int, int, int], list[PartHost]] = {}
        self.coordinator = SandblasterCoordinatorHost(self, run=0)

    def launch(self, run: Run, life: Life, checkpoint: int | None) -> Host:
        """The process of a shard or a part."""
        kind = ShardHost if shard_index(life[0]) is not None else PartHost
        return kind(self, run, life, checkpoint)

    def ledger_of(self, run: Run) -> RunLedger:
        """What is known of a run."""
        assert isinstance(run.coordinator, SandblasterCoordinatorHost)
        return run.coordinator.ledger

    def start_of(self, run: Run, shard: str, checkpoint: int | None) -> File:
        """What a shard holds in a committed checkpoint; None: in what the run began with."""
        assert isinstance(run.coordinator, SandblasterCoordinatorHost)
        began = run.coordinator.start
        if checkpoint is None:
            checkpoint = None if began is None else began.checkpoint
        if checkpoint is None:
            return File(self._start[shard], 0, "")
        demand(checkpoint in self.disk.manifests, "I5", "checkpoint", checkpoint, "was never committed")
        file = self.disk.read(shard, checkpoint)
        demand(file is not None, "I5", "the file of", shard, "in checkpoint", checkpoint, "was overwritten")
        assert file is not None
        return file

    # Turns.

    def meet(self, part: Process, assignment: RunAssignment) -> None:
        """A part begins a turn; when all parts of its replica do, they compute it."""
        assert isinstance(part, PartHost)
        key = (part.run.coordinator.incarnation, part.replica, part.incarnation, assignment.sequence)
        met = self._meetings.setdefault(key, [])
        met.append(part)
        if len(met) < self.around.topology.machines:
            return
        met.sort(key=lambda one: one.machine)
        self._find(met, assignment)
        scenario = self.scenario
        slowness = (scenario.slowness[part.replica :] or (1.0,))[0]
        wait_s = scenario.portion_s * assignment.count * slowness * (0.5 + 0.5 * self.world.random.random())
        for one in met:
            one.later(wait_s, one.on_computed)

    def _find(self, parts: list[PartHost], assignment: RunAssignment) -> None:
        """What each of them finds: nothing that means anything, unless all play the same."""
        assignments = [one.playing for one in parts]
        if any(one != assignment or assignment.discarded for one in assignments):
            for one in parts:
                one.found = ((MEANINGLESS,) * len(one.vectors["accumulated"]), MEANINGLESS, 1)
            return
        x: Vector = tuple([number for one in parts for number in one.vectors["parameters"]])
        gradients, losses, right = self.function.unit(x, assignment.first, assignment.count)
        for one in parts:
            one.found = (gradients[one.machine], losses[one.machine], right[one.machine])

    # Coordinators.

    def exited(self, process: Process) -> None:
        """A host's coordinator may see it; a coordinator's own end is followed by another one."""
        super().exited(process)
        if process is self.coordinator and not self.world.over:
            self._follow()

    def end(self, order: EndRun | AbortRun) -> None:
        """The run is over. One that a user has stopped goes on, and so does one that an error of the user's
        has ended, once it is mended.
        """
        if isinstance(order, EndRun) and order.complete:
            super().end(order)
            return
        if isinstance(order, EndRun):
            demand(self.stopped, "I8", "the run ended early", order)
        else:
            self.judge_failure(order)
            self.mended = True
        self.world.note(self.coordinator, type(order).__name__, order)
        self.coordinator.exit()

    def _follow(self) -> None:
        """Its hosts end with it where they can be reached; else some time later."""
        world, around = self.world, self.around
        for host in self.coordinator.run.hosts.values():
            assert isinstance(host, Host)
            if around.can_kill:
                host.exit()
            else:
                host.later(10.0 * world.random.random(), host.on_end)
        if self.scenario.loses_power:
            self.disk.lose_power()
        world.at(world.now + self.scenario.restart_s * world.random.random(), None, self._resume, None)

    def _resume(self, _: object) -> None:
        """With what is on disk, and nothing else (I10)."""
        self.ledger.resumes()
        coordinator = SandblasterCoordinatorHost(self, run=self.coordinator.incarnation + 1)
        self.coordinator = coordinator
        self.world.note(coordinator, "resumes after", len(self.disk.journal))
        self.world.at(self.world.now, coordinator, coordinator.on_event, Opened())
        self.world.at(self.world.now, coordinator, coordinator.on_tick, None)

    def judge(self, ending: EndRun) -> None:
        """The method has ended as it does without faults."""
        self.ledger.ends(ending)


def play(
    seed: int,
    machines: Machines | None = None,
    *,
    scenario: Scenario | None = None,
    keep_all: bool = False,
) -> Outcome:
    """Plays the schedule of a seed; the same seed gives the same outcome and the same story, in any process.

    Args:
        seed: any integer.
        machines: which machines to play; the real ones by default.
        scenario: what to play instead of what the seed stands for.
        keep_all: whether the story is the whole history, not the last events.
    """
    return SandblasterSchedule(seed, machines or Machines(), scenario=scenario, keep_all=keep_all).play()
