"""A simulated shard of Downpour: its body shows every push to the reference model."""

from __future__ import annotations

from typing import Any

from partita.engine.protocol.apply_on_arrival import RestoredState
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Persist, Received, Send
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import Fetch, Parameters, PushAck
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import ApplyGradient, ShardRanges
from partita.engine.testing import shards
from partita.engine.testing.downpour.model import Lineage
from partita.engine.testing.downpour.schedule import DownpourSchedule, ShardState
from partita.engine.testing.faults import freeze
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import require
from partita.engine.testing.schedule import HEARTBEAT_S


def role(schedule: DownpourSchedule, host: SimulatedHost) -> tuple[Shard, ShardBody]:
    """Builds a shard that starts from the committed file, or from zeros."""
    name, checkpoint = host.name, host.checkpoint
    file = None if checkpoint is None else schedule.disk.committed(name, checkpoint)
    state = ShardState(values=[0.0] * schedule.layout.sizes[name]) if file is None else file.contents
    own = ShardRanges(name, host.incarnation, schedule.layout.of_shard[name])
    noted = schedule.push_log.of_shard(name)
    policy = schedule.machines.policy(
        own,
        restored=RestoredState(file.version if file else 0, 0, state.seen, state.stops),
        acknowledged=noted,
    )
    machine = schedule.machines.shard(own, policy, heartbeats=HeartbeatPolicy(heartbeat_s=HEARTBEAT_S))
    body = ShardBody(schedule, host, state)
    body.lineage = schedule.model.shard_is_born(host.id, state.lineage, noted)
    return machine, body


class ShardBody(shards.ShardBody):
    """Carries out the effects of a shard, and shows them to the reference model."""

    schedule: DownpourSchedule
    lineage: Lineage

    def __init__(self, schedule: DownpourSchedule, host: SimulatedHost, state: ShardState) -> None:
        super().__init__(schedule, host, {POINT: tuple(state.values)})

    def apply(self, effect: ApplyGradient) -> None:
        """Applies a push, which takes time; now and then the process is stopped in it, and replaced."""
        super().apply(effect)
        assert isinstance(effect.payload, Numbers)
        push, values = (effect.part, effect.incarnation, effect.sequence), list(self.vectors[POINT])
        self.schedule.model.applies(self.id, push, effect.payload, start=effect.span.start, values=values)
        scenario, world = self.schedule.scenario, self.host.world
        if not scenario.apply_s:
            return
        self.host.pause(scenario.apply_s * world.random.random())
        if world.now < scenario.environment.chaos_s and world.random.random() < 0.02:
            freeze(self.host, world.random.uniform(3.0, 8.0))

    def sends(self, send: Send) -> None:
        """Checks what is acknowledged and answered."""
        match send.message:
            case PushAck(incarnation=incarnation, sequence=sequence, version=version):
                self.schedule.model.acknowledges(self.id, (send.to, incarnation, sequence), version)
            case Parameters(shard_incarnation=incarnation, version=version):
                self.schedule.model.answers(self.id, incarnation, version)

    def handled(self, event: Any) -> None:
        """Notes what a fetch reports."""
        if isinstance(event, Received) and isinstance(event.message, Fetch):
            self.schedule.model.learns(self.id, (event.sender, event.incarnation), event.message)

    def contents(self, order: Persist) -> ShardState:
        """Returns the counts and values of a file."""
        name, version = self.host.name, self.lineage.version
        require(order.version == version, "I1", name, "writes version", order.version, "at", version)
        values = list(self.vectors[POINT])
        return ShardState(dict(order.seen), dict(order.stops), values, self.lineage.copy())
