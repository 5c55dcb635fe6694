"""One schedule: a seed's scenario, played with real machines and checked after every event.

It ends when the run does, or when it should have. A driver's folder says what is played and checked. The
coordinator's process launches the hosts and carries out the effects that all coordinators have.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    Committed,
    CoordinatorEffect,
    CoordinatorEvent,
    EndHosts,
    EndRun,
    HostObserved,
    Launched,
    Misbehaved,
    NotCommitted,
    Opened,
    Progress,
    Restart,
    Starting,
    StopRequested,
    Timeouts,
    Validated,
    Warn,
)
from partita.engine.protocol.events import Died, Received, Refuse, Send, Tick
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.host_registry import HostState
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import decode
from partita.engine.protocol.names import COORDINATOR, part_indices
from partita.engine.protocol.permissions import rejection_reason
from partita.engine.testing import faults
from partita.engine.testing.disk import Disk
from partita.engine.testing.forging import Forged
from partita.engine.testing.host import TICK_S, Launcher, SimulatedBody, SimulatedHost
from partita.engine.testing.hostile import Delivery as ForgedDelivery
from partita.engine.testing.hostile import Hostility, WatchedHost
from partita.engine.testing.invariants import Outcome, ProcessId, Violation, Writers, require
from partita.engine.testing.layout import Layout
from partita.engine.testing.scenario import Environment
from partita.engine.testing.user import StopModel, User
from partita.engine.testing.world import Delivery, Process, World
from partita.engine.transport.simulated import SimulatedNetwork

HEARTBEAT_S: Final = 0.69
ANSWER_S: Final = 12.0
CHECK_EVERY: Final = 4
"""Messages with an effect, after which a coordinator is validated; it costs more than the message, and each
tick does it, too.
"""

CONVERGENCE_S: Final = 120.0
"""Within this long after everything has healed a run must end (I8)."""

Build: TypeAlias = Callable[[Any, SimulatedHost], tuple[RoleMachine, SimulatedBody]]
"""Builds the task of a host in a schedule."""

Part = TypeVar("Part")
Machine = TypeVar("Machine")


class CoordinatorHost(Launcher):
    """A coordinator's process, with a run of its own.

    Attributes:
        current: the newest incarnation of each host.
    """

    machine: Coordinator
    schedule: Schedule

    def __init__(self, schedule: Schedule, *, incarnation: int = 0) -> None:
        super().__init__(schedule.world, COORDINATOR, incarnation)
        self.schedule = schedule
        self.hosts = {}
        self.writers: Final = Writers()
        self.current: dict[str, int] = {}
        self._environment = schedule.environment
        self._unchecked = 0
        self._whole: set[str] = set()  # shards whose backups could take over before this event

    def begin(self) -> None:
        """Opens the inbox now, and starts the ticks."""
        self.world.at(self.world.now, self, self.on_event, Opened())
        self.world.at(self.world.now, self, self.on_tick, None)

    def resolve(self, name: str) -> Process | None:
        """The newest process that this coordinator launched."""
        return self.hosts.get((name, self.current.get(name, -1)))

    def on_tick(self, _: object = None) -> None:
        """Gives the machine a tick."""
        self.later(TICK_S, self.on_tick)
        self.on_event(Tick())

    def on_message(self, delivery: Delivery) -> None:
        """Gives the machine a host's message."""
        sender, incarnation, data, payload = delivery
        self._take(Received(sender, incarnation, decode(data), payload))

    def on_forged(self, delivery: ForgedDelivery) -> None:
        """Gives the machine a frame of a hostile member."""
        sender, incarnation, frame = delivery
        self._take(frame.arrived(sender, incarnation))

    def _take(self, received: Received) -> None:
        """Gives the machine what its sender may send, and says so where it may not."""
        name, incarnation, hostility = received.sender, received.incarnation, self.schedule.hostility
        reason = rejection_reason(
            received.message, sender=name, receiver=COORDINATOR, incarnation=incarnation
        )
        was_at_work = hostility is not None and hostility.is_at_work(self, (name, incarnation))
        effects = self._do(received if reason is None else Misbehaved(name, incarnation, reason))
        if hostility is not None and isinstance(received, Forged):
            hostility.handled(self, received, effects, was_at_work=was_at_work)
        if effects:
            self._unchecked += 1
            if self._unchecked % CHECK_EVERY == 0:
                self.machine.validate()

    def on_event(self, event: CoordinatorEvent) -> None:
        """Gives the machine any other event."""
        self._do(event)
        self.machine.validate()

    def host_exited(self, host: Process) -> None:
        """Notifies the machine, now and then, that one of its hosts has ended."""
        awaited = (name for name, _, _ in self.machine.waits_for)
        if self._environment.sees_exits or host.name in awaited:  # before Ready, silence says nothing
            died = Died(host.name, host.incarnation, "its process ended")
            self.later(0.2 * self.world.random.random(), self.on_event, died)

    def _do(self, event: CoordinatorEvent) -> Sequence[CoordinatorEffect]:
        """Carries out the effects of an event, and returns them."""
        registry = self.machine.registry
        ready = (one for one in registry.backups.values() if one.state is HostState.READY)
        whole = {one.shard for one in ready if one.is_whole and registry.hosts[one.shard].is_whole}
        self._whole = set() if isinstance(event, Tick) else whole  # at a tick both may be silent
        effects = self.machine.receive(event, self.clock)
        for effect in effects:
            if self.alive:
                self.perform(effect)
        return effects

    def perform(self, effect: CoordinatorEffect) -> None:
        """Carries out one effect, in its order."""
        match effect:
            case Send():
                self.send(effect.to, effect.message)
            case Restart():
                self._restart(effect)
            case EndHosts(hosts=names):
                self.world.note(self, "EndHosts", effect)
                self.schedule.left(names)
                for old in (self.resolve(name) for name in names if self._environment.can_kill):
                    if old is not None:
                        old.exit()
            case Commit():
                self._commit(effect)
            case Validated():
                self.schedule.stops.stops(self, effect)
            case EndRun() | AbortRun():
                self.schedule.end(effect)
            case Warn() | Progress():
                self.world.note(self, type(effect).__name__, effect)
            case Refuse():
                self.schedule.refused(self, effect)
            case Starting() | HostObserved():
                pass  # only to be shown
            case _:
                raise AssertionError(effect)

    def _restart(self, order: Restart) -> None:
        """Starts hosts again; a shard goes back to a file only without a backup (D3)."""
        back = [name for name, _ in order.hosts if name in self._whole and not order.from_backup]
        require(not back, "D3", back, "go back to a checkpoint, and their backups have all")
        self.world.note(self, "Restart", order)
        for name, incarnation in order.hosts:
            old = self.hosts.get((name, incarnation - 1))
            if old is not None and self._environment.can_kill:
                old.exit()
            self.writers.replaced(name, incarnation)
            self.current[name] = incarnation
            wait_s = self.schedule.launch_after_s(incarnation)
            self.later(wait_s, self.on_launch, ((name, incarnation), order))
            self.later(0.0, self.on_event, Launched(name, incarnation, machine=self.schedule.place(name)))

    def on_launch(self, ordered: tuple[ProcessId, Restart]) -> None:
        """Starts a process, unless it has been replaced meanwhile."""
        process, order = ordered
        if self.current[process[0]] == process[1] or not self._environment.can_kill:
            self.hosts[process] = self.schedule.launch(self, process, order)

    def _commit(self, order: Commit) -> None:
        """Writes a manifest, or fails to, and reports it later; between the two anything may happen."""
        self.schedule.stops.commits(order)
        full = self._environment.is_full(self.world.random, self.world.now)
        if not full:
            disk = self.schedule.disk
            disk.sync()  # a checkpoint without its journal would be good for nothing
            disk.require_whole(order, self.current, self.schedule.files_of(order))
            self.schedule.check_commit(order)
            disk.commit(order, self.incarnation)
            self.schedule.written(order)
            self.world.note(self, "Commit", order)
        answer = NotCommitted(order.checkpoint, "no space") if full else Committed(order.checkpoint)
        self.later(self._environment.write_s * self.world.random.random(), self.on_event, answer)


