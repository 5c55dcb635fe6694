"""Events and effects that only a shard's machine has, and the interface of its policies.

Effects are carried out in order, each finished before the next one starts (`Persist` when its copy is taken).
`RunOperations` and `LoadCheckpoint` may take long: each is the last of its list, and `OperationsDone` reports
its end. A policy must not know the optimizer, the numbers, the disk or the network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from partita.engine.protocol.commands import Operation
from partita.engine.protocol.copy_messages import ShardCounts
from partita.engine.protocol.durability.fill import WriteChunk
from partita.engine.protocol.durability.records import (
    BeginSegment,
    Keep,
    Kept,
    LogNote,
    Record,
    RemoveRecords,
)
from partita.engine.protocol.events import (
    Delivered,
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Span,
    Tick,
    payload_bytes,
    stream_of,
)
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.message_form import MessageForm, step_of
from partita.engine.protocol.messages import Message, Push
from partita.engine.protocol.names import host_and_fragment, machine_of


@dataclass(frozen=True, slots=True)
class Fenced:
    """Effect, once: a process of this incarnation has replaced the shard. The host must end."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class ReceiveAgain:
    """Effect: give the machine this event when all effects are carried out, at the time that it is then.

    The message waited for the lease, which may end while those before it are handled.
    """

    event: Received


@dataclass(frozen=True, slots=True)
class ApplyGradient:
    """Effect: update the numbers of the span with the gradient in the payload, by the shard's optimizer.

    `updates` counts the earlier updates of these numbers; (`stream`, `incarnation`, `sequence`) is the push.
    `scale` is the factor of the learning rate, `step` the one as which the push is compressed.

    A push of a merge has a `weight`; with `more`, others of the merge follow at once. The update is by the
    sum of the pushes times their weights, with the last one. Such pushes have `scale` in them already.
    """

    span: Span
    payload: object
    updates: int
    stream: str
    incarnation: int
    sequence: int
    scale: float = 1.0
    step: int = 0
    weight: float | None = None
    more: bool = False

    @property
    def factor(self) -> float:
        """The factor of what was pushed in the sum of a merge, or in the update."""
        return self.scale if self.weight is None else self.scale * self.weight


@dataclass(frozen=True, slots=True)
class Compensate:
    """Effect: replace the gradient in the payload by one that allows for what others have changed since.

    It comes before the record of the push: what is kept is the gradient that was applied.

    Args:
        span: the numbers.
        payload: of the push, whose bytes are replaced.
        stream: that the push is of.
        base: version from which the gradient was computed, and which this process has sent the part.
    """

    span: Span
    payload: object
    stream: str
    base: int


@dataclass(frozen=True, slots=True)
class KeepUnsent:
    """Effect: add to the file that is not written yet what a stream's compressor has kept of a range."""

    stream: str
    span: Span
    payload: object


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Effect: write the file of this checkpoint, for which all has been collected."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class RunOperations:
    """Effect, the last one of its list: execute these operations on vectors, in order."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """Effect, the last one of its list: all vectors become those of this checkpoint (None: of the run's
    start).
    """

    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class OperationsDone:
    """Event: `RunOperations` ended and gave these scalars; or `LoadCheckpoint` did, which gives none."""

    scalars: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class StoreGradient:
    """Effect: keep the payload, a machine's gradient over this work unit of an evaluation.

    With `beside`, it is added to that kept gradient from where it lies; the sum is kept as the first of both.
    """

    machine: int
    evaluation: int
    unit: int
    payload: object
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class AddGradient:
    """Effect: add a machine's kept gradient `of` to its kept gradient `into`, and free `of`."""

    machine: int
    into: int
    of: int


@dataclass(frozen=True, slots=True)
class MoveGradient:
    """Effect: write a machine's kept gradient to this span of a vector, and free it."""

    machine: int
    unit: int
    span: Span


@dataclass(frozen=True, slots=True)
class DropGradients:
    """Effect: free all kept gradients."""


@dataclass(frozen=True, slots=True)
class TakeSums:
    """Effect, the last one of its list: copy these vectors into payloads; `SumsTaken` brings them at once."""

    vectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SumsTaken:
    """Event: the payloads that `TakeSums` asks for, in its order."""

    payloads: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class WriteVector:
    """Effect: write the payload to all of the shard's numbers of a vector."""

    vector: str
    payload: object


@dataclass(frozen=True, slots=True)
class TakeCopy:
    """Effect, the last one of its list: keep all vectors as they are now, to be read in chunks, instead of
    those that were kept before. `CopyTaken` follows at once.
    """


@dataclass(frozen=True, slots=True)
class CopyTaken:
    """Event: the names of the vectors that `TakeCopy` keeps, in the order of a chunk."""

    vectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReleaseCopy:
    """Effect: nobody reads what `TakeCopy` keeps any more."""


ShardEvent: TypeAlias = (
    Received
    | Tick
    | PeersChanged
    | Delivered
    | OperationsDone
    | SumsTaken
    | CopyTaken
    | Persisted
    | NotPersisted
    | Kept
    | LogNote
)
LongEffect: TypeAlias = RunOperations | LoadCheckpoint
ShardEffect: TypeAlias = (
    ApplyGradient
    | Compensate
    | LongEffect
    | StoreGradient
    | AddGradient
    | MoveGradient
    | DropGradients
    | TakeSums
    | WriteVector
    | TakeCopy
    | ReleaseCopy
    | Keep
    | BeginSegment
    | RemoveRecords
    | WriteChunk
    | Send
    | Persist
    | KeepUnsent
    | WriteFile
    | Fenced
    | ReceiveAgain
    | Refuse
)


