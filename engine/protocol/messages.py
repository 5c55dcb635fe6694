"""Messages of hosts to one another: one frozen struct for each kind, in a closed union.

A message is small. The numbers of a tensor are sent beside it as raw bytes, so that this module never sees an
array, and nothing here is ever pickled. All hosts of a run have one version, so a message may change freely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from partita.engine.protocol.commands import Operation, Scalars

MOST: Final = 1 << 53
"""The largest number in a message: sums of a few of them can still be sent."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
"""Every number of a message counts something; the decoder refuses any other."""

UnitRange: TypeAlias = tuple[Count, Count]
"""Units of work `[start, stop)`: a unit is the examples of a step."""

Rows: TypeAlias = tuple[tuple[tuple[Count, Count], ...], ...]
"""Disjoint boxes of a layer: `(start, stop)` of its rows, or of its rows and columns."""


class MalformedMessage(ValueError):
    """Bytes that are not a message of this protocol."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message that could not be decoded. The transport makes it, so that the sender is named."""

    reason: str


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, array_like=True):
    pass


# Data: between parts, and between a part and the shards that hold its parameters.


class Tensor(_Message, frozen=True, tag=True):
    """Activations or gradients of some rows of a layer (the payload), in the step they belong to."""

    step: Count
    buffer: str
    rows: Rows


class Credit(_Message, frozen=True, tag=True):
    """The sender has finished this step: a part that only sends to it may begin the one after the next."""

    step: Count


class PushRecord(msgspec.Struct, frozen=True, array_like=True):
    """The first `pushes` pushes of one process of a part to one shard are acknowledged.

    They and those of earlier processes of the part hold the gradients of the steps below `stop`.
    """

    incarnation: Count
    pushes: Count
    stop: Count = 0


class Fetch(_Message, frozen=True, tag=True):
    """Asks a shard for the parameters it holds for the machine of the sender.

    `acknowledged` counts the sender's pushes that the shard has acknowledged, and `earlier` those of the
    processes before it: a shard restarted from a checkpoint finds its missing pushes by these counts.
    """

    request: Count
    acknowledged: Count = 0
    earlier: tuple[PushRecord, ...] = ()


class Parameters(_Message, frozen=True, tag=True):
    """Answers `Fetch` of this incarnation. The payload is the shard's slice of the machine's vector.

    `updates` counts the updates of its numbers, from all replicas and since the first run. `earlier`
    acknowledges the pushes of the part's previous process that the values include. `pushes` counts those of
    this process: the values hold them, or a checkpoint lacked them and they are lost.
    """

    request: Count
    shard_incarnation: Count
    version: Count
    updates: Count = 0
    incarnation: Count = 0
    earlier: PushRecord | None = None
    pushes: Count = 0


class Push(_Message, frozen=True, tag=True):
    """An accumulated gradient (the payload), computed from the parameters of this incarnation and version.

    With the pushes before it, it holds the gradients of all steps below `stop`.
    """

    incarnation: Count
    sequence: Count
    shard_incarnation: Count
    version: Count
    stop: Count = 0


class PushAck(_Message, frozen=True, tag=True):
    """`Push` was applied, once. `staleness` pushes to the same numbers were applied in between."""

    shard_incarnation: Count
    incarnation: Count
    sequence: Count
    version: Count
    staleness: Count


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


class Hello(_Message, frozen=True, tag=True):
    """The first message of a host: its inbox, and the versions it runs with."""

    endpoint: str
    versions: dict[str, str]


class SetUp(_Message, frozen=True, tag=True):
    """A host's task. The payload is a cloudpickle, read only if the coordinator's key sent it."""

    run: str


class Directory(_Message, frozen=True, tag=True):
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


class DirectoryAck(_Message, frozen=True, tag=True):
    """Answers `Directory`: the revision of the one that the sender has now."""

    revision: Count


class SetUpProgress(_Message, frozen=True, tag=True):
    """A host sets up its task, and has compiled this many functions so far."""

    compiled: Count


class Ready(_Message, frozen=True, tag=True):
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


class Begin(_Message, frozen=True, tag=True):
    """Starts the training loop of a part at this step, or has it go on up to (not including) `stop`.

    `leases` are the units of these steps, as far as they are not done; `is_last`: no more are expected. Parts
    get the same leases in the same order. A larger `stop` may follow at any time, also after the last.
    """

    step: Count
    stop: Count
    leases: tuple[Lease, ...] = ()
    is_last: bool = True


class ResumeStep(_Message, frozen=True, tag=True):
    """A part has its first parameters; the shards have the gradients of its steps below `step`.

    None: the machine has no parameters, and can begin at any step. Repeated until `Begin`.
    """

    step: Count | None


class Report(_Message, frozen=True, tag=True):
    """Progress of a part: steps done, sums over the examples since the last report, and over all pushes.

    The shards have acknowledged the gradients of its steps below `held`.
    """

    step: Count
    examples: Count
    loss: float
    correct: Count
    staleness: float
    pushes: Count
    held: Count = 0


