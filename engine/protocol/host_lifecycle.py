"""The lifecycle of hosts: a coordinator starts them, notices that they fail, and ends them.

It must not know processes, sockets, files or time beyond `now`: `coordinator_effects.py` lists what it asks
of its interpreter, and `membership.py` decides who is alive. Lost messages are repeated: Hello by a host
until it has its task, Ready until it receives a heartbeat, the directory by the coordinator until it is
acknowledged.

Source: DistBelief, section 4 (the coordinator's role); supervision and restarts are ours.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Final

from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpoint_messages import LostPushes, Saved
from partita.engine.protocol.conduct import MOST_ACCUSED, Conduct
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    CoordinatorEffect,
    CoordinatorEvent,
    EndRun,
    Launched,
    Misbehaved,
    Opened,
    ProcessStarted,
    Restart,
    RunSettings,
    Starting,
    StopRequested,
    Warn,
)
from partita.engine.protocol.directories import Directories
from partita.engine.protocol.events import Died, Received, Refuse, Send, Span, Tick
from partita.engine.protocol.failure import bounded, sentence
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.membership import Membership, Recovered, Suspected
from partita.engine.protocol.names import FILES
from partita.engine.protocol.seats import Seats
from partita.engine.protocol.wait_graph import PROGRESS_MESSAGES, WaitGraph
from partita.engine.protocol.watch_messages import HostReport
from partita.engine.protocol.watching import Watching

_MOST_STUCK: Final = 2
"""Times that a host may have a computation that does not end."""

_FEW: Final = 3
"""Hosts that are named while they start."""

_FILE: Final = re.compile(r"(?!.*\.\.)\w[\w ./-]{0,200}", flags=re.ASCII)


class Phase(Enum):
    """The phases of a run."""

    LAUNCHING = "waiting for every host to be ready for the first time"
    RUNNING = "training"
    FINISHING = "the last checkpoint, after the last step"
    STOPPING = "the last checkpoint, after Ctrl-C"
    OVER = "done or failed"


class HostLifecycle(ABC):
    """The hosts of one run.

    Attributes:
        phase: the run's.
        seats: the replicas of which all parts are ready and at work.
    """

    def __init__(self, registry: HostRegistry, settings: RunSettings) -> None:
        self.phase = Phase.LAUNCHING
        self.registry: Final = registry
        self._settings: Final = settings
        self.timeouts: Final = settings.timeouts
        self._membership: Final = Membership(self.timeouts.heartbeats)
        self.directories: Final = Directories(registry, collective=not registry.shards)
        self.seats: Final = Seats()
        self._n_replicas: Final = len(registry.replicas)
        self.least: Final = min(settings.least or self._n_replicas, self._n_replicas)
        self.shards_revision = 0  # the first directory with the present shards
        self.waits: Final = WaitGraph()
        self._conduct: Final = Conduct()
        self._watching: Final = None if settings.watch is None else Watching(settings.watch)

    @property
    def waits_for(self) -> tuple[tuple[str, str, float], ...]:
        """(host, for what, since when in seconds) of each wait, for status lines and errors."""
        starting = self.registry.starting.values()
        return tuple((host.name, host.state.value, host.since) for host in starting)

    @property
    def wakes_at(self) -> float:
        """Time of the next `Tick` beyond the usual ones (seconds); infinity: none."""
        return math.inf

    def receive(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        """Returns the effects of an event at `now` (seconds, monotonic), to be carried out in order."""
        if self.phase is Phase.OVER:
            return []
        match event:
            case Received():
                return self._received(event, now)
            case Tick():
                return self._tick(now)
            case Opened():
                return self._start(now)
            case StopRequested():
                return self._stop_requested(now)
            case Died() | Launched() | ProcessStarted():
                return self._process_event(event, now)
            case Misbehaved(name=name, incarnation=incarnation, reason=reason):
                host = self.registry.current(name, incarnation)
                if host is None or self._conduct.is_cut_off(name):
                    return []
                return self._refuse(host, reason, now)
            case _:
                return self._own_event(event, now)

    # Hooks.

    @abstractmethod
    def _work_message(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        """Handles a message about the work; the table of permissions has refused all others."""

    @abstractmethod
    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Replaces all parts of a replica of which one has died: a step needs every part."""

    @abstractmethod
    def _restart_part(
        self, host: HostRecord, replica: ReplicaRecord, reason: str, now: float
    ) -> list[CoordinatorEffect]:
        """Replaces a part that has died, and the others of its replica where a step needs that."""

    @abstractmethod
    def _result(self, *, complete: bool) -> EndRun:
        """Returns the run's result; `complete`: the last checkpoint holds all of the work."""

    @abstractmethod
    def _tick(self, now: float) -> list[CoordinatorEffect]:
        """Looks for hosts and work that take too long, and repeats what was not answered."""

    @abstractmethod
    def _stop_requested(self, now: float) -> list[CoordinatorEffect]:
        """Ends the run soon, as its user wants."""

    def _own_event(self, event: Any, now: float) -> list[CoordinatorEffect]:
        """Handles an event that only some coordinators have."""
        raise AssertionError(event)

    def _joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Assigns work to a replica whose parts have all become ready, once the run has begun."""
        return []

    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        """Goes on with what had to wait: a shard has become ready, or a host that is not needed has ended."""
        return []

    def _is_dispensable(self, host: HostRecord) -> bool:
        """Returns whether the run can end without this host."""
        return False

    def _restart_shard(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Replaces a shard that has died."""
        raise AssertionError(f"{host} is a shard, and this run has none")

    def _shard_is_back(self, now: float) -> None:
        """Notes that a restarted shard is ready."""
        raise AssertionError("this run has no shards")

    def _all_ready(self, now: float) -> None:  # noqa: B027 - nothing to note for some
        """Notes that all hosts are ready for the first time."""

    # Start.

    def _start(self, now: float) -> list[CoordinatorEffect]:
        hosts = tuple(self.registry.present())
        for host in hosts:
            self.registry.move(host, HostState.LAUNCHED, now)
        return [Restart(tuple((host.name, host.incarnation) for host in hosts), None, "the run starts")]

    def _process_event(self, event: Died | Launched | ProcessStarted, now: float) -> list[CoordinatorEffect]:
        host = self.registry.current(event.name, event.incarnation)
        if host is None:
            return []
        match event:
            case Died(reason=reason):
                return self._died(host, reason or "its process ended", now)
            case Launched() if host.state is HostState.LAUNCHED:
                host.public_key, host.machine = event.public_key, event.machine
                self.registry.move(host, HostState.LAUNCHED, now)
            case ProcessStarted():
                self.registry.alive(host, now)
        return []

    def _received(self, event: Received, now: float) -> list[CoordinatorEffect]:
        host = self.registry.current(event.sender, event.incarnation)
        if host is None:
            return self._from_the_past(event)
        effects: list[CoordinatorEffect] = []
        for sign in self._membership.receive(event, now):
            if isinstance(sign, Recovered):
                effects.append(Warn(f"{sign.name} sends again after {sign.silent_s:.1f} s"))
            elif isinstance(sign, Send):
                effects.append(sign)
        if self._conduct.is_cut_off(host.name):  # a shard, whose lease has to end
            return effects
        reason = self._conduct.flood(host.name, event.message, now)
        reason = reason or self._rejection_reason(host, event.message)
        if reason is not None:
            return [*effects, *self._refuse(host, reason, now)]
        return effects + self._handle(host, event.message, now)

    def _rejection_reason(self, host: HostRecord, message: object) -> str | None:
        """Returns why a message is invalid, by names and numbers that only a coordinator knows."""
        match message:
            case Saved(file=file) if not _FILE.fullmatch(file):
                return f"a file {sentence(file)!r}, which is not in the folder of a checkpoint"
            case m.WaitReport(host=other) if other not in self.registry.hosts and other != FILES:
                return f"that it waits for {sentence(other)!r}, which is no host of this run"
            case LostPushes(part=part) if not self._is_part(part):
                return f"lost pushes of {sentence(part)!r}, which is no part of this run"
        return None

    def _is_part(self, name: str) -> bool:
        host = self.registry.hosts.get(name)
        return host is not None and host.replica is not None

    def _from_the_past(self, event: Received) -> list[CoordinatorEffect]:
        """Ignores a replaced process, except for an error, which counts although its end was known before it
        (I13).
        """
        host = self.registry.hosts.get(event.sender)
        if host is None or not isinstance(event.message, m.Failed) or event.incarnation in host.failed:
            return []
        return self._count_failure(host, event.message, event.incarnation)

    def _handle(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case m.DirectoryAck(revision=revision):
                self.directories.acknowledge(host, revision)
            case m.Hello():
                return self._hello(host, message, now)
            case m.SetUpProgress(compiled=compiled):
                self.registry.alive(host, now, compiled=compiled)
            case m.Ready():
                return self._ready(host, now)
            case m.WaitReport(host=other, what=what, waited_s=waited_s) if other == FILES:
                return [Warn(f"{host.name} waits for {FILES}, for {sentence(what)}, since {waited_s:.0f} s")]
            case m.WaitReport(host=other, what=what, waited_s=waited_s):
                self.waits.note(host.name, other, now - waited_s)
                return [Warn(f"{host.name} waits for {sentence(what)} of {other} since {waited_s:.0f} s")]
            case m.Failed():
                return self._failed(host, message, now)
            case HostReport():
                return [] if self._watching is None else [*self._watching.answered(host, message, now)]
            case m.Refused():
                return self._accused(host, message, now)
            case _:
                if isinstance(message, PROGRESS_MESSAGES):
                    self.waits.clear(host.name)
                return self._work_message(host, message, now)
        return []

    def _hello(self, host: HostRecord, hello: m.Hello, now: float) -> list[CoordinatorEffect]:
        for key, ours in self._settings.versions.items():
            theirs = hello.versions.get(key, "nothing")
            if theirs != ours:
                return self.fail(
                    f"{host.name} runs {key} {theirs} and the coordinator {key} {ours}: "
                    "all hosts of a run must have the same; install it there"
                )
        task = Send(host.name, m.SetUp(self._settings.run), Span(f"task of {host.name}", 0, 0))
        if host.state is HostState.PREPARING:  # a repeat: the first answer was lost
            return [task]
        if host.state is not HostState.LAUNCHED:
            return []
        self.registry.alive(host, now)
        self.registry.move(host, HostState.PREPARING, now)
        host.endpoint = hello.endpoint
        return [task, *self._publish(host, now)]

    def _publish(self, host: HostRecord, now: float) -> list[Send]:
        """Sends the address of a host after its Hello: first when all are there, then of whole replicas."""
        registry, publish = self.registry, self.directories.publish
        replica = registry.replica_of(host)
        if host.is_shard:
            self.shards_revision = self.directories.revision + 1
        if not self.directories.revision:
            if registry.reachable_shards < len(registry.shards) or registry.reachable_replicas < self.least:
                return []
            backups = (backup for backup in registry.backups.values() if backup.is_reachable)
            return publish((*registry.shards, *registry.parts_of_reachable(), *backups), now)
        if replica is None:
            return publish((host,), now)
        return publish(replica.parts, now) if replica.is_reachable else []

    def _ready(self, host: HostRecord, now: float) -> list[CoordinatorEffect]:
        if host.state is not HostState.PREPARING:
            return []
        self.registry.move(host, HostState.READY, now)
        self._membership.watch(host.name, host.incarnation, now)
        if self.phase is Phase.LAUNCHING:
            return self._begin_run(now)
        replica = self.registry.replica_of(host)
        if host.shard:
            return []
        if replica is None:
            self._shard_is_back(now)
            return self._go_on(now)
        return self._join(replica, now) if replica.is_ready else []

    def _begin_run(self, now: float) -> list[CoordinatorEffect]:
        """Begins the run when the shards, their backups and enough replicas are ready."""
        registry = self.registry
        if not (registry.shards_ready and registry.backups_ready) or registry.ready_replicas < self.least:
            return []
        self.phase = Phase.RUNNING
        self._all_ready(now)
        effects: list[CoordinatorEffect] = []
        for replica in registry.replicas:
            effects += self._join(replica, now) if replica.is_ready else []
        return effects + self._go_on(now)

    def _join(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        self.seats.join(replica.index, (part.incarnation for part in replica.parts))
        return self._joined(replica, now)

    # Misbehaviour.

    def _refuse(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Counts a message out of place; a host that sends several is cut off."""
        refusal: list[CoordinatorEffect] = [Refuse(host.name, reason)]
        if self._conduct.refused(host.name, now) != "cut off":
            return refusal
        return refusal + self._cut_off(host, f"cut off by the coordinator: {sentence(reason)}", now)

    def _accused(self, accuser: HostRecord, refused: m.Refused, now: float) -> list[CoordinatorEffect]:
        """Reports what a host has refused. It replaces one that was cut off, or who cuts off too many."""
        by = sentence(refused.by)
        if not refused.cut_off:
            return [Warn(f"{accuser.name} refused what {by} sent: {sentence(refused.reason)}")]
        accused = self.registry.current(refused.by, refused.incarnation)
        if accused is None or accused is accuser or accused.replaced is not None:
            return []
        if not self._conduct.accused(accuser.name, (accused.name, accused.incarnation)):
            return self._cut_off(
                accuser, f"cut off by the coordinator: it cuts off more than {MOST_ACCUSED}, now {by}", now
            )
        return self._cut_off(accused, f"cut off by {accuser.name}: {sentence(refused.reason)}", now)

    def _cut_off(self, host: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        """Replaces a host that misbehaves; nothing more of its process is taken."""
        return self._died(host, why, now)

    # Death.

    def _died(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        host.deaths += 1
        if host.deaths >= self.timeouts.deaths and not self._is_dispensable(host):
            why = f"{host.name} died {host.deaths} times without getting any further: {reason}"
            return self._give_up(host, why, now)
        return self._lose(host, reason, now)

    def _give_up(self, host: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        """Ends the run, which cannot go on without a host."""
        return self.fail(why)

    def _failed(self, host: HostRecord, failed: m.Failed, now: float) -> list[CoordinatorEffect]:
        """Counts an error in a user's function apart from deaths: it would come again and again (I13)."""
        effects = self._count_failure(host, failed, host.incarnation)
        return effects if self.phase is Phase.OVER else effects + self._lose(host, "ended by its error", now)

    def _count_failure(self, host: HostRecord, failed: m.Failed, incarnation: int) -> list[CoordinatorEffect]:
        failed = bounded(failed)
        host.failed += (incarnation,)
        times, limit = len(host.failed), self.timeouts.failures
        if failed.final:
            return self.fail(f"{host.name}: {failed.reason}", failed.traceback)
        if self.phase is Phase.LAUNCHING:  # nothing has run yet: a restart would not help
            return self.fail(f"{host.name} cannot be set up: {failed.reason}", failed.traceback)
        if failed.stuck:  # a second time is hardly by chance, and each takes long
            limit = min(limit, _MOST_STUCK)
        if times >= limit:
            advice = "" if failed.stuck else "; correct what its traceback shows"
            return self.fail(f"{host.name} failed {times} times: {failed.reason}{advice}", failed.traceback)
        return [Warn(f"{host.name} failed, {times} of {limit} times: {failed.reason}")]

    def _lose(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        self._membership.forget(host.name)
        if self._is_dispensable(host):
            self._end_host(host, HostState.GONE, now)
            if host.replica is None:
                return [Warn(f"{host.name}: {reason}; no last checkpoint was taken"), *self._end()]
            return [Warn(f"{host.name}: {reason}; its work was done"), *self._go_on(now)]
        replica = self.registry.replica_of(host)
        if replica is None:
            return self._restart_shard(host, reason, now)
        return self._restart_part(host, replica, f"{host.name}: {reason}", now)

    def _end_host(self, host: HostRecord, state: HostState, now: float) -> None:
        """Notes that no process of a host runs any more."""
        self._membership.forget(host.name)
        self._conduct.forget(host.name)
        self.directories.withdraw(host)
        self.waits.clear(host.name)
        if host.replica is not None:
            self.seats.leave(host.replica)
        self.registry.move(host, state, now)

    # Time.

    def _watch_membership(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for sign in self._membership.receive(Tick(), now):
            match sign:
                case Died(name=name, incarnation=incarnation, reason=reason):
                    host = self.registry.current(name, incarnation)
                    effects += self._died(host, reason, now) if host is not None else []
                case Suspected():
                    effects.append(Warn(f"{sign.name} has been silent for {sign.silent_s:.1f} s"))
                case Send():
                    effects.append(sign)
                case Recovered():
                    raise AssertionError(sign)
        return effects

    def _watch_starts(self, now: float) -> list[CoordinatorEffect]:
        """Reports the hosts' start until the run has begun, and looks for one that takes too long."""
        limit_s, registry = self.timeouts.start_s, self.registry
        host = next(iter(registry.starting.values()), None)  # the one without a sign of life for longest
        if host is not None and now - host.since >= limit_s:
            silence = f"no sign of life for {now - host.since:.0f} s while {host.doing}"
            if self.phase is not Phase.LAUNCHING:  # an earlier process could start: only this one is stuck
                return self._died(host, silence, now)
            why = (
                f"{host.name} (incarnation {host.incarnation}) gave {silence}; look at what it printed, "
                f"or allow more than {limit_s:g} s by start_timeout_s (--start-timeout)"
            )
            return self._give_up(host, why, now)
        if self.phase is not Phase.LAUNCHING:
            return []
        return [self.starting_effect]

    @property
    def starting_effect(self) -> Starting:
        """How far the hosts are that start, for the display."""
        registry, ready = self.registry, self.registry.counts[HostState.READY]
        return Starting(registry.n_present, registry.running, ready, registry.compiled, self._last_text())

    def _last_text(self) -> str:
        """Returns the hosts that the run still waits for, when they are few, and what they do."""
        starting = self.registry.starting
        if len(starting) > _FEW or len(starting) == self.registry.n_present:
            return ""
        return ", ".join(f"{host.name} ({host.doing})" for host in starting.values())

    def _ask_hosts(self, now: float) -> list[CoordinatorEffect]:
        """Asks hosts how they are, in a run that is watched."""
        return [] if self._watching is None else [*self._watching.ask(self.registry.present(), now)]

    # End.

    def _stop_all(self) -> list[CoordinatorEffect]:
        self.phase = Phase.OVER
        return [Send(host.name, m.Stop()) for host in self.registry.reachable()]

    def _end(self, *, complete: bool = False) -> list[CoordinatorEffect]:
        return [*self._stop_all(), self._result(complete=complete)]

    def fail(self, reason: str, traceback: str = "", *, host: str = "") -> list[CoordinatorEffect]:
        """Ends the run without a result; see `AbortRun`."""
        return [*self._stop_all(), AbortRun(reason, traceback, host)]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._membership.validate()
        self.registry.validate()
        self.directories.validate()
        if self._watching is not None:
            self._watching.validate()
        for index, incarnations in self.seats.seated.items():
            replica = self.registry.replicas[index]
            known = tuple(part.incarnation for part in replica.parts)
            assert replica.is_ready and known == incarnations, (replica, incarnations)
        watched, over = self._membership.watched, self.phase is Phase.OVER
        for host in self.registry.hosts.values():
            assert (host.name in watched) == (host.state is HostState.READY) or over, host
            assert len(host.failed) < self.timeouts.failures or over, host
