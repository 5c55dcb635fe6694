"""The simulated body of a part under Downpour: lists of small integers.

A step takes virtual time and yields a gradient of known integers. The parts of one replica meet after each
step: that stands for the states and errors that they would send to one another.
"""

from __future__ import annotations

from typing import Any

from partita.engine.protocol.events import Received, Send, Span
from partita.engine.protocol.leased_work import LeasedWork, RunUnit
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Finished, Parameters, Push, PushAck, Report
from partita.engine.protocol.names import part_name
from partita.engine.protocol.parameter_links import ClearGradient, ParameterLinks, SavePushRecord
from partita.engine.protocol.part import Part
from partita.engine.protocol.program_effects import StepDone
from partita.engine.testing import bodies
from partita.engine.testing.bodies import RETRY_S
from partita.engine.testing.downpour.schedule import DownpourSchedule
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import require


def build_part(schedule: DownpourSchedule, host: SimulatedHost) -> tuple[Part, PartBody]:
    """Builds the task of a part: its machine, and the body around it."""
    body, scenario = PartBody(schedule, host), schedule.scenario
    topology = scenario.environment.topology
    links = schedule.kind(ParameterLinks)(
        incarnation=host.incarnation,
        shards=body.spans,
        earlier=schedule.push_log.of_part(host.id),
        alone=topology.replicas == 1,
        stateful=scenario.steps % 2 == 0,
        retry_s=RETRY_S,
    )
    others = [part_name(body.replica, n) for n in range(topology.machines) if n != body.machine]
    work, replica = schedule.kind(LeasedWork)(links), scenario.driver.replica
    body.part = schedule.kind(Part)(replica, work, needed=others, watched=links.shards)
    schedule.push_log.begin(host.id)
    return body.part, body


class PartBody(bodies.PartBody):
    """Carries out the effects of a `Part`, and shows them to the reference model."""

    schedule: DownpourSchedule
    part: Part

    def __init__(self, schedule: DownpourSchedule, host: SimulatedHost) -> None:
        super().__init__(schedule, host)
        self.shard_at = {start: shard for shard, start, _ in self.spans}
        schedule.model.part_is_born(self.id, size=len(self.vectors["accumulated"]))
        self.staged: dict[int, Parameters] = {}
        self.step, self.number, self.began, self.inside = -1, -1, False, False

    def carry_out(self, effect: Any, event: Any) -> None:
        """Carries out an effect of the machine."""
        schedule, model = self.schedule, self.schedule.model
        match effect:
            case RunUnit(number=number, step=step, unit=unit):
                schedule.work.computes(self.replica, self.incarnation, step, unit)
                self.number = number
                self._run(step)
            case ClearGradient(span=Span(start=start, stop=stop)):
                self.vectors["accumulated"][start:stop] = [0.0] * (stop - start)
                model.discards(self.id, start=start, stop=stop)
            case SavePushRecord(shard=shard, record=settled):
                self.schedule.push_log.note(self.name, shard, settled)
                message = event.message
                if isinstance(message, PushAck):
                    model.settles(self.id, shard, message.sequence)
                else:
                    model.inherits(self.name, shard, settled)
            case Stage(span=span):
                assert isinstance(event, Received) and isinstance(event.message, Parameters)
                self.staged[span.start] = event.message
                super().carry_out(effect, event)
            case Install():
                self._install(effect)
            case SwapBuffers():
                super().carry_out(effect, event)
            case _:
                super().carry_out(effect, event)

    def _run(self, step: int) -> None:
        schedule, scenario = self.schedule, self.schedule.scenario
        require(not self.inside, "I8", self.id, "begins", step, "inside", self.step)
        if not self.began:
            self.began = True
            schedule.model.begins(self.id, step, resumed=2**53 * schedule.work.has_left(self.replica))
        self.step, self.inside = step, True
        schedule.model.computes(self.id, step, self.vectors["parameters"])
        slowest = scenario.straggler if (self.replica, self.machine) == (0, 0) else 1.0
        self.later(scenario.step_s * slowest * self.world.random.random(), self.on_computed)

    def _install(self, effect: Install) -> None:
        require(not self.inside, "I3", self.id, "installs parameters inside a step")
        start, stop = effect.span.start, effect.span.stop
        message, numbers = self.staged[start], self.vectors["staged"][start:stop]
        for name in effect.unheld:
            numbers = [a + b for a, b in zip(numbers, self.vectors[name][start:stop], strict=True)]
        self.vectors["parameters"][start:stop] = numbers
        version, shard = (message.shard_incarnation, message.version), self.shard_at[start]
        self.schedule.model.installs(
            self.id, shard, version, start=start, values=self.vectors["staged"][start:stop]
        )

    def on_computed(self, _: object) -> None:
        """Ends a step with a gradient of small integers that its place and time determine."""
        if self.raises():
            return
        seed = 7 * self.step + 5 * self.replica + 3 * self.machine + 11 * self.incarnation
        gradient: list[float] = [1 + (seed + 2 * i) % 9 for i in range(len(self.vectors["accumulated"]))]
        for i, number in enumerate(gradient):
            self.vectors["accumulated"][i] += number
            self.vectors["parameters"][i] += number
        self.schedule.model.computed(self.id, self.step, gradient)
        for part in self.schedule.meet(self, self.replica, self.incarnation, self.step):
            part.later(0.001, part.on_met)

    def on_met(self, _: object) -> None:
        """Ends the step: every part of the replica has done it."""
        self.inside = False
        self.host.on_event(StepDone(self.number))

    def payload(self, send: Send) -> Numbers:
        """Returns the gradient of a push."""
        numbers = super().payload(send)
        assert isinstance(send.message, Push) and send.payload is not None
        start, stop = send.payload.start, send.payload.stop
        self.schedule.model.pushes(
            self.id, send.to, send.message.sequence, tuple(numbers), start=start, stop=stop
        )
        return numbers

    def sends(self, send: Send) -> None:
        """Checks what a part reports."""
        topology = self.schedule.environment.topology
        match send.message:
            case Finished():
                self.schedule.model.drained(self.id, self.shard_at.values())
            case Report(staleness=staleness) if topology.replicas == 1:
                require(staleness == 0, "I14", self.id, "reports the staleness", staleness, "of nobody else")
