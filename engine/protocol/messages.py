"""Messages of hosts to one another: one frozen struct for each kind, in a closed union.

A message is small. The numbers of a tensor are sent beside it as raw bytes, so that this module never sees an
array, and nothing here is ever pickled. All hosts of a run have one version, so a message may change freely.

Kinds of Sandblaster alone are in `batch_messages`, those of checkpoints and logs in `checkpoint_messages`,
those of views and exchanges in `replica_messages`, those of files in `file_messages`, those of copies of a
shard in `copy_messages`, those of a user's calls in `session_messages`, those of validations in
`validation_messages`, and those of a run that is watched in `watch_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

from partita.engine.protocol.batch_messages import (
    Assignment,
    AssignmentResult,
    Command,
    CommandResult,
    CommandsMissing,
    Contribution,
    ContributionAck,
    EvaluationSum,
    FetchPoint,
    MissingUnits,
    Point,
)
from partita.engine.protocol.checkpoint_messages import (
    AskUnits,
    AskUnsent,
    CheckpointCommitted,
    LogReport,
    LostPushes,
    Save,
    Saved,
    SaveFailed,
    SaveProgress,
    UnitsHeld,
    Unsent,
)
from partita.engine.protocol.copy_messages import CopyChunk, CopyComplete, CopyRequest, RecordKept
from partita.engine.protocol.file_messages import (
    FileChunk,
    FileFound,
    FileMissing,
    FileRefused,
    FilesHello,
    FileStored,
    FilesWelcome,
    FileWritten,
    FindFile,
    FinishFile,
    PushRecord,
    ReadFile,
    SavePushes,
    WriteFile,
)
from partita.engine.protocol.message_base import Count, MessageStruct, UnitRange
from partita.engine.protocol.replica_messages import (
    ChunkRequest,
    ExchangeAck,
    FinalChunk,
    Joined,
    PartialChunk,
    Pause,
    Paused,
    Reduced,
    View,
)
from partita.engine.protocol.session_messages import Load, Loaded, Ping, Play, Played, Pong
from partita.engine.protocol.validation_messages import ValidationResult, ValidationWork
from partita.engine.protocol.watch_messages import HostReport, Watch

Rows: TypeAlias = tuple[tuple[tuple[Count, Count], ...], ...]
"""Disjoint boxes of a layer: `(start, stop)` of its rows, or of its rows and columns."""


class MalformedMessage(ValueError):
    """Bytes that are not a message of this protocol."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that could not be decoded. The transport makes it, so that the sender is named."""

    reason: str


# Data: between parts, and between a part and the shards that hold its parameters.


class Tensor(MessageStruct, frozen=True, tag=True):
    """Activations or gradients of some rows of a layer (the payload), in the step they belong to."""

    step: Count
    buffer: str
    rows: Rows


class Credit(MessageStruct, frozen=True, tag=True):
    """The sender has finished this step: a part that only sends to it may begin the one after the next."""

    step: Count


class Fetch(MessageStruct, frozen=True, tag=True):
    """Asks a shard for the parameters that it holds for the machine of the sender, of one fragment.

    `acknowledged` counts the sender's pushes that the shard has acknowledged, and `earlier` those of the
    processes before it: a shard restarted from a checkpoint finds its missing pushes by these counts. `since`
    is the incarnation and version of the shard whose values the sender has: of sparse tables, the rows that
    have changed since are enough.
    """

    request: Count
    acknowledged: Count = 0
    earlier: tuple[PushRecord, ...] = ()
    since: tuple[Count, Count] | None = None
    fragment: Count = 0


class Parameters(MessageStruct, frozen=True, tag=True):
    """Answers `Fetch` of this incarnation. The payload has the machine's numbers of this fragment there.

    `updates` counts the updates of its numbers, from all replicas and since the first run. `earlier`
    acknowledges the pushes of the part's previous process that the values include. `pushes` counts those of
    this process: the values hold them, or a checkpoint lacked them and they are lost. `units` are the units
    of work that the values held when the shard began: for a process that has not pushed yet. `pushes_since`:
    of sparse tables, the payload has the rows that the last so many pushes changed; None: all rows.
    """

    request: Count
    shard_incarnation: Count
    version: Count
    updates: Count = 0
    incarnation: Count = 0
    earlier: PushRecord | None = None
    pushes: Count = 0
    units: tuple[UnitRange, ...] = ()
    pushes_since: Count | None = None
    fragment: Count = 0


