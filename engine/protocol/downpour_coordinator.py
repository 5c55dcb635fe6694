"""The coordinator of a Downpour run: begins the replicas, counts their steps, and ends when all are done.

Lost messages are repeated: Finished by a part until Stop, Begin by the coordinator.

Source: DistBelief, section 4.1.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from typing_extensions import override

from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    CoordinatorEffect,
    EndRun,
    Progress,
    RunSettings,
    Warn,
)
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, HostState, ReplicaRecord
from partita.engine.protocol.messages import Begin, Finished, LostPushes, Report, ResumeStep
from partita.engine.protocol.names import Topology


class DownpourCoordinator(Coordinator):
    """Supervises one Downpour run."""

    def __init__(
        self,
        topology: Topology,
        *,
        steps: int,
        done: tuple[int, ...] | None = None,
        settings: RunSettings | None = None,
    ) -> None:
        """Creates a run that has not started; `Opened` starts it.

        Args:
            topology: how many hosts of each kind.
            steps: steps that each replica has to do in all.
            done: steps that each replica has done, from a checkpoint that is resumed; none by default.
            settings: of the run.

        Raises:
            ValueError: `done` does not fit the replicas.
        """
        done = (0,) * topology.replicas if done is None else done
        if len(done) != topology.replicas or min(done) < 0:
            raise ValueError(
                f"the steps done are {done}, and the run has {topology.replicas} replicas; "
                "give one number, 0 or more, for each"
            )
        super().__init__(topology, settings, done=done, steps=steps)
        self._steps: Final = steps
        self._working: Final = {r.index for r in self._registry.replicas if r.parts}
        self._checked_under = 0  # the directory under which the others are known to be complete
        self._looks: Final[deque[tuple[float, ReplicaRecord]]] = deque()  # when a replica is looked at

    @property
    def steps_done(self) -> tuple[int, ...]:
        """Steps of each replica that all of its parts have reported."""
        return tuple(replica.steps_done for replica in self._registry.replicas)

    def _joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        return self._begin(replica, now)

    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        return self._finish_if_complete(now)

    def _begin(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        if replica.begun or not replica.is_ready or any(not part.is_informed for part in replica.parts):
            return []
        # Every part repeats the steps that any shard lacks; each leaves out what its own shards have.
        known = [part.continues for part in replica.parts if part.continues is not None]
        replica.step = min(max(replica.first, min(known, default=replica.steps_done)), self._steps)
        for part in replica.parts:
            part.step = replica.step
        replica.begun = True
        replica.progress_at = now
        self._look_later(replica, now)
        begin = [Send(part.name, Begin(replica.step, self._steps)) for part in replica.parts]
        again = [Warn(f"replica {replica.index} begins again at step {replica.step}")]
        return [*(again if replica.restarted else ()), *begin]

    # Work.

    def _work_message(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        replica = self._registry.replica_of(host)
        match message:
            case ResumeStep(step=step):
                host.continues, host.is_informed = step, True
                begins = replica is not None and self.phase is not Phase.LAUNCHING
                return self._begin(replica, now) if replica is not None and begins else []
            case Report() if replica is not None:
                return self._report(host, replica, message, now)
            case Finished(step=step, directory=directory) if replica is not None:
                host.acknowledged, host.step = True, max(host.step, min(step, self._steps))
                host.finished = max(host.finished, min(directory, self._directories.revision))
                self._check(replica)
                return self._finish_if_complete(now)
            case LostPushes(part=part, pushes=pushes) if self._checkpoints.found(host.name, message):
                return [Warn(f"{host.name} came back without {pushes} acknowledged pushes of {part}")]
        return []

    def _report(
        self, host: HostRecord, replica: ReplicaRecord, report: Report, now: float
    ) -> list[CoordinatorEffect]:
        host.acknowledged = True
        if not host.step < report.step <= self._steps:
            return []  # a duplicate, or one that was overtaken
        before = replica.steps_done
        host.step = report.step
        if host.step > host.furthest:
            host.furthest, host.deaths, replica.left = host.step, 0, 0
        if replica.steps_done > before:
            self._shards_answer()
            replica.progress_at, replica.stall_s = now, self._timeouts.stall_s
        sums = {"loss": report.loss, "correct": report.correct}
        counters = {"staleness": report.staleness, "pushes": report.pushes}
        return [Progress(host.name, report.step, report.examples, sums, counters)]

    def _finish_if_complete(self, now: float) -> list[CoordinatorEffect]:
        if self.phase is not Phase.RUNNING or not self._registry.shards_ready or not self._is_complete:
            return []
        if now < self._checkpoints.retry_at:
            return []
        self.phase = Phase.FINISHING
        return self._begin_round(now)

    @property
    def _is_complete(self) -> bool:
        """Whether all replicas are complete. All are looked at again only where a shard is new."""
        if self._checked_under != self._shards_revision:
            self._checked_under = self._shards_revision
            for replica in self._registry.replicas:
                self._check(replica)
        return not self._working

    def _check(self, replica: ReplicaRecord) -> None:
        if replica.is_complete(self._shards_revision):
            self._working.discard(replica.index)
        else:
            self._working.add(replica.index)

    # Checkpoints.

    def _begin_round(self, now: float) -> list[CoordinatorEffect]:
        steps = self.steps_done
        # After Ctrl-C a replica may be gone for good with steps left.
        is_last = self._is_complete and all(done >= self._steps for done in steps)
        return [*self._new_round(now, steps=steps, is_last=is_last).ask(now)]

    def _last_round(self, now: float) -> list[CoordinatorEffect]:
        return [] if self._checkpoints.round is not None else self._begin_round(now)

    def _result(self, *, complete: bool) -> EndRun:
        return EndRun(self.steps_done, self._checkpoints.committed, self.lost, complete)

    # Death.

    def _is_dispensable(self, host: HostRecord) -> bool:
        replica = self._registry.replica_of(host)
        return self.phase is Phase.STOPPING or (replica is not None and replica.is_complete(0))

    def _restart_shard(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        start = self._shard_died(host)
        return [
            Warn(f"{host.name}: {reason}; restarted from {start}"),
            self._relaunch((host,), reason, now),
        ]

    def _restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        replica.begun, replica.restarted = False, True
        again = self._relaunch(replica.parts, reason, now)
        self._check(replica)
        return [Warn(f"{reason}; replica {replica.index} is started again"), again]

    @override
    def _has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        replica.begun, replica.restarted = False, True
        return []

    @override
    def _end_host(self, host: HostRecord, state: HostState, now: float) -> None:
        super()._end_host(host, state, now)
        replica = self._registry.replica_of(host)
        if replica is not None:
            self._check(replica)

    # Time.

    def _watch_work(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        while self._looks and self._looks[0][0] <= now:
            at, replica = self._looks.popleft()
            effects += self._watch_replica(replica, now) if at == replica.look_at else []
        effects += self._finish_if_complete(now)
        due_at = self._checkpoints.retry_at if self.phase is Phase.STOPPING else self._next_round_at
        none = self._checkpoints.round is None and self.phase in (Phase.RUNNING, Phase.STOPPING)
        if none and now >= max(due_at, self._checkpoints.retry_at) and self._registry.shards_ready:
            effects += self._begin_round(now)
        return effects

    def _watch_replica(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        if not replica.begun or replica.is_complete(0):
            return []
        if self._waits_for_shard(replica):
            replica.excused_at = now
        if now - max(replica.progress_at, replica.excused_at) >= replica.stall_s:
            return self._restart_stalled(replica, "step reported", now)
        self._look_later(replica, now)
        begin = Begin(replica.step, self._steps)
        return [Send(part.name, begin) for part in replica.parts if not part.acknowledged]

    def _look_later(self, replica: ReplicaRecord, now: float) -> None:
        replica.look_at = now + self._timeouts.retry_s
        self._looks.append((replica.look_at, replica))

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        for host in self._registry.hosts.values():
            assert 0 <= host.step <= self._steps, host
        for replica in self._registry.replicas:
            for part in replica.parts:
                assert part.step >= replica.step or not replica.begun, (replica.index, part)
            assert not replica.begun or self.phase is not Phase.LAUNCHING, replica
            if self._checked_under == self._shards_revision:
                assert (replica.index in self._working) != replica.is_complete(self._checked_under), replica
        assert self.phase is not Phase.FINISHING or self._checkpoints.round is not None
