"""A simulated shard: the real machine over a list of small integers."""

from __future__ import annotations

from partita.engine.protocol.events import Persist, Received, Refuse, Send, Span
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import Parameters, Push, PushAck
from partita.engine.protocol.parameter_shard import ApplyGradient, RestoredState, ShardEffect, ShardEvent
from partita.engine.testing import bodies
from partita.engine.testing.downpour.schedule import DownpourSchedule, ShardState
from partita.engine.testing.faults import freeze
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import Violation
from partita.engine.testing.schedule import HEARTBEAT_S


class ShardBody(bodies.ShardBody):
    """Carries out the effects of a `ParameterShard`, and shows them to the reference model."""

    schedule: DownpourSchedule

    def __init__(self, schedule: DownpourSchedule, host: SimulatedHost) -> None:
        super().__init__(schedule, host)
        name, checkpoint = host.name, host.checkpoint
        file = None if checkpoint is None else schedule.disk.committed(name, checkpoint)
        state = ShardState(values=[0.0] * schedule.layout.sizes[name]) if file is None else file.contents
        self.lineage = schedule.model.shard_is_born(self.id, state.lineage)
        self.values = list(state.values)
        self.machine = schedule.machines.shard(
            name,
            incarnation=self.incarnation,
            ranges=schedule.layout.of_shard[name],
            restored=RestoredState(file.version if file else 0, 0, state.seen, state.stops),
            acknowledged=schedule.push_log.of_shard(name),
            heartbeats=HeartbeatPolicy(heartbeat_s=HEARTBEAT_S),
        )

    def do(self, event: ShardEvent) -> None:
        """Gives the machine an event."""
        self._carry_out(self.machine.receive(event, self.clock), event)

    def on_applied(self, what: tuple[list[ShardEffect], ShardEvent]) -> None:
        """Ends the update of a push: its acknowledgement follows."""
        self._carry_out(*what)

    def _take_time(self, rest: tuple[list[ShardEffect], ShardEvent]) -> None:
        """Lets the update of a push take time; now and then the process is stopped in it, and replaced."""
        scenario, random = self.schedule.scenario, self.world.random
        wait_s = scenario.apply_s * random.random()
        self.later(wait_s, self.on_applied, rest)
        self.host.pause(wait_s)
        if self.world.now < scenario.environment.chaos_s and random.random() < 0.02:
            freeze(self.host, random.uniform(3.0, 8.0))

    def _carry_out(self, effects: list[ShardEffect], event: ShardEvent) -> None:
        for n, effect in enumerate(effects):
            match effect:
                case Send():
                    self._send(effect)
                case ApplyGradient():
                    self._apply(effect, event)
                    if self.schedule.scenario.apply_s:
                        self._take_time((effects[n + 1 :], event))
                        return
                case Persist():
                    self._persist(effect)
                case Fenced():
                    self.host.exit()
                case Refuse(sender=sender, reason=reason):
                    raise Violation(f"S5: {self.name} refuses what {sender} sent: {reason}")
        self.machine.validate()

    def _send(self, effect: Send) -> None:
        message, payload = effect.message, None
        if not self.machine.may_send(message, self.clock):
            return
        if isinstance(message, PushAck):
            push = (effect.to, message.incarnation, message.sequence)
            self.schedule.model.acknowledges(self.id, push, message.version)
        elif isinstance(message, Parameters):
            self.schedule.model.answers(self.id, message.shard_incarnation, message.version)
            assert isinstance(effect.payload, Span)
            payload = Numbers(self.values[effect.payload.start : effect.payload.stop])
        self.send(effect.to, message, payload)

    def _apply(self, effect: ApplyGradient, event: ShardEvent) -> None:
        assert isinstance(event, Received)
        assert isinstance(event.message, Push)
        assert isinstance(effect.payload, Numbers)
        start = effect.span.start
        for i, number in enumerate(effect.payload):
            self.values[start + i] += number
        push = (event.sender, event.message.incarnation, event.message.sequence)
        self.schedule.model.applies(self.id, push, effect.payload, start=start, values=self.values)

    def _persist(self, order: Persist) -> None:
        if order.version != self.lineage.version:
            raise Violation(f"I1: {self.name} writes version {order.version} at {self.lineage.version}")
        state = ShardState(dict(order.seen), dict(order.stops), list(self.values), self.lineage.copy())
        self.write(self.schedule, order, state)
