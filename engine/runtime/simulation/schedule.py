"""One schedule: a seed's scenario played with the real machines, and judged after every event.

It interprets the coordinator's effects (launching simulated processes instead of real ones) and ends when the
run does, or when it should have.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.membership import Pace
from partita.engine.protocol.messages import Heartbeat, decode
from partita.engine.protocol.names import COORDINATOR, part_name, shard_index
from partita.engine.protocol.orders import (
    Commit,
    CoordinatorEffect,
    CoordinatorEvent,
    Done,
    Fail,
    Launched,
    Opened,
    Patience,
    Progress,
    Restart,
    StopRequested,
    Warn,
)
from partita.engine.runtime.simulation import accidents
from partita.engine.runtime.simulation.hosts import HEARTBEAT_S, File, Host, Layout, Machines
from partita.engine.runtime.simulation.ledger import Ledger, Violation, demand
from partita.engine.runtime.simulation.part import PartHost
from partita.engine.runtime.simulation.scenario import Scenario, draw
from partita.engine.runtime.simulation.shard import ShardHost
from partita.engine.runtime.simulation.world import Delivery, Process, World
from partita.engine.transport.simulated import SimulatedNetwork

COORDINATOR_TICK_S = 0.7
CONVERGENCE_S = 120.0
"""Within this long after everything has healed a run must end (I8)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a schedule ended. `violation` is None when every invariant held; `story` is then told on demand."""

    seed: int
    violation: str | None
    ending: str
    events: int
    virtual_s: float
    story: tuple[str, ...]


class CoordinatorHost(Process):
    """The user's process: interprets the coordinator's effects."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        super().__init__(world, COORDINATOR, 0)
        scenario = schedule.scenario
        self.schedule = schedule
        self.machine = schedule.machines.coordinator(
            scenario.topology,
            steps=scenario.steps,
            done=scenario.done,
            patience=Patience(
                pace=Pace(heartbeat_s=HEARTBEAT_S),
                checkpoint_every_s=scenario.checkpoint_every_s,
                stall_s=scenario.stall_s,
                deaths=50,
            ),
        )
        self.current: dict[str, int] = {}

    def resolve(self, name: str) -> Process | None:
        """The newest process that it had launched."""
        return self.world.processes.get((name, self.current.get(name, -1)))

    def on_tick(self, _: object = None) -> None:
        """Time passes."""
        self.later(COORDINATOR_TICK_S, self.on_tick)
        self.on_event(Tick())

    def on_message(self, delivery: Delivery) -> None:
        """A message of a host."""
        sender, incarnation, data, payload = delivery
        message = decode(data)
        self._do(Received(sender, incarnation, message, payload))
        if type(message) is not Heartbeat:  # a third of all events, and the next tick validates them too
            self.machine.validate()

    def on_event(self, event: CoordinatorEvent) -> None:
        """Any other event."""
        self._do(event)
        self.machine.validate()

    def _do(self, event: CoordinatorEvent) -> None:
        for effect in self.machine.receive(event, self.clock):
            self._carry_out(effect)

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Send(to=to, message=message):
                self.send(to, message)
            case Restart():
                self._restart(effect)
            case Commit():
                self.schedule.commit(effect)
            case Done() | Fail():
                self.schedule.end(effect)
            case Warn() | Progress():
                self.world.note(self, type(effect).__name__, effect)

    def _restart(self, order: Restart) -> None:
        schedule, random = self.schedule, self.world.random
        self.world.note(self, "Restart", order)
        for name, incarnation in order.hosts:
            old = self.world.processes.get((name, incarnation - 1))
            if old is not None and schedule.scenario.can_kill:
                old.exit()
            schedule.ledger.replaced(name, incarnation)
            self.current[name] = incarnation
            kind = ShardHost if shard_index(name) is not None else PartHost
            self.world.at(
                self.world.now + 0.3 * random.random(),
                None,
                schedule.launch,
                (kind, name, incarnation, order.checkpoint),
            )
            self.later(0.0, self.on_event, Launched(name, incarnation))