@dataclass(frozen=True, slots=True)
class ShardRanges:
    """A process of a shard, and the numbers that it holds: ranges, each of a machine and a fragment.

    The number of a range is that of its machine, plus that of its fragment times the machines of the network:
    in a network whose parameters are exchanged in one piece, it is the machine.

    Args:
        name: "shard K".
        incarnation: of the process.
        ranges: for each number, the range's `(start, stop)` in the shard's own flat vectors.
        item_bytes: bytes of one number of a payload.
        rows_bytes: for the ranges with sparse tables, of which gradients are a few rows, the least and the
            most bytes of a payload, less those of a message.
        messages: for the ranges whose pushes are compressed, the form of their messages.
        machines: of the network.
    """

    name: str
    incarnation: int
    ranges: Mapping[int, tuple[int, int]]
    item_bytes: int = 4
    rows_bytes: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    messages: Mapping[int, MessageForm] = field(default_factory=dict)
    machines: int = 1

    def span(self, vector: str, number: int) -> Span:
        """Returns a range of a vector."""
        return Span(vector, *self.ranges[number])

    def number_of(self, stream: str) -> int:
        """Returns the number of the range that a stream is of; -1 where the shard has none."""
        part, fragment = host_and_fragment(stream)
        machine = machine_of(part)
        is_of_network = machine >= 0 and (not fragment or machine < self.machines)
        number = fragment * self.machines + machine
        return number if is_of_network and number in self.ranges else -1

    def rejection_reason(self, event: Received, gradient: str = "") -> str | None:
        """Returns why a part's message is malformed. `gradient` names an expected payload."""
        stream = stream_of(event)
        number = self.number_of(stream)
        if number < 0:
            return f"{self.name} holds no parameters of {stream!r}"
        (least, most), found = self._bytes_of_push(number, event.message), payload_bytes(event.payload)
        if gradient and not least <= found <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            return f"{gradient} of {stream!r} to {self.name} has {wanted} bytes, not {found}"
        return None

    def _bytes_of_push(self, number: int, message: object) -> tuple[int, int]:
        """The least and the most bytes of a payload."""
        start, stop = self.ranges[number]
        form = self.messages.get(number)
        whole = (stop - start) * self.item_bytes
        if form is None:
            return self.rows_bytes.get(number, (whole, whole))
        least, most = self.rows_bytes.get(number, (0, 0))
        n_bytes = form.n_bytes(step_of(message.stop)) if isinstance(message, Push) else whole
        return least + n_bytes, most + n_bytes


class Policy(ABC):
    """A shard's use of gradients and commands: a pure machine, called by `Shard` under the lease.

    Attributes:
        version: how many pushes or commands the vectors hold; only this class moves it.
        now: time of the event under way (seconds, the host's monotonic clock).
    """

    orders: ClassVar[tuple[type[Message], ...]] = ()
    """Messages of the coordinator that it takes."""

    requests: ClassVar[tuple[type[Message], ...]] = ()
    """Messages of parts that it takes."""

    saves_on_request: ClassVar[bool] = False
    """Tells whether a file may be written whenever `Save` asks; else only where a command says so."""

    makes_records: ClassVar[bool] = False
    """Tells whether `Keep` is among its effects; else each request that moves the version is a record."""

    version: int
    now: float = 0.0

    @abstractmethod
    def receive(self, event: Received) -> list[ShardEffect]:
        """Returns the effects of one of its messages."""

    @abstractmethod
    def persist(self, checkpoint: int) -> Persist:
        """Returns the effect that writes all vectors as they are now, with the counts that belong to them."""

    def persisting(self, order: Persist) -> list[ShardEffect]:
        """Returns the effects that follow such an order at once."""
        return []

    def counts(self) -> ShardCounts:
        """Returns the counts that belong to all vectors as they are now, for another copy of the shard."""
        raise AssertionError(f"{type(self).__name__} is not copied")

    def replay(self, record: Record) -> list[ShardEffect]:
        """Returns the effects that carry out a record again, without replies."""
        raise AssertionError(f"{type(self).__name__} has no records")

    def recorded(self, request: Received) -> Received:
        """Returns a request that was carried out as its record has it, for `replay`."""
        return request

    def promised_by(self, event: Received) -> int:
        """Returns the number of a record that must be kept before the request is handled; 0: of none."""
        return 0

    def is_current(self, reply: ShardEffect) -> bool:
        """Returns whether a reply that waited for records still says what is true."""
        return True

    @property
    def lost(self) -> int:
        """Acknowledged pushes that this process has found missing."""
        return 0

    def sums_taken(self, payloads: Sequence[object]) -> list[ShardEffect]:
        """Returns the effects that follow `TakeSums`."""
        raise AssertionError(f"{type(self).__name__} takes no sums")

    def operations_done(self, scalars: Sequence[float], *, leased: bool) -> list[ShardEffect]:
        """Returns the effects of the end of operations; without a lease it may only note it."""
        raise AssertionError(f"{type(self).__name__} runs no operations")

    def tick(self, *, leased: bool) -> list[ShardEffect]:
        """Returns the effects of what was left for later."""
        return []

    @abstractmethod
    def validate(self) -> None:
        """Checks its invariants. Raises AssertionError."""
