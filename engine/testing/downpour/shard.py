"""The checks of a shard of Downpour: they show every push, fetch and file to the reference model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from typing_extensions import override

from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.copy_messages import ShardCounts
from partita.engine.protocol.durability import Record
from partita.engine.protocol.durability.backup import Backup, PolicyOf
from partita.engine.protocol.events import Persist, Received, Send, stream_of
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.merge_on_quorum import MergeOnQuorum
from partita.engine.protocol.merging import UnitSizes
from partita.engine.protocol.messages import Fetch, Parameters, PushAck
from partita.engine.protocol.names import backup_index, stream_name
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import ApplyGradient, ShardRanges
from partita.engine.testing.downpour.lineage import Lineage
from partita.engine.testing.downpour.model import ReferenceModel
from partita.engine.testing.downpour.schedule import DownpourCoordinatorHost, DownpourSchedule
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.log import LogWriter
from partita.engine.testing.shards import ShardBody, ShardChecks, ShardState, shard_of
from partita.engine.testing.vectors import Vector


def role(schedule: DownpourSchedule, host: SimulatedHost) -> tuple[Shard | Backup, ShardBody]:
    """Builds a shard that starts from the committed file, from what its run began with, or from its backup;
    or a backup.
    """
    name, run = host.name, host.coordinator
    assert isinstance(run, DownpourCoordinatorHost)
    if backup_index(name) is not None:
        return _backup(schedule, run, host)
    starts_anew = host.checkpoint is None or host.from_backup
    file = None if starts_anew else schedule.disk.committed(name, host.checkpoint or 0)
    state: ShardState = run.begins[name] if file is None else file.contents
    noted = run.push_log.of_shard(name, fragments=schedule.scenario.driver.n_fragments)
    restored = RestoredState(units=state.units)
    if file is not None:
        restored = RestoredState(file.version, 0, state.seen, state.stops, units=state.units)
    policy = _policy(schedule, ShardBody.ranges(schedule, host), restored)
    body = ShardBody(schedule, host, lambda _: state)
    body.apply_s = schedule.scenario.apply_s
    lineage = run.model.shard_is_born(host.id, None if file is None else state.reference)
    body.checks = Checks(run, host.id, lineage, noted)
    if run.logs:
        log = run.logs[name]
        _replay(log.recover(policy.version), policy, body, run.model)
        body.log = LogWriter(host, log, policy.version, schedule.sync_s)
    if not host.from_backup:
        policy.learn(noted)
        run.model.begins_work(host.id, noted)
    if schedule.replicated:
        return body.build_replicated(policy, _policy_of(schedule, host, noted)), body
    return body.build(policy), body


def _policy(schedule: DownpourSchedule, own: ShardRanges, restored: RestoredState) -> ApplyOnArrival:
    driver = schedule.scenario.driver
    keeps = schedule.compresses and schedule.least is None
    if driver.merging is None:
        return schedule.kind(ApplyOnArrival)(
            own, restored=restored, staleness=driver.staleness, keeps_unsent=keeps
        )
    sizes = UnitSizes(schedule.units, 1)
    merging, kind = driver.merging, schedule.kind(MergeOnQuorum)
    return kind(own, merging=merging, sizes=sizes, restored=restored, keeps_unsent=keeps)


def _policy_of(schedule: DownpourSchedule, host: SimulatedHost, noted: Noted) -> PolicyOf:
    def policy_of(counts: ShardCounts) -> ApplyOnArrival:
        policy = _policy(schedule, ShardBody.ranges(schedule, host), RestoredState.of(counts))
        policy.learn(noted)
        return policy

    return policy_of


def _backup(
    schedule: DownpourSchedule, run: DownpourCoordinatorHost, host: SimulatedHost
) -> tuple[Backup, ShardBody]:
    shard = shard_of(host.name)
    zeros = ShardState({POINT: (0.0,) * schedule.layout.sizes[shard]})
    body = ShardBody(schedule, host, lambda _: zeros)
    life = (shard, -1 - host.incarnation)
    body.checks = BackupChecks(run, life, run.model.shard_is_born(life, None), {})
    return body.build_backup(_policy_of(schedule, host, {})), body


def _replay(
    records: Sequence[Record], policy: ApplyOnArrival, body: ShardBody, model: ReferenceModel
) -> None:
    """Carries out the records of earlier processes again."""
    for record in records:
        for effect in policy.replay(record):
            assert isinstance(effect, ApplyGradient), effect
            body.apply(effect)
            model.enters(body.host.id, effect, list(body.vectors[POINT]))


Noted: TypeAlias = Mapping[str, Sequence[PushRecord]]


class Checks(ShardChecks):
    """Shows what a shard does to the reference model."""

    def __init__(
        self, run: DownpourCoordinatorHost, shard: ProcessId, lineage: Lineage, noted: Noted
    ) -> None:
        self._run, self._model = run, run.model
        self._id, self._lineage, self._noted = shard, lineage, noted

    @override
    def collects(self, order: Persist, stream: str, unsent: tuple[float, ...]) -> None:
        self._model.lacked(self._id[0], (stream, *order.seen[stream]), unsent)

    @override
    def copied(self, numbers: Numbers) -> Numbers:
        found = CopiedNumbers(numbers)
        found.lineage = self._lineage.copy()
        return found

    @override
    def filled(self, numbers: Numbers) -> None:
        assert isinstance(numbers, CopiedNumbers)
        self._lineage = self._model.copies(self._id, numbers.lineage)
        self._model.begins_work(self._id, self._noted, from_backup=True)

    @override
    def applies(self, effect: ApplyGradient, x: Vector) -> None:
        self._model.applies(self._id, effect, list(x))

    @override
    def sends(self, send: Send, payload: Callable[[], Numbers]) -> None:
        match send.message:
            case PushAck(incarnation=incarnation, sequence=sequence, version=version, fragment=fragment):
                hostility = self._run.schedule.hostility
                promises = hostility is None or not hostility.is_member(self._id)
                push = (stream_name(send.to, fragment), incarnation, sequence)
                self._model.acknowledges(self._id, push, version, promises=promises)
                self._run.look(self._id[0])
            case Parameters(shard_incarnation=incarnation, version=version):
                self._model.answers(self._id, incarnation, version)

    @override
    def receives(self, event: Received) -> None:
        if isinstance(event.message, Fetch):
            self._model.learns(self._id, (stream_of(event), event.incarnation), event.message)

    @override
    def persists(self, order: Persist) -> Lineage:
        version = self._lineage.version
        require(order.version == version, "I1", self._id, "writes version", order.version, "at", version)
        return self._lineage.copy()


class BackupChecks(Checks):
    """Shows what a backup does to the reference model."""

    @override
    def applies(self, effect: ApplyGradient, x: Vector) -> None:
        self._model.enters(self._id, effect, list(x))

    @override
    def filled(self, numbers: Numbers) -> None:
        assert isinstance(numbers, CopiedNumbers)
        self._lineage = self._model.copies(self._id, numbers.lineage)

    @override
    def receives(self, event: Received) -> None:
        """Nothing comes from parts."""


class CopiedNumbers(Numbers):
    """All numbers of a copy of a shard, and what is in them."""

    lineage: Lineage
