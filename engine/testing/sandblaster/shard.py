"""A simulated shard: the real state machine over a few floats, with delays of operations and of the disk."""

from __future__ import annotations

from partita.engine.protocol.events import Persist, Received, Refuse, Send, Span
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import CommandResult, Contribution, ContributionAck, Point
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.vector_shard import (
    AddGradient,
    DropGradients,
    LoadCheckpoint,
    MoveGradient,
    OperationsDone,
    RunOperations,
    StoreGradient,
    VectorShardEffect,
    VectorShardEvent,
)
from partita.engine.testing import bodies
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import Violation
from partita.engine.testing.sandblaster.function import Vector, added
from partita.engine.testing.sandblaster.schedule import (
    SandblasterCoordinatorHost,
    SandblasterSchedule,
)
from partita.engine.testing.sandblaster.shard_invariants import ShardInvariants
from partita.engine.testing.sandblaster.vectors import Vectors, operate
from partita.engine.testing.schedule import HEARTBEAT_S


class ShardBody(bodies.ShardBody):
    """Carries out the effects of a `VectorShard`, and shows them to the invariants."""

    schedule: SandblasterSchedule

    def __init__(self, schedule: SandblasterSchedule, host: SimulatedHost) -> None:
        super().__init__(schedule, host)
        assert isinstance(host.coordinator, SandblasterCoordinatorHost)
        self.coordinator = host.coordinator
        layout, name = schedule.layout, host.name
        file = self.coordinator.start_of(name, host.checkpoint)
        self.vectors: Vectors = dict(file.contents)
        self.kept: dict[tuple[int, int], Vector] = {}
        self.size = layout.sizes[name]
        self.invariants = ShardInvariants(self.coordinator.invariants, self.id, self.vectors)
        self.machine = self.schedule.machines.shard(
            name,
            incarnation=self.incarnation,
            ranges=layout.of_shard[name],
            unit_size=self.schedule.scenario.unit_size,
            number=file.version if host.checkpoint is not None else 0,
            heartbeats=HeartbeatPolicy(heartbeat_s=HEARTBEAT_S),
        )

    def do(self, event: VectorShardEvent) -> None:
        """Gives the machine an event, and carries out its effects."""
        number = self.machine.number
        effects = self.machine.receive(event, self.clock)
        if self.machine.number != number:
            self.invariants.begins(self.machine.number)
        for effect in effects:
            self._carry_out(effect, event)
        if effects:
            self.machine.validate()

    def _carry_out(self, effect: VectorShardEffect, event: VectorShardEvent) -> None:
        match effect:
            case Send():
                self._send(effect)
            case RunOperations() | LoadCheckpoint():
                self._work(effect)
            case StoreGradient() | AddGradient() | MoveGradient() | DropGradients():
                self._add_up(effect, event)
            case Persist():
                self.invariants.persists(effect.checkpoint)
                self.write(self.schedule, effect, dict(self.vectors))
            case Fenced():
                self.host.exit()
            case Refuse(sender=sender, reason=reason):
                raise Violation(f"S5: {self.name} refuses what {sender} sent: {reason}")

    def _work(self, effect: RunOperations | LoadCheckpoint) -> None:
        """Executes operations at once, or in the background while messages arrive; some take long."""
        longest_s = self.schedule.scenario.operation_s
        if longest_s:
            self.later(longest_s * self.world.random.random() ** 12, self.on_worked, effect)
        else:
            self.on_worked(effect)

    def on_worked(self, effect: RunOperations | LoadCheckpoint) -> None:
        """Executes operations, or restores a checkpoint."""
        match effect:
            case RunOperations(operations=operations):
                self.invariants.does(operations)
                scalars = [one for asked in operations for one in operate(self.vectors, asked, self.size)]
                self.invariants.done(scalars)
                self.do(OperationsDone(scalars))
            case LoadCheckpoint(checkpoint=checkpoint):
                self.vectors.clear()
                self.vectors.update(self.coordinator.start_of(self.name, checkpoint).contents)
                self.invariants.reverts(checkpoint)
                self.do(OperationsDone())

    def _add_up(self, effect: VectorShardEffect, event: VectorShardEvent) -> None:
        match effect:
            case StoreGradient(machine=machine, unit=unit, payload=payload):
                assert isinstance(event, Received)
                assert isinstance(event.message, Contribution)
                assert isinstance(payload, Numbers)
                numbers = tuple(payload)
                self.invariants.keeps(event.message.evaluation, unit, machine, numbers)
                self.kept[machine, unit] = numbers
            case AddGradient(machine=machine, into=into, of=of):
                whole = added(self.kept[machine, into], self.kept.pop((machine, of)))
                self.kept[machine, into] = whole
            case MoveGradient(machine=machine, unit=unit, span=span):
                vector = list(self.vectors.get(span.vector, (0.0,) * self.size))
                vector[span.start : span.stop] = self.kept.pop((machine, unit))
                self.vectors[span.vector] = tuple(vector)
            case DropGradients():
                self.kept.clear()

    def _send(self, effect: Send) -> None:
        message, payload = effect.message, None
        if not self.machine.may_send(message, self.clock):
            return
        match message:
            case Point(evaluation=evaluation):
                assert isinstance(effect.payload, Span)
                span = effect.payload
                payload = Numbers(self.vectors[span.vector][span.start : span.stop])
                self.invariants.shows(evaluation, machine_of(effect.to), tuple(payload))
            case ContributionAck(evaluation=evaluation, unit=unit):
                self.invariants.acknowledges(evaluation, unit, machine_of(effect.to))
            case CommandResult(number=number, scalars=scalars):
                self.invariants.answers(number, scalars)
        self.send(effect.to, message, payload)
