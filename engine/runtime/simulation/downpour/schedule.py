"""One schedule under Downpour: a run's hosts, its checkpoints, and what must hold at its end."""

from __future__ import annotations

from collections.abc import Sequence

from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    CoordinatorEffect,
    EndRun,
    Progress,
    Warn,
)
from partita.engine.protocol.downpour_coordinator import DownpourCoordinator
from partita.engine.protocol.names import part_name, shard_index
from partita.engine.runtime.simulation.coordinator import CoordinatorHost, timeouts
from partita.engine.runtime.simulation.downpour.ledger import Ledger
from partita.engine.runtime.simulation.downpour.part import PartHost
from partita.engine.runtime.simulation.downpour.scenario import NUMBERS_OF_A_MACHINE, draw
from partita.engine.runtime.simulation.downpour.setting import File, Machines, Noted
from partita.engine.runtime.simulation.downpour.shard import ShardHost
from partita.engine.runtime.simulation.hosts import Host, Layout, Run
from partita.engine.runtime.simulation.judgement import Life, Outcome, demand
from partita.engine.runtime.simulation.schedule import Schedule
from partita.engine.runtime.simulation.world import Process


class DownpourCoordinatorHost(CoordinatorHost):
    """Interprets the effects of a `DownpourCoordinator`."""

    machine: DownpourCoordinator

    def __init__(self, schedule: DownpourSchedule) -> None:
        around, scenario = schedule.around, schedule.scenario
        super().__init__(schedule.world, around, schedule.launch)
        self.schedule = schedule
        self.machine = schedule.machines.coordinator(
            around.topology, steps=scenario.steps, done=scenario.done, timeouts=timeouts(around)
        )

    def carry_out(self, effect: CoordinatorEffect) -> None:
        """Commits, ends, or says something."""
        match effect:
            case Commit():
                self.writes(effect.checkpoint, lambda: self.schedule.commit(effect))
            case EndRun() | AbortRun():
                self.schedule.end(effect)
            case Warn() | Progress():
                self.world.note(self, type(effect).__name__, effect)
            case _:
                raise AssertionError(effect)


class DownpourSchedule(Schedule):
    """The setting of one seed."""

    coordinator: DownpourCoordinatorHost

    def __init__(self, seed: int, machines: Machines, *, keep_all: bool = False) -> None:
        super().__init__(seed, keep_all=keep_all)
        self.machines = machines
        self.scenario = draw(self.world.random)
        self.surround(self.scenario.around)
        topology = self.around.topology
        self.layout = Layout([NUMBERS_OF_A_MACHINE] * topology.machines, topology)
        self.disk: dict[str, File] = {}
        self.noted = Noted()
        self.manifests: dict[int, dict[str, str]] = {}
        self._meetings: dict[tuple[int, int, int], list[Process]] = {}
        self.coordinator = DownpourCoordinatorHost(self)
        self.ledger = Ledger(self.layout.sizes.items(), self.coordinator.writers)

    def launch(self, run: Run, life: Life, checkpoint: int | None) -> Host:
        """The process of a shard or a part."""
        kind = ShardHost if shard_index(life[0]) is not None else PartHost
        return kind(self, run, life, checkpoint)

    def meet(self, part: Process, *, replica: int, step: int) -> Sequence[Process]:
        """Everybody of the replica, once all of its processes of one life have done the step."""
        met = self._meetings.setdefault((replica, part.incarnation, step), [])
        met.append(part)
        return met if len(met) == self.around.topology.machines else []

    def commit(self, order: Commit) -> None:
        """Writes the manifest, of files that are there."""
        names = {entry.shard: entry.file for entry in order.entries}
        demand(tuple(names) == self.around.topology.shard_names, "I5", order, "is not whole")
        for entry in order.entries:
            file = self.disk.get(entry.file)
            demand(file is not None and file.version == entry.version, "I5", entry, "is not on disk")
            demand(self.coordinator.current[entry.shard] == entry.epoch, "I5", entry, "is of an old epoch")
        demand(order.checkpoint > max(self.manifests, default=0), "I5", order, "is not the newest")
        files = {shard: self.disk[file].lineage for shard, file in names.items()}
        lost = self.ledger.lost(files)
        demand(order.lost <= lost, "I2", order, "says lost", order.lost, "and no more can be than", lost)
        self.manifests[order.checkpoint] = names
        self.world.note(self.coordinator, "Commit", order)

    def committed_file(self, shard: str, checkpoint: int) -> File:
        """What the manifest says."""
        demand(checkpoint in self.manifests, "I5", "checkpoint", checkpoint, "was never committed")
        return self.disk[self.manifests[checkpoint][shard]]

    def judge(self, ending: EndRun) -> None:
        """Every step was done, and nothing that was acknowledged is missing but what is counted."""
        if not ending.complete:
            demand(self.stopped, "I8", "the run ended early", ending)
            return
        if all(done >= self.scenario.steps for done in self.scenario.done):
            return
        demand(ending.checkpoint is not None, "I2", "the run ended without a last checkpoint")
        assert ending.checkpoint is not None
        files = {shard: self.disk[name].lineage for shard, name in self.manifests[ending.checkpoint].items()}
        self.ledger.complete(files, first=self._first(), steps=self.scenario.steps, lost=ending.lost)

    def _first(self) -> dict[tuple[str, str], int]:
        """For each part that had work to do and each of its shards, the step at which the run began."""
        scenario, topology = self.scenario, self.around.topology
        return {
            (part_name(replica, machine), shard): done
            for replica, done in enumerate(scenario.done)
            for machine in range(topology.machines)
            for shard, _, _ in self.layout.of_machine[machine]
            if done < scenario.steps
        }


def play(seed: int, machines: Machines | None = None, *, keep_all: bool = False) -> Outcome:
    """Plays the schedule of a seed; the same seed gives the same outcome and the same story, in any process.

    Args:
        seed: any integer.
        machines: which machines to play; the real ones by default.
        keep_all: whether the story is the whole history, not the last events.
    """
    return DownpourSchedule(seed, machines or Machines(), keep_all=keep_all).play()
