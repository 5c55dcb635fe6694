"""Replicas that work on their own against shards: they are leased units, and done when all are.

Work is leased in ranges of units, see `work_book`: about as many as a replica does in `AHEAD_S`, so that a
fast one gets more. Lost messages are repeated: Finished by a part until Stop, Begin by the coordinator.

A run that goes on asks the shards first which units their numbers hold, see `held_units`.

Source: DistBelief, section 4.1; its replicas have fixed shares of the data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from partita.engine.protocol.actions import Validate
from partita.engine.protocol.checkpoint_messages import LostPushes, UnitsHeld
from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Progress, Warn
from partita.engine.protocol.events import Send
from partita.engine.protocol.held_units import UnitsOfShards
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, ReplicaRecord
from partita.engine.protocol.message_base import MOST, UnitRange
from partita.engine.protocol.messages import Begin, Finished, Lease, Report, ResumeStep
from partita.engine.protocol.supervision import Supervision
from partita.engine.protocol.work_book import Holder, WorkBook
from partita.engine.protocol.work_mode import WorkMode

AHEAD_S: Final = 3.0
"""Seconds of work that a replica is leased: more than pass between two of its reports."""

LEAST_AHEAD: Final = 3
"""Steps that a replica is leased at least: the one it computes, the next one, and one to report meanwhile."""

_MEASURED_S: Final = 0.2


@dataclass(slots=True, eq=False)
class _Pace:
    """The speed of a replica's present processes, and the steps that it is leased ahead of its reports."""

    step: int
    at: float
    per_s: float = 0.0
    ahead: int = LEAST_AHEAD
    ended: bool = False  # it was told that no more units are expected

    def note(self, step: int, now: float, *, is_dry: bool) -> None:
        """Notes the steps done. One that has no more is leased twice as many from then on."""
        if now - self.at >= _MEASURED_S:
            self.per_s = (step - self.step) / (now - self.at)
            self.step, self.at = step, now
        usual = max(LEAST_AHEAD, math.ceil(self.per_s * AHEAD_S))
        self.ahead = max(usual, 2 * self.ahead) if is_dry else max(usual, self.ahead // 2)


class LeasedMode(WorkMode):
    """The work of replicas that wait for no other one.

    A unit is the examples of one step: those that follow each other in an epoch, fewer in its last one.
    """

    drops_rounds = True

    def __init__(
        self,
        *,
        done: Iterable[UnitRange] = (),
        resumes: bool = False,
        least_ahead: int = LEAST_AHEAD,
        most_ahead: int | None = None,
    ) -> None:
        """Creates the work of a run.

        Args:
            done: ranges of units that are done, from a checkpoint that is resumed.
            resumes: the shards may hold more than that.
            least_ahead: steps that a replica is leased before its speed is known.
            most_ahead: steps that a replica may be before the slowest one; None: any number.
        """
        self._most_ahead: Final = most_ahead
        self._behind: Final[dict[int, int]] = {}  # steps that a replica was behind when it began again
        self._done: Final = tuple(done)
        self._resumes: Final = resumes
        self._least_ahead: Final = least_ahead
        self._paces: Final[dict[int, _Pace]] = {}  # of the replicas that have begun
        self._working: Final[set[int]] = set()  # replicas with work that is not done, or not confirmed
        self._checked_under = 0  # the directory under which the others are known to be complete
        self._looks: Final[deque[tuple[float, ReplicaRecord]]] = deque()  # when a replica is looked at

    @override
    def attach(self, run: Supervision) -> None:
        super().attach(run)
        self._replicas, self._scale, self._changes = run.registry.replicas, run.first_scale, 0
        self._work = WorkBook[Holder](self._done)
        self._work.holders.update((replica.index, Holder()) for replica in self._replicas)
        self._count_before()
        shards = [shard.name for shard in run.registry.shards if self._resumes]
        self._shards = UnitsOfShards(shards, retry_s=run.timeouts.retry_s)

    def _count_before(self) -> None:
        before, n = self._work.done.size, len(self._replicas)
        self._before = tuple((before + one) // n for one in reversed(range(n)))

    @property
    @override
    def steps_done(self) -> tuple[int, ...]:
        """Steps whose gradients the shards hold, by the replica that did them; earlier runs' evenly."""
        return tuple(before + self._work.holders[r].done for r, before in enumerate(self._before))

    @override
    def extend(self) -> bool:
        return self._work.extend(self._units(self.run.until))

    def _units(self, position: int) -> int:
        """The units before a position in examples."""
        outline = self.run.outline
        epochs, rest = divmod(position, outline.examples)
        return epochs * -(-outline.examples // outline.batch) - (-rest // outline.batch)

    @override
    def begin_work(self, now: float) -> list[CoordinatorEffect]:
        return self._extend_all() + self.call_back(now)

    @override
    def joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        return self._begin(replica, now)

    # What the shards hold of earlier runs.

    @override
    def go_on(self, now: float) -> list[CoordinatorEffect]:
        return [*self._shards.ask(now), *super().go_on(now)]

    def _begin_rest(self, now: float) -> list[CoordinatorEffect]:
        """Begins the work when all shards have answered what they hold."""
        before = self._work.done.size
        self._work.settle(self._shards.all)
        self._count_before()
        text = self._shards.sentence(self._work.done.size - before)
        effects: list[CoordinatorEffect] = [Warn(text)] if text else []
        for replica in self._replicas:
            effects += self._begin(replica, now)
        return effects + self.run.finish_if_complete(now)

    def _begin(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        if (
            replica.begun
            or not self._shards.known
            or not replica.is_ready
            or any(not part.is_informed for part in replica.parts)
        ):
            return []
        # Every part repeats the steps that any shard lacks; each leaves out what its own shards have.
        index, holder = replica.index, self._work.holders[replica.index]
        known = [part.continues for part in replica.parts if part.continues is not None]
        reached = min(min(known, default=replica.steps_done), holder.next)
        self._work.complete(index, reached)
        replica.step = max(holder.first_open, reached)
        for part in replica.parts:
            part.step = part.held = replica.step
        replica.begun = True
        replica.progress_at = now
        self._paces[index] = _Pace(replica.step, now, ahead=self._least_ahead)
        if replica.restarted:
            others = (self._clock(self._replicas[other]) for other in self._paces if other != index)
            self._behind[index] = max(0, min(others, default=replica.step) - replica.step)
        self._extend(replica)
        self._check(replica)
        self._look_later(replica, now)
        again = [Warn(f"replica {index} begins again at step {replica.step}")] if replica.restarted else []
        return [*again, *self._order(replica, replica.parts)]

    # Work.

    @staticmethod
    def _can_work(replica: ReplicaRecord) -> bool:
        """Returns whether no part of a replica has ended: one whose work is done is not started again."""
        return not any(part.has_ended for part in replica.parts)

    def _extend(self, replica: ReplicaRecord) -> bool:
        """Leases a replica what it can do next. Returns whether its parts have to be told."""
        if not self._can_work(replica):
            return False
        work, index, pace = self._work, replica.index, self._paces[replica.index]
        holder = work.holders[index]
        before = holder.next, pace.ended
        ahead, others = before[0] - replica.steps_done, len(self._paces) - 1
        share = -(-(work.free + ahead) // (2 * others + 1))  # towards the end, all get less
        wanted = min(pace.ahead, max(self._least_ahead, share), self._room(replica)) - ahead
        while wanted > 0 and work.free:
            granted = holder.next
            work.grant(index, wanted)
            wanted -= holder.next - granted
        pace.ended = not work.free
        return (holder.next, pace.ended) != before

    def _clock(self, replica: ReplicaRecord) -> int:
        """Returns the steps of a replica, and those of others while it was dead."""
        return replica.steps_done + self._behind.get(replica.index, 0)

    def _room(self, replica: ReplicaRecord) -> int:
        """Returns the steps beyond those done that a replica may be leased.

        It computes all but the last, which waits until it is known whether another one follows. Replicas
        without work, and those that are dead, hold nobody up.
        """
        if self._most_ahead is None:
            return MOST
        holders = self._work.holders
        working = (self._replicas[index] for index in self._paces if holders[index].n_open)
        slowest = min((self._clock(one) for one in working), default=self._clock(replica))
        return self._most_ahead + 2 - max(0, self._clock(replica) - slowest)

    def _order(self, replica: ReplicaRecord, parts: Iterable[HostRecord]) -> list[CoordinatorEffect]:
        """Sends parts of a replica its leases."""
        holder = self._work.holders[replica.index]
        held = (one for one in holder.open.values() if one.end > replica.step)
        leases = tuple(Lease(one.step, one.start, one.stop) for one in held)
        ended, rate = self._paces[replica.index].ended, (self._scale, self._changes)
        begin = Begin(replica.step, holder.next, leases, ended, *rate)
        return [Send(part.name, begin) for part in parts]

    def _extend_all(self) -> list[CoordinatorEffect]:
        """Leases to every replica at work what has become free."""
        effects: list[CoordinatorEffect] = []
        for index in self._paces:
            replica = self._replicas[index]
            if self._extend(replica):
                effects += self._order(replica, replica.parts)
                self._check(replica)
        return effects

    @override
    def receive(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        replica = self.run.registry.replica_of(host)
        match message:
            case UnitsHeld() if self._shards.take(host.name, message):
                return self._begin_rest(now)
            case ResumeStep(step=step):
                host.continues, host.is_informed = step, True
                begins = replica is not None and self.run.phase is not Phase.LAUNCHING
                return self._begin(replica, now) if replica is not None and begins else []
            case Report() if replica is not None and replica.begun:
                return self._report(host, replica, message, now)
            case Finished() if replica is not None and replica.begun:
                return self._finished(host, replica, message, now)
            case LostPushes(part=part, pushes=pushes) if self.run.checkpoints.found(host.name, message):
                if self.run.phase is Phase.FINISHING and self.run.checkpoints.round is None:
                    self.run.phase = Phase.RUNNING  # its file was written before; another one follows
                again = self.run.checkpoints.amended(host.name, host.incarnation)
                return [Warn(f"{host.name} came back without {pushes} acknowledged pushes of {part}"), *again]
        return []

    def _report(
        self, host: HostRecord, replica: ReplicaRecord, report: Report, now: float
    ) -> list[CoordinatorEffect]:
        host.acknowledged = True
        index, stop = replica.index, self._work.holders[replica.index].next
        if not host.step < report.step <= stop:
            return []  # a duplicate, or one that was overtaken
        before = replica.steps_done
        host.step, host.held = report.step, max(host.held, min(report.held, report.step))
        if host.step > host.furthest:
            host.furthest, host.deaths, replica.left = host.step, 0, 0
        sums = {"loss": report.loss, "correct": report.correct}
        counters = {"staleness": report.staleness, "pushes": report.pushes}
        shown = self._before[index] + report.step - replica.skipped
        effects: list[CoordinatorEffect] = [
            Progress(host.name, shown, report.examples, sums, counters, further=report.sums, read=report.read)
        ]
        if replica.steps_done > before:
            self.run.shards_answer()
            replica.progress_at, replica.stall_s = now, self.run.timeouts.stall_s
            self._work.complete(index, min(part.held for part in replica.parts))
            pace = self._paces[index]
            pace.note(replica.steps_done, now, is_dry=not pace.ended and replica.steps_done + 1 >= stop)
            effects += self._order(replica, replica.parts) if self._extend(replica) else []
            effects += self._extend_all() if self._most_ahead is not None else []
        return effects

    def _finished(
        self, host: HostRecord, replica: ReplicaRecord, message: Finished, now: float
    ) -> list[CoordinatorEffect]:
        """Notes that the shards have all gradients of a part, as far as it had units."""
        host.acknowledged, stop = True, self._work.holders[replica.index].next
        reached = min(message.step, stop)
        host.step, host.held = max(host.step, reached), max(host.held, reached)
        self._work.complete(replica.index, min(part.held for part in replica.parts))
        if reached == stop:
            host.finished = max(host.finished, min(message.directory, self.run.directories.revision))
        more = self._work.free > 0 and self._extend(replica)  # given back after it was told the end
        self._check(replica)
        return self._order(replica, replica.parts) if more else self.run.finish_if_complete(now)

    @property
    @override
    def is_complete(self) -> bool:
        """Returns whether all work is done. All replicas are looked at again only where a shard is new."""
        if self._checked_under != self.run.shards_revision:
            self._checked_under = self.run.shards_revision
            for replica in self._replicas:
                self._check(replica)
        return self._shards.known and not self._working and not self._work.free

    def _check(self, replica: ReplicaRecord) -> None:
        if self._is_working(replica):
            self._working.add(replica.index)
        else:
            self._working.discard(replica.index)

    def _is_working(self, replica: ReplicaRecord) -> bool:
        """Returns whether a replica has units that are not done, or has not confirmed them to all shards."""
        if self._work.holders[replica.index].n_open:
            return True
        return replica.begun and not replica.is_complete(self.run.shards_revision)

    @override
    def begin_round(self, now: float) -> list[CoordinatorEffect]:
        run, done = self.run, tuple(self._work.done)
        begun = run.new_round(run.registry.shards, self.steps_done, now, whole=self.is_complete, done=done)
        return [*begun.ask(now)]

    @override
    def set_scale(self, scale: float, now: float) -> list[CoordinatorEffect]:
        """Sends it with the leases: from the next step on, each push has it."""
        self._scale, self._changes = scale, self._changes + 1
        replicas = [self._replicas[index] for index in self._paces]
        return [one for replica in replicas for one in self._order(replica, replica.parts)]

    @override
    def is_past(self, stop: Validate) -> bool:
        return any(until > self._units(stop.at) for _, until in self._shards.some)

    @property
    @override
    def validators(self) -> dict[int, tuple[int, ...]]:
        seated = self.run.seats.seated.items()
        return {index: found for index, found in seated if self._replicas[index].begun}

    # Death.

    @override
    def is_dispensable(self, host: HostRecord) -> bool:
        replica = self.run.registry.replica_of(host)
        return self.run.phase is Phase.STOPPING or (replica is not None and self._has_finished(replica))

    def _has_finished(self, replica: ReplicaRecord) -> bool:
        return replica.begun and replica.is_complete(0) and not self._work.holders[replica.index].n_open

    @override
    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        self._stop_work(replica)
        effects = self.restarted(replica, f"replica {replica.index} is started again", reason, now)
        self._check(replica)
        return effects

    def _stop_work(self, replica: ReplicaRecord) -> None:
        replica.begun, replica.restarted = False, True
        self._paces.pop(replica.index, None)

    @override
    def has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Leases what a replica has not done to the others."""
        self._stop_work(replica)
        replica.skipped += self._work.give_back(replica.index)
        self._check(replica)
        effects = self._extend_all()
        begun = [self._replicas[index] for index in self._paces]
        ended = [other for other in begun if not self._can_work(other)]
        if self._work.free and ended and len(ended) == len(begun):  # they were not needed any more
            effects += self.restart_replica(ended[0], f"replica {replica.index} has left work", now)
        return effects

    @override
    def ended(self, host: HostRecord) -> None:
        replica = self.run.registry.replica_of(host)
        if replica is not None:
            self._check(replica)

    # Time.

    @override
    def watch(self, now: float) -> list[CoordinatorEffect]:
        asks = self.run.registry.shards_ready and self.run.phase is not Phase.LAUNCHING
        effects: list[CoordinatorEffect] = [*self._shards.ask(now)] if asks else []
        while self._looks and self._looks[0][0] <= now:
            at, replica = self._looks.popleft()
            effects += self._watch_replica(replica, now) if at == replica.look_at else []
        return effects

    def _watch_replica(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        if not replica.begun:
            return []
        self._look_later(replica, now)
        if self._has_finished(replica):
            return []
        if self.run.waits_for_shard(replica):
            replica.excused_at = now
        if now - max(replica.progress_at, replica.excused_at) >= replica.stall_s:
            return self.run.restart_stalled(replica, "step reported", now)
        if self._extend(replica):  # others have given work back, or taken the rest
            self._check(replica)
            return self._order(replica, replica.parts)
        stop = self._work.holders[replica.index].next
        lost = [part for part in replica.parts if not part.acknowledged or part.looked_at == part.step < stop]
        for part in replica.parts:
            part.looked_at = part.step
        return self._order(replica, lost)

    def _look_later(self, replica: ReplicaRecord, now: float) -> None:
        replica.look_at = now + self.run.timeouts.retry_s
        self._looks.append((replica.look_at, replica))

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        self._work.validate()
        for replica in self._replicas:
            stop = self._work.holders[replica.index].next
            for part in replica.parts:
                assert not replica.begun or replica.step <= part.step <= stop, (replica.index, part)
                assert not replica.begun or part.held <= part.step, (replica.index, part)
            assert not replica.begun or self.run.phase is not Phase.LAUNCHING, replica
            assert replica.begun == (replica.index in self._paces), replica
            if self._checked_under == self.run.shards_revision:
                assert (replica.index in self._working) == self._is_working(replica), replica
