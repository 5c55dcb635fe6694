"""The protocol of a shard under batch optimisation: each command is done once, each contribution counts once.

A command's operations are done in order. At an evaluation the shard pauses: it gives every part that asks its
slice of the point, and takes the gradient of every (work unit, machine) once, whoever computed it; they are
added in a tree that follows from the numbers of the work units alone. Then it does the rest, and answers.

It must not know the numbers, the disk or the network: it asks for all of them by effects, which are carried
out in the order given, each finished before the next one starts (`Persist` when what it keeps is marked).
`RunOperations` and `LoadCheckpoint` may take long: each is the last of its effects, and `OperationsDone`
reports its end. Meanwhile the machine receives messages and starts nothing.

Source: DistBelief, section 4.2 (Sandblaster: commands to parameter shards, portions of a batch). Exactly
once, the tree and the leases are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Operation,
    Restore,
    Snapshot,
    n_scalars,
    zero,
)
from partita.engine.protocol.evaluation import Evaluation
from partita.engine.protocol.events import (
    NotPersisted,
    Persist,
    Persisted,
    Received,
    Refuse,
    Send,
    Span,
    Tick,
    payload_bytes,
)
from partita.engine.protocol.lease import Fenced, LeasedShard
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS
from partita.engine.protocol.messages import (
    Command,
    CommandResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    Heartbeat,
    MissingUnits,
    Point,
    Save,
    Saved,
    SaveFailed,
)
from partita.engine.protocol.names import COORDINATOR, machine_of


@dataclass(frozen=True, slots=True)
class RunOperations:
    """Effect, the last one of its list: do these operations on vectors, in order; then `OperationsDone`."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class OperationsDone:
    """Event: `RunOperations` is done, and gave these scalars; or `LoadCheckpoint` is, which gives none."""

    scalars: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """Effect, the last one of its list: all vectors become what this checkpoint holds (None: what the run
    began with); then `OperationsDone`.
    """

    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class StoreGradient:
    """Effect: the payload is a machine's gradient over this work unit; keep its numbers under these names."""

    machine: int
    unit: int
    payload: object


@dataclass(frozen=True, slots=True)
class AddGradient:
    """Effect: of what is kept of a machine, `into` becomes `into + of`, and `of` is free."""

    machine: int
    into: int
    of: int


@dataclass(frozen=True, slots=True)
class MoveGradient:
    """Effect: what is kept of a machine under this work unit becomes this span of a vector, and is free."""

    machine: int
    unit: int
    span: Span


@dataclass(frozen=True, slots=True)
class DropGradients:
    """Effect: nothing that is kept is wanted any more."""


VectorShardEvent: TypeAlias = Received | Tick | OperationsDone | Persisted | NotPersisted
VectorShardEffect: TypeAlias = (
    RunOperations
    | LoadCheckpoint
    | StoreGradient
    | AddGradient
    | MoveGradient
    | DropGradients
    | Send
    | Persist
    | Fenced
    | Refuse
)


