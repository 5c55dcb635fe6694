"""A simulated part: the real Downpour client over lists of integers.

A step takes virtual time and yields a gradient of small known integers. The parts of one replica meet after
each step: that stands for the states and errors which they would send to one another.
"""

from __future__ import annotations

from partita.engine.protocol.downpour_client import (
    ClearGradient,
    DownpourClient,
    DownpourEffect,
    DownpourEvent,
    Drain,
    Drained,
    Install,
    SavePushRecord,
    Stage,
    Started,
    StepBegins,
    StepEnded,
    SwapBuffers,
)
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.messages import (
    Begin,
    Failed,
    Finished,
    Heartbeat,
    Message,
    Parameters,
    Push,
    PushAck,
    Report,
    ResumeStep,
)
from partita.engine.protocol.names import COORDINATOR, part_indices
from partita.engine.runtime.simulation.downpour.scenario import NUMBERS_OF_A_MACHINE
from partita.engine.runtime.simulation.downpour.setting import Setting
from partita.engine.runtime.simulation.hosts import RETRY_S, Host, Numbers, Run
from partita.engine.runtime.simulation.judgement import Life, Violation, demand


class PartHost(Host):
    """Interprets the effects of a `DownpourClient`, steps, and reports."""

    client: DownpourClient

    def __init__(self, setting: Setting, run: Run, life: Life, checkpoint: int | None) -> None:
        super().__init__(setting.world, run, life, checkpoint)
        self.setting = setting

    def assign(self) -> None:
        """Makes the client, and vectors of zeros."""
        indices = part_indices(self.name)
        assert indices is not None
        self.replica, self.machine_index = indices
        scenario, n = self.setting.scenario, NUMBERS_OF_A_MACHINE
        self.spans = self.setting.layout.of_machine[self.machine_index]
        self.shard_at = {start: shard for shard, start, _ in self.spans}
        self.client = self.setting.machines.client(
            incarnation=self.incarnation,
            shards=self.spans,
            earlier=self.setting.noted.to(self.life),
            fetch_every=scenario.fetch_every,
            push_every=scenario.push_every,
            retry_s=RETRY_S,
        )
        self.setting.noted.begin(self.life)
        self.setting.ledger.part_is_born(self.life, size=n)
        names = ("parameters", "staged", "accumulated", "in_flight")
        self.vectors: dict[str, list[float]] = {name: [0] * n for name in names}
        self.staged: dict[str, tuple[int, int]] = {}
        self.started = False
        self.step = -1  # the next one; -1 before Begin
        self.stop = 0
        self.inside = False
        self.draining = False
        self.drained = False

    # What it hears.

    def tick(self) -> None:
        """Time passes: says that it lives, and what nobody has confirmed."""
        self.send(COORDINATOR, Heartbeat(self.incarnation, clock=self.clock))
        if self.drained:
            self.send(COORDINATOR, Finished(self.step, self.revision))
        self._say_continues()
        self._do(Tick())
        client, begun = self.client, self.step >= 0
        waits = self.draining if self.draining else not (client.ready if begun else client.informed)
        self.say_waits(self.step, client.waits_for if self.started and waits and not self.drained else ())

    def hear(self, sender: str, message: Message, received: Received) -> None:
        """A message for the client, or an order to begin."""
        if isinstance(message, Begin):
            if self.step < 0 and self._knows_everybody:
                resumed = self.setting.scenario.done[self.replica]
                self.setting.ledger.begins(self.life, message.step, resumed=resumed)
                self.step, self.stop = message.step, message.stop
                self._try_to_begin()
        elif isinstance(message, (Parameters, PushAck)):
            self._hear_shard(sender, message, received)

    def _say_continues(self) -> None:
        if self.step < 0 and self.started and self.client.informed:
            self.send(COORDINATOR, ResumeStep(self.client.continues))

    def _hear_shard(self, sender: str, message: Parameters | PushAck, received: Received) -> None:
        before, was_informed = self.client.pushes, self.client.informed
        effects = self.client.receive(received, self.clock)
        if self.client.pushes > before:
            assert isinstance(message, PushAck)
            self.setting.ledger.settles(self.life, sender, message.sequence)
        self._carry_out(effects, received)
        if self.client.informed > was_informed:
            self._say_continues()
        self._try_to_begin()

    def learn(self, replaced: Replaced) -> None:
        """A shard has a new process: being drained has to be found anew with it."""
        if self.assigned and any(shard == replaced.name for shard, _, _ in self.spans):
            self.drained = False
            self._do(replaced)

    def learned(self) -> None:
        """Asks for parameters as soon as the shards can be reached."""
        if self.assigned and not self.started and self._knows_everybody:
            self.started = True
            self._do(Started())
            self._say_continues()

    def on_prepared(self, _: object) -> None:
        """Everything is compiled."""
        super().on_prepared(_)
        self.learned()

    @property
    def _knows_everybody(self) -> bool:
        mates = self.setting.scenario.around.topology.parts(self.replica)
        return self.revision > 0 and all(mate in self.peers or mate == self.name for mate in mates)

    # Steps.

    def _try_to_begin(self) -> None:
        if self.step < 0 or self.inside or not self.started or not self.client.ready or self.drained:
            return
        if self.step >= self.stop:
            if not self.draining:
                self.draining = True
                self._do(Drain())
            return
        self.inside = True
        self._do(StepBegins(self.step))
        scenario = self.setting.scenario
        slowest = scenario.straggler if (self.replica, self.machine_index) == (0, 0) else 1.0
        self.later(scenario.step_s * slowest * self.world.random.random(), self.on_computed)

    def on_computed(self, _: object) -> None:
        """The gradient of a step is there: small integers that its place and time determine."""
        if self.setting.raises(self.name):
            self.send(COORDINATOR, Failed("the user's function raised", f"traceback of {self.name}"))
            self.exit()
            return
        seed = 7 * self.step + 5 * self.replica + 3 * self.machine_index + 11 * self.incarnation
        gradient: list[float] = [1 + (seed + 2 * i) % 9 for i in range(NUMBERS_OF_A_MACHINE)]
        for i, number in enumerate(gradient):
            self.vectors["accumulated"][i] += number
            self.vectors["parameters"][i] -= number
        self.setting.ledger.computed(self.life, self.step, gradient)
        self._do(StepEnded(self.step))
        for part in self.setting.meet(self, replica=self.replica, step=self.step):
            assert isinstance(part, PartHost)
            part.later(0.001, part.on_met)

    def on_met(self, _: object) -> None:
        """Every part of the replica has done this step."""
        self.inside = False
        self.step += 1
        pushes, staleness = self.client.pushes, self.client.staleness
        self.send(COORDINATOR, Report(self.step, 1, 0.0, 0, staleness, pushes))
        self._try_to_begin()

    # Effects.

    def _do(self, event: DownpourEvent) -> None:
        self._carry_out(self.client.receive(event, self.clock), event)

    def _carry_out(self, effects: list[DownpourEffect], event: DownpourEvent) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, SwapBuffers):
                start, stop = effect.span.start, effect.span.stop
                self.vectors["in_flight"][start:stop] = self.vectors["accumulated"][start:stop]
                self.vectors["accumulated"][start:stop] = [0] * (stop - start)
            elif isinstance(effect, ClearGradient):
                start, stop = effect.span.start, effect.span.stop
                self.vectors["accumulated"][start:stop] = [0] * (stop - start)
                self.setting.ledger.discards(self.life, start=start, stop=stop)
            elif isinstance(effect, SavePushRecord):
                self.setting.noted.note(self.name, effect.shard, effect.settled)
                if effect.settled.incarnation < self.incarnation:
                    self.setting.ledger.inherits(self.name, effect.shard, effect.settled)
            elif isinstance(effect, Stage):
                assert isinstance(event, Received)
                assert isinstance(event.message, Parameters)
                assert isinstance(effect.payload, Numbers)
                self.vectors["staged"][effect.span.start : effect.span.stop] = effect.payload
                self.staged[event.sender] = (event.message.epoch, event.message.version)
            elif isinstance(effect, Install):
                demand(isinstance(event, StepBegins), "I3", self.life, "installs parameters inside a step")
                start, stop = effect.span.start, effect.span.stop
                self.vectors["parameters"][start:stop] = self.vectors["staged"][start:stop]
                shard = self.shard_at[start]
                self.setting.ledger.installs(self.life, shard, self.staged[shard])
            elif isinstance(effect, Drained):
                self.setting.ledger.drained(self.life, self.shard_at.values())
                self.drained = True
                self.send(COORDINATOR, Finished(self.step, self.revision))
            elif isinstance(effect, Refuse):
                raise Violation(f"S5: {self.name} refuses what {effect.sender} sent: {effect.reason}")
        self.client.validate()

    def _send(self, effect: Send) -> None:
        payload = None
        if effect.payload is not None:
            assert isinstance(effect.payload, Span)
            assert isinstance(effect.message, Push)
            start, stop = effect.payload.start, effect.payload.stop
            payload = Numbers(self.vectors[effect.payload.vector][start:stop])
            sequence = effect.message.sequence
            self.setting.ledger.pushes(self.life, effect.to, sequence, tuple(payload), start=start, stop=stop)
        self.send(effect.to, effect.message, payload)
