"""A simulated shard: the real machine over a few floats; operations and its disk take their time."""

from __future__ import annotations

from partita.engine.protocol.events import (
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Span,
    Tick,
)
from partita.engine.protocol.lease import Fenced
from partita.engine.protocol.messages import CommandResult, Contribution, ContributionAck, Message, Point
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.vector_shard import (
    AddGradient,
    DropGradients,
    LoadCheckpoint,
    MoveGradient,
    OperationsDone,
    RunOperations,
    StoreGradient,
    VectorShard,
    VectorShardEffect,
    VectorShardEvent,
)
from partita.engine.runtime.simulation.hosts import HEARTBEAT_S, Host, Numbers, Run
from partita.engine.runtime.simulation.judgement import Life, Violation
from partita.engine.runtime.simulation.sandblaster.disk import File
from partita.engine.runtime.simulation.sandblaster.function import Vector, added
from partita.engine.runtime.simulation.sandblaster.setting import Setting
from partita.engine.runtime.simulation.sandblaster.shard_ledger import ShardLedger
from partita.engine.runtime.simulation.sandblaster.vectors import Vectors, operate


class ShardHost(Host):
    """Interprets the effects of a `VectorShard`, and shows the ledger what they are."""

    machine: VectorShard

    def __init__(self, setting: Setting, run: Run, life: Life, checkpoint: int | None) -> None:
        super().__init__(setting.world, run, life, checkpoint)
        self.setting = setting

    def assign(self) -> None:
        """Starts from the committed file, or from what the run began with."""
        setting, name = self.setting, self.name
        file = setting.start_of(self.run, name, self.checkpoint)
        self.vectors: Vectors = dict(file.vectors)
        self.written_at = 0.0
        self.kept: dict[tuple[int, int], Vector] = {}
        self.size = setting.layout.sizes[name]
        self.ledger = ShardLedger(setting.ledger_of(self.run), self.life, self.vectors)
        self.machine = setting.machines.shard(
            name,
            epoch=self.incarnation,
            ranges=setting.layout.of_shard[name],
            unit_size=setting.scenario.unit_size,
            number=file.number if self.checkpoint is not None else 0,
            heartbeat_s=HEARTBEAT_S,
        )

    def tick(self) -> None:
        """Time passes."""
        self._do(Tick())

    def hear(self, sender: str, message: Message, received: Received) -> None:
        """A message for the machine."""
        self._do(received)

    def _do(self, event: VectorShardEvent) -> None:
        number = self.machine.number
        effects = self.machine.receive(event, self.clock)
        if self.machine.number != number:
            self.ledger.begins(self.machine.number)
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
                self._persist(effect)
            case Fenced():
                self.exit()
            case Refuse(sender=sender, reason=reason):
                raise Violation(f"S5: {self.name} refuses what {sender} sent: {reason}")

    def _work(self, effect: RunOperations | LoadCheckpoint) -> None:
        """At once, or beside the talk, while messages come; now and then that takes long."""
        longest_s = self.setting.scenario.operation_s
        if longest_s:
            self.later(longest_s * self.world.random.random() ** 12, self.on_worked, effect)
        else:
            self.on_worked(effect)

    def on_worked(self, effect: RunOperations | LoadCheckpoint) -> None:
        """What was asked is done now."""
        match effect:
            case RunOperations(operations=operations):
                self.ledger.does(operations)
                scalars = [one for asked in operations for one in operate(self.vectors, asked, self.size)]
                self.ledger.done(scalars)
                self._do(OperationsDone(scalars))
            case LoadCheckpoint(checkpoint=checkpoint):
                self.vectors.clear()
                self.vectors.update(self.setting.start_of(self.run, self.name, checkpoint).vectors)
                self.ledger.reverts(checkpoint)
                self._do(OperationsDone())

    def _add_up(
        self, effect: StoreGradient | AddGradient | MoveGradient | DropGradients, event: VectorShardEvent
    ) -> None:
        match effect:
            case StoreGradient(machine=machine, unit=unit, payload=payload):
                assert isinstance(event, Received)
                assert isinstance(event.message, Contribution)
                assert isinstance(payload, Numbers)
                numbers = tuple(payload)
                self.ledger.keeps(event.message.evaluation, unit, machine, numbers)
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
                self.ledger.shows(evaluation, machine_of(effect.to), tuple(payload))
            case ContributionAck(evaluation=evaluation, unit=unit):
                self.ledger.acknowledges(evaluation, unit, machine_of(effect.to))
            case CommandResult(number=number, scalars=scalars):
                self.ledger.answers(number, scalars)
        self.send(effect.to, message, payload)

    def _persist(self, effect: Persist) -> None:
        """The copy is taken now; the file is there later."""
        name = f"{effect.checkpoint}/{self.name}.{self.incarnation}"
        sha256 = f"{name} of run {self.run.coordinator.incarnation}"
        file = File(dict(self.vectors), effect.version, sha256)
        self.ledger.persists(effect.checkpoint)
        self.setting.disk.folders.add(effect.checkpoint)
        around, random = self.setting.scenario.around, self.world.random
        wait_s = around.write_s * random.random()
        self.written_at = max(self.written_at, self.world.now + wait_s)  # one file after the other
        if around.is_full(random, self.world.now):
            failed = NotPersisted(effect.checkpoint, effect.version, "no space")
            self.later(self.written_at - self.world.now, self._do, failed)
        else:
            self.later(self.written_at - self.world.now, self.on_written, (effect.checkpoint, name, file))

    def on_written(self, written: tuple[int, str, File]) -> None:
        """The file is on disk, whole."""
        checkpoint, name, file = written
        self.setting.disk.files[name] = file
        self._do(Persisted(checkpoint, file.number, name, file.sha256))