class VectorShard(LeasedShard):
    """One shard of the vectors. It works, answers and acknowledges only under its lease."""

    def __init__(
        self,
        name: str,
        *,
        epoch: int,
        ranges: Mapping[int, tuple[int, int]],
        unit_size: int,
        number: int = 0,
        item_bytes: int = 4,
        lease_s: float = DEFAULT_HEARTBEATS.lease_s,
        heartbeat_s: float = DEFAULT_HEARTBEATS.heartbeat_s,
    ) -> None:
        """A shard that starts, or starts again.

        Args:
            name: "shard K".
            epoch: the incarnation of this process.
            ranges: for each machine, its `(start, stop)` in the shard's own flat vectors.
            unit_size: portions in a work unit.
            number: of the last command in the checkpoint it starts from; only those above it are done.
            item_bytes: bytes of one number of a payload.
            lease_s: how long an echoed clock reading lets it work: less than what the coordinator takes for
                death, see `Pace`.
            heartbeat_s: how often it asks for the next one.
        """
        super().__init__(name, epoch=epoch, lease_s=lease_s, heartbeat_s=heartbeat_s)
        self.number = number
        self._ranges: Final = dict(ranges)
        self._unit_size: Final = unit_size
        self._item_bytes: Final = item_bytes
        self._rest: deque[Operation] = deque()  # of the command under way
        self._scalars: list[float] = []
        self._awaited: int | None = (
            None  # scalars that `OperationsDone` must bring; None: nothing is being done
        )
        self._next: Command | None = None  # the newest that came while something is being done
        self._lapsed = False  # the lease ended while something was being done: the rest waits
        self._evaluation: Evaluation | None = None
        self._owed: Final[list[Send]] = []  # said behind the answer, or when that takes a while
        self._has_point = False  # `x` is where the last command evaluates: it is shown to who asks
        self._answer: CommandResult | None = None
        self._incarnations: Final[dict[str, int]] = {}  # the newest process of each part
        self._orders: Final[dict[str, int]] = {}  # parts that want the point of an evaluation above this one
        self._writing: Final[deque[Saved]] = (
            deque()
        )  # said of files under way, but for their names and hashes
        self._saved: Saved | None = None
        self._not_saved: SaveFailed | None = None

    @property
    def evaluation(self) -> int | None:
        """The number of the evaluation that is under way."""
        return None if self._evaluation is None else self.number

    def receive(self, event: VectorShardEvent, now: float) -> list[VectorShardEffect]:
        """What follows from an event at `now` (seconds, the host's monotonic clock), to be done in order."""
        assert self._awaited is not None or not isinstance(event, OperationsDone), event
        match event:
            case Received(message=Contribution() as contribution):
                return self._contribution(event, contribution, now)
            case Received(message=FetchPoint() as fetch):
                return self._fetch(event, fetch, now)
            case Received(sender=sender, message=Command() as command) if sender == COORDINATOR:
                return self._command(command, now)
            case Received(sender=sender, message=Heartbeat() as heartbeat) if sender == COORDINATOR:
                return [*self._heartbeat(heartbeat, now)]
            case Received(sender=sender, message=Save() as save) if sender == COORDINATOR:
                return self._say_saved(save.checkpoint, now)
            case Received(sender=sender, message=message):
                return [Refuse(sender, f"{self.name} does not take a {type(message).__name__} from it")]
            case OperationsDone(scalars=scalars):
                return self._done(scalars, now)
            case Persisted() | NotPersisted():
                return self._persisted(event)
            case Tick():
                return [*self._tick(now), *self._say_owed(now)]

    # Commands.

    def _command(self, command: Command, now: float) -> list[VectorShardEffect]:
        if not self.holds_lease(now) or command.number < self.number:
            return []
        if command.number == self.number:
            return self._repeat()
        if self._awaited is not None:
            if self._next is None or self._next.number < command.number:
                self._next = command
            return [Send(COORDINATOR, MissingUnits(command.number, ()))]
        effects: list[VectorShardEffect] = [] if self._evaluation is None else [DropGradients()]
        self._evaluation = self._answer = self._next = None
        self._has_point = self._lapsed = False
        self.number = command.number
        self._owed.clear()  # they are said to who asks again
        self._rest.clear()
        self._rest.extend(command.operations)
        self._scalars = []
        return effects + self._go_on()

    def _repeat(self) -> list[VectorShardEffect]:
        """Answers the last command again. One that is being done is answered later, and lacks nothing. One
        that only a process before this one has done is not answered.
        """
        if self._awaited is not None:
            return [Send(COORDINATOR, MissingUnits(self.number, ()))]
        if self._lapsed:
            self._lapsed = False
            return self._go_on()
        if self._evaluation is not None:
            return [Send(COORDINATOR, MissingUnits(self.number, self._evaluation.missing_ranges()))]
        return [] if self._answer is None else [Send(COORDINATOR, self._answer)]

    def _go_on(self) -> list[VectorShardEffect]:
        """Up to the next operations whose scalars, or whose gradients, must be waited for; or to the end."""
        effects: list[VectorShardEffect] = []
        while self._rest:
            match self._rest[0]:
                case Evaluate() as evaluate:
                    self._rest.popleft()
                    effects += self._begin(evaluate)
                    if self._evaluation is not None:
                        return effects
                case Snapshot(checkpoint=checkpoint):
                    self._rest.popleft()
                    self._writing.append(Saved(checkpoint, self.epoch, self.number, "", ""))
                    effects.append(Persist(checkpoint, self.epoch, self.number))
                case Restore(checkpoint=earlier):
                    self._rest.popleft()
                    self._awaited = 0
                    return [*effects, LoadCheckpoint(earlier)]
                case _:
                    effects.append(RunOperations(self._next_operations()))
                    return effects
        self._answer = CommandResult(self.number, tuple(self._scalars))
        effects += [Send(COORDINATOR, self._answer), *self._owed]
        self._owed.clear()
        return effects

    def _say_owed(self, now: float) -> list[Send]:
        if not self.holds_lease(now):
            return []
        owed = list(self._owed)
        self._owed.clear()
        return owed

    def _next_operations(self) -> tuple[Operation, ...]:
        """Takes those that are done in one go, and notes how many scalars they give."""
        taken: list[Operation] = []
        while self._rest and not isinstance(self._rest[0], Evaluate | Snapshot | Restore):
            taken.append(self._rest.popleft())
        self._awaited = sum(map(n_scalars, taken))
        return tuple(taken)

    def _done(self, scalars: Sequence[float], now: float) -> list[VectorShardEffect]:
        """On with the command, or with a newer one that has come; without a lease, when it is said again."""
        assert len(scalars) == self._awaited, (scalars, self._awaited)
        self._awaited = None
        self._scalars += scalars
        if not self.holds_lease(now):
            self._lapsed, self._next = True, None
            return []
        return self._go_on() if self._next is None else self._command(self._next, now)

    # Evaluations.

    def _begin(self, evaluate: Evaluate) -> list[VectorShardEffect]:
        """Segments to which nobody contributes are zeros; where that is all of them, there is no pause."""
        assert not any(isinstance(operation, Evaluate) for operation in self._rest), "one for each command"
        evaluation = Evaluation(evaluate, self._unit_size, self._ranges)
        self._rest.extendleft(zero(vector) for vector in evaluation.empty)
        if not evaluation.missing:
            return []
        self._evaluation, self._has_point = evaluation, True
        waiting = [part for part, after in self._orders.items() if after < self.number]
        return [self._point(part) for part in waiting]

    def _point(self, part: str) -> Send:
        """The order is carried out."""
        self._orders.pop(part, None)
        return Send(part, Point(self.number), Span(POINT, *self._ranges[machine_of(part)]))

    def _fetch(self, event: Received, fetch: FetchPoint, now: float) -> list[VectorShardEffect]:
        """Answered at once, or when an evaluation begins that is new enough. A repeat is answered again.

        Also where all has come here: a replica that begins anew may have to compute for another shard, or for
        the losses. A request does not change `x` after it has evaluated.
        """
        if not self.holds_lease(now):
            return []
        part = event.sender
        if machine_of(part) not in self._ranges:
            return [Refuse(part, f"{self.name} holds no parameters of {part!r}")]
        newest = self._incarnations.setdefault(part, event.incarnation)
        if event.incarnation < newest:
            return []
        if event.incarnation > newest:
            self._incarnations[part] = event.incarnation
            self._orders.pop(part, None)
        if self._has_point and fetch.after < self.number:
            return [self._point(part)]
        self._orders[part] = max(fetch.after, self._orders.get(part, fetch.after))
        return []

    def _contribution(
        self, event: Received, contribution: Contribution, now: float
    ) -> list[VectorShardEffect]:
        """Counts if it is the first of its work unit and machine in the evaluation under way. Always
        acknowledged.
        """
        if not self.holds_lease(now):
            return []
        evaluation = self._evaluation if contribution.evaluation == self.number else None
        reason = self._why_not(event, contribution, evaluation)
        if reason is not None:
            return [Refuse(event.sender, reason)]
        machine, unit = machine_of(event.sender), contribution.unit
        taken = Send(event.sender, ContributionAck(contribution.evaluation, unit))
        if evaluation is None or evaluation.has(machine, unit):
            return [taken]
        effects: list[VectorShardEffect] = [StoreGradient(machine, unit, event.payload)]
        effects += (AddGradient(machine, into, of) for into, of in evaluation.add(machine, unit))
        if evaluation.missing:
            return [*effects, taken]
        self._owed.append(taken)  # everybody waits for the answer, and nobody for this
        return effects + self._end(evaluation)

    def _end(self, evaluation: Evaluation) -> list[VectorShardEffect]:
        """Everything has come: the sums go to their vectors, and the command goes on."""
        self._evaluation = None
        effects: list[VectorShardEffect] = [
            MoveGradient(machine, unit, Span(vector, *self._ranges[machine]))
            for machine, unit, vector in evaluation.sums()
        ]
        return effects + self._go_on()

    def _why_not(
        self, event: Received, contribution: Contribution, evaluation: Evaluation | None
    ) -> str | None:
        """Why it cannot be meant, checked before anything changes; None when it is well formed."""
        machine = machine_of(event.sender)
        if machine not in self._ranges:
            return f"{self.name} holds no parameters of {event.sender!r}"
        start, stop = self._ranges[machine]
        expected, found = (stop - start) * self._item_bytes, payload_bytes(event.payload)
        if found != expected:
            return f"a contribution of {event.sender!r} to {self.name} has {expected} bytes, not {found}"
        if evaluation is not None and not 0 <= contribution.unit < evaluation.units:
            return (
                f"evaluation {self.number} has work units 0 to {evaluation.units - 1}; "
                f"{event.sender!r} contributes to {contribution.unit}"
            )
        return None

    # Files.

    def _persisted(self, event: Persisted | NotPersisted) -> list[VectorShardEffect]:
        writing = self._writing.popleft() if self._writing else None
        expected = None if writing is None else (writing.checkpoint, writing.version)
        assert (event.checkpoint, event.version) == expected, f"{event} while writing {writing}"
        if self.fenced or writing is None:
            return []
        if isinstance(event, NotPersisted):
            self._not_saved = SaveFailed(event.checkpoint, self.epoch, event.reason)
            return [Send(COORDINATOR, self._not_saved)]
        self._saved = msgspec.structs.replace(writing, file=event.file, sha256=event.sha256)
        return [Send(COORDINATOR, self._saved)]

    def _say_saved(self, checkpoint: int, now: float) -> list[VectorShardEffect]:
        """The coordinator has not heard of the file; if it is not on disk yet, it will."""
        if not self.holds_lease(now):
            return []
        last = (self._saved, self._not_saved)
        return [Send(COORDINATOR, one) for one in last if one is not None and one.checkpoint == checkpoint]

    def validate(self) -> None:
        """The invariants I4, I6 and I7 as far as one shard can see them. Raises AssertionError."""
        super().validate()
        if self._evaluation is not None:
            self._evaluation.validate()
            assert self._answer is None and self._awaited is None, (self._answer, self._awaited)
            assert self._has_point
        elif self._awaited is None and not self._lapsed:
            assert not self._rest and not self._owed, (self._rest, self._owed)
        if self._awaited is not None or self._lapsed:
            assert self._answer is None and not (self._awaited is not None and self._lapsed)
        assert self._next is None or (self._awaited is not None and self._next.number > self.number)
        if self._has_point:
            assert all(after >= self.number for after in self._orders.values()), self._orders
        if self._answer is not None:
            assert self._answer.number == self.number, (self._answer, self.number)
        for part in self._orders:
            assert machine_of(part) in self._ranges and part in self._incarnations, part
        versions = [saved.version for saved in (self._saved, *self._writing) if saved is not None]
        assert versions == sorted(versions) and all(v <= self.number for v in versions), versions
