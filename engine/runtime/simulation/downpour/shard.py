"""A simulated shard: the real machine over a list of integers and a disk that takes its time."""

from __future__ import annotations

from collections import deque

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
from partita.engine.protocol.messages import Message, Parameters, Push, PushAck
from partita.engine.protocol.parameter_shard import ApplyGradient, ParameterShard, ShardEffect, ShardEvent
from partita.engine.runtime.simulation.downpour.setting import File, Setting
from partita.engine.runtime.simulation.hosts import HEARTBEAT_S, Host, Numbers, Run
from partita.engine.runtime.simulation.judgement import Life, Violation


def file_name(shard: str, *, epoch: int, checkpoint: int) -> str:
    """The name holds the epoch: a process that was replaced must not write over its successor's file."""
    return f"{checkpoint}/{shard}.{epoch}"


class ShardHost(Host):
    """Interprets the effects of a `ParameterShard`, and shows the ledger what they are."""

    machine: ParameterShard

    def __init__(self, setting: Setting, run: Run, life: Life, checkpoint: int | None) -> None:
        super().__init__(setting.world, run, life, checkpoint)
        self.setting = setting

    def assign(self) -> None:
        """Starts from the committed file, or from zeros."""
        setting, name = self.setting, self.name
        file = None if self.checkpoint is None else setting.committed_file(name, self.checkpoint)
        lineage = setting.ledger.shard_is_born(self.life, file.lineage if file else None)
        self.values: list[float] = list(file.values) if file else [0] * setting.layout.sizes[name]
        self.lineage = lineage
        self.applying = False
        self.waiting: deque[ShardEvent] = deque()
        self.machine = setting.machines.shard(
            name,
            epoch=self.incarnation,
            ranges=setting.layout.of_shard[name],
            version=file.version if file else 0,
            seen=file.seen if file else {},
            stops=file.stops if file else {},
            acknowledged=setting.noted.by(name),
            heartbeat_s=HEARTBEAT_S,
        )

    def tick(self) -> None:
        """Time passes."""
        self._do(Tick())

    def hear(self, sender: str, message: Message, received: Received) -> None:
        """A message for the machine."""
        self._do(received)

    def _do(self, event: ShardEvent) -> None:
        if self.applying:
            self.waiting.append(event)
        else:
            self._carry_out(self.machine.receive(event, self.clock), event)

    def on_applied(self, what: tuple[list[ShardEffect], ShardEvent]) -> None:
        """The update of a push is done: its acknowledgement follows, and what came meanwhile."""
        self.applying = False
        self._carry_out(*what)
        while self.waiting and not self.applying and self.alive:
            self._do(self.waiting.popleft())

    def _take_time(self, rest: tuple[list[ShardEffect], ShardEvent]) -> None:
        """For the update of a push; now and then the process is stopped in it, and replaced."""
        scenario, random = self.setting.scenario, self.world.random
        self.applying = True
        self.later(scenario.apply_s * random.random(), self.on_applied, rest)
        if self.world.now < scenario.around.chaos_s and random.random() < 0.02:
            self.world.note(self, "freezes", "in an update")
            self.freeze()
            self.world.at(self.world.now + random.uniform(3.0, 8.0), None, self.thaw, None)

    def _carry_out(self, effects: list[ShardEffect], event: ShardEvent) -> None:
        for n, effect in enumerate(effects):
            kind = type(effect)
            if kind is Send:
                assert isinstance(effect, Send)
                self._send(effect)
            elif isinstance(effect, ApplyGradient):
                self._apply(effect, event)
                if self.setting.scenario.apply_s:
                    self._take_time((effects[n + 1 :], event))
                    return
            elif isinstance(effect, Persist):
                self._persist(effect)
            elif isinstance(effect, Fenced):
                self.exit()
            elif isinstance(effect, Refuse):
                raise Violation(f"S5: {self.name} refuses what {effect.sender} sent: {effect.reason}")
        self.machine.validate()

    def _send(self, effect: Send) -> None:
        message, payload = effect.message, None
        if not self.machine.may_send(message, self.clock):
            return
        if isinstance(message, PushAck):
            push = (effect.to, message.incarnation, message.sequence)
            self.setting.ledger.acknowledges(self.life, push, message.version)
        elif isinstance(message, Parameters):
            self.setting.ledger.answers(self.life, message.epoch, message.version)
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
        self.setting.ledger.applies(self.life, push, effect.payload, start=start, values=self.values)

    def _persist(self, effect: Persist) -> None:
        file = File(
            effect.version, dict(effect.seen), dict(effect.stops), list(self.values), self.lineage.copy()
        )
        if effect.version != file.lineage.version:
            raise Violation(f"I1: {self.name} writes version {effect.version} at {file.lineage.version}")
        around, random = self.setting.scenario.around, self.world.random
        wait_s = around.write_s * random.random()
        if around.is_full(random, self.world.now):
            self.later(wait_s, self._do, NotPersisted(effect.checkpoint, effect.version, "no space"))
        else:
            self.later(wait_s, self.on_written, (effect.checkpoint, file))

    def on_written(self, written: tuple[int, File]) -> None:
        """The file is on disk, whole."""
        checkpoint, file = written
        name = file_name(self.name, epoch=self.incarnation, checkpoint=checkpoint)
        self.setting.disk[name] = file
        self._do(Persisted(checkpoint, file.version, name, "hash"))
