"""A shard of a batch method's vectors: each command is executed once, each contribution counts once.

A command's operations are executed in order. At an evaluation the shard pauses: it sends its slice of the
point to every part that asks, and takes the gradient of every (work unit, machine) once, whoever computed it;
they are summed in a tree that depends on the numbers of the work units alone. Then it finishes the command,
and answers.

It must not know the numbers, the disk or the network: it asks for all of them by effects, to be carried out
in order, each finished before the next one starts (`Persist` when what it keeps is marked). `RunOperations`
and `LoadCheckpoint` may take long: each is the last of its effects, and `OperationsDone` reports its end.
Meanwhile the shard receives messages and starts nothing.

Source: DistBelief, section 4.2 (Sandblaster: commands to parameter shards, portions of a batch). Exactly
once, the tree and the leases are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol import messages as m
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
)
from partita.engine.protocol.lease import Fenced, LeasedShard
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS, HeartbeatPolicy
from partita.engine.protocol.names import COORDINATOR, machine_of


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
    """Effect: keep the payload, a machine's gradient over this work unit."""

    machine: int
    unit: int
    payload: object


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


VectorShardEvent: TypeAlias = Received | Tick | OperationsDone | Persisted | NotPersisted
GradientEffect: TypeAlias = StoreGradient | AddGradient | MoveGradient | DropGradients
VectorShardEffect: TypeAlias = (
    RunOperations | LoadCheckpoint | GradientEffect | Send | Persist | Fenced | Refuse
)


