"""One schedule of a driver's programs: its replicas, steps and numbers, and the checks of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from typing_extensions import override

from partita.engine.drivers.loss_scale import LossScale
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    EndRun,
    RunSettings,
    Timeouts,
)
from partita.engine.protocol.exchange.group import CHUNK_BYTES
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.messages import Message
from partita.engine.protocol.names import Topology, machine_of, part_indices, part_name
from partita.engine.protocol.program_effects import SharedSpan
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.replica_messages import View
from partita.engine.protocol.views import JoinedBatches, Outline
from partita.engine.testing.invariants import require
from partita.engine.testing.program.lockstep import State, step_of
from partita.engine.testing.program.model import ProgramModel
from partita.engine.testing.program.regression import Regression, start_of
from partita.engine.testing.scenario import Environment, draw_environment, small_count
from partita.engine.testing.schedule import Build, CoordinatorHost, Schedule
from partita.engine.testing.user import StopModel, User, draw_user
from partita.engine.testing.world import World
from partita.engine.transport.simulated import NetworkFaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule's draw. Times in seconds of virtual time.

    Attributes:
        environment: the draw that all drivers share.
        own, shared: how many numbers each machine has for itself, and how many all machines share.
        examples, batch, epochs: of the run.
        computers: on which replicas run, in turns; 0: nothing is known of that.
        step_s: the longest step of a part; that of the first replica takes `straggler` times as long.
    """

    environment: Environment
    own: tuple[int, ...]
    shared: int
    examples: int
    batch: int
    epochs: int
    computers: int
    step_s: float
    straggler: float


def draw(random: Random, replicas: int | None) -> Scenario:
    """The scenario of a seed, with as many replicas as the driver has."""
    topology = Topology(replicas or random.choice((1, 2, 2, 3, 4)), small_count(random), 0)
    batch, epochs = random.choice((1, 2, 3)), random.choice((1, 1, 2))
    joined = batch * topology.replicas
    return Scenario(
        environment=draw_environment(random, topology),
        own=tuple(random.choice((1, 2, 3, 5, 0) if n else (2, 3, 5)) for n in range(topology.machines)),
        shared=random.choice((0, 0, 2)),
        examples=random.randint(1, 8) * joined - random.randrange(joined),
        batch=batch,
        epochs=epochs,
        computers=random.choice((0, 1, 2)),
        step_s=random.choice((0.2, 0.6, 1.2)),
        straggler=random.choice((1.0, 1.0, 1.0, 4.0)),
    )


def calmed(environment: Environment) -> Environment:
    """An environment in which nothing happens by itself."""
    network = NetworkFaults(delay_s=environment.network.delay_s)
    return replace(environment, faults=0, network=network, stall_s=1e6, raising=None, stop_at=None)


def shared_spans(own: tuple[int, ...], shared: int) -> list[tuple[SharedSpan, ...]]:
    """The ranges of each machine: its own numbers, then those that all machines have."""
    everyone = tuple(range(len(own)))
    found: list[tuple[SharedSpan, ...]] = []
    for machine, n in enumerate(own):
        spans = [SharedSpan(machine, 0, n, (machine,))] if n else []
        if shared:
            spans.append(SharedSpan(len(own), n, n + shared, everyone))
        found.append(tuple(spans))
    return found


class ProgramCoordinatorHost(CoordinatorHost):
    """A coordinator whose views are looked at."""

    schedule: ProgramSchedule

    def send(self, to: str, message: Message, payload: object = None) -> None:
        """Sends a message; a view is checked before."""
        if isinstance(message, View):
            self.schedule.goes_on(message)
            self.schedule.requires_scale(message)
            self.schedule.model.publishes(message, self.current, machine=machine_of(to))
        super().send(to, message, payload)


