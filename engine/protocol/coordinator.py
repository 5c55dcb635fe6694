"""The coordinator of all drivers: checkpoints, shards that do not answer, and Ctrl-C.

It holds no parameters and sees no gradient. `checkpointing.py` defines a checkpoint; `Save` is repeated until
it is answered. The work, and who is needed for it, is known to a subclass: `downpour_coordinator.py`,
`sandblaster_coordinator.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpointing import CheckpointRound, CheckpointTracker
from partita.engine.protocol.coordinator_effects import (
    Committed,
    CoordinatorEffect,
    NotCommitted,
    Restart,
    RunSettings,
    Warn,
)
from partita.engine.protocol.elastic import ElasticLifecycle
from partita.engine.protocol.failure import sentence
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.names import Topology

_NEVER: Final = float("inf")


class Coordinator(ElasticLifecycle):
    """Supervises the hosts of one run."""

    def __init__(
        self, topology: Topology, settings: RunSettings | None, *, done: tuple[int, ...], steps: int
    ) -> None:
        """Creates a run that has not started; `Opened` starts it.

        Args:
            topology: how many hosts of each kind.
            settings: of the run.
            done: the steps that each replica has done.
            steps: the steps that each replica has to do in all.
        """
        settings = settings or RunSettings()
        stall_s, incarnations = settings.timeouts.stall_s, settings.incarnations
        registry = HostRegistry.of(
            topology, done=done, steps=steps, stall_s=stall_s, incarnations=incarnations
        )
        super().__init__(registry, settings)
        self._checkpoints: Final = CheckpointTracker(settings.next_checkpoint)
        self._next_round_at = _NEVER
        self._stop_at = _NEVER
        self._round_is_last = False  # the round under way began when all of the work was done
        self._replaced: Final[dict[str, HostRecord]] = {}  # shards whose lease has to end before
        self._unresponsive: Final[dict[str, HostRecord]] = {}  # shards that were replaced for that in a row

    @property
    def lost(self) -> int:
        """Acknowledged pushes that no shard holds any more, as far as is known."""
        return self._checkpoints.lost

    def _own_event(self, event: Committed | NotCommitted, now: float) -> list[CoordinatorEffect]:
        match event:
            case Committed(checkpoint=checkpoint):
                return self._committed(checkpoint, now)
            case NotCommitted(checkpoint=checkpoint, reason=reason):
                under_way = self._checkpoints.round
                known = under_way is not None and under_way.checkpoint == checkpoint
                return self._fail_round(reason, now) if known else []

    def _handle(self, host: HostRecord, message: object, now: float) -> list[CoordinatorEffect]:
        match message:
            case m.Saved():
                commit = self._checkpoints.saved(host.name, message, now)
                self._extend_stop(now)
                return [] if commit is None else [commit]
            case m.SaveProgress():
                under_way = self._checkpoints.of_round(host.name, message)
                if under_way is not None:
                    under_way.progress_at = now
                    self._extend_stop(now)
                return []
            case m.SaveFailed(reason=reason):
                known = self._checkpoints.of_round(host.name, message) is not None
                return self._fail_round(f"{host.name}: {reason}", now) if known else []
            case _:
                return super()._handle(host, message, now)

    @abstractmethod
    def _watch_work(self, now: float) -> list[CoordinatorEffect]:
        """Repeats what was not answered, and begins the checkpoints that are due."""

    @abstractmethod
    def _last_round(self, now: float) -> list[CoordinatorEffect]:
        """Begins the checkpoint after which the run ends, after Ctrl-C."""

    # Checkpoints.

    def _all_ready(self, now: float) -> None:
        every_s = self._timeouts.checkpoint_every_s
        self._next_round_at = _NEVER if every_s is None else now + every_s

    def _shard_is_back(self, now: float) -> None:
        """Begins a round soon: what the shard has lost since the last checkpoint would be lost again."""
        if self._timeouts.checkpoint_every_s is not None:
            self._next_round_at = min(self._next_round_at, now + self._timeouts.restart_s)

    def _new_round(
        self,
        now: float,
        *,
        steps: tuple[int, ...],
        is_last: bool,
        position: int | None = None,
        step: int = 0,
        done: tuple[m.UnitRange, ...] = (),
    ) -> CheckpointRound:
        self._all_ready(now)
        self._round_is_last = is_last
        incarnations = {host.name: host.incarnation for host in self._files_of()}
        return self._checkpoints.begin(
            incarnations, steps=steps, position=position, step=step, done=done, now=now
        )

    def _files_of(self) -> Sequence[HostRecord]:
        """The hosts that write the files of a checkpoint."""
        return self._registry.shards

    def _extend_stop(self, now: float) -> None:
        """Gives the last checkpoint time after Ctrl-C as long as it progresses."""
        if self.phase is Phase.STOPPING:
            self._stop_at = max(self._stop_at, now + self._timeouts.stop_s)

    def _committed(self, checkpoint: int, now: float) -> list[CoordinatorEffect]:
        """Uses a checkpoint for restarts from now on, unless its round was dropped meanwhile."""
        if not self._checkpoints.kept(checkpoint):
            return []
        for shard in self._registry.shards:
            shard.deaths = 0
        over = self.phase in (Phase.FINISHING, Phase.STOPPING)
        return self._end(complete=self._round_is_last) if over else []

    def _fail_round(self, reason: str, now: float) -> list[CoordinatorEffect]:
        """Ends a round that could not be written; another one follows, since disks become free again."""
        last = self.phase is Phase.FINISHING
        checkpoint, wait_s, tried_s = self._checkpoints.fail(self._timeouts, now, last=last)
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
            return [*under_way.ask_again(now, self._timeouts.retry_s)]
        missing = ", ".join(under_way.missing) or "its manifest"
        what = f"checkpoint {under_way.checkpoint} waits for {missing} since {waited_s:.0f} s"
        if self.phase is Phase.FINISHING:
            return self._fail(f"{what}, and it is the last one; look for a full or slow disk")
        self._checkpoints.round = None
        return [Warn(f"{what} and is given up; the next one follows")]

    def _relaunch(self, hosts: Sequence[HostRecord], reason: str, now: float) -> Restart:
        for host in hosts:
            self._end_host(host, host.state, now)
            self._replaced.pop(host.name, None)
        started = tuple(self._registry.relaunch(host, now) for host in hosts)
        return Restart(started, self._checkpoints.committed, reason)

    def _shard_died(self, host: HostRecord) -> str:
        """Drops the round. Returns from what the shard starts again."""
        if self.phase is Phase.FINISHING:
            self.phase = Phase.RUNNING  # parts finish with the new shard
        self._checkpoints.shard_died(host.name)
        committed = self._checkpoints.committed
        return "the start" if committed is None else f"checkpoint {committed}"

    # Shards that are alive and do not answer.

    def _watch_answers(self, now: float) -> list[CoordinatorEffect]:
        """Looks for a shard that has left a part without an answer for too long."""
        for old in self._replaced.values():
            if old.replaced is not None and now >= old.replaced[0]:
                return self._lose(old, old.replaced[1], now)
        hosts, limit_s = self._registry.hosts, self._timeouts.answer_s
        for part, shard, since in self._waits:
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
            return self._replace_unresponsive(asked, why, now)
        return []

    @property
    def _answers_since(self) -> float:
        """Since when shards can answer parts (seconds; infinity: they cannot now)."""
        return -_NEVER

    def _replace_unresponsive(self, shard: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        """Revokes a shard's lease; the next process starts when it has ended. Replicas wait meanwhile."""
        if shard.replaced is not None:
            return []
        shard.unresponsive += 1
        if shard.unresponsive >= self._timeouts.deaths and not self._is_dispensable(shard):
            return self._fail(
                f"{shard.name} is alive and does not answer, also after {shard.unresponsive - 1} "
                f"replacements: {why}; look at what it printed, and at the network between these hosts"
            )
        self._membership.revoke(shard.name)
        self._replaced[shard.name] = self._unresponsive[shard.name] = shard
        shard.replaced = now + self._timeouts.heartbeats.dead_s, why
        return [Warn(f"{shard.name}: {why}; it is replaced when its lease has ended")]

    def _shards_answer(self) -> None:
        for shard in self._unresponsive.values():
            shard.unresponsive = 0
        self._unresponsive.clear()

    def _waits_for_shard(self, replica: ReplicaRecord) -> bool:
        """Returns whether a replica stands still because of a shard."""
        hosts = self._registry.hosts
        return not self._registry.shards_ready or any(
            hosts[other].replica is None for part in replica.parts for other in self._waits.of(part.name)
        )

    def _restart_stalled(self, replica: ReplicaRecord, what: str, now: float) -> list[CoordinatorEffect]:
        """Restarts a replica without progress, and allows it twice the time from now on."""
        effects = self._restart_replica(replica, f"no {what} for {replica.stall_s:.0f} s", now)
        replica.stall_s *= 2
        return effects

    # Time.

    def _tick(self, now: float) -> list[CoordinatorEffect]:
        effects = self._watch_membership(now)
        hosts = self._watch_starts, self._watch_seats, self._watch_answers
        for watch in (*hosts, self._watch_work, self._watch_round, self._watch_stop):
            if self.phase is not Phase.OVER:
                effects += watch(now)
        if self.phase is not Phase.OVER:
            effects += self._directories.repeat(now, self._timeouts.retry_s)
        return effects

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

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        self._checkpoints.validate()
