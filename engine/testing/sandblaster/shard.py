"""A simulated shard of Sandblaster: its body shows every operation and sum to the invariants."""

from __future__ import annotations

from partita.engine.protocol.batch_messages import CommandResult, ContributionAck, Point
from partita.engine.protocol.events import Persist, Send
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import (
    LoadCheckpoint,
    LongEffect,
    OperationsDone,
    ShardRanges,
    StoreGradient,
)
from partita.engine.testing import shards
from partita.engine.testing.disk import File
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.sandblaster.schedule import SandblasterCoordinatorHost, SandblasterSchedule
from partita.engine.testing.sandblaster.shard_invariants import ShardInvariants
from partita.engine.testing.schedule import HEARTBEAT_S


def role(schedule: SandblasterSchedule, host: SimulatedHost) -> tuple[Shard, ShardBody]:
    """Builds a shard that starts from the committed file, or from the state that the run began with."""
    assert isinstance(host.coordinator, SandblasterCoordinatorHost)
    file = host.coordinator.start_of(host.name, host.checkpoint)
    own = ShardRanges(host.name, host.incarnation, schedule.layout.of_shard[host.name])
    policy = schedule.machines.policy(
        own,
        unit_size=schedule.scenario.unit_size,
        number=file.version if host.checkpoint is not None else 0,
    )
    machine = schedule.machines.shard(own, policy, heartbeats=HeartbeatPolicy(heartbeat_s=HEARTBEAT_S))
    return machine, ShardBody(schedule, host, machine, file)


class ShardBody(shards.ShardBody):
    """Carries out the effects of a shard, and shows them to the invariants."""

    schedule: SandblasterSchedule

    def __init__(
        self, schedule: SandblasterSchedule, host: SimulatedHost, machine: Shard, file: File
    ) -> None:
        super().__init__(schedule, host, file.contents)
        assert isinstance(host.coordinator, SandblasterCoordinatorHost)
        self.coordinator, self.machine = host.coordinator, machine
        self.invariants = ShardInvariants(self.coordinator.invariants, self.id, self.vectors)
        self._number = machine.version

    def _begin(self) -> None:
        """Shows the command that the effects belong to."""
        if self.machine.version != self._number:
            self._number = self.machine.version
            self.invariants.begins(self._number)

    def carry_out(self, effect: object, event: object) -> object:
        """Carries out an effect of the shard's machine."""
        self._begin()
        return super().carry_out(effect, event)

    def work(self, effect: LongEffect) -> OperationsDone | None:
        """Executes operations at once, or in the background while messages arrive; some take long."""
        longest_s = self.schedule.scenario.operation_s
        if not longest_s:
            return self._worked(effect)
        self.host.later(longest_s * self.host.world.random.random() ** 12, self.on_worked, effect)
        return None

    def on_worked(self, effect: LongEffect) -> None:
        """Ends operations in the background."""
        self.host.on_event(self._worked(effect))

    def _worked(self, effect: LongEffect) -> OperationsDone:
        if isinstance(effect, LoadCheckpoint):
            self.vectors.clear()
            self.vectors.update(self.coordinator.start_of(self.host.name, effect.checkpoint).contents)
            self.invariants.reverts(effect.checkpoint)
            return OperationsDone()
        self.invariants.does(effect.operations)
        done = super().work(effect)
        assert done is not None
        self.invariants.done(done.scalars)
        return done

    def store(self, effect: StoreGradient) -> None:
        """Keeps a gradient for a sum, once."""
        assert isinstance(effect.payload, Numbers)
        self.invariants.keeps(effect.evaluation, effect.unit, effect.machine, tuple(effect.payload))
        super().store(effect)

    def contents(self, order: Persist) -> object:
        """Returns the vectors of a file, where the command asks for it."""
        self.invariants.persists(order.checkpoint)
        return super().contents(order)

    def sends(self, send: Send) -> None:
        """Checks points, acknowledgements and scalars."""
        self._begin()
        match send.message:
            case Point(evaluation=evaluation):
                self.invariants.shows(evaluation, machine_of(send.to), tuple(self.payload(send)))
            case ContributionAck(evaluation=evaluation, unit=unit):
                self.invariants.acknowledges(evaluation, unit, machine_of(send.to))
            case CommandResult(number=number, scalars=scalars):
                self.invariants.answers(number, scalars)