class Finished(_Message, frozen=True, tag=True):
    """A part has done its steps, and the shards of this directory have acknowledged every push of it.

    Repeated about once a second until `Stop`. After a shard was replaced it holds only when the new process
    has answered a fetch, too (`Fetch.acknowledged`).
    """

    step: Count
    directory: Count = 0


class WaitReport(_Message, frozen=True, tag=True):
    """A part waits for something of another host, for this many seconds by now."""

    host: str
    what: str
    waited_s: Annotated[float, msgspec.Meta(ge=0)]


class Play(_Message, frozen=True, tag=True):
    """Asks a part for one step over a batch of which the first `examples` are real.

    The payload is the machine's inputs, in the program's order; without one, the last batch is used again.
    `collect` names buffers to send back; with `trace`, the times of the instructions follow them.
    """

    step: Count
    examples: Count
    collect: tuple[str, ...] = ()
    trace: bool = False


class Played(_Message, frozen=True, tag=True):
    """Answers `Play`: sums over the batch, seconds in the step and in kernels, and what the part has sent.

    The payload is what was collected.
    """

    step: Count
    loss: float
    correct: Count
    step_s: float
    busy_s: float
    sent_messages: Count
    sent_bytes: Count


class Ping(_Message, frozen=True, tag=True):
    """Asks a part for its clock. `sent_s` is the sender's own."""

    sent_s: float


class Pong(_Message, frozen=True, tag=True):
    """Answers `Ping` at once: its `sent_s`, and when it was received and answered by the sender's clock."""

    sent_s: float
    received_s: float
    replied_s: float


class Load(_Message, frozen=True, tag=True):
    """Gives a part its parameters (the payload: the machine's vector). Answered by `Loaded`."""


class Loaded(_Message, frozen=True, tag=True):
    """Answers `Load`: the part has its parameters."""


class Heartbeat(_Message, frozen=True, tag=True):
    """Shows that the sender is alive. The coordinator's own carries the receiver's incarnation.

    `clock` is the sender's own clock in seconds. The coordinator returns the newest reading that it has from
    the receiver: a lease starts at this reading, so that a message in a queue never prolongs the lease. None
    where no reading is known.
    """

    incarnation: Count
    clock: float | None = None


class Save(_Message, frozen=True, tag=True):
    """Asks a shard for its file of this checkpoint; a part, for that of its state after `step` steps."""

    checkpoint: Count
    step: Count = 0


class Saved(_Message, frozen=True, tag=True):
    """The shard's file is on disk: its name inside the checkpoint's folder and its SHA-256.

    `lost` counts the acknowledged pushes that this process has found missing, up to the version in the file.
    """

    checkpoint: Count
    incarnation: Count
    version: Count
    file: str
    sha256: str
    lost: Count = 0


class SaveFailed(_Message, frozen=True, tag=True):
    """The shard's file of this checkpoint could not be written. Files of other checkpoints still may.

    `late`: a part has passed the step that the checkpoint is of; a later one can be asked for at once.
    """

    checkpoint: Count
    incarnation: Count
    reason: str
    late: bool = False


class SaveProgress(_Message, frozen=True, tag=True):
    """This many bytes of the shard's file of this checkpoint are on disk. Not repeated."""

    checkpoint: Count
    incarnation: Count
    n_bytes: Count


class LostPushes(_Message, frozen=True, tag=True):
    """A shard that came back from a checkpoint lacks this many acknowledged pushes of a part.

    The count is of the sender's whole incarnation: the receiver keeps the largest for each shard and part.
    """

    part: str
    pushes: Count


# Sandblaster: the coordinator sends commands to shards, and work units to replicas.


class Command(_Message, frozen=True, tag=True):
    """Orders a shard to execute operations, once: numbers rise, and one below its last is ignored.

    A new one drops an evaluation that is under way. The number of a command that evaluates names the
    evaluation.
    """

    number: Count
    operations: tuple[Operation, ...]


class CommandResult(_Message, frozen=True, tag=True):
    """The scalars of a shard's slice, except those of `Evaluate`. Repeated for a repeated command."""

    number: Count
    scalars: Scalars


class MissingUnits(_Message, frozen=True, tag=True):
    """Answers a repeat of a command in its evaluation: the work units that a shard still lacks.

    Ranges `[start, stop)` of their numbers, ascending; empty while it executes the operations of the command.
    """

    number: Count
    units: tuple[tuple[Count, Count], ...]


class Assignment(_Message, frozen=True, tag=True):
    """Assigns all parts of a replica a work unit of an evaluation: portions `[first, first + count)`.

    `sequence` counts the assignments of a replica's process, from 0; they are executed in this order.
    """

    evaluation: Count
    sequence: Count
    unit: Count
    first: Count
    count: Count


class AssignmentResult(_Message, frozen=True, tag=True):
    """Sums over the examples of an assignment whose losses this part computes. Repeated on request."""

    sequence: Count
    evaluation: Count
    unit: Count
    loss: float
    correct: Count


class FetchPoint(_Message, frozen=True, tag=True):
    """Asks a shard for its slice of `x` in the first evaluation above `after`: answered when that begins."""

    after: Count


class Point(_Message, frozen=True, tag=True):
    """Answers `FetchPoint`. The payload is the machine's slice of `x` in this evaluation."""

    evaluation: Count


