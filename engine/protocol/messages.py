"""What hosts say to one another: one frozen struct for each kind of message, in a closed union.

A message is small. The numbers of a tensor travel beside it as raw bytes, so that this module never sees an
array, and nothing here is ever pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from partita.engine.protocol.commands import Operation, Scalars

MOST: Final = 1 << 53
"""No number of a message is larger: sums of a few of them can still be sent."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
"""Every number of a message counts something. The decoder refuses any other, whoever sent it."""

Rows: TypeAlias = tuple[tuple[tuple[Count, Count], ...], ...]
"""Disjoint boxes of a layer: `(start, stop)` of its rows, or of its rows and columns."""


class MalformedMessage(ValueError):
    """Bytes that are not a message of this protocol."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a message that could not be decoded. Never sent: the transport gives it to the receiver, so
    that the sender is named.
    """

    reason: str


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, array_like=True):
    pass


# Data: between parts, and between a part and the shards that hold its parameters.


class Tensor(_Message, frozen=True, tag=True):
    """States or errors of some rows of a layer, for the step they belong to. The payload is their numbers."""

    step: Count
    buffer: str
    rows: Rows


class Credit(_Message, frozen=True, tag=True):
    """The sender has finished this step: whoever only sends to it may begin the one after the next."""

    step: Count


class PushRecord(msgspec.Struct, frozen=True, array_like=True):
    """Pushes of one process of a part to one shard that are settled: the first `pushes` of them.

    They and those of earlier processes of the part hold the gradients of the steps below `stop`.
    """

    incarnation: Count
    pushes: Count
    stop: Count = 0


class Fetch(_Message, frozen=True, tag=True):
    """Asks a shard for the parameters it holds for the machine of the sender.

    `acknowledged` is how many pushes of the sender's incarnation the shard has acknowledged, and `earlier`
    the same of the processes before it: a shard that came back from a checkpoint learns so what it misses,
    even from a part that has nothing left to push.
    """

    request: Count
    acknowledged: Count = 0
    earlier: tuple[PushRecord, ...] = ()


class Parameters(_Message, frozen=True, tag=True):
    """Answers `Fetch` of this incarnation. The payload is the sender's slice of the machine's vector.

    `updates` is how many its numbers have had, from all replicas and since the first run. `earlier` is what
    the values hold of the processes of the part before the sender: it acknowledges those pushes.
    """

    request: Count
    shard_incarnation: Count
    version: Count
    updates: Count = 0
    incarnation: Count = 0
    earlier: PushRecord | None = None


class Push(_Message, frozen=True, tag=True):
    """An accumulated gradient (the payload), computed from parameters that had this epoch and version.

    With the pushes before it, it holds the gradients of all steps below `stop`.
    """

    incarnation: Count
    sequence: Count
    shard_incarnation: Count
    version: Count
    stop: Count = 0


class PushAck(_Message, frozen=True, tag=True):
    """Acknowledges `Push`: applied, once. `staleness` pushes to the same numbers were applied in between."""

    shard_incarnation: Count
    incarnation: Count
    sequence: Count
    version: Count
    staleness: Count


# Control: between the coordinator and everybody else.


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a host is reached: its endpoint, its CURVE public key (Z85) and which incarnation this is.

    `machine` is a label from its launcher: hosts with the same one may share memory ("": with nobody).
    """

    name: str
    incarnation: Count
    endpoint: str
    public_key: str
    machine: str = ""


class Hello(_Message, frozen=True, tag=True):
    """The first message of a host: where its inbox is, and with what it runs."""

    endpoint: str
    versions: dict[str, str]


class SetUp(_Message, frozen=True, tag=True):
    """A host's task. The payload is a cloudpickle, read only when the coordinator's key sent it."""

    run: str


class Directory(_Message, frozen=True, tag=True):
    """Every host that the receiver may talk to, replacing what it knew before.

    The receiver ignores one whose `revision` is below that of the one it has (messages may overtake one
    another), and answers every one with `DirectoryAck`, so that the newest is said again to who is behind.
    """

    peers: tuple[Peer, ...]
    revision: Count = 0


class DirectoryAck(_Message, frozen=True, tag=True):
    """Answers `Directory`: the revision of the one that the sender has now."""

    revision: Count


class SetUpProgress(_Message, frozen=True, tag=True):
    """Sign of life of a host that sets up its task: how many functions it has compiled so far."""

    compiled: Count


class Ready(_Message, frozen=True, tag=True):
    """The task is understood and everything is compiled; a shard adds the version it starts from."""

    version: Count = 0


class Begin(_Message, frozen=True, tag=True):
    """Starts the training loop of a part, from this step up to (not including) `stop`."""

    step: Count
    stop: Count


class ResumeStep(_Message, frozen=True, tag=True):
    """A part has its first parameters. The shards have the gradients of its steps below `step`.

    None: the machine has no parameters, and can go on from any step. Repeated until `Begin`.
    """

    step: Count | None


class Report(_Message, frozen=True, tag=True):
    """Progress of a part: steps done, and sums over the examples since the last report; and over all pushes
    so far.
    """

    step: Count
    examples: Count
    loss: float
    correct: Count
    staleness: float
    pushes: Count


class Finished(_Message, frozen=True, tag=True):
    """A part has done its steps, and every push of it is acknowledged by the shards of this directory.

    Said again about once a second, until `Stop`. After a shard was replaced it holds only when the new shard
    has answered a fetch too (`Fetch.settled`).
    """

    step: Count
    directory: Count = 0


class WaitReport(_Message, frozen=True, tag=True):
    """A part gets no further without something of another host, for so many seconds by now."""

    host: str
    what: str
    waited_s: Annotated[float, msgspec.Meta(ge=0)]


class Play(_Message, frozen=True, tag=True):
    """One step over a batch of which the first `examples` are real.

    The payload is the machine's inputs, in the program's order; without one, the last batch is played again.
    `collect` names buffers to send back; with `trace`, what was done when follows them.
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
    """Answers `Ping` at once: its `sent_s`, and when it was heard and answered by the sender's clock."""

    sent_s: float
    heard_s: float
    said_s: float