class Schedule:
    """The setting of one seed."""

    def __init__(self, seed: int, machines: Machines, *, keep_all: bool = False) -> None:
        self.world = World(seed, keep_all=keep_all)
        self.keep_all = keep_all
        self.seed = seed
        self.machines = machines
        self.scenario: Scenario = draw(self.world.random)
        self.layout = Layout(self.scenario.topology)
        self.ledger = Ledger(self.layout.sizes.items())
        self.disk: dict[str, File] = {}
        self.manifests: dict[int, dict[str, str]] = {}
        self.ending: Done | Fail | None = None
        self._meetings: dict[tuple[int, int, int], list[Host]] = {}
        self._raises_left = self.scenario.raising[1] if self.scenario.raising else 0
        self.world.network = SimulatedNetwork(self.world.random, self.scenario.network)
        self.world.when_exited = self._exited
        self.coordinator = CoordinatorHost(self.world, self)
        self.world.processes[COORDINATOR, 0] = self.coordinator

    def play(self) -> Outcome:
        """From the first event to the last, or to the first violation."""
        world, scenario = self.world, self.scenario
        self._plan()
        violation = None
        try:
            if not world.run(until=scenario.chaos_s + CONVERGENCE_S):
                waits = getattr(self.coordinator.machine, "waits_for", ())
                demand(False, "I8", f"no end within {CONVERGENCE_S:g} s after the chaos; waits for {waits}")
            self._judge()
        except AssertionError as error:
            kind = "" if isinstance(error, Violation) else "validate: "
            violation = f"{kind}{error}" or "validate: an assertion"
        ending = type(self.ending).__name__
        told = violation is not None or self.keep_all
        story = tuple(world.story()) if told else ()
        return Outcome(self.seed, violation, ending, world.events, world.now, story)

    def _plan(self) -> None:
        world, scenario, coordinator = self.world, self.scenario, self.coordinator
        world.at(0.0, coordinator, coordinator.on_event, Opened())
        world.at(0.0, coordinator, coordinator.on_tick, None)
        for _ in range(scenario.accidents):
            world.at(world.random.uniform(0.0, scenario.chaos_s), None, self._accident, None)
        world.at(scenario.chaos_s, None, self._heal, None)
        if scenario.stop_at is not None:
            world.at(scenario.stop_at, coordinator, coordinator.on_event, StopRequested())

    def _accident(self, _: object) -> None:
        accidents.happen(self.world)

    def _heal(self, _: object) -> None:
        accidents.heal(self.world)

    def launch(self, order: tuple[type[Host], str, int, int | None]) -> None:
        """A process starts, unless it has been replaced meanwhile."""
        kind, name, incarnation, checkpoint = order
        if self.coordinator.current[name] == incarnation or not self.scenario.can_kill:
            self.world.processes[name, incarnation] = kind(self.world, self, name, incarnation, checkpoint)

    def _exited(self, process: Process) -> None:
        awaited = (name for name, _, _ in self.coordinator.machine.waits_for)
        if self.scenario.sees_exits or process.name in awaited:  # before Ready, silence says nothing
            died = Died(process.name, process.incarnation, "its process ended")
            coordinator = self.coordinator
            self.world.at(
                self.world.now + 0.2 * self.world.random.random(), coordinator, coordinator.on_event, died
            )

    def raises(self, name: str) -> bool:
        """Whether the user's function raises in this host, this time."""
        if not self._raises_left or self.scenario.raising is None or name != self.scenario.raising[0]:
            return False
        self._raises_left -= 1
        return True

    def meet(self, part: Host, *, replica: int, step: int) -> list[Host]:
        """Everybody of the replica, once all of its processes of one life have done the step."""
        met = self._meetings.setdefault((replica, part.incarnation, step), [])
        met.append(part)
        return met if len(met) == self.scenario.topology.machines else []

    def commit(self, order: Commit) -> None:
        """Writes the manifest, of files that are there."""
        names = {entry.shard: entry.file for entry in order.entries}
        demand(tuple(names) == self.scenario.topology.shard_names, "I5", order, "is not whole")
        for entry in order.entries:
            file = self.disk.get(entry.file)
            demand(file is not None and file.version == entry.version, "I5", entry, "is not on disk")
            demand(self.coordinator.current[entry.shard] == entry.epoch, "I5", entry, "is of an old epoch")
        demand(order.checkpoint > max(self.manifests, default=0), "I5", order, "is not the newest")
        missed = sum(len(self.disk[file].lineage.missed) for file in names.values())
        demand(order.lost == missed, "I2", order, "says lost", order.lost, "and it is", missed)
        self.manifests[order.checkpoint] = names
        self.world.note(self.coordinator, "Commit", order)

    def committed_file(self, shard: str, checkpoint: int) -> File:
        """What the manifest says."""
        demand(checkpoint in self.manifests, "I5", "checkpoint", checkpoint, "was never committed")
        return self.disk[self.manifests[checkpoint][shard]]

    def end(self, order: Done | Fail) -> None:
        """The run is over."""
        self.world.note(self.coordinator, type(order).__name__, order)
        self.ending, self.world.over = order, True

    def _judge(self) -> None:
        """What must hold at the end."""
        scenario, ending = self.scenario, self.ending
        if isinstance(ending, Fail):
            raises = scenario.raising is not None and scenario.raising[1] >= 3
            told = raises and scenario.raising is not None and ending.traceback.endswith(scenario.raising[0])
            demand(told, "I8", "the run failed:", ending.reason)
            return
        assert ending is not None
        quiet = scenario.accidents == 0 and scenario.network.drop == 0.0 and scenario.stop_at is None
        raised = scenario.raising is not None and scenario.raising[1] >= 3 and self._raises_left == 0
        demand(not (quiet and raised), "I13", scenario.raising, "raised, and the run went on")
        stopped = scenario.stop_at is not None and self.world.now >= scenario.stop_at
        if not ending.complete:
            demand(stopped, "I8", "the run ended early", ending)
            return
        if all(done >= scenario.steps for done in scenario.done):
            return
        demand(ending.checkpoint is not None, "I2", "the run ended without a last checkpoint")
        assert ending.checkpoint is not None
        files = {shard: self.disk[name].lineage for shard, name in self.manifests[ending.checkpoint].items()}
        self.ledger.complete(files, self._parts(), steps=scenario.steps, lost=ending.lost)

    def _parts(self) -> dict[str, int]:
        """The processes that live and are heard at the end, of the parts that had work to do.

        What a dead process was acknowledged, and its shard lost too, nobody knows.
        """
        gone = self.coordinator.machine.gone
        topology, current, processes = self.scenario.topology, self.coordinator.current, self.world.processes
        names = [part_name(r, m) for r in range(topology.replicas) for m in range(topology.machines)]
        lives = [(name, current[name]) for name in names if name in current and name not in gone]
        return {life[0]: life[1] for life in lives if life in processes and processes[life].alive}


def play(seed: int, machines: Machines | None = None, *, keep_all: bool = False) -> Outcome:
    """Plays the schedule of a seed; the same seed gives the same outcome and the same story, in any process.

    Args:
        seed: any integer.
        machines: which machines to play; the real ones by default.
        keep_all: whether the story is the whole history, not the last events.
    """
    return Schedule(seed, machines or Machines(), keep_all=keep_all).play()
