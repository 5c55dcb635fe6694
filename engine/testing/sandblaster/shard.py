"""A simulated shard of Sandblaster: its body shows every operation and sum to the invariants."""

from __future__ import annotations

from partita.engine.protocol.copy_messages import ShardCounts
from partita.engine.protocol.durability.backup import Backup, PolicyOf
from partita.engine.protocol.durability.snapshots import SnapshotBackup
from partita.engine.protocol.names import COORDINATOR, backup_index
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.sum_then_continue import SumThenContinue
from partita.engine.testing.host import SimulatedHost
from partita.engine.testing.log import LogWriter
from partita.engine.testing.sandblaster.schedule import SandblasterCoordinatorHost, SandblasterSchedule
from partita.engine.testing.sandblaster.shard_invariants import ShardInvariants
from partita.engine.testing.shards import ShardBody, ShardChecks, ShardState, shard_of


def role(schedule: SandblasterSchedule, host: SimulatedHost) -> tuple[Shard | Backup, ShardBody]:
    """Builds a shard that starts from the committed file, from the state that the run began with, or from its
    backup; or a backup.
    """
    run, name = host.coordinator, shard_of(host.name)
    assert isinstance(run, SandblasterCoordinatorHost)

    def begin(checkpoint: int | None) -> ShardState:
        file = run.start_of(name, checkpoint)
        return ShardState(schedule.start[name]) if file is None else file.contents

    body = ShardBody(schedule, host, begin)
    body.operation_s = schedule.scenario.operation_s
    if backup_index(host.name) is not None:
        body.checks = ShardChecks()
        return body.build_backup(_policy_of(schedule, host, body), SnapshotBackup), body
    file = None if host.checkpoint is None else run.start_of(name, host.checkpoint)
    policy = schedule.kind(SumThenContinue)(
        ShardBody.ranges(schedule, host),
        unit_size=schedule.scenario.unit_size,
        number=0 if file is None else file.contents.seen[COORDINATOR][1],
        restored=ShardCounts(0 if file is None else file.version),
        keeps=schedule.durability != "checkpoint",
    )
    if run.logs:
        log = run.logs[name]
        body.replay(policy, log.recover(policy.version))
        body.log = LogWriter(host, log, policy.version, schedule.sync_s)
    body.checks = checks = ShardInvariants(run.invariants, host.id, body.vectors, policy.number)
    checks.continues(policy)
    if schedule.environment.topology.replicated:
        return body.build_replicated(policy, _policy_of(schedule, host, body)), body
    return body.build(policy), body


def _policy_of(schedule: SandblasterSchedule, host: SimulatedHost, body: ShardBody) -> PolicyOf:
    def policy_of(counts: ShardCounts) -> SumThenContinue:
        policy = schedule.kind(SumThenContinue)(
            ShardBody.ranges(schedule, host),
            unit_size=schedule.scenario.unit_size,
            restored=counts,
            keeps=True,
        )
        if isinstance(body.checks, ShardInvariants):
            body.checks.continues(policy)
        return policy

    return policy_of
