"""What every coordinator of a run does: brings hosts to work, keeps checkpoints, replaces what dies, ends it.

It holds no parameters and sees no gradient. It must not know processes, sockets, files or time beyond `now`:
`orders.py` says what it asks of its interpreter, `membership.py` who is alive, `rounds.py` what a checkpoint
is. What the work is, and who is needed for it, is a subclass's to know: `coordinator.py` (Downpour) and
`sandblaster.py`. What is lost on the way is said again: by a host Hello until it has its task, Ready until it
hears a heartbeat; by the coordinator Save, and the directory to who is behind.

Source: DistBelief, section 4 (the coordinator's role); supervising and restarting is ours.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Final

from partita.engine.protocol.checkpointing import CheckpointTracker
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Committed,
    CoordinatorEffect,
    CoordinatorEvent,
    EndRun,
    Launched,
    NotCommitted,
    Opened,
    ProcessStarted,
    Restart,
    Starting,
    StopRequested,
    Timeouts,
    Warn,
)
from partita.engine.protocol.events import Died, Received, Refuse, Send, Span, Tick
from partita.engine.protocol.failure import bounded, sentence
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.membership import Membership, Recovered, Suspected
from partita.engine.protocol.messages import (
    DirectoryAck,
    Failed,
    Hello,
    LostPushes,
    Ready,
    Saved,
    SaveFailed,
    SaveProgress,
    SetUp,
    SetUpProgress,
    Stop,
    WaitReport,
)
from partita.engine.protocol.wait_graph import PROGRESS_MESSAGES, WaitGraph

_AWAITED: Final = (HostState.LAUNCHED, HostState.PREPARING)
"""Of hosts that are not ready yet."""
_STUCK: Final = 2
"""Times that a host may have a computation that does not end."""

_FILE: Final = re.compile(r"(?!.*\.\.)\w[\w ./-]{0,200}", flags=re.ASCII)


class Phase(Enum):
    """Where the run is."""

    LAUNCHING = "waiting for every host to be ready for the first time"
    RUNNING = "training"
    FINISHING = "the last checkpoint, after the last step"
    STOPPING = "the last checkpoint, after Ctrl-C"
    OVER = "done or failed"


class Coordinator(ABC):
    """Supervises the hosts of one run.

    Attributes:
        phase: where the run is.
    """

    def __init__(
        self,
        registry: HostRegistry,
        *,
        run: str = "",
        next_checkpoint: int = 1,
        versions: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """A run that has not started; `Opened` starts it.

        Args:
            registry: its hosts.
            run: the run's id, said in `SetUp`.
            next_checkpoint: the number of the next checkpoint.
            versions: what every host must say in `Hello`; anything goes for keys that are not here.
            timeouts: waits and limits.
        """
        self.phase = Phase.LAUNCHING
        self._registry: Final = registry
        self._timeouts: Final = timeouts or Timeouts()
        self._run: Final = run
        self._versions: Final = dict(versions or {})
        self._membership: Final = Membership(self._timeouts.heartbeats)
        self._checkpoints: Final = CheckpointTracker(next_checkpoint)
        self._next_round_at = float("inf")
        self._stop_at = float("inf")
        self._round_is_last = False  # the round under way began when all of the work was done
        self._shards_revision = 0  # the first directory with the shards of today
        self._unanswered: Final = WaitGraph()

    @property
    def lost(self) -> int:
        """Acknowledged pushes that no shard holds any more, as far as is known."""
        return self._checkpoints.lost

    @property
    def wakes_at(self) -> float:
        """When a `Tick` is wanted, beyond the usual ones (seconds); infinity: the usual ones will do."""
        return float("inf")

    @property
    def gone(self) -> tuple[str, ...]:
        """Parts that ended, or fell silent, after their work was done, and were not replaced."""
        return tuple(h.name for h in self._registry.hosts.values() if h.state is HostState.GONE)

    @property
    def waits_for(self) -> tuple[tuple[str, str, float], ...]:
        """Who is waited for, for what, and since when (seconds): for status lines and errors."""
        awaited = (host for host in self._registry.present() if host.state in _AWAITED)
        return tuple((host.name, host.state.value, host.since) for host in awaited)

    def receive(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        """What follows from an event at `now` (seconds, monotonic), to be done in order."""
        if self.phase is Phase.OVER:
            return []
        match event:
            case Received():
                return self._received(event, now)
            case Tick():
                return self._tick(now)
            case Died(name=name, incarnation=incarnation, reason=reason):
                host = self._registry.current(name, incarnation)
                return self._died(host, reason or "its process ended", now) if host is not None else []
            case Launched():
                launched = self._registry.current(event.name, event.incarnation)
                if launched is not None and launched.state is HostState.LAUNCHED:
                    launched.public_key, launched.machine = event.public_key, event.machine
                    launched.since = now
                return []
            case ProcessStarted(name=name, incarnation=incarnation):
                begun = self._registry.current(name, incarnation)
                if begun is not None:
                    self._lives(begun, now)
                return []
            case Opened():
                return self._start(now)
            case StopRequested():
                return self._stop_requested(now)
            case Committed(checkpoint=checkpoint):
                return self._committed(checkpoint, now)
            case NotCommitted(checkpoint=checkpoint, reason=reason):
                return self._lose_round(reason, now) if self._checkpoints.writes(checkpoint) else []

    # Bringing hosts to work.

    def _start(self, now: float) -> list[CoordinatorEffect]:
        hosts = tuple(self._registry.present())
        if not hosts:
            return self._end(complete=True)
        for host in hosts:
            host.since = now
        return [Restart(tuple((host.name, host.incarnation) for host in hosts), None, "the run starts")]

    def _received(self, event: Received, now: float) -> list[CoordinatorEffect]:
        host = self._registry.current(event.sender, event.incarnation)
        if host is None:
            return self._from_the_past(event)
        effects: list[CoordinatorEffect] = []
        for sign in self._membership.receive(event, now):
            if isinstance(sign, Recovered):
                effects.append(Warn(f"{sign.name} is heard again after {sign.silent_s:.1f} s"))
            elif isinstance(sign, Send):
                effects.append(sign)
        reason = self._refusal(host, event.message)
        if reason is not None:
            return [*effects, Refuse(host.name, reason)]
        return effects + self._understood(host, event.message, now)

    def _refusal(self, host: HostRecord, message: object) -> str | None:
        """Why a message cannot be meant as it stands, by names and numbers that only a coordinator knows."""
        match message:
            case Saved(file=file) if not _FILE.fullmatch(file):
                return f"a file {sentence(file)!r}, which is not in the folder of a checkpoint"
            case WaitReport(host=other) if other not in self._registry.hosts:
                return f"that it waits for {sentence(other)!r}, which is no host of this run"
            case LostPushes(part=part) if not self._is_part(part):
                return f"lost pushes of {sentence(part)!r}, which is no part of this run"
            case _:
                return None

    def _is_part(self, name: str) -> bool:
        host = self._registry.hosts.get(name)
        return host is not None and host.replica is not None

    def _from_the_past(self, event: Received) -> list[CoordinatorEffect]:
        """Of a process that was replaced: another one is this host now, whatever it says.

        But why it ended may be known before what it had to say about that, and an error counts (I13).
        """
        host = self._registry.hosts.get(event.sender)
        if host is None or not isinstance(event.message, Failed) or event.incarnation in host.failed:
            return []
        return self._count_failure(host, event.message, event.incarnation)

    def _understood(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case DirectoryAck(revision=revision):
                host.informed = max(host.informed, min(revision, self._registry.revision))
                return []
            case Hello():
                return self._hello(host, message, now)
            case SetUpProgress(compiled=compiled):
                host.compiled = max(host.compiled, compiled)
                self._lives(host, now)
                return []
            case Ready():
                return self._ready(host, now)
            case WaitReport(host=other, what=what, waited_s=waited_s):
                self._unanswered.note(host.name, other, now - waited_s)
                return [Warn(f"{host.name} waits for {sentence(what)} of {other} since {waited_s:.0f} s")]
            case Saved():
                return self._saved(host, message, now)
            case SaveProgress():
                return self._saving(host, message, now)
            case SaveFailed(reason=reason):
                lost = self._checkpoints.is_lost(host.name, message)
                return self._lose_round(f"{host.name}: {reason}", now) if lost else []
            case Failed():
                return self._failed(host, message, now)
            case _:
                if isinstance(message, PROGRESS_MESSAGES):
                    self._unanswered.clear(host.name)
                return self._heard(host, message, now)

    @staticmethod
    def _lives(host: HostRecord, now: float) -> None:
        """Notes a sign of life; of a host that is not ready yet, the time to start counts from here."""
        if host.state in _AWAITED:
            host.runs, host.since = True, now

    def _hello(self, host: HostRecord, hello: Hello, now: float) -> list[CoordinatorEffect]:
        for key, ours in self._versions.items():
            theirs = hello.versions.get(key, "nothing")
            if theirs != ours:
                return self._fail(
                    f"{host.name} runs {key} {theirs} and the coordinator {key} {ours}: "
                    "all hosts of a run must have the same; install it there"
                )
        task = Send(host.name, SetUp(self._run), Span(f"task of {host.name}", 0, 0))
        if host.state is HostState.PREPARING:  # it asks again: the first answer was lost
            return [task]
        if host.state is not HostState.LAUNCHED:
            return []
        host.state, host.since, host.endpoint, host.runs = HostState.PREPARING, now, hello.endpoint, True
        if host.replica is None:
            self._shards_revision = self._registry.revision + 1
        # Who is where is told for the first time when all are there, then after each change.
        if self._registry.revision == 0 and not self._registry.all_in(HostState.PREPARING, HostState.READY):
            return [task]
        return [task, *self._registry.publish(now)]

    def _ready(self, host: HostRecord, now: float) -> list[CoordinatorEffect]:
        if host.state is not HostState.PREPARING:
            return []
        host.state, host.since = HostState.READY, now
        self._membership.watch(host.name, host.incarnation, now)
        if self.phase is Phase.LAUNCHING and self._registry.all_in(HostState.READY):
            self.phase = Phase.RUNNING
            self._schedule_round(now)
        elif host.replica is None and self._timeouts.checkpoint_every_s is not None:
            # Its work since the last checkpoint is lost; until there is a new one, it would be lost again.
            self._next_round_at = min(self._next_round_at, now + self._timeouts.restart_s)
        return self._go_on(now) if self.phase is not Phase.LAUNCHING else []

    # What the work is.

    @abstractmethod
    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        """A host has become ready, and all of them once were: gives it what there is to do."""

    @abstractmethod
    def _heard(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        """A message about the work. One that is not for a coordinator was refused by the table of verbs."""

    @abstractmethod
    def _watch_work(self, now: float) -> list[CoordinatorEffect]:
        """Time has passed: says again what was not answered, begins the checkpoints that are due."""

    @abstractmethod
    def _is_dispensable(self, host: HostRecord) -> bool:
        """Whether the run can end without this host."""

    @abstractmethod
    def _restart_shard(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """A shard that is needed has died."""

    @abstractmethod
    def _restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """A part that is needed has died: all of its replica, because a step needs every part."""

    @abstractmethod
    def _last_round(self, now: float) -> list[CoordinatorEffect]:
        """Ctrl-C: begins the checkpoint after which the run ends."""

    @abstractmethod
    def _done(self, *, complete: bool) -> EndRun:
        """How the run has ended, and whether the last checkpoint holds all of the work."""

    # Checkpoints.

    def _schedule_round(self, now: float) -> None:
        every_s = self._timeouts.checkpoint_every_s
        self._next_round_at = float("inf") if every_s is None else now + every_s

    def _saved(self, host: HostRecord, saved: Saved, now: float) -> list[CoordinatorEffect]:
        commit = self._checkpoints.saved(host.name, saved, now)
        self._come_further(now)
        return [] if commit is None else [commit]

    def _saving(self, host: HostRecord, saving: SaveProgress, now: float) -> list[CoordinatorEffect]:
        if self._checkpoints.saving(host.name, saving, now):
            self._come_further(now)
        return []

    def _come_further(self, now: float) -> None:
        """After Ctrl-C, the last checkpoint has time as long as it comes further."""
        if self.phase is Phase.STOPPING:
            self._stop_at = max(self._stop_at, now + self._timeouts.stop_s)

    def _committed(self, checkpoint: int, now: float) -> list[CoordinatorEffect]:
        """A checkpoint is there. One whose round was dropped meanwhile is there too, and is not used."""
        if not self._checkpoints.kept(checkpoint):
            return []
        for shard in self._registry.shards:
            shard.deaths = 0
        over = self.phase in (Phase.FINISHING, Phase.STOPPING)
        return self._end(complete=self._round_is_last) if over else []

    def _lose_round(self, reason: str, now: float) -> list[CoordinatorEffect]:
        """A round that could not be written is lost, and another one follows: disks become free again."""
        last = self.phase is Phase.FINISHING
        checkpoint, wait_s, tried_s = self._checkpoints.lose(self._timeouts, now, last=last)
        if self._timeouts.checkpoint_every_s is not None:
            self._next_round_at = min(self._next_round_at, now + wait_s)
        what = f"checkpoint {checkpoint} was not written: {sentence(reason)}"
        if last and tried_s >= self._timeouts.save_s:
            return self._fail(f"{what}; the last one was tried for {tried_s:.0f} s, so make room for it")
        self.phase = Phase.RUNNING if last else self.phase
        return [Warn(f"{what}; it is tried again in {wait_s:g} s")]

    def _watch_round(self, now: float) -> list[CoordinatorEffect]:
        under_way = self._checkpoints.round
        if under_way is None:
            return []
        waited_s = now - under_way.progress_at
        if waited_s < self._timeouts.save_s:
            return list(under_way.ask_again(now, self._timeouts.retry_s))
        missing = ", ".join(under_way.missing) or "its manifest"
        what = f"checkpoint {under_way.checkpoint} waits for {missing} since {waited_s:.0f} s"
        if self.phase is Phase.FINISHING:
            return self._fail(f"{what}, and it is the last one; look for a full or slow disk")
        self._checkpoints.abandon()
        return [Warn(f"{what} and is given up; the next one follows")]

    # Death.

    def _died(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        host.deaths += 1
        if host.deaths >= self._timeouts.deaths and not self._is_dispensable(host):
            return self._fail(f"{host.name} died {host.deaths} times without getting any further: {reason}")
        return self._lose(host, reason, now)

    def _failed(self, host: HostRecord, failed: Failed, now: float) -> list[CoordinatorEffect]:
        """An error in a user's function is not a death: it would come again and again (I13)."""
        effects = self._count_failure(host, failed, host.incarnation)
        return effects if self.phase is Phase.OVER else effects + self._lose(host, "ended by its error", now)

    def _count_failure(self, host: HostRecord, failed: Failed, incarnation: int) -> list[CoordinatorEffect]:
        failed = bounded(failed)
        host.failed += (incarnation,)
        times, limit = len(host.failed), self._timeouts.failures
        if failed.final:
            return self._fail(f"{host.name}: {failed.reason}", failed.traceback)
        if self.phase is Phase.LAUNCHING:  # nothing has run yet, and what cannot be set up now never can
            return self._fail(f"{host.name} cannot be set up: {failed.reason}", failed.traceback)
        if failed.stuck:  # twice is no accident, and each time takes long
            limit = min(limit, _STUCK)
        if times >= limit and failed.stuck:
            return self._fail(f"{host.name} failed {times} times: {failed.reason}", failed.traceback)
        if times >= limit:
            told = f"{host.name} failed {times} times: {failed.reason}; correct what its traceback shows"
            return self._fail(told, failed.traceback)
        return [Warn(f"{host.name} failed, {times} of {limit} times: {failed.reason}")]

    # Shards that are heard and do not answer.

    def _watch_answers(self, now: float) -> list[CoordinatorEffect]:
        """Looks for a shard that has left a part without an answer for too long."""
        for old in self._registry.shards:
            if old.replaced is not None and now >= old.replaced[0]:
                return self._lose(old, old.replaced[1], now)
        hosts, limit_s = self._registry.hosts, self._timeouts.answer_s
        for part, shard, since in self._unanswered:
            waiting, asked = hosts[part], hosts[shard]
            if asked.replica is not None or {waiting.state, asked.state} != {HostState.READY}:
                continue
            waited_s = now - max(since, waiting.since, asked.since, self._answers_since)
            if waited_s < limit_s:
                continue
            why = f"{part} has no answer of {shard} for {waited_s:.0f} s ({limit_s:g} s are allowed)"
            others = (r for r in self._registry.replicas if r.index != waiting.replica)
            if any(replica.progress_at > now - waited_s for replica in others):
                return self._died(waiting, f"{why}, which answers another replica", now)
            return self._replace_mute(asked, why, now)
        return []

    @property
    def _answers_since(self) -> float:
        """Since when shards can answer parts (seconds; infinity: they cannot now)."""
        return float("-inf")

    def _replace_mute(self, shard: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        """It gets no lease any more, and the next process starts when its last one has ended. Replicas wait,
        and are not restarted.
        """
        if shard.replaced is not None:
            return []
        shard.mute += 1
        if shard.mute >= self._timeouts.deaths and not self._is_dispensable(shard):
            return self._fail(
                f"{shard.name} is heard and does not answer, also after {shard.mute - 1} replacements: "
                f"{why}; look at what it printed, and at the network between these hosts"
            )
        self._membership.revoke(shard.name)
        shard.replaced = now + self._timeouts.heartbeats.dead_s, why
        return [Warn(f"{shard.name}: {why}; it is replaced when its lease has ended")]

    def _shards_answer(self) -> None:
        """The run gets on."""
        for shard in self._registry.shards:
            shard.mute = 0

    def _waits_for_shard(self, replica: ReplicaRecord) -> bool:
        """Whether a replica cannot be blamed for standing still."""
        parts = {part.name for part in replica.parts}
        return not self._registry.shards_ready or any(
            part in parts and self._registry.hosts[other].replica is None
            for part, other, _ in self._unanswered
        )

    def _lose(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        self._membership.forget(host.name)
        if self._is_dispensable(host):
            return self._gone(host, reason, now)
        replica = self._registry.replica_of(host)
        if replica is None:
            return self._restart_shard(host, reason, now)
        return self._restart_replica(replica, f"{host.name}: {reason}", now)

    def _gone(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Its work is done, or there is no time left to replace it."""
        host.state = HostState.GONE
        if host.replica is None:
            return [Warn(f"{host.name}: {reason}; no last checkpoint was taken"), *self._end()]
        return [Warn(f"{host.name}: {reason}; its work was done"), *self._go_on(now)]

    # Time.

    def _tick(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for sign in self._membership.receive(Tick(), now):
            match sign:
                case Died(name=name, incarnation=incarnation, reason=reason):
                    host = self._registry.current(name, incarnation)
                    effects += self._died(host, reason, now) if host is not None else []
                case Suspected():
                    effects.append(Warn(f"{sign.name} has been silent for {sign.silent_s:.1f} s"))
                case Send():
                    effects.append(sign)
                case Recovered():
                    raise AssertionError(sign)
        watches = self._watch_deadlines, self._watch_answers, self._watch_work, self._watch_round
        for watch in (*watches, self._watch_stop):
            if self.phase is not Phase.OVER:
                effects += watch(now)
        if self.phase is not Phase.OVER:
            effects += self._registry.publish_again(now, self._timeouts.retry_s)
        return effects

    def _watch_deadlines(self, now: float) -> list[CoordinatorEffect]:
        limit_s = self._timeouts.start_s
        for host in self._registry.present():
            if host.state not in _AWAITED or now - host.since < limit_s:
                continue
            silence = f"no sign of life for {now - host.since:.0f} s while {host.doing}"
            if self.phase is not Phase.LAUNCHING:  # it could start before: this process is stuck, not the run
                return self._died(host, silence, now)
            return self._fail(
                f"{host.name} (incarnation {host.incarnation}) gave {silence}; look at what it printed, "
                f"or allow more than {limit_s:g} s by start_timeout_s (--start-timeout)"
            )
        return self._how_far()

    def _how_far(self) -> list[CoordinatorEffect]:
        """Reports the hosts' start until the run has begun."""
        if self.phase is not Phase.LAUNCHING:
            return []
        hosts = list(self._registry.present())
        ready = sum(host.state is HostState.READY for host in hosts)
        running = sum(host.runs for host in hosts)
        return [Starting(len(hosts), running, ready, sum(host.compiled for host in hosts))]

    # The end.

    def _stop_requested(self, now: float) -> list[CoordinatorEffect]:
        if self.phase is Phase.STOPPING:
            return []
        if self.phase is Phase.LAUNCHING or not self._registry.shards_ready:
            return self._end()
        self.phase = Phase.STOPPING
        self._stop_at = now + self._timeouts.stop_s
        return self._last_round(now)

    def _watch_stop(self, now: float) -> list[CoordinatorEffect]:
        if now < self._stop_at:
            return []
        committed = self._checkpoints.committed
        kept = "there is none before it" if committed is None else f"checkpoint {committed} is kept"
        late = f"the last checkpoint has come no further for {self._timeouts.stop_s:g} s; {kept}"
        return [Warn(late), *self._end()]

    def _stop_all(self) -> list[CoordinatorEffect]:
        self.phase = Phase.OVER
        return [Send(host.name, Stop()) for host in self._registry.reachable()]

    def _end(self, *, complete: bool = False) -> list[CoordinatorEffect]:
        return [*self._stop_all(), self._done(complete=complete)]

    def _fail(self, reason: str, traceback: str = "") -> list[CoordinatorEffect]:
        return [*self._stop_all(), AbortRun(reason, traceback)]

    def validate(self) -> None:
        """Its invariants. Raises AssertionError."""
        self._membership.validate()
        watched, over = self._membership.watched, self.phase is Phase.OVER
        for host in self._registry.hosts.values():
            assert (host.name in watched) == (host.state is HostState.READY) or over, host
            assert len(host.failed) < self._timeouts.failures or over, host
        self._checkpoints.validate()