class ProgramSchedule(Schedule):
    """Everything that the hosts of a seed share.

    Attributes:
        batches: of the run.
        item_bytes: of a number, as far as the parts know: some seeds exchange pieces of one or two numbers.
        function: that the driver minimises.
        model: checks every event.
    """

    coordinator: ProgramCoordinatorHost
    kinds = (
        "crash",
        "crash",
        "crash and its successor",
        "freeze",
        "split",
        "one way",
        "pause the coordinator",
    )

    def __init__(
        self,
        driver: Any,
        seed: int,
        machines: Iterable[type],
        *,
        part: Build,
        hostile: bool = False,
        keep_all: bool = False,
        agreed: tuple[str, ...] = (),
    ) -> None:
        """Draws the scenario; `part` builds the task of a part. For `agreed` see `play_programs`."""
        self.agreed = agreed
        world = World(seed, keep_all=keep_all)
        self._left = 0  # steps of a state that was whole when most parts crashed
        self.driver = driver
        division = getattr(driver, "division", None)
        self._crashes = Random(-6 - seed)
        self._crashes_most, calm = self._crashes.random() < 0.2, self._crashes.random() < 0.5
        scenario = self.draw_scenario(world.random, driver.replicas)
        if self._crashes_most and calm:
            scenario = replace(scenario, environment=calmed(scenario.environment))
        if division is not None:
            most = max(scenario.examples, 2 * division.pieces)
            scenario = replace(scenario, examples=most, shared=0, epochs=3 * scenario.epochs, step_s=0.1)
        self.scenario = scenario
        super().__init__(world, scenario.environment, machines, part=part, hostile=hostile)
        topology = self.environment.topology
        batch = scenario.batch if division is None else scenario.examples
        self.batches = JoinedBatches(scenario.examples, batch, minibatch=scenario.batch)
        self.function = Regression(world.random, scenario.own, scenario.shared, scenario.examples)
        self.function.has_momentum = division is None
        self.spans = shared_spans(scenario.own, scenario.shared)
        everyone, size = tuple(range(topology.machines)), self.function.norms(topology.replicas)
        self.norms = SharedSpan(topology.machines + bool(scenario.shared), 0, size, everyone)
        # Drawn beside the scenario, which other seeds keep.
        self.item_bytes = Random(-3 - seed).choice((4, 4, 4, CHUNK_BYTES // 2, CHUNK_BYTES))
        self.coordinator = ProgramCoordinatorHost(self)
        replicas = topology.replicas
        steps = scenario.epochs * -(-scenario.examples // scenario.batch)
        if division is None:  # a round of clients is one step, which no stop is within
            self.stops = StopModel(self, self.draw_user(seed, steps))
        self._scales: dict[int, float] = {}  # by view
        self.loss_scales: dict[int, ScaleState | None] = {}  # by checkpoint
        self._expected_scales: list[ScaleState] = []  # by step
        self.model = ProgramModel(
            self._start,
            self.function.places,
            batches=self.batches,
            next_states=self._next_states,
            backup_workers=getattr(driver, "backup_workers", 0),
            writers=self.coordinator.writers,
            rounds=division is not None,
            loss_scale=self._loss_scale_at,
        )
        self.coordinator.machine = self.kind(Coordinator)(
            self.stops.pacing.around(driver.coordinator, works=True, replicas=replicas),
            Outline(scenario.epochs, scenario.examples, batch, topology.replicas),
            self.kind(JoinedMode)(
                sharded=getattr(driver, "is_sharded", False), groups=getattr(driver, "groups", 1)
            ),
            topology,
            settings=RunSettings(timeouts=self.timeouts(), least=self.least),
        )

    def draw_scenario(self, random: Random, replicas: int | None) -> Scenario:
        """Returns the scenario of the seed."""
        return draw(random, replicas)

    def draw_user(self, seed: int, steps: int) -> User:
        """Returns the user of the seed, in a run of so many steps."""
        return draw_user(seed, steps=steps, chaos_s=self.environment.chaos_s)

    @override
    def _plan(self) -> None:
        """Adds to the faults, in some seeds, one that leaves a whole state at most."""
        super()._plan()
        if self._crashes_most:
            time = self._crashes.uniform(0.5, self.environment.chaos_s)
            self.world.at(time, None, self._crash_most, self._crashes)

    def _crash_most(self, random: Random) -> None:
        """Crashes all parts at once, but for one of each machine: of one replica, or of several."""
        topology, current = self.environment.topology, self.coordinator.current
        one, mixed = random.randrange(topology.replicas), random.random() < 0.5
        survivors = {
            part_name(random.randrange(topology.replicas) if mixed else one, machine)
            for machine in range(topology.machines)
        }
        for name in (name for r in range(topology.replicas) for name in topology.parts(r)):
            if name not in survivors:
                for process in self.world.living(name):
                    self.world.note(process, "crashes", "with others")
                    process.exit()
        is_calm = self.environment == calmed(self.environment) and self.hostility is None
        if self.least is None and is_calm:
            left = self.model.whole((name, current.get(name, 0)) for name in survivors)
            is_over = self.model.positions.get(left) == self.scenario.epochs * self.scenario.examples
            self._left = 0 if is_over else left  # parts whose work is done may end at any time

    def goes_on(self, view: View) -> None:
        """Requires that what is left when most parts have crashed at once is what the run goes on from."""
        left, self._left = self._left, 0
        sharded = getattr(self.driver, "is_sharded", False)
        require(sharded or view.step >= left, "V5", view, "goes back from step", left, "which was whole")

    def requires_scale(self, view: View) -> None:
        """Requires that a view has the factor of the learning rate that was set last when it was published,
        for all its parts (L1).
        """
        scale = self._scales.setdefault(view.number, self.stops.scale)
        require(view.scale == scale, "L1", view, "has not the factor", scale)

    def _loss_scale_at(self, step: int) -> ScaleState | None:
        """The loss scale of a step by the driver's rule: whether gradients overflow follows from the step."""
        settings: LossScale | None = getattr(self.driver, "loss_scale", None)
        if settings is None:
            return None
        known = self._expected_scales
        while len(known) <= step:
            last = known[-1] if known else None
            if last is None:
                known.append(ScaleState(settings.start))
            elif self.function.overflows(len(known) - 1, last.scale):
                known.append(ScaleState(max(last.scale / 2, settings.least), 0, last.skipped + 1))
            elif last.good + 1 < settings.double_after:
                known.append(ScaleState(last.scale, last.good + 1, last.skipped))
            else:
                known.append(ScaleState(min(2 * last.scale, settings.most), 0, last.skipped))
        return known[step]

    @override
    def agreed_parameters(self, machine: int) -> Sequence[float] | None:
        model = self.model
        return None if model.apart else model.state(max(model.positions))[machine][0]

    @override
    def check_stop(self, at: int) -> None:
        """Requires that the examples before a stop are done, and none behind it but the rest of a step."""
        done = self.model.positions[max(self.model.positions)]
        joined = self.scenario.batch * self.environment.topology.replicas
        require(at <= done < at + joined, "E3", "the run is at", done, "and stops at", at)

    @override
    def position_of(self, order: Commit) -> int:
        return Ranges(order.done).size

    @property
    def least(self) -> int | None:
        """With how many replicas the run goes on; None: with all of them."""
        elastic: tuple[int, int] | None = getattr(self.driver, "elastic", None)
        return None if elastic is None else elastic[0]

    @override
    def timeouts(self) -> Timeouts:
        timeouts = super().timeouts()
        return timeouts if self.least is None else replace(timeouts, deaths=2, wave_s=3.0)

    @override
    def check_failure(self, ending: AbortRun) -> None:
        if self.least is None or "times without getting any further" not in ending.reason:
            super().check_failure(ending)

    @property
    def _start(self) -> State:
        return tuple(start_of(self.driver, vector) for vector in self.function.start)

    def _next_states(self, view: View, state: State) -> list[State]:
        """The states after a step: one, unless a sum leaves out the member that comes last.

        Where norms join several sums, and each leaves out a member of its own, nothing is compared.
        """
        members = len(view.members) * len(state)
        late = range(members) if getattr(self.driver, "backup_workers", 0) else ()
        normed = getattr(getattr(self.driver, "optimizer", None), "needs_norms", False)
        if late and normed and self.norms.index > 1:
            return []
        return [
            step_of(self.driver, self.function, self.batches, self.spans, view, state, without=n)
            for n in (None, *late)
        ]

    def slowness(self, replica: int) -> float:
        """By which factor a replica's steps take longer."""
        return self.scenario.straggler if replica == 0 else 1.0

    def state_of(self, machine: int, checkpoint: int | None) -> tuple[int, tuple[Any, ...]]:
        """The steps and the state of a machine in a committed checkpoint; None: at the start."""
        if checkpoint is None:
            return 0, self._start[machine]
        whole: dict[int, Any] = {}
        places, step = self.function.places, 0
        for entry in self.disk.manifests[checkpoint].entries:
            file = self.disk.committed(entry.shard, checkpoint)
            whole |= {places[_machine(entry)][i]: numbers for i, numbers in file.contents.items()}
            step = file.version
        return step, tuple(zip(*(whole[place] for place in places[machine]), strict=True)) or ((),) * len(
            self._start[machine]
        )

    def _position_of_end(self) -> int:
        """The examples that a complete run has done, which callbacks or a limit may have ended."""
        whole, most = self.scenario.epochs * self.scenario.examples, self.stops.pacing.most
        replicas = self.environment.topology.replicas
        limit = whole if most is None else self.batches.position(0, -(-most // replicas), replicas)
        at = self.stops.validated if self.stops.reason else min(limit, whole)
        done = self.model.positions[max(self.model.positions)]
        joined = self.scenario.batch * replicas
        return done if at <= done < min(at + joined, whole + 1) else at  # the rest of a step

    @override
    def place(self, name: str) -> str:
        replica, _ = part_indices(name) or (0, 0)
        return f"computer {replica % self.scenario.computers}" if self.scenario.computers else ""

    @override
    def files_of(self, order: Commit) -> tuple[str, ...]:
        """The parts of some replicas, each whole."""
        replicas = dict.fromkeys(int(entry.shard.split()[1].split(".")[0]) for entry in order.entries)
        return tuple(name for replica in replicas for name in self.environment.topology.parts(replica))

    @override
    def check_commit(self, order: Commit) -> None:
        """Requires that the files hold one state, and all of it (I5)."""
        steps = {entry.version for entry in order.entries}
        require(len(steps) == 1, "I5", order, "holds states after different steps", steps)
        files = [(_machine(entry), self.disk.files[entry.file].contents) for entry in order.entries]
        self.model.commits(steps.pop(), files)

    @override
    def check_end(self, ending: EndRun) -> None:
        """Requires that all examples were done, and that the last checkpoint holds the result."""
        if not ending.complete:
            require(self.stopped, "I8", "the run ended early", ending)
            return
        self.model.ends(self._position_of_end())
        require(ending.checkpoint is not None, "I2", "the run ended without a last checkpoint")
        assert ending.checkpoint is not None
        held = self.disk.manifests[ending.checkpoint].entries[0].version
        last = max(self.model.positions)
        require(held == last, "I2", "the last checkpoint holds step", held, "of", last)


def _machine(entry: Any) -> int:
    indices = part_indices(entry.shard)
    assert indices is not None, entry
    return indices[1]