class Load(_Message, frozen=True, tag=True):
    """Gives a part its parameters (the payload: the machine's vector). Answered by `Ready`."""


class Heartbeat(_Message, frozen=True, tag=True):
    """I am alive. The coordinator's own carries the epoch under which it knows the receiver.

    `clock` is the sender's own clock in seconds. The coordinator puts in the newest one that it has had from
    the receiver, unchanged: a lease counts from when it was asked for, so that a message that lay in a queue
    never prolongs it. None where none is known.
    """

    incarnation: Count
    clock: float | None = None


class Save(_Message, frozen=True, tag=True):
    """Asks a shard for its file of this checkpoint."""

    checkpoint: Count


class Saved(_Message, frozen=True, tag=True):
    """The shard's file is on disk: its name inside the checkpoint's folder and its SHA-256.

    `lost` counts the acknowledged pushes that this epoch has found missing, up to the version in the file.
    """

    checkpoint: Count
    incarnation: Count
    version: Count
    file: str
    sha256: str
    lost: Count = 0


class SaveFailed(_Message, frozen=True, tag=True):
    """The shard's file of this checkpoint could not be written, and why. Another checkpoint may be."""

    checkpoint: Count
    incarnation: Count
    reason: str


class SaveProgress(_Message, frozen=True, tag=True):
    """So many bytes of the shard's file of this checkpoint are on disk. A sign of progress, not repeated."""

    checkpoint: Count
    incarnation: Count
    n_bytes: Count


class LostPushes(_Message, frozen=True, tag=True):
    """A shard that came back from a checkpoint misses this many acknowledged pushes of a part.

    The count is of the sender's whole incarnation: the receiver keeps the largest for each shard and part.
    """

    part: str
    pushes: Count


# Sandblaster: the coordinator directs shards by commands and replicas by portions.


class Command(_Message, frozen=True, tag=True):
    """Tells a shard to do these operations in order, once: numbers rise, and one below its last is nothing.

    A new one drops an evaluation that is under way. The number of a command that evaluates names the
    evaluation.
    """

    number: Count
    operations: tuple[Operation, ...]


class CommandResult(_Message, frozen=True, tag=True):
    """The shard has done the command: the scalars of its slice, but those of `Evaluate`. Said again for a
    repeat.
    """

    number: Count
    scalars: Scalars


class MissingUnits(_Message, frozen=True, tag=True):
    """Answers a repeat of a command whose evaluation is under way: the work units that a shard still lacks.

    Ranges `[start, stop)` of their numbers, ascending; empty where it is at work on the command itself.
    """

    number: Count
    units: tuple[tuple[Count, Count], ...]


class Assignment(_Message, frozen=True, tag=True):
    """Gives all parts of a replica a work unit of an evaluation: portions `[first, first + count)`.

    Turns count what a replica's process was given, from 0; they are played in this order.
    """

    evaluation: Count
    sequence: Count
    unit: Count
    first: Count
    count: Count


class AssignmentResult(_Message, frozen=True, tag=True):
    """A part is through with a turn. Sums over its examples, as far as this part judges them.

    Said again for a repeat of its `Assignment`.
    """

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
    """Acknowledges `Contribution`: it counts, another of this work unit does, or the evaluation is over."""

    evaluation: Count
    unit: Count


class Failed(_Message, frozen=True, tag=True):
    """The task raised: a sentence, and the traceback as text. `final`: trying again would end the same.
    `stuck`: it did not raise, but one of its computations does not end.
    """

    reason: str
    traceback: str
    final: bool = False
    stuck: bool = False


class Refused(_Message, frozen=True, tag=True):
    """The sender was told something that the other host may not say, or not so; it had no effect."""

    by: str
    reason: str


class Stop(_Message, frozen=True, tag=True):
    """Ends the host."""


Message: TypeAlias = (
    Tensor
    | Credit
    | Fetch
    | Parameters
    | Push
    | PushAck
    | Hello
    | SetUp
    | Directory
    | DirectoryAck
    | SetUpProgress
    | Ready
    | Begin
    | ResumeStep
    | Report
    | Finished
    | WaitReport
    | Play
    | Played
    | Ping
    | Pong
    | Load
    | Heartbeat
    | Save
    | Saved
    | SaveProgress
    | SaveFailed
    | LostPushes
    | Command
    | CommandResult
    | MissingUnits
    | Assignment
    | AssignmentResult
    | FetchPoint
    | Point
    | Contribution
    | ContributionAck
    | Failed
    | Refused
    | Stop
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message (MessagePack, tagged by its kind). Safe from several threads."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """The message in these bytes.

    Raises:
        MalformedMessage: they are not exactly one message of the closed union.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{len(data)} bytes are not a message of this protocol: {error}") from error