class Push(MessageStruct, frozen=True, tag=True):
    """An accumulated gradient of one fragment (the payload), computed from the parameters of this incarnation
    and version.

    With the pushes before it, it holds the gradients of all steps below `stop`; it has those of `units`
    itself. `scale` is the factor of the learning rate; `is_last`: as far as the part knows, none follows.
    """

    incarnation: Count
    sequence: Count
    shard_incarnation: Count
    version: Count
    stop: Count = 0
    units: tuple[UnitRange, ...] = ()
    scale: float = 1.0
    is_last: bool = False
    fragment: Count = 0


class PushAck(MessageStruct, frozen=True, tag=True):
    """`Push` was applied, once. `staleness` pushes to the same numbers were applied in between."""

    shard_incarnation: Count
    incarnation: Count
    sequence: Count
    version: Count
    staleness: Count
    fragment: Count = 0


class RecordCopy(MessageStruct, frozen=True, tag=True):
    """A record of the shard for its backup: a request of this host (its payload), and its number.

    The backup confirms at once those that ask for it, and the others with its next tick.
    """

    number: Count
    sender: str
    incarnation: Count
    request: Push | Command | EvaluationSum
    asks: bool = True


# Control: between the coordinator and all other hosts.


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """The address of a host: its endpoint, its CURVE public key (Z85) and its incarnation.

    `machine` is a label from its launcher: hosts with the same one may share memory ("": none).
    """

    name: str
    incarnation: Count
    endpoint: str
    public_key: str
    machine: str = ""


class Hello(MessageStruct, frozen=True, tag=True):
    """The first message of a host: its inbox, and the versions it runs with."""

    endpoint: str
    versions: dict[str, str]


class SetUp(MessageStruct, frozen=True, tag=True):
    """A host's task. The payload is a cloudpickle, read only if the coordinator's key sent it."""

    run: str


class Directory(MessageStruct, frozen=True, tag=True):
    """The hosts that the receiver may exchange messages with: all of them, or changes since a revision.

    With `since` 0, `peers` replace all earlier ones. Otherwise they are added or replaced, and `removed` are
    taken out, in the directory of revision `since` or a newer one; a receiver with an older one changes
    nothing, and gets the gap later. It ignores a lower `revision` than it has (messages may overtake one
    another), and answers every directory with `DirectoryAck`.
    """

    peers: tuple[Peer, ...]
    revision: Count = 0
    since: Count = 0
    removed: tuple[str, ...] = ()

    def applies_to(self, revision: int) -> bool:
        """Returns whether a receiver that has this revision takes it."""
        return self.since <= revision < self.revision

    def applied_to(self, peers: Mapping[str, Peer]) -> dict[str, Peer]:
        """Returns the receiver's peers by name after this directory, from those before it."""
        kept = {} if self.since == 0 else {n: peer for n, peer in peers.items() if n not in self.removed}
        return kept | {peer.name: peer for peer in self.peers}


class DirectoryAck(MessageStruct, frozen=True, tag=True):
    """Answers `Directory`: the revision of the one that the sender has now."""

    revision: Count


class SetUpProgress(MessageStruct, frozen=True, tag=True):
    """A host sets up its task, and has compiled this many functions so far."""

    compiled: Count


