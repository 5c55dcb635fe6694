"""A simulated shard of Sandblaster: its body shows every operation and sum to the invariants."""

from __future__ import annotations

from partita.engine.protocol.shard import Shard
from partita.engine.protocol.sum_then_continue import SumThenContinue
from partita.engine.testing.host import SimulatedHost
from partita.engine.testing.sandblaster.schedule import SandblasterCoordinatorHost, SandblasterSchedule
from partita.engine.testing.sandblaster.shard_invariants import ShardInvariants
from partita.engine.testing.shards import ShardBody, ShardState


def role(schedule: SandblasterSchedule, host: SimulatedHost) -> tuple[Shard, ShardBody]:
    """Builds a shard that starts from the committed file, or from the state that the run began with."""
    coordinator = host.coordinator
    assert isinstance(coordinator, SandblasterCoordinatorHost)

    def begin(checkpoint: int | None) -> ShardState:
        file = coordinator.start_of(host.name, checkpoint)
        return ShardState(schedule.start[host.name]) if file is None else file.contents

    file = None if host.checkpoint is None else coordinator.start_of(host.name, host.checkpoint)
    policy = schedule.kind(SumThenContinue)(
        ShardBody.ranges(schedule, host),
        unit_size=schedule.scenario.unit_size,
        number=0 if file is None else file.version,
    )
    body = ShardBody(schedule, host, begin)
    body.operation_s = schedule.scenario.operation_s
    machine = body.build(policy)
    body.checks = ShardInvariants(coordinator.invariants, host.id, body.vectors, machine.version)
    return machine, body
