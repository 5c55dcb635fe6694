"""Durability: the records of a shard, who keeps them, and the replies that wait for it.

A shard is a deterministic machine over requests in order, so its state is a checkpoint and the requests that
have changed it since: its `records`. A keeper has the records of a shard; a reply that promises one is `held`
until every keeper has it. The `settings` name the keepers: nobody, a log, or a second process.

A `replicated` shard sends its records along a `chain` to its `backup`. Either is filled from the other, by a
`fill`; where the shard executes commands, from one of the `snapshots`.
"""

from partita.engine.protocol.durability.held import HeldReplies
from partita.engine.protocol.durability.records import (
    BeginSegment,
    Keep,
    Kept,
    LogNote,
    Record,
    RemoveRecords,
)
from partita.engine.protocol.durability.settings import (
    CheckpointOnly,
    Durability,
    Log,
    Replicated,
    durability_of,
)

__all__ = [
    "BeginSegment",
    "CheckpointOnly",
    "Durability",
    "HeldReplies",
    "Keep",
    "Kept",
    "Log",
    "LogNote",
    "Record",
    "RemoveRecords",
    "Replicated",
    "durability_of",
]
