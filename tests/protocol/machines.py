"""State machines of shards and parts for several tests: events in, effects out, invariants checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.engine.protocol import DownpourClient, Message, ParameterShard, SandblasterClient
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Assignment, Heartbeat, Parameters, PushRecord
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.parameter_shard import RestoredState, Watermark
from partita.engine.protocol.shard_client import Started

RANGES = {0: (0, 3), 1: (3, 8)}
"""The numbers that a shard holds of two machines."""

SHARDS = (("shard 0", 0, 2), ("shard 2", 2, 5))
"""The shards of a client's numbers, ..."""

BYTES = {"shard 0": bytes(8), "shard 2": bytes(12)}
"""... and payloads of their sizes."""


def feed(machine: Any, event: object, *, now: float = 0.0) -> list[Any]:
    effects: list[Any] = machine.receive(event, now)
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
    leased: bool = True,
) -> ParameterShard:
    machine = ParameterShard(
        "shard 0",
        incarnation=shard_incarnation,
        ranges=RANGES,
        restored=RestoredState(version, seen=seen or {}),
        acknowledged=acknowledged,
    )
    if leased:
        receive(machine, COORDINATOR, Heartbeat(shard_incarnation, clock=0.0))
    return machine


def started(*, fetch_every: int = 1, push_every: int = 1) -> DownpourClient:
    """A client that has its first parameters, of incarnation 0 and version 0."""
    client = DownpourClient(incarnation=4, shards=SHARDS, fetch_every=fetch_every, push_every=push_every)
    feed(client, Started())
    serve(client, 0)
    return client


def serve(client: DownpourClient, request: int, *, shard_incarnation: int = 0, version: int = 0) -> None:
    for name, payload in BYTES.items():
        receive(client, name, Parameters(request, shard_incarnation, version, incarnation=4), payload)


def assign(client: SandblasterClient, sequence: int, evaluation: int, *, now: float = 0.0) -> list[Any]:
    """Assigns two portions, of the work unit whose number is that of the assignment plus 10."""
    message = Assignment(evaluation, sequence, sequence + 10, 2 * sequence, 2)
    return receive(client, COORDINATOR, message, now=now)