class VectorShard(LeasedShard):
    """One shard of the vectors. It works, answers and acknowledges only under its lease."""

    def __init__(
        self,
        name: str,
        *,
        incarnation: int,
        ranges: Mapping[int, tuple[int, int]],
        unit_size: int,
        number: int = 0,
        item_bytes: int = 4,
        heartbeats: HeartbeatPolicy = DEFAULT_HEARTBEATS,
    ) -> None:
        """Creates a shard that starts, or starts again.

        Args:
            name: "shard K".
            incarnation: of this process.
            ranges: for each machine, its `(start, stop)` in the shard's own flat vectors.
            unit_size: portions in a work unit.
            number: of the last command in its checkpoint; only those above it are executed.
            item_bytes: bytes of one number of a payload.
            heartbeats: how often it asks for a lease, and how long one lasts.
        """
        super().__init__(
            name, incarnation=incarnation, ranges=ranges, item_bytes=item_bytes, heartbeats=heartbeats
        )
        self.number = number
        self._unit_size: Final = unit_size
        self._rest: deque[Operation] = deque()  # of the command under way
        self._scalars: list[float] = []
        self._awaited: int | None = None  # scalars that `OperationsDone` must bring; None: none are running
        self._next: m.Command | None = None  # the newest that came while operations run
        self._lapsed = False  # the lease ended while operations ran: the rest waits
        self._evaluation: Evaluation | None = None
        self._delayed_acks: Final[list[Send]] = []  # sent behind the result, or when that takes a while
        self._has_point = False  # `x` is where the last command evaluates
        self._result: m.CommandResult | None = None
        self._incarnations: Final[dict[str, int]] = {}  # the newest process of each part
        self._requests: Final[
            dict[str, int]
        ] = {}  # parts that want the point of an evaluation above this one

    @property
    def evaluation(self) -> int | None:
        """The number of the evaluation that is under way."""
        return None if self._evaluation is None else self.number

    def receive(self, event: VectorShardEvent, now: float) -> list[VectorShardEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        assert self._awaited is not None or not isinstance(event, OperationsDone), event
        match event:
            case Received(message=m.Contribution() as contribution):
                return self._contribution(event, contribution, now)
            case Received(message=m.FetchPoint() as fetch):
                return self._fetch(event, fetch, now)
            case Received(sender=sender, message=m.Command() as command) if sender == COORDINATOR:
                return self._command(command, now)
            case Received(sender=sender, message=m.Save() as save) if sender == COORDINATOR:
                return self._save(save.checkpoint, now)
            case OperationsDone(scalars=scalars):
                return self._operations_done(scalars, now)
            case Persisted() | NotPersisted():
                return [*self._report_file(event)]
            case Received():
                return [*self._other(event, now)]
            case Tick():
                return [*self._other(event, now), *self._send_delayed_acks(now)]

    # Commands.

    def _command(self, command: m.Command, now: float) -> list[VectorShardEffect]:
        if not self.holds_lease(now) or command.number < self.number:
            return []
        if command.number == self.number:
            return self._repeat()
        if self._awaited is not None:
            if self._next is None or self._next.number < command.number:
                self._next = command
            return [Send(COORDINATOR, m.MissingUnits(command.number, ()))]
        effects: list[VectorShardEffect] = [] if self._evaluation is None else [DropGradients()]
        self._evaluation = self._result = self._next = None
        self._has_point = self._lapsed = False
        self.number = command.number
        self._delayed_acks.clear()  # parts that ask again get them
        self._rest.clear()
        self._rest.extend(command.operations)
        self._scalars = []
        return effects + self._go_on()

    def _repeat(self) -> list[VectorShardEffect]:
        """Answers the last command again.

        One that is being executed is answered later, and misses no units. One that only an earlier process
        has executed is not answered.
        """
        if self._awaited is not None:
            return [Send(COORDINATOR, m.MissingUnits(self.number, ()))]
        if self._lapsed:
            self._lapsed = False
            return self._go_on()
        if self._evaluation is not None:
            return [Send(COORDINATOR, m.MissingUnits(self.number, self._evaluation.missing_ranges()))]
        return [] if self._result is None else [Send(COORDINATOR, self._result)]

    def _go_on(self) -> list[VectorShardEffect]:
        """Continues up to the next operations whose scalars or gradients must be awaited, or to the end."""
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
                    self._writing.append(m.Saved(checkpoint, self.incarnation, self.number, "", ""))
                    effects.append(Persist(checkpoint, self.incarnation, self.number))
                case Restore(checkpoint=earlier):
                    self._rest.popleft()
                    self._awaited = 0
                    return [*effects, LoadCheckpoint(earlier)]
                case _:
                    effects.append(RunOperations(self._next_operations()))
                    return effects
        self._result = m.CommandResult(self.number, tuple(self._scalars))
        effects += [Send(COORDINATOR, self._result), *self._delayed_acks]
        self._delayed_acks.clear()
        return effects

    def _send_delayed_acks(self, now: float) -> list[Send]:
        if not self.holds_lease(now):
            return []
        acks = list(self._delayed_acks)
        self._delayed_acks.clear()
        return acks

    def _next_operations(self) -> tuple[Operation, ...]:
        """Takes the operations that run in one go, and notes how many scalars they give."""
        taken: list[Operation] = []
        while self._rest and not isinstance(self._rest[0], Evaluate | Snapshot | Restore):
            taken.append(self._rest.popleft())
        self._awaited = sum(map(n_scalars, taken))
        return tuple(taken)

    def _operations_done(self, scalars: Sequence[float], now: float) -> list[VectorShardEffect]:
        """Continues with the command, or a newer one; without a lease, when the command is repeated."""
        assert len(scalars) == self._awaited, (scalars, self._awaited)
        self._awaited = None
        self._scalars += scalars
        if not self.holds_lease(now):
            self._lapsed, self._next = True, None
            return []
        return self._go_on() if self._next is None else self._command(self._next, now)

    # Evaluations.

    def _begin(self, evaluate: Evaluate) -> list[VectorShardEffect]:
        """Begins an evaluation. Segments without contributors are zeros; if all are, there is no pause."""
        assert not any(isinstance(operation, Evaluate) for operation in self._rest), "one for each command"
        evaluation = Evaluation(evaluate, self._unit_size, self._ranges)
        self._rest.extendleft(zero(vector) for vector in evaluation.empty)
        if not evaluation.missing:
            return []
        self._evaluation, self._has_point = evaluation, True
        waiting = [part for part, after in self._requests.items() if after < self.number]
        return [self._point(part) for part in waiting]

    def _point(self, part: str) -> Send:
        self._requests.pop(part, None)
        return Send(part, m.Point(self.number), Span(POINT, *self._ranges[machine_of(part)]))

    def _fetch(self, event: Received, fetch: m.FetchPoint, now: float) -> list[VectorShardEffect]:
        """Answers at once, or when an evaluation begins that is new enough. A repeat is answered again.

        The point is sent even when all contributions are here: a replica that starts again may have to
        compute for another shard, or for the losses. A request does not change `x` after it has evaluated.
        """
        if not self.holds_lease(now):
            return []
        part = event.sender
        reason = self._rejection_reason(event)
        if reason is not None:
            return [Refuse(part, reason)]
        newest = self._incarnations.setdefault(part, event.incarnation)
        if event.incarnation < newest:
            return []
        if event.incarnation > newest:
            self._incarnations[part] = event.incarnation
            self._requests.pop(part, None)
        if self._has_point and fetch.after < self.number:
            return [self._point(part)]
        self._requests[part] = max(fetch.after, self._requests.get(part, fetch.after))
        return []

    def _contribution(
        self, event: Received, contribution: m.Contribution, now: float
    ) -> list[VectorShardEffect]:
        """Counts the first contribution of a work unit and machine to the evaluation under way.

        Every one is acknowledged.
        """
        if not self.holds_lease(now):
            return []
        evaluation = self._evaluation if contribution.evaluation == self.number else None
        reason, unit = self._rejection_reason(event, "a contribution"), contribution.unit
        if reason is None and evaluation is not None and not 0 <= unit < evaluation.units:
            reason = (
                f"evaluation {self.number} has work units 0 to {evaluation.units - 1}; "
                f"{event.sender!r} contributes to {unit}"
            )
        if reason is not None:
            return [Refuse(event.sender, reason)]
        machine = machine_of(event.sender)
        ack = Send(event.sender, m.ContributionAck(contribution.evaluation, unit))
        if evaluation is None or evaluation.has(machine, unit):
            return [ack]
        effects: list[VectorShardEffect] = [StoreGradient(machine, unit, event.payload)]
        effects += (AddGradient(machine, into, of) for into, of in evaluation.add(machine, unit))
        if evaluation.missing:
            return [*effects, ack]
        self._delayed_acks.append(ack)  # the result is urgent, and this is not
        self._evaluation = None
        effects += (
            MoveGradient(machine, unit, Span(vector, *self._ranges[machine]))
            for machine, unit, vector in evaluation.sums()
        )
        return effects + self._go_on()

    # Files.

    def _save(self, checkpoint: int, now: float) -> list[VectorShardEffect]:
        """Reports a file of this checkpoint again; one under way is reported when it is on disk."""
        if not self.holds_lease(now):
            return []
        last = (self._saved, self._save_failed)
        return [Send(COORDINATOR, one) for one in last if one is not None and one.checkpoint == checkpoint]

    def validate(self) -> None:
        """Checks invariants I4, I6 and I7 as far as one shard can see them. Raises AssertionError."""
        super().validate()
        if self._evaluation is not None:
            self._evaluation.validate()
            assert self._result is None and self._awaited is None, (self._result, self._awaited)
            assert self._has_point
        elif self._awaited is None and not self._lapsed:
            assert not self._rest and not self._delayed_acks, (self._rest, self._delayed_acks)
        if self._awaited is not None or self._lapsed:
            assert self._result is None and not (self._awaited is not None and self._lapsed)
        assert self._next is None or (self._awaited is not None and self._next.number > self.number)
        if self._has_point:
            assert all(after >= self.number for after in self._requests.values()), self._requests
        if self._result is not None:
            assert self._result.number == self.number, (self._result, self.number)
        for part in self._requests:
            assert machine_of(part) in self._ranges and part in self._incarnations, part
        versions = [saved.version for saved in (self._saved, *self._writing) if saved is not None]
        assert versions == sorted(versions) and all(v <= self.number for v in versions), versions
