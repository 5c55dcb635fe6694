"""The checks of a shard of Downpour: they show every push, fetch and file to the reference model."""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Persist, Received, Send
from partita.engine.protocol.messages import Fetch, Parameters, PushAck
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import ApplyGradient
from partita.engine.testing.downpour.model import Lineage, ReferenceModel
from partita.engine.testing.downpour.schedule import DownpourCoordinatorHost, DownpourSchedule
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.shards import ShardBody, ShardChecks, ShardState
from partita.engine.testing.vectors import Vector


def role(schedule: DownpourSchedule, host: SimulatedHost) -> tuple[Shard, ShardBody]:
    """Builds a shard that starts from the committed file, or from zeros."""
    name, run = host.name, host.coordinator
    assert isinstance(run, DownpourCoordinatorHost)
    file = run.start_of(name, host.checkpoint)
    zeros = ShardState({POINT: (0.0,) * schedule.layout.sizes[name]})
    state: ShardState = zeros if file is None else file.contents
    noted, of_run = run.push_log.of_shard(name), host.checkpoint is not None
    policy = schedule.kind(ApplyOnArrival)(
        ShardBody.ranges(schedule, host),
        restored=RestoredState(file.version, 0, state.seen, state.stops, units=state.units)
        if file is not None and of_run
        else RestoredState(units=state.units),
        acknowledged=noted,
    )
    body = ShardBody(schedule, host, lambda _: state)
    body.apply_s = schedule.scenario.apply_s
    reference = state.reference if of_run else None
    body.checks = Checks(run.model, host.id, run.model.shard_is_born(host.id, reference, noted))
    return body.build(policy), body


class Checks(ShardChecks):
    """Shows what a shard does to the reference model."""

    def __init__(self, model: ReferenceModel, shard: ProcessId, lineage: Lineage) -> None:
        self._model, self._id, self._lineage = model, shard, lineage

    @override
    def applies(self, effect: ApplyGradient, x: Vector) -> None:
        assert isinstance(effect.payload, Numbers)
        push = (effect.part, effect.incarnation, effect.sequence)
        self._model.applies(self._id, push, effect.payload, start=effect.span.start, values=list(x))

    @override
    def sends(self, send: Send, payload: Callable[[], Numbers]) -> None:
        match send.message:
            case PushAck(incarnation=incarnation, sequence=sequence, version=version):
                self._model.acknowledges(self._id, (send.to, incarnation, sequence), version)
            case Parameters(shard_incarnation=incarnation, version=version):
                self._model.answers(self._id, incarnation, version)

    @override
    def receives(self, event: Received) -> None:
        if isinstance(event.message, Fetch):
            self._model.learns(self._id, (event.sender, event.incarnation), event.message)

    @override
    def persists(self, order: Persist) -> Lineage:
        version = self._lineage.version
        require(order.version == version, "I1", self._id, "writes version", order.version, "at", version)
        return self._lineage.copy()
