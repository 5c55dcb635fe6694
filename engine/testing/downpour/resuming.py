"""The beginning of shards in a run that goes on: the newest files, then the logs of the run before."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Protocol

from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.coordinator_effects import Commit
from partita.engine.protocol.shard_effects import ApplyGradient, ShardRanges
from partita.engine.testing.disk import Disk
from partita.engine.testing.downpour.lineage import Lineage, Push, push_of
from partita.engine.testing.downpour.model import ReferenceModel
from partita.engine.testing.host import Numbers
from partita.engine.testing.log import LogFolder
from partita.engine.testing.shards import ShardState


class RunBefore(Protocol):
    """The run that another one goes on from."""

    @property
    def start(self) -> Commit | None:
        """The newest checkpoint when it began."""

    @property
    def begins(self) -> Mapping[str, ShardState]:
        """The states with which its shards began."""

    @property
    def logs(self) -> Mapping[str, LogFolder]:
        """Logs of its shards; none where nobody keeps records."""

    @property
    def model(self) -> ReferenceModel:
        """Reference of the run."""


def begun(
    before: RunBefore,
    start: Commit | None,
    disk: Disk,
    own: ShardRanges,
    *,
    kind: type[ApplyOnArrival],
    random: Random,
) -> ShardState:
    """Returns the state with which a shard begins, and requires that it holds what was acknowledged (D1).

    Pushes of earlier runs have no names in this one. Half of the time a power loss came first.

    Args:
        before: the run before.
        start: the newest checkpoint.
        disk: with its files.
        own: the shard's ranges.
        kind: of its policy.
        random: draws whether the power was lost, and what that left of a log.
    """
    state, restored, of_run = before.begins[own.name], RestoredState(), False
    if start is not None and start is not before.start:
        file, of_run = disk.committed(own.name, start.checkpoint), True
        state = file.contents
        restored = RestoredState(file.version, 0, state.seen, state.stops)
    known: Lineage = state.reference
    gone = before.model.gone(own.name, known) if of_run else set(known.gone)
    lineage = Lineage(list(known.values), units=set(known.units), gone=gone)
    if own.name not in before.logs:
        return ShardState(state.vectors, units=state.units, reference=lineage)
    log = before.logs[own.name]
    records = (log.left(random) if random.random() < 0.5 else log).above(restored.version)
    policy = kind(
        own, restored=RestoredState(restored.version, 0, restored.seen, restored.stops, units=state.units)
    )
    values, held = list(state.vectors[POINT]), set(known.applied) if of_run else set[Push]()
    for record in records:
        for effect in policy.replay(record):
            assert isinstance(effect, ApplyGradient) and isinstance(effect.payload, Numbers), effect
            push = push_of(effect)
            held.add(push)
            lineage.units |= before.model.units_of(own.name, push)
            before.model.requires_factor(own.name, effect)
            for i, number in enumerate(effect.payload, effect.span.start):
                values[i] += effect.scale * number
    before.model.requires_promises(own.name, held)
    lineage.values = values
    return ShardState({POINT: tuple(values)}, units=dict(policy.persist(0).units), reference=lineage)
