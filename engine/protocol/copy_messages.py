"""Messages between a shard and its backup: records of what changed, and whole copies, chunk by chunk."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from partita.engine.protocol.batch_messages import Command
from partita.engine.protocol.commands import Scalars
from partita.engine.protocol.message_base import Count, MessageStruct

_Range: TypeAlias = tuple[Count, Count]


class CommandCounts(msgspec.Struct, frozen=True, array_like=True):
    """The last command of a shard, the scalars of its operations so far, and whether all are executed.

    If not, it is in its evaluation, of which no contribution counts yet. `vectors` names those of a copy.
    """

    command: Command | None = None
    scalars: Scalars = ()
    is_done: bool = False
    vectors: tuple[str, ...] = ()


class ShardCounts(msgspec.Struct, frozen=True, array_like=True):
    """The counts that belong to a shard's numbers at one version.

    `updates` counts updates by machine. `seen` has the incarnation and the sequence (plus 1) of the last push
    of each part, and `stops` the step below which the shard has its gradients. `units` are, for each range of
    its vector, the units of work whose gradients these numbers hold. `lost` counts pushes of each part that
    were found missing since the last start from a checkpoint. A shard that executes commands has `command`.
    """

    version: Count = 0
    updates: dict[Count, Count] = {}
    seen: dict[str, tuple[Count, Count]] = {}
    stops: dict[str, Count] = {}
    units: tuple[tuple[_Range, tuple[_Range, ...]], ...] = ()
    lost: dict[str, Count] = {}
    command: CommandCounts | None = None


class CopyRequest(MessageStruct, frozen=True, tag=True):
    """Asks the other copy of a shard for its numbers from `start` on. Answered by `CopyChunk`.

    With `start` 0 it begins a copy: from then on a shard sends its backup every record. With the number of
    all numbers it confirms that the sender has all of them.
    """

    start: Count


class CopyChunk(MessageStruct, frozen=True, tag=True):
    """Numbers `[start, stop)` of every vector (the payload, vector by vector), as they are at this version.

    The first one has the counts of this version, too.
    """

    start: Count
    stop: Count
    version: Count
    counts: ShardCounts | None = None


class RecordKept(MessageStruct, frozen=True, tag=True):
    """A backup has all records up to this number."""

    number: Count


class CopyComplete(MessageStruct, frozen=True, tag=True):
    """The sender has all that the other copy of its shard has, whose incarnation is this. Repeated."""

    incarnation: Count
