"""Checkpoints, restarts, and shards that do not answer: the coordinator's work in every run.

It must not know the work, nor the driver's program beyond its present action.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from partita.engine.protocol.checkpointing import CheckpointRound, CheckpointTracker
from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Restart, RunSettings, Warn
from partita.engine.protocol.elastic import ElasticLifecycle
from partita.engine.protocol.failure import sentence
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.journaled_plan import JournaledPlan
from partita.engine.protocol.message_base import UnitRange
from partita.engine.protocol.names import Topology
from partita.engine.protocol.views import Outline

_NEVER: Final = float("inf")


class Supervision(ElasticLifecycle):
    """The hosts and the checkpoints of one run.

    Attributes:
        outline: the run, as the driver's program knows it.
        plan: the driver's program at work.
        until: examples of the work that it has yielded, counted from the first epoch on.
        checkpoints: of the run.
        next_round_at: when the next checkpoint is due (seconds).
        round_is_whole: whether the checkpoint under way holds all of the work that was yielded.
    """

    def __init__(
        self, plan: JournaledPlan, outline: Outline, topology: Topology, settings: RunSettings
    ) -> None:
        stall_s, incarnations = settings.timeouts.stall_s, settings.incarnations
        super().__init__(HostRegistry.of(topology, stall_s=stall_s, incarnations=incarnations), settings)
        self.outline: Final = outline
        self.plan: Final = plan
        self.until = 0
        self.checkpoints: Final = CheckpointTracker(settings.next_checkpoint)
        self.next_round_at = _NEVER
        self.round_is_whole = False
        self._stop_at = _NEVER
        self._replaced: Final[dict[str, HostRecord]] = {}  # shards whose lease has to end before
        self._unresponsive: Final[dict[str, HostRecord]] = {}  # shards that were replaced for that in a row

    @abstractmethod
    def proceed(self, result: object, now: float) -> list[CoordinatorEffect]:
        """Gives the driver's program the result of its action, and begins what it yields next."""

    @abstractmethod
    def finish_if_complete(self, now: float) -> list[CoordinatorEffect]:
        """Goes on with the program when the work that it has yielded is done; begins the last checkpoint."""

    @abstractmethod
    def validate_now(self, now: float) -> list[CoordinatorEffect]:
        """Begins the validation that the driver's program has yielded, or goes on with it."""

    @abstractmethod
    def shard_goes_back(self) -> str:
        """Notes that a shard goes back to the last checkpoint. Returns what follows, in words."""

    @abstractmethod
    def shard_is_replaced(self, now: float) -> list[CoordinatorEffect]:
        """Has replicas do what that has made necessary."""

    @property
    def first_scale(self) -> float:
        """The factor of the learning rate with which the run begins."""
        return self._settings.scale

    @property
    def keeps_records(self) -> bool:
        """Returns whether somebody keeps the records of shards."""
        return self._settings.keeps_records

    @property
    def lost(self) -> int:
        """Acknowledged pushes that no shard holds any more, as far as is known."""
        return self.checkpoints.lost

    # Checkpoints.

    @override
    def _all_ready(self, now: float) -> None:
        every_s = self.timeouts.checkpoint_every_s
        self.next_round_at = _NEVER if every_s is None else now + every_s

    @override
    def _shard_is_back(self, now: float) -> None:
        """Begins a round soon: what the shard has lost since the last checkpoint would be lost again."""
        if self.timeouts.checkpoint_every_s is not None:
            self.next_round_at = min(self.next_round_at, now + self.timeouts.restart_s)

    def new_round(
        self,
        writers: Sequence[HostRecord],
        steps: tuple[int, ...],
        now: float,
        *,
        whole: bool,
        position: int | None = None,
        step: int = 0,
        done: tuple[UnitRange, ...] = (),
    ) -> CheckpointRound:
        """Begins a checkpoint of files by these hosts; see `CheckpointRound`.

        `whole`: it holds all of the work that was yielded.
        """
        self._all_ready(now)
        self.round_is_whole = whole
        incarnations = {host.name: host.incarnation for host in writers}
        return self.checkpoints.begin(
            incarnations, steps=steps, position=position, step=step, done=done, now=now
        )

    def extend_stop(self, now: float) -> None:
        """Gives the last checkpoint time after Ctrl-C as long as it progresses."""
        if self.phase is Phase.STOPPING:
            self._stop_at = max(self._stop_at, now + self.timeouts.stop_s)

    def _fail_round(self, reason: str, now: float) -> list[CoordinatorEffect]:
        """Ends a round that could not be written; another one follows, since disks become free again."""
        last = self.phase is Phase.FINISHING
        checkpoint, wait_s, tried_s = self.checkpoints.fail(self.timeouts, now, last=last)
        if self.timeouts.checkpoint_every_s is not None:
            self.next_round_at = min(self.next_round_at, now + wait_s)
        what = f"checkpoint {checkpoint} was not written: {sentence(reason)}"
        if last and tried_s >= self.timeouts.save_s:
            return self.fail(f"{what}; the last one was tried for {tried_s:.0f} s, so make room for it")
        self.phase = Phase.RUNNING if last else self.phase
        return [Warn(f"{what}; it is tried again in {wait_s:g} s")]

    # Restarts.

    @override
    def relaunch(
        self, hosts: Sequence[HostRecord], reason: str, now: float, *, from_backup: bool = False
    ) -> Restart:
        """Starts the next processes of these hosts, from the last checkpoint, or a shard from its backup."""
        for host in hosts:
            self._end_host(host, host.state, now)
            self._replaced.pop(host.name, None)
        started = tuple(self.registry.relaunch(host, now) for host in hosts)
        return Restart(started, self.checkpoints.committed, reason, from_backup)

    @property
    def start_text(self) -> str:
        """The checkpoint that a restarted host starts from, in words."""
        committed = self.checkpoints.committed
        return "the start" if committed is None else f"checkpoint {committed}"

    def restart_stalled(self, replica: ReplicaRecord, what: str, now: float) -> list[CoordinatorEffect]:
        """Restarts a replica without progress, and allows it twice the time from now on."""
        effects = self.restart_replica(replica, f"no {what} for {replica.stall_s:.0f} s", now)
        replica.stall_s *= 2
        return effects

    # Shards and their backups.

    @override
    def _lose(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        return self._lose_backup(host, reason, now) if host.shard else super()._lose(host, reason, now)

    def _lose_backup(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Lets a shard go on alone until a new backup has its state. One that is not whole has lost it."""
        shard, host.is_whole = self.registry.hosts[host.shard], False
        if self.phase is Phase.STOPPING:
            self._end_host(host, HostState.GONE, now)
            return [Warn(f"{host.name}: {reason}"), *self.directories.remove((host,), now)]
        if not shard.is_whole:
            why = f"{host.name}, from which it begins: {reason}"
            if shard.state is not HostState.READY:
                return self._restart_shard(shard, why, now)
            # It may have begun, although the report of that is not here: then it holds a lease.
            self._end_host(host, HostState.GONE, now)
            later = [] if shard.replaced is not None else self._replace_later(shard, why, now)
            return [*later, *self.directories.remove((host,), now)]
        warning = Warn(f"{host.name}: {reason}; {shard.name} goes on alone until a new one has its state")
        return [warning, self.relaunch((host,), reason, now), *self.directories.remove((host,), now)]

    def _restart_shard(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Drops the round, and starts the shard again from its backup, or else from the last checkpoint."""
        if self.phase is Phase.FINISHING:
            self.phase = Phase.RUNNING  # parts finish with the new shard
        source = self.registry.backup_of(host)
        if source is not None:
            host.is_whole = False
            self.checkpoints.shard_continues(host.name)
            warning = Warn(f"{host.name}: {reason}; goes on from {source.name}, and nothing is lost")
            return [warning, self.relaunch((host,), reason, now, from_backup=True)]
        self.checkpoints.shard_died(host.name)
        follows, backup = self.shard_goes_back(), self.registry.backups.get(host.name)
        hosts, host.is_whole = [host], True
        if backup is not None:
            hosts.append(backup)
            backup.is_whole = False
        warning, again = Warn(f"{host.name}: {reason}; {follows}"), self.relaunch(hosts, reason, now)
        return [warning, again, *self.shard_is_replaced(now)]

    def backup_is_awaited(
        self, shard: HostRecord, name: str, waited_s: float, now: float
    ) -> list[CoordinatorEffect]:
        """Replaces a backup that confirms nothing for too long, although both are alive: a part of the
        network between them is lost. The shard does answer.
        """
        shard.since = max(shard.since, now)
        backup = self.registry.backups.get(shard.name)
        if backup is None or backup.name != name or backup.state is not HostState.READY:
            return []
        if waited_s < self.timeouts.answer_s:
            return []
        return self._died(backup, f"no confirmation to {shard.name} for {waited_s:.0f} s", now)

    def copy_is_complete(self, backup: HostRecord, incarnation: int) -> list[CoordinatorEffect]:
        """Notes that a shard's process of this incarnation and its backup have the same."""
        shard = self.registry.hosts[backup.shard]
        if shard.incarnation != incarnation or (shard.is_whole and backup.is_whole):
            return []
        shard.is_whole = backup.is_whole = True
        return [Warn(f"{shard.name} and {backup.name} have the same, and each can go on alone")]

    # Shards that are alive and do not answer.

    def replace_unresponsive(self, shard: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        """Revokes a shard's lease; the next process starts when it has ended. Replicas wait meanwhile."""
        if shard.replaced is not None:
            return []
        shard.unresponsive += 1
        if shard.unresponsive >= self.timeouts.deaths and not self._is_dispensable(shard):
            return self.fail(
                f"{shard.name} is alive and does not answer, also after {shard.unresponsive - 1} "
                f"replacements: {why}; look at what it printed, and at the network between these hosts"
            )
        self._unresponsive[shard.name] = shard
        return self._replace_later(shard, why, now)

    def _replace_later(self, shard: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        self._membership.revoke(shard.name)
        self._replaced[shard.name] = shard
        shard.replaced = now + self.timeouts.heartbeats.dead_s, why
        return [Warn(f"{shard.name}: {why}; it is replaced when its lease has ended")]

    @override
    def _cut_off(self, host: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        if host.replaced is not None:
            return []
        if not host.is_shard or host.state is not HostState.READY:
            return super()._cut_off(host, why, now)
        host.deaths += 1
        if host.deaths >= self.timeouts.deaths:
            return self._give_up(host, f"{host.name} was replaced {host.deaths} times: {why}", now)
        return self._replace_later(host, why, now)

    def shards_answer(self) -> None:
        """Notes that all shards have answered."""
        for shard in self._unresponsive.values():
            shard.unresponsive = 0
        self._unresponsive.clear()

    def waits_for_shard(self, replica: ReplicaRecord) -> bool:
        """Returns whether a replica stands still because of a shard."""
        hosts = self.registry.hosts
        return not self.registry.shards_ready or any(
            hosts[other].replica is None for part in replica.parts for other in self.waits.of(part.name)
        )