class Ready(MessageStruct, frozen=True, tag=True):
    """The task is set up and everything is compiled; a shard adds the version it starts from."""

    version: Count = 0


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The steps of a replica from `step` on are the units `[start, stop)` of the run, in order."""

    step: Count
    start: Count
    stop: Count

    @property
    def end(self) -> int:
        """The step after the last one of these."""
        return self.step + self.stop - self.start


class Begin(MessageStruct, frozen=True, tag=True):
    """Starts the training loop of a part at this step, or has it go on up to (not including) `stop`.

    `leases` are the units of these steps, as far as they are not done; `is_last`: no more are expected. Parts
    get the same leases in the same order. A larger `stop` may follow at any time, also after the last.
    `scale` is the factor of the learning rate from the next step on, after so many `changes` of it: an order
    that was overtaken takes none of them back.
    """

    step: Count
    stop: Count
    leases: tuple[Lease, ...] = ()
    is_last: bool = True
    scale: float = 1.0
    changes: Count = 0


class ResumeStep(MessageStruct, frozen=True, tag=True):
    """A part has its first parameters; the shards have the gradients of its steps below `step`.

    None: the machine has no parameters, and can begin at any step. Repeated until `Begin`.
    """

    step: Count | None


class Report(MessageStruct, frozen=True, tag=True):
    """Progress of a part: steps done, sums over the examples since the last report, and over all pushes.

    The shards have acknowledged the gradients of its steps below `held`. `sums` are further ones over the
    examples, likewise, and `read` those of reading the data.
    """

    step: Count
    examples: Count
    loss: float
    correct: Count
    staleness: float
    pushes: Count
    held: Count = 0
    sums: tuple[float, ...] = ()
    read: tuple[float, ...] = ()


class Finished(MessageStruct, frozen=True, tag=True):
    """A part has done its steps, and the shards of this directory have acknowledged every push of it.

    Repeated about once a second until `Stop`. After a shard was replaced it holds only when the new process
    has answered a fetch, too (`Fetch.acknowledged`).
    """

    step: Count
    directory: Count = 0


class WaitReport(MessageStruct, frozen=True, tag=True):
    """A part waits for something of another host, for this many seconds by now."""

    host: str
    what: str
    waited_s: Annotated[float, msgspec.Meta(ge=0)]


class Heartbeat(MessageStruct, frozen=True, tag=True):
    """Shows that the sender is alive. The coordinator's own carries the receiver's incarnation.

    `clock` is the sender's own clock in seconds. The coordinator returns the newest reading that it has from
    the receiver: a lease starts at this reading, so that a message in a queue never prolongs the lease. None
    where no reading is known.
    """

    incarnation: Count
    clock: float | None = None


class Failed(MessageStruct, frozen=True, tag=True):
    """The task raised: a sentence, and the traceback as text. `final`: a repetition would fail the same way.
    `stuck`: it did not raise, but one of its computations does not end.
    """

    reason: str
    traceback: str
    final: bool = False
    stuck: bool = False


class Refused(MessageStruct, frozen=True, tag=True):
    """A message to the sender was not permitted or malformed, and had no effect. `cut_off`: it was one of
    several, and nothing more is taken of that process, which has this incarnation.
    """

    by: str
    reason: str
    cut_off: bool = False
    incarnation: Count = 0


class Stop(MessageStruct, frozen=True, tag=True):
    """Orders a host to end."""


_ChunkMessage: TypeAlias = PartialChunk | FinalChunk | ChunkRequest | ExchangeAck
_ExchangeMessage: TypeAlias = Tensor | Credit | Fetch | Parameters | Push | PushAck
_StartMessage: TypeAlias = (
    Hello | SetUp | Directory | DirectoryAck | SetUpProgress | Ready | Begin | ResumeStep
)
_ProgressMessage: TypeAlias = Report | Finished | WaitReport | Heartbeat | Failed | Refused | Stop
_WatchMessage: TypeAlias = Watch | HostReport
_SessionMessage: TypeAlias = Play | Played | Ping | Pong | Load | Loaded | ValidationWork | ValidationResult
_CheckpointMessage: TypeAlias = (
    Save
    | Saved
    | SaveProgress
    | SaveFailed
    | CheckpointCommitted
    | LogReport
    | LostPushes
    | AskUnits
    | UnitsHeld
    | AskUnsent
    | Unsent
)
_CopyMessage: TypeAlias = CopyRequest | CopyChunk | RecordCopy | RecordKept | CopyComplete
_CommandMessage: TypeAlias = (
    Command | CommandResult | MissingUnits | CommandsMissing | EvaluationSum | Assignment | AssignmentResult
)
_ViewMessage: TypeAlias = Pause | Paused | View | Joined | Reduced
_PointMessage: TypeAlias = FetchPoint | Point | Contribution | ContributionAck
_FileReadMessage: TypeAlias = (
    FilesHello | FilesWelcome | FindFile | FileFound | FileMissing | ReadFile | FileChunk
)
_FileWriteMessage: TypeAlias = WriteFile | FinishFile | FileWritten | FileStored | FileRefused | SavePushes
Message: TypeAlias = (
    _ExchangeMessage
    | _ChunkMessage
    | _StartMessage
    | _ProgressMessage
    | _SessionMessage
    | _CheckpointMessage
    | _CopyMessage
    | _CommandMessage
    | _ViewMessage
    | _PointMessage
    | _FileReadMessage
    | _FileWriteMessage
    | _WatchMessage
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Returns the bytes of a message (MessagePack, tagged by its kind). Safe from several threads."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Returns the message in these bytes.

    Raises:
        MalformedMessage: they are not exactly one message of the closed union.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{len(data)} bytes are not a message of this protocol: {error}") from error
