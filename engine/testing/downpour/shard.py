"""The checks of a shard of Downpour: they show every push, fetch and file to the reference model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.durability import Record
from partita.engine.protocol.events import Persist, Received, Send
from partita.engine.protocol.messages import Fetch, Parameters, PushAck
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import ApplyGradient
from partita.engine.testing.downpour.model import Lineage, ReferenceModel
from partita.engine.testing.downpour.schedule import DownpourCoordinatorHost, DownpourSchedule
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.log import LogWriter
from partita.engine.testing.shards import ShardBody, ShardChecks, ShardState
from partita.engine.testing.vectors import Vector


def role(schedule: DownpourSchedule, host: SimulatedHost) -> tuple[Shard, ShardBody]:
    """Builds a shard that starts from the committed file, or from what its run began with."""
    name, run = host.name, host.coordinator
    assert isinstance(run, DownpourCoordinatorHost)
    file = None if host.checkpoint is None else schedule.disk.committed(name, host.checkpoint)
    state: ShardState = run.begins[name] if file is None else file.contents
    noted = run.push_log.of_shard(name)
    policy = schedule.kind(ApplyOnArrival)(
        ShardBody.ranges(schedule, host),
        restored=RestoredState(file.version, 0, state.seen, state.stops, units=state.units)
        if file is not None
        else RestoredState(units=state.units),
    )
    body = ShardBody(schedule, host, lambda _: state)
    body.apply_s = schedule.scenario.apply_s
    lineage = run.model.shard_is_born(host.id, None if file is None else state.reference)
    body.checks = Checks(run, host.id, lineage)
    if run.logs:
        log = run.logs[name]
        _replay(log.recover(policy.version), policy, body, run.model)
        body.log = LogWriter(host, log, policy.version, schedule.sync_s)
    policy.learn(noted)
    run.model.begins_work(host.id, noted)
    return body.build(policy), body


def _replay(
    records: Sequence[Record], policy: ApplyOnArrival, body: ShardBody, model: ReferenceModel
) -> None:
    """Carries out the records of earlier processes again."""
    for record in records:
        for effect in policy.replay(record):
            assert isinstance(effect, ApplyGradient), effect
            body.apply(effect)
            push = (effect.part, effect.incarnation, effect.sequence)
            values = list(body.vectors[POINT])
            assert isinstance(effect.payload, Numbers)
            start = effect.span.start
            model.enters(body.host.id, push, effect.payload, start=start, values=values)


class Checks(ShardChecks):
    """Shows what a shard does to the reference model."""

    def __init__(self, run: DownpourCoordinatorHost, shard: ProcessId, lineage: Lineage) -> None:
        self._run, self._model = run, run.model
        self._id, self._lineage = shard, lineage

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
                self._run.look(self._id[0])
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