class Schedule(ABC):
    """One seed: everything that its hosts share.

    Attributes:
        world: its time and processes.
        environment: its faults.
        disk: the run's folder.
        layout: which host holds which numbers; a subclass sets it.
        coordinator: the newest coordinator's process; a subclass sets it.
        computers: that the hosts run on, whose power may fail.
        ending: the effect that ended the run.
        mended: whether the user's function raises no more.
        hostility: the hostile members; None: there are none.
        stops: validations and callbacks; a subclass sets what its seed draws.
    """

    coordinator: CoordinatorHost
    layout: Layout
    kinds: Sequence[str] = faults.KINDS
    coordinator_may_end = False
    power_losses: Sequence[int] = (0, 0, 0, 1, 1, 2)

    def __init__(
        self,
        world: World,
        environment: Environment,
        machines: Iterable[type] = (),
        *,
        part: Build | None = None,
        shard: Build | None = None,
        hostile: bool = False,
    ) -> None:
        """Sets up the network. `part` and `shard` build the driver's tasks; for the others see `play`."""
        self.world, self.environment = world, environment
        self._machines = tuple(machines)
        self.disk = Disk(world.beside)
        self.computers = world.beside.choice((1, 2, 2, 3))
        self.ending: EndRun | AbortRun | None = None
        self.mended = False
        self._part, self._shard = part, shard
        self._raises_left = environment.raising[1] if environment.raising else 0
        self._raised_at = 0.0
        self._meetings: dict[tuple[Any, ...], list[Any]] = {}
        self.stops = StopModel(self, User())
        self.hostility = Hostility(self, Random(world.beside.getrandbits(64))) if hostile else None
        world.network = SimulatedNetwork(world.random, environment.network)
        world.on_exit = self.exited

    def kind(self, real: type[Machine]) -> type[Machine]:
        """Returns the class that is played for a real one."""
        return next((one for one in self._machines if issubclass(one, real)), real)

    def launch(self, coordinator: CoordinatorHost, process: ProcessId, order: Restart) -> Process:
        """Makes the process of a shard, a backup or a part."""
        kind = SimulatedHost if self.hostility is None else WatchedHost
        host = kind(self, coordinator, process, order.checkpoint)
        host.from_backup = order.from_backup
        return host

    def launch_after_s(self, incarnation: int) -> float:
        """Returns the seconds until a process of this incarnation is there."""
        return 0.3 * self.world.random.random()

    def role(self, host: SimulatedHost) -> tuple[RoleMachine, SimulatedBody]:
        """Builds the task of a shard or a part."""
        build = self._shard if part_indices(host.name) is None else self._part
        assert build is not None
        return build(self, host)

    def refused(self, receiver: Process, effect: Refuse) -> None:
        """Handles that a host or the coordinator refuses a message: no correct process is ever refused."""
        if self.hostility is None or not self.hostility.is_hostile(effect.sender):
            raise Violation(f"S5: {receiver.name} refuses what {effect.sender} sent: {effect.reason}")

    def place(self, name: str) -> str:
        """A label of the computer that a host runs on; "": unknown."""
        return ""

    def files_of(self, order: Commit) -> Sequence[str]:
        """The hosts whose files a checkpoint must hold, in order."""
        return tuple(self.layout.sizes)

    def timeouts(self) -> Timeouts:
        """The coordinators' timeouts: hosts may die often."""
        return Timeouts(
            heartbeats=HeartbeatPolicy(heartbeat_s=HEARTBEAT_S),
            checkpoint_every_s=self.environment.checkpoint_every_s,
            stall_s=self.environment.stall_s,
            answer_s=ANSWER_S,
            deaths=50,
            wave_s=2.0,
            longest_wave_s=4.0,
        )

    def extend(self) -> None:
        """Gives a run time after a stop: there may be one after each step."""
        self.world.until = max(self.world.until, self.world.now + CONVERGENCE_S)

    def play(self, seed: int) -> Outcome:
        """Plays from the first event to the last, or to the first violation."""
        world = self.world
        self._plan()
        violation = None
        gc.disable()  # a schedule is small, and its objects live as long as it does
        try:
            if not world.run(until=self.environment.chaos_s + CONVERGENCE_S):
                waits = self.coordinator.machine.waits_for
                require(False, "I8", f"no end {CONVERGENCE_S:g} s after chaos or stop; waits for {waits}")
            if isinstance(self.ending, AbortRun):
                self.check_failure(self.ending)
            else:
                assert self.ending is not None
                self._check_raising()
                self.check_end(self.ending)
        except Violation as error:
            violation = str(error)
        except (AssertionError, LookupError, ValueError) as error:  # a machine's own, or of what it asks for
            violation = f"validate: {type(error).__name__} {error}"
        except RuntimeError as error:  # a driver's program does what no driver may
            violation = f"program: {error}"
        finally:
            gc.enable()
        keeps = violation is not None or world.history.maxlen is None
        trace = world.trace() if keeps else ()
        return Outcome(seed, violation, type(self.ending).__name__, world.events, world.now, trace)

    def _plan(self) -> None:
        world, environment = self.world, self.environment
        self.coordinator.begin()
        if self.hostility is not None:
            self.hostility.plan()
        for _ in range(environment.faults):
            world.at(world.random.uniform(0.0, environment.chaos_s), None, self._inject, None)
        for _ in range(world.beside.choice(self.power_losses) if environment.faults else 0):
            world.at(world.beside.uniform(0.0, environment.chaos_s), None, self._lose_power, None)
        world.at(environment.chaos_s, None, lambda _: faults.heal(world), None)
        self.stops.plan()
        if environment.stop_at is not None:
            world.at(environment.stop_at, None, self._stop, None)

    def _inject(self, _: object) -> None:
        faults.inject(self.world, self.kinds)

    def _lose_power(self, _: object) -> None:
        computer = faults.lose_power(self.world, self.computers, first=self.coordinator_may_end)
        self.lost_power(computer)
        if computer == 0:
            self.world.note(self.coordinator, "loses power", None)
            self.disk.lose_power()
            self.coordinator.exit()

    def lost_power(self, computer: int) -> None:  # noqa: B027 - nothing, where nothing else is on its disk
        """Handles that a computer's power has failed."""

    def damaged(self) -> None:  # noqa: B027
        """Handles that a bit of a checkpoint is another one, some time after it was written."""

    def written(self, order: Commit) -> None:  # noqa: B027
        """Handles that a manifest is on the disk, which the coordinator does not know yet."""

    def _stop(self, _: object) -> None:
        self.coordinator.later(0.0, self.coordinator.on_event, StopRequested())

    def exited(self, process: Process) -> None:
        """Handles the end of a process, which the coordinator of a host may see."""
        if self.coordinator.hosts.get((process.name, process.incarnation)) is process:
            self.coordinator.host_exited(process)

    def follow(
        self, resume: Callable[[object], None], *, restart_s: float, loses_power: bool = False
    ) -> None:
        """Ends a dead coordinator's hosts where they can be reached, else some time later, and resumes.

        Args:
            resume: starts the next coordinator.
            restart_s: the longest until then.
            loses_power: what was written and not synced is gone.
        """
        world = self.world
        for host in self.coordinator.hosts.values():
            if self.environment.can_kill:
                host.exit()
            else:
                host.later(10.0 * world.random.random(), host.exit)
        if loses_power:
            self.disk.lose_power()
        if world.beside.random() < 0.1:
            world.note(self.coordinator, "a bit is another one in", self.disk.damage())
            self.damaged()
        world.at(world.now + restart_s * world.random.random(), None, resume, None)

    def left(self, names: Sequence[str]) -> None:  # noqa: B027 - nothing, where nothing is shared
        """Handles that the parts of a replica have left the run."""

    def meet(self, part: Part, *key: int | str) -> list[Part]:
        """Registers a part at a meeting: all parts of its replica once the last has come, nobody before."""
        met = self._meetings.setdefault(key, [])
        met.append(part)
        return met if len(met) == self.environment.topology.machines else []

    def raises(self, name: str) -> bool:
        """Returns whether the user's function raises in this host, this time."""
        raising = self.environment.raising
        if self.mended or not self._raises_left or raising is None or name != raising[0]:
            return False
        self._raises_left -= 1
        self._raised_at = self.world.now
        return True

    def end(self, order: EndRun | AbortRun) -> None:
        """Ends the schedule with this outcome."""
        self.world.note(self.coordinator, type(order).__name__, order)
        self.ending, self.world.over = order, True

    @property
    def stopped(self) -> bool:
        """Returns whether the user has pressed Ctrl-C."""
        return self.environment.stop_at is not None and self.world.now >= self.environment.stop_at

    def check_failure(self, ending: AbortRun) -> None:
        """Requires that a run fails only when a user's function raises, and reports that (I13)."""
        raising = self.environment.raising
        reported = raising is not None and raising[1] >= 3 and ending.traceback.endswith(raising[0])
        require(reported and not self.mended, "I8", "the run failed:", ending.reason)

    def _check_raising(self) -> None:
        environment, network = self.environment, self.environment.network
        quiet = not (environment.faults or network.drop or self.coordinator.incarnation)
        quiet = quiet and environment.stop_at is None
        due = self.world.now > self._raised_at + (network.slow_s if network.slow else network.delay_s)
        raising = environment.raising
        raised = raising is not None and raising[1] >= 3 and self._raises_left == 0 and due
        require(self.mended or not (quiet and raised), "I13", raising, "raised, and the run went on")

    def agreed_parameters(self, machine: int) -> Sequence[float] | None:
        """The parameters of a machine that all replicas have now; None: each may have its own."""
        raise AssertionError(machine)

    @abstractmethod
    def check_stop(self, at: int) -> None:
        """Requires that the run has done what is before a stop, and nothing behind it (E3)."""

    @abstractmethod
    def position_of(self, order: Commit) -> int:
        """Examples, or iterations, that a checkpoint holds."""

    @abstractmethod
    def check_commit(self, order: Commit) -> None:
        """Checks what a whole checkpoint holds, before its manifest is written."""

    @abstractmethod
    def check_end(self, ending: EndRun) -> None:
        """Checks a run that did not fail."""
