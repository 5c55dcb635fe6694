"""State machines of shards and parts for several tests: events in, effects out, invariants checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.engine.protocol import (
    ApplyOnArrival,
    Message,
    ParameterLinks,
    Part,
    Shard,
    ShardRanges,
)
from partita.engine.protocol.apply_on_arrival import RestoredState, Watermark
from partita.engine.protocol.batch_messages import Assignment
from partita.engine.protocol.events import HeldUnits, Received
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.messages import Heartbeat, Parameters
from partita.engine.protocol.names import COORDINATOR

RANGES = {0: (0, 3), 1: (3, 8)}
"""The numbers that a shard holds of two machines."""

SHARDS = (("shard 0", 0, 2), ("shard 2", 2, 5))
"""The shards of a client's numbers, ..."""

BYTES = {"shard 0": bytes(8), "shard 2": bytes(12)}
"""... and payloads of their sizes."""


def feed(machine: Any, event: object, *, now: float = 0.0) -> list[Any]:
    effects: list[Any] = list(machine.receive(event, now))
    machine.validate()
    return effects


def receive(
    machine: Any,
    sender: str,
    message: Message,
    payload: object = None,
    *,
    incarnation: int = 0,
    now: float = 0.0,
) -> list[Any]:
    return feed(machine, Received(sender, incarnation, message, payload), now=now)


def shard(
    *,
    shard_incarnation: int = 0,
    version: int = 0,
    seen: Mapping[str, Watermark] | None = None,
    acknowledged: Mapping[str, Sequence[PushRecord]] | None = None,
    units: HeldUnits | None = None,
    leased: bool = True,
    keeps: bool = False,
) -> Shard:
    own = ShardRanges("shard 0", shard_incarnation, RANGES)
    restored = RestoredState(version, seen=seen or {}, units=units or {})
    policy = ApplyOnArrival(own, restored=restored, acknowledged=acknowledged)
    machine = Shard(own, policy, keeps=keeps)
    if leased:
        receive(machine, COORDINATOR, Heartbeat(shard_incarnation, clock=0.0))
    return machine


def linked(**settings: Any) -> ParameterLinks:
    """Links of the part's incarnation 4 that have staged values of incarnation 0 and version 0."""
    links = ParameterLinks(incarnation=4, streams=SHARDS, **settings)
    assert [effect.to for effect in links.pull(0.0)] == list(BYTES)  # type: ignore[union-attr]
    serve(links, 0)
    return links


def serve(links: ParameterLinks, request: int, **counts: int) -> list[Any]:
    """Answers a fetch of every shard; the `shard_incarnation` and all counts are 0 unless given."""
    effects: list[Any] = []
    for name, payload in BYTES.items():
        message = Parameters(
            request, counts.get("shard_incarnation", 0), counts.get("version", 0), incarnation=4
        )
        rest = {name: count for name, count in counts.items() if name in ("updates", "pushes")}
        effects += receive(links, name, msgspec.structs.replace(message, **rest), payload)
    return effects


def assign(client: Part, sequence: int, evaluation: int, *, now: float = 0.0) -> list[Any]:
    """Assigns two portions, of the work unit whose number is that of the assignment plus 10."""
    message = Assignment(evaluation, sequence, sequence + 10, 2 * sequence, 2)
    return receive(client, COORDINATOR, message, now=now)
