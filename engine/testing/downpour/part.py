"""A simulated part: the real Downpour client over lists of small integers.

A step takes virtual time and yields a gradient of known integers. The parts of one replica meet after each
step: that stands for the states and errors that they would send to one another.
"""

from __future__ import annotations

from partita.engine.protocol.downpour_client import (
    ClearGradient,
    DownpourEffect,
    DownpourEvent,
    Drain,
    Drained,
    SavePushRecord,
    StepBegins,
    StepEnded,
)
from partita.engine.protocol.events import Received, Replaced, Send, Span, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.messages import (
    Begin,
    Finished,
    Parameters,
    Push,
    PushAck,
    Report,
    ResumeStep,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.shard_client import Install, Stage
from partita.engine.testing import bodies
from partita.engine.testing.bodies import RETRY_S
from partita.engine.testing.downpour.schedule import DownpourSchedule
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import require


class PartBody(bodies.PartBody):
    """Carries out the effects of a `DownpourClient`, steps, and reports."""

    schedule: DownpourSchedule

    def __init__(self, schedule: DownpourSchedule, host: SimulatedHost) -> None:
        super().__init__(schedule, host)
        scenario = schedule.scenario
        self.shard_at = {start: shard for shard, start, _ in self.spans}
        self.client = schedule.machines.client(
            incarnation=self.incarnation,
            shards=self.spans,
            earlier=schedule.push_log.of_part(self.id),
            fetch_every=scenario.fetch_every,
            push_every=scenario.push_every,
            retry_s=RETRY_S,
        )
        schedule.push_log.begin(self.id)
        schedule.model.part_is_born(self.id, size=len(self.vectors["accumulated"]))
        self.staged: dict[str, tuple[int, int]] = {}
        self.step = -1  # the next one; -1 before Begin
        self.stop = 0
        self.inside = self.draining = self.drained = False

    def tick(self) -> None:
        """Sends what nobody has confirmed."""
        if self.drained:
            self.send(COORDINATOR, Finished(self.step, self.revision))
        self._send_continues()
        self.do(Tick())
        client, begun = self.client, self.step >= 0
        waits = self.draining if self.draining else not (client.ready if begun else client.informed)
        self.report_waits(self.step, client.waits_for if self.started and waits and not self.drained else ())

    def receive(self, received: Received) -> None:
        """Handles a shard's answer, or the order to begin."""
        match received.message:
            case Begin(step=step, stop=stop) if self.step < 0 and self.knows_peers:
                self.schedule.model.begins(self.id, step, resumed=self.schedule.scenario.done[self.replica])
                self.step, self.stop = step, stop
                self._try_to_begin()
            case Parameters() | PushAck():
                self._receive_answer(received)

    def _send_continues(self) -> None:
        if self.step < 0 and self.started and self.client.informed:
            self.send(COORDINATOR, ResumeStep(self.client.continues))

    def _receive_answer(self, received: Received) -> None:
        before, was_informed = self.client.pushes, self.client.informed
        effects = self.client.receive(received, self.clock)
        if self.client.pushes > before:
            assert isinstance(received.message, PushAck)
            self.schedule.model.settles(self.id, received.sender, received.message.sequence)
        self._carry_out(effects, received)
        if self.client.informed > was_informed:
            self._send_continues()
        self._try_to_begin()

    def peer_replaced(self, replaced: Replaced) -> None:
        """Informs the client of a shard's new process, with which the part is not drained yet."""
        if any(shard == replaced.name for shard, _, _ in self.spans):
            self.drained = False
            self.do(replaced)

    def peers_changed(self, changed: PeersChanged) -> None:
        """Asks for parameters as soon as the shards can be reached."""
        super().peers_changed(changed)
        self._send_continues()

    @property
    def knows_peers(self) -> bool:
        """Whether all parts of the replica can be reached."""
        parts = self.schedule.environment.topology.parts(self.replica)
        return super().knows_peers and all(part in self.peers or part == self.name for part in parts)

    def _try_to_begin(self) -> None:
        if self.step < 0 or self.inside or not self.started or not self.client.ready or self.drained:
            return
        if self.step >= self.stop:
            if not self.draining:
                self.draining = True
                self.do(Drain())
            return
        self.inside = True
        self.do(StepBegins(self.step))
        scenario = self.schedule.scenario
        slowest = scenario.straggler if (self.replica, self.machine) == (0, 0) else 1.0
        self.later(scenario.step_s * slowest * self.world.random.random(), self.on_computed)

    def on_computed(self, _: object) -> None:
        """Ends a step with a gradient of small integers that its place and time determine."""
        if self.raises():
            return
        seed = 7 * self.step + 5 * self.replica + 3 * self.machine + 11 * self.incarnation
        gradient: list[float] = [1 + (seed + 2 * i) % 9 for i in range(len(self.vectors["accumulated"]))]
        for i, number in enumerate(gradient):
            self.vectors["accumulated"][i] += number
            self.vectors["parameters"][i] -= number
        self.schedule.model.computed(self.id, self.step, gradient)
        self.do(StepEnded(self.step))
        for part in self.schedule.meet(self, self.replica, self.incarnation, self.step):
            part.later(0.001, part.on_met)

    def on_met(self, _: object) -> None:
        """Goes on: every part of the replica has done this step."""
        self.inside = False
        self.step += 1
        pushes, staleness = self.client.pushes, self.client.staleness
        self.send(COORDINATOR, Report(self.step, 1, 0.0, 0, staleness, pushes))
        self._try_to_begin()

    def do(self, event: DownpourEvent) -> None:
        """Gives the client an event, and carries out its effects."""
        self._carry_out(self.client.receive(event, self.clock), event)

    def _carry_out(self, effects: list[DownpourEffect], event: DownpourEvent) -> None:
        model = self.schedule.model
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case ClearGradient(span=Span(start=start, stop=stop)):
                    self.vectors["accumulated"][start:stop] = [0.0] * (stop - start)
                    model.discards(self.id, start=start, stop=stop)
                case SavePushRecord(shard=shard, record=settled):
                    self.schedule.push_log.note(self.name, shard, settled)
                    if settled.incarnation < self.incarnation:
                        model.inherits(self.name, shard, settled)
                case Stage():
                    assert isinstance(event, Received) and isinstance(event.message, Parameters)
                    self.staged[event.sender] = (event.message.shard_incarnation, event.message.version)
                    self.change(effect)
                case Install(span=span):
                    inside = not isinstance(event, StepBegins)
                    require(not inside, "I3", self.id, "installs parameters inside a step")
                    self.change(effect)
                    shard = self.shard_at[span.start]
                    model.installs(self.id, shard, self.staged[shard])
                case Drained():
                    model.drained(self.id, self.shard_at.values())
                    self.drained = True
                    self.send(COORDINATOR, Finished(self.step, self.revision))
                case _:
                    self.change(effect)
        self.client.validate()

    def _send(self, effect: Send) -> None:
        payload = None
        if effect.payload is not None:
            assert isinstance(effect.message, Push)
            start, stop = effect.payload.start, effect.payload.stop
            payload = Numbers(self.vectors[effect.payload.vector][start:stop])
            sequence, model = effect.message.sequence, self.schedule.model
            model.pushes(self.id, effect.to, sequence, tuple(payload), start=start, stop=stop)
        self.send(effect.to, effect.message, payload)
