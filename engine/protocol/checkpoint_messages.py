"""Messages of checkpoints and of the logs of shards, see `messages`."""

from __future__ import annotations

from partita.engine.protocol.message_base import Count, MessageStruct, UnitRange


class Save(MessageStruct, frozen=True, tag=True):
    """Asks a shard for its file of this checkpoint; a part, for that of its state after `step` steps."""

    checkpoint: Count
    step: Count = 0


class AskUnits(MessageStruct, frozen=True, tag=True):
    """Asks a shard, before any work of a run that goes on, for the units in its numbers. Repeated."""


class UnitsHeld(MessageStruct, frozen=True, tag=True):
    """Answers `AskUnits`: the units of work whose gradients all numbers of the shard hold, or some of them.

    Both are ascending ranges. A shard without numbers holds all units.
    """

    all: tuple[UnitRange, ...]
    some: tuple[UnitRange, ...]


class AskUnsent(MessageStruct, frozen=True, tag=True):
    """Asks a part what its compressed pushes of a fragment have lacked, up to the last one that the shard's
    file of this checkpoint holds: of `pushes` of the process `incarnation`. Repeated.
    """

    shard_incarnation: Count
    checkpoint: Count
    incarnation: Count
    pushes: Count
    fragment: Count = 0


class Unsent(MessageStruct, frozen=True, tag=True):
    """Answers `AskUnsent` of this process, after these pushes. The payload has the vectors that the
    compressor keeps, one after another.
    """

    checkpoint: Count
    incarnation: Count
    pushes: Count
    fragment: Count = 0


class Saved(MessageStruct, frozen=True, tag=True):
    """The shard's file is on disk: its name inside the checkpoint's folder and its SHA-256.

    `lost` counts the acknowledged pushes that this process has found missing, up to the version in the file.
    """

    checkpoint: Count
    incarnation: Count
    version: Count
    file: str
    sha256: str
    lost: Count = 0


class SaveFailed(MessageStruct, frozen=True, tag=True):
    """The shard's file of this checkpoint could not be written. Files of other checkpoints still may.

    `late`: a part has passed the step that the checkpoint is of; a later one can be asked for at once.
    """

    checkpoint: Count
    incarnation: Count
    reason: str
    late: bool = False


class SaveProgress(MessageStruct, frozen=True, tag=True):
    """This many bytes of the shard's file of this checkpoint are on disk. Not repeated."""

    checkpoint: Count
    incarnation: Count
    n_bytes: Count


class CheckpointCommitted(MessageStruct, frozen=True, tag=True):
    """This checkpoint is complete and on the disk. Not repeated."""

    checkpoint: Count


class LogReport(MessageStruct, frozen=True, tag=True):
    """A sentence about a shard's log ("": none), and whether a checkpoint would make room in it."""

    incarnation: Count
    text: str
    wants_checkpoint: bool = False


class LostPushes(MessageStruct, frozen=True, tag=True):
    """A shard that came back from a checkpoint lacks this many acknowledged pushes of a part.

    The count is of the sender's whole incarnation: the receiver keeps the largest for each shard and part.
    """

    part: str
    pushes: Count
