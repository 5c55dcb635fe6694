"""The simulated arithmetic of a part whose work is leased: gradients are small integers.

A step takes virtual time and yields a gradient of known integers. The parts of one replica meet after each
step: that stands for the states and errors that they would send to one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from partita.engine.protocol.checkpoint_messages import Unsent
from partita.engine.protocol.events import Send, Span
from partita.engine.protocol.leased_work import LeasedWork, RunUnit
from partita.engine.protocol.link import Install
from partita.engine.protocol.messages import Finished, Push, PushAck, Report
from partita.engine.protocol.names import part_name, stream_name
from partita.engine.protocol.parameter_links import UNSENT, UNSENT_BEFORE, ParameterLinks, SavePushRecord
from partita.engine.protocol.part import Part
from partita.engine.protocol.program_effects import StepDone
from partita.engine.testing.downpour.schedule import DownpourCoordinatorHost, DownpourSchedule
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import require
from partita.engine.testing.parts import OF_LINKS, RETRY_S, PartArithmetic, PartBody


def build_part(schedule: DownpourSchedule, host: SimulatedHost) -> tuple[Part, PartBody]:
    """Builds the task of a part: its machine, and the body around it."""
    arithmetic, scenario = Integers(schedule, host), schedule.scenario
    topology, spans = scenario.environment.topology, arithmetic.spans
    links = schedule.kind(ParameterLinks)(
        incarnation=host.incarnation,
        streams=spans,
        earlier=arithmetic.run.push_log.of_part(host.id),
        alone=topology.replicas == 1,
        stateful=scenario.steps % 2 == 0,
        retry_s=RETRY_S,
    )
    others = [part_name(arithmetic.replica, n) for n in range(topology.machines) if n != arithmetic.machine]
    bounded = scenario.driver.staleness.most_ahead is not None
    work, replica = schedule.kind(LeasedWork)(links, reports_each=bounded), scenario.driver.replica
    part = schedule.kind(Part)(replica, work, needed=others, watched=links.shards)
    arithmetic.run.push_log.begin(host.id)
    size = sum(stop - start for _, start, stop in spans)
    vectors = {name: [0.0] * size for name in (*OF_LINKS, UNSENT, UNSENT_BEFORE)}
    return part, PartBody(schedule, host, vectors, arithmetic)


class Integers(PartArithmetic):
    """Gradients of integers, and what is done with them, for the reference model."""

    def __init__(self, schedule: DownpourSchedule, host: SimulatedHost) -> None:
        super().__init__(host)
        assert isinstance(host.coordinator, DownpourCoordinatorHost)
        self.schedule, self.run = schedule, host.coordinator
        self.model = self.run.model
        self.spans = schedule.layout.of_machine[self.machine]
        self.stream_at = {start: stream for stream, start, _ in self.spans}
        self.model.part_is_born(self.id, size=sum(stop - start for _, start, stop in self.spans))
        self._began = False
        self._scale_place = 0  # of the factor of the last step
        self._scale = 1.0  # of the last step that was computed

    @override
    def begins(self, step: RunUnit) -> None:
        run, scenario, vectors = self.run, self.schedule.scenario, self.body.vectors
        run.work.computes(self.replica, self.host.incarnation, step.step, step.unit)
        if not self._began:
            self._began = True
            self.model.begins(self.id, step.step, resumed=2**53 * run.work.has_left(self.replica))
        self.model.computes(self.id, step.step, vectors["parameters"])
        self._require_scale(step)
        slowest = scenario.straggler if (self.replica, self.machine) == (0, 0) else 1.0
        wait_s = scenario.step_s * slowest * self.world.random.random()
        self.host.later(wait_s, self.body.on_computed, (step, None))

    def _require_scale(self, step: RunUnit) -> None:
        stops = self.schedule.stops
        is_present = self.run is self.schedule.coordinator
        self._scale_place = stops.require_scale(
            self.id,
            step.scale,
            since=self._scale_place,
            behind_stop=is_present and step.unit >= stops.validated,
        )

    @override
    def computed(self, step: RunUnit, found: Any) -> StepDone | None:
        """Ends a step with a gradient of small integers that its place and time determine."""
        vectors, incarnation = self.body.vectors, self.host.incarnation
        seed = 7 * step.step + 5 * self.replica + 3 * self.machine + 11 * incarnation
        gradient: list[float] = [1 + (seed + 2 * i) % 9 for i in range(len(vectors["accumulated"]))]
        self._scale = step.scale
        for i, number in enumerate(gradient):
            vectors["accumulated"][i] += number
            vectors["parameters"][i] += step.scale * number
        self.model.computed(self.id, step.step, step.unit, gradient, scale=step.scale)
        for part in self.schedule.meet(self, self.run.incarnation, self.replica, incarnation, step.step):
            assert part.body.step is not None
            part.host.later(0.001, part.body.on_done, StepDone(part.body.step.number))
        return None

    @override
    def installed(self, effect: Install, message: Any) -> None:
        start, stop = effect.span.start, effect.span.stop
        version, values = (
            (message.shard_incarnation, message.version),
            self.body.vectors["staged"][start:stop],
        )
        self.model.installs(self.id, self.stream_at[start], version, start=start, values=values)

    @override
    def swapped(self, span: Span) -> None:
        """Sends the larger half of what is to be sent, where pushes are compressed, and keeps the rest.

        A part that is alone has the parameters of its shards: they change by what is sent.
        """
        if not self.schedule.compresses:
            return
        vectors, places = self.body.vectors, range(span.start, span.stop)
        wanted = {i: vectors["in_flight"][i] + vectors[UNSENT][i] for i in places}
        largest = sorted(places, key=lambda i: (-abs(wanted[i]), i))[: (len(places) + 1) // 2]
        vectors[UNSENT_BEFORE][span.start : span.stop] = vectors[UNSENT][span.start : span.stop]
        for i in places:
            before = vectors["in_flight"][i]
            vectors["in_flight"][i] = wanted[i] if i in largest else 0.0
            vectors[UNSENT][i] = wanted[i] - vectors["in_flight"][i]
            if self.schedule.environment.topology.replicas == 1:
                vectors["parameters"][i] += self._scale * (vectors["in_flight"][i] - before)

    @override
    def cleared(self, span: Span) -> None:
        self.model.discards(self.id, start=span.start, stop=span.stop)

    @override
    def notes(self, effect: SavePushRecord, message: Any) -> None:
        stream, name = effect.stream, self.host.name
        self.run.push_log.note(name, stream, effect.record)
        if isinstance(message, PushAck):
            self.model.settles(self.id, stream, message.sequence)
        else:
            self.model.inherits(name, stream, effect.record)

    @override
    def numbers(self, send: Send, values: Sequence[float]) -> Numbers:
        if isinstance(send.message, Unsent):
            return Numbers(values)
        assert isinstance(send.message, Push) and send.payload is not None
        span, message = send.payload, send.message
        unsent = self.body.vectors[UNSENT][span.start : span.stop]
        place = {"start": span.start, "stop": span.stop}
        stream = stream_name(send.to, message.fragment)
        self.model.pushes(self.id, stream, message, tuple(values), unsent=unsent, **place)
        return Numbers(values)

    @override
    def sends(self, message: Any) -> None:
        """Checks what a part reports."""
        match message:
            case Finished():
                self.model.drained(self.id, self.stream_at.values())
            case Report(staleness=staleness) if self.schedule.environment.topology.replicas == 1:
                require(staleness == 0, "I14", self.id, "reports the staleness", staleness, "of nobody else")
