"""The coordinator of a Downpour run: tells replicas to begin, counts their steps, and ends when all are done.

What every coordinator does stands in `supervision.py`. What is lost on the way is said again: by a part
Finished until Stop, by the coordinator Begin.

Source: DistBelief, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from partita.engine.protocol.coordinator import Coordinator, Phase
from partita.engine.protocol.coordinator_effects import (
    CoordinatorEffect,
    EndRun,
    Progress,
    Restart,
    Timeouts,
    Warn,
)
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.messages import Begin, Finished, LostPushes, Report, ResumeStep
from partita.engine.protocol.names import Topology


class DownpourCoordinator(Coordinator):
    """Supervises one training run."""

    def __init__(
        self,
        topology: Topology,
        *,
        steps: int,
        run: str = "",
        done: tuple[int, ...] | None = None,
        next_checkpoint: int = 1,
        incarnations: Mapping[str, int] | None = None,
        versions: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """A run that has not started; `Opened` starts it.

        Args:
            topology: how many hosts of each kind.
            steps: steps that each replica has to do in all.
            run: the run's id, said in `Assign`.
            done: steps that each replica has done, of a checkpoint that is resumed; none by default.
            next_checkpoint: the number of the next checkpoint.
            incarnations: of the first processes, where not 0.
            versions: what every host must say in `Hello`.
            timeouts: waits and limits.

        Raises:
            ValueError: `done` does not fit the replicas.
        """
        done = (0,) * topology.replicas if done is None else done
        if len(done) != topology.replicas or min(done) < 0:
            raise ValueError(
                f"the steps done are {done}, and the run has {topology.replicas} replicas; "
                "give one number, 0 or more, for each"
            )
        stall_s = (timeouts or Timeouts()).stall_s
        registry = HostRegistry.of(
            topology, done=done, steps=steps, stall_s=stall_s, incarnations=incarnations or {}
        )
        super().__init__(
            registry, run=run, next_checkpoint=next_checkpoint, versions=versions, timeouts=timeouts
        )
        self._steps: Final = steps

    @property
    def steps_done(self) -> tuple[int, ...]:
        """Steps of each replica, as far as all of its parts have reported."""
        return tuple(replica.steps_done for replica in self._registry.replicas)

    def _go_on(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for replica in self._registry.replicas:
            effects += self._begin(replica, now)
        return effects + self._finish_if_complete(now)

    def _begin(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        if replica.begun or not replica.parts:
            return []
        if any(part.state is not HostState.READY or not part.is_informed for part in replica.parts):
            return []
        # Every part does the steps again that any shard lacks; each leaves out what its own shards have.
        settled = [part.continues for part in replica.parts if part.continues is not None]
        replica.step = min(max(replica.first, min(settled, default=replica.steps_done)), self._steps)
        for part in replica.parts:
            part.step = replica.step
        replica.begun = True
        replica.asked_at = replica.progress_at = now
        begin = [Send(part.name, Begin(replica.step, self._steps)) for part in replica.parts]
        again = [Warn(f"replica {replica.index} begins again at step {replica.step}")]
        return [*(again if replica.restarted else ()), *begin]

    def _begin_if_ready(self, host: HostRecord, now: float) -> list[CoordinatorEffect]:
        replica = self._registry.replica_of(host)
        return [] if replica is None or self.phase is Phase.LAUNCHING else self._begin(replica, now)

    # Work.

    def _heard(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case ResumeStep(step=step):
                host.continues, host.is_informed = step, True
                return self._begin_if_ready(host, now)
            case Report():
                return self._report(host, message, now)
            case Finished():
                return self._finished(host, message, now)
            case LostPushes():
                return self._lost_pushes(host, message)
            case _:
                return []

    def _report(self, host: HostRecord, report: Report, now: float) -> list[CoordinatorEffect]:
        host.acknowledged = True
        replica = self._registry.replica_of(host)
        if replica is None or not host.step < report.step <= self._steps:
            return []  # a repeat, or one that was overtaken
        before = replica.steps_done
        host.step = report.step
        if host.step > host.furthest:
            host.furthest, host.deaths = host.step, 0
        if replica.steps_done > before:
            self._shards_answer()
            replica.progress_at, replica.stall_s = now, self._timeouts.stall_s
        sums = (report.examples, report.loss, report.correct, report.staleness, report.pushes)
        return [Progress(host.name, report.step, *sums)]

    def _finished(self, host: HostRecord, finished: Finished, now: float) -> list[CoordinatorEffect]:
        if host.replica is None:
            return []
        host.acknowledged, host.step = True, max(host.step, min(finished.step, self._steps))
        host.finished = max(host.finished, min(finished.directory, self._registry.revision))
        return self._finish_if_complete(now)

    def _finish_if_complete(self, now: float) -> list[CoordinatorEffect]:
        if self.phase is not Phase.RUNNING or not self._registry.shards_ready or not self._is_complete:
            return []
        if now < self._checkpoints.retry_at:
            return []
        self.phase = Phase.FINISHING
        return self._begin_round(now)

    @property
    def _is_complete(self) -> bool:
        return all(replica.is_complete(self._shards_revision) for replica in self._registry.replicas)

    def _lost_pushes(self, host: HostRecord, lost: LostPushes) -> list[CoordinatorEffect]:
        if not self._checkpoints.found(host.name, lost):
            return []
        return [Warn(f"{host.name} came back without {lost.pushes} acknowledged pushes of {lost.part}")]

    # Checkpoints.

    def _begin_round(self, now: float) -> list[CoordinatorEffect]:
        incarnations = {shard.name: shard.incarnation for shard in self._registry.shards}
        self._round_is_last = self._is_complete
        self._schedule_round(now)
        return list(self._checkpoints.begin(incarnations, steps=self.steps_done, now=now))

    def _watch_work(self, now: float) -> list[CoordinatorEffect]:
        effects = self._watch_replicas(now) + self._finish_if_complete(now)
        due_at = self._checkpoints.retry_at if self.phase is Phase.STOPPING else self._next_round_at
        none = self._checkpoints.round is None and self.phase in (Phase.RUNNING, Phase.STOPPING)
        if none and now >= max(due_at, self._checkpoints.retry_at) and self._registry.shards_ready:
            effects += self._begin_round(now)
        return effects

    def _last_round(self, now: float) -> list[CoordinatorEffect]:
        return [] if self._checkpoints.round is not None else self._begin_round(now)

    def _done(self, *, complete: bool) -> EndRun:
        return EndRun(self.steps_done, self._checkpoints.committed, self.lost, complete)

    # Death.

    def _is_dispensable(self, host: HostRecord) -> bool:
        replica = self._registry.replica_of(host)
        return self.phase is Phase.STOPPING or (replica is not None and replica.is_complete(0))

    def _restart_shard(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        if self.phase is Phase.FINISHING:
            self.phase = Phase.RUNNING  # parts must hear of the new shard, and finish with it
        self._checkpoints.shard_died(host.name)
        committed = self._checkpoints.committed
        what = "the start" if committed is None else f"checkpoint {committed}"
        return [
            Warn(f"{host.name}: {reason}; restarted from {what}"),
            Restart((host.relaunch(now),), committed, reason),
        ]

    def _restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """All of its parts: a step needs them all, and none knows how far the others had come."""
        replica.begun, replica.restarted = False, True
        for part in replica.parts:
            self._membership.forget(part.name)
        hosts = tuple(part.relaunch(now) for part in replica.parts)
        return [
            Warn(f"{reason}; replica {replica.index} is started again"),
            Restart(hosts, self._checkpoints.committed, reason),
        ]

    def _watch_replicas(self, now: float) -> list[CoordinatorEffect]:
        effects: list[CoordinatorEffect] = []
        for replica in self._registry.replicas:
            if not replica.begun or replica.is_complete(0):
                continue
            if self._waits_for_shard(replica):
                replica.excused_at = now
            if now - max(replica.progress_at, replica.excused_at) >= replica.stall_s:
                reason = f"no step reported for {replica.stall_s:.0f} s"
                effects += self._restart_replica(replica, reason, now)
                replica.stall_s *= 2
            elif now - replica.asked_at >= self._timeouts.retry_s:
                replica.asked_at = now
                begin = Begin(replica.step, self._steps)
                effects += [Send(part.name, begin) for part in replica.parts if not part.acknowledged]
        return effects

    def validate(self) -> None:
        """Its invariants. Raises AssertionError."""
        super().validate()
        for host in self._registry.hosts.values():
            assert 0 <= host.step <= self._steps, host
        for replica in self._registry.replicas:
            for part in replica.parts:
                assert part.step >= replica.step or not replica.begun, (replica.index, part)
            assert not replica.begun or self.phase is not Phase.LAUNCHING, replica
        assert self.phase is not Phase.FINISHING or self._checkpoints.round is not None