class Contribution(_Message, frozen=True, tag=True):
    """The payload: a machine's gradient of a shard's numbers, summed over the portions of a work unit."""

    evaluation: Count
    unit: Count


class ContributionAck(_Message, frozen=True, tag=True):
    """The contribution or another one of this work unit is counted, or the evaluation has ended."""

    evaluation: Count
    unit: Count


# Views: which replicas do the next steps together.


class Pause(_Message, frozen=True, tag=True):
    """Announces a view: a part drops what it does, and answers with `Paused`. Repeated until then."""

    view: Count


class Paused(_Message, frozen=True, tag=True):
    """A part does nothing until the view is published. It has the state after `step` steps.

    None: it has none, because it was receiving one. `completes`: it can do the step after these without other
    replicas.
    """

    view: Count
    step: Count | None
    completes: bool = False


class StateCopy(msgspec.Struct, frozen=True, array_like=True):
    """The part of a machine in replica `source` sends its state to that in replica `target`."""

    machine: Count
    source: Count
    target: Count


class View(_Message, frozen=True, tag=True):
    """A view: its replicas, and the step that they go on from. Repeated until `Joined`.

    Args:
        number: of the view.
        members: its replicas, ascending.
        directory: the revision in which they can all be reached.
        step: the next step.
        position: of that step: examples before it.
        until: the position at which the work ends.
        copies: the copies of state that come first.
        places: for each member, a number for where its part of the receiver's machine runs (`Peer.machine`);
            empty where each runs on its own.
    """

    number: Count
    members: tuple[Count, ...]
    directory: Count
    step: Count
    position: Count
    until: Count
    copies: tuple[StateCopy, ...] = ()
    places: tuple[Count, ...] = ()


class Joined(_Message, frozen=True, tag=True):
    """A part has received this view."""

    view: Count


class Reduced(_Message, frozen=True, tag=True):
    """The sender has completed the exchanges of this view up to this number.

    Its replica's other parts wait for that before they go on, and who sends it results before it overwrites
    them. `asks`: the receiver's own number is to be sent back, if it is as large.
    """

    view: Count
    number: Count
    asks: bool = False


class Failed(_Message, frozen=True, tag=True):
    """The task raised: a sentence, and the traceback as text. `final`: a repetition would fail the same way.
    `stuck`: it did not raise, but one of its computations does not end.
    """

    reason: str
    traceback: str
    final: bool = False
    stuck: bool = False


class Refused(_Message, frozen=True, tag=True):
    """A message to the sender was not permitted or malformed, and had no effect."""

    by: str
    reason: str


class Stop(_Message, frozen=True, tag=True):
    """Orders a host to end."""


# Exchanges among the parts that hold the same parameters, of several replicas.


class PartialChunk(_Message, frozen=True, tag=True):
    """The payload: the sender's sum of one piece of an exchange, over itself and what it has added.

    `exchange` tells apart the exchanges of a view; `number` counts the uses of one.
    """

    view: Count
    exchange: Count
    number: Count
    piece: Count


class FinalChunk(_Message, frozen=True, tag=True):
    """The payload: the final numbers of one piece, which the receiver takes over.

    `dropped` names the ranks whose contributions are not in them.
    """

    view: Count
    exchange: Count
    number: Count
    piece: Count
    dropped: tuple[Count, ...] = ()


class ChunkRequest(_Message, frozen=True, tag=True):
    """Asks a member for pieces that the sender lacks: ranges `[start, stop)` of partial and final ones."""

    view: Count
    exchange: Count
    number: Count
    partial: tuple[tuple[Count, Count], ...]
    final: tuple[tuple[Count, Count], ...]


class ExchangeAck(_Message, frozen=True, tag=True):
    """The sender has every piece of this exchange. Only where a step may be summed without all members."""

    view: Count
    exchange: Count
    number: Count


_ChunkMessage: TypeAlias = PartialChunk | FinalChunk | ChunkRequest | ExchangeAck
_ExchangeMessage: TypeAlias = Tensor | Credit | Fetch | Parameters | Push | PushAck
_StartMessage: TypeAlias = (
    Hello | SetUp | Directory | DirectoryAck | SetUpProgress | Ready | Begin | ResumeStep
)
_ProgressMessage: TypeAlias = Report | Finished | WaitReport | Heartbeat | Failed | Refused | Stop
_SessionMessage: TypeAlias = Play | Played | Ping | Pong | Load | Loaded
_CheckpointMessage: TypeAlias = Save | Saved | SaveProgress | SaveFailed | LostPushes
_CommandMessage: TypeAlias = Command | CommandResult | MissingUnits | Assignment | AssignmentResult
_ViewMessage: TypeAlias = Pause | Paused | View | Joined | Reduced
_PointMessage: TypeAlias = FetchPoint | Point | Contribution | ContributionAck
Message: TypeAlias = (
    _ExchangeMessage
    | _ChunkMessage
    | _StartMessage
    | _ProgressMessage
    | _SessionMessage
    | _CheckpointMessage
    | _CommandMessage
    | _ViewMessage
    | _PointMessage
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
