"""Policy of a batch method: each command is executed once, each contribution to its sums counts once.

A command's operations are executed in order. At an evaluation the shard pauses: it sends its slice of the
point to every part that asks, and takes the gradient of every (work unit, machine) once, whoever computed it;
they are summed in a tree that depends on the numbers of the work units alone. Then it finishes the command,
and answers. While operations run, it receives messages and starts nothing.

Its records are commands and finished sums, of which a request never says more than the operations: the
vectors follow from them. A contribution before that is asked for again (`MissingUnits`).

Source: DistBelief, section 4.2 (Sandblaster: commands to parameter shards, portions of a batch). Exactly
once and the tree are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from partita.engine.protocol import batch_messages as bm
from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Operation,
    Restore,
    ShowPoint,
    Snapshot,
    evaluation_in,
    n_scalars,
    zero,
)
from partita.engine.protocol.copy_messages import CommandCounts, ShardCounts
from partita.engine.protocol.durability.records import Keep, Record
from partita.engine.protocol.evaluation import Evaluation
from partita.engine.protocol.events import Persist, Received, Refuse, Send, payload_bytes
from partita.engine.protocol.names import COORDINATOR, machine_of
from partita.engine.protocol.shard_effects import (
    AddGradient,
    DropGradients,
    LoadCheckpoint,
    MoveGradient,
    Policy,
    RunOperations,
    ShardEffect,
    ShardRanges,
    StoreGradient,
    TakeSums,
    WriteVector,
)


class SumThenContinue(Policy):
    """Executes commands. `version` counts commands that have begun, and finished sums.

    Attributes:
        number: of the last command that has begun; 0: this process knows of none.
    """

    orders = (bm.Command,)
    requests = (bm.FetchPoint, bm.Contribution)
    makes_records = True

    def __init__(
        self,
        own: ShardRanges,
        *,
        unit_size: int,
        number: int = 0,
        restored: ShardCounts | None = None,
        keeps: bool = False,
    ) -> None:
        """Creates the policy of a shard that starts, or starts again.

        Args:
            own: the shard's name, incarnation and ranges.
            unit_size: portions in a work unit.
            number: of the last command in its checkpoint; only those above it are executed.
            restored: the counts of its checkpoint, or of the other copy that its vectors are from.
            keeps: whether somebody keeps its records.
        """
        self.version = 0 if restored is None else restored.version
        self.number = number
        self._own: Final = own
        self._unit_size: Final = unit_size
        self._keeps: Final = keeps
        self._last: bm.Command | None = None
        self._sums: tuple[str, ...] = ()  # vectors of the evaluation, in the order of their records
        self._rest: deque[Operation] = deque()  # of the command under way
        self._scalars: list[float] = []
        self._awaited: int | None = None  # scalars that `OperationsDone` must bring; None: none are running
        self._next: bm.Command | None = None  # the newest that came while operations run
        self._lapsed = False  # the lease ended while operations ran: the rest waits
        self._evaluation: Evaluation | None = None
        self._delayed_acks: Final[list[Send]] = []  # sent behind the result, or when that takes a while
        self._has_point = False  # `x` is where the last command evaluates
        self._result: bm.CommandResult | None = None
        self._incarnations: Final[dict[str, int]] = {}  # the newest process of each part
        self._requests: Final[dict[str, int]] = {}  # parts that want a point newer than this
        if restored is not None and restored.command is not None:
            self._restore(restored.command)

    @property
    def evaluation(self) -> int | None:
        """The number of the evaluation that is under way."""
        return None if self._evaluation is None else self.number

    @property
    def busy(self) -> bool:
        """Returns whether operations are running."""
        return self._awaited is not None

    @override
    def receive(self, event: Received) -> list[ShardEffect]:
        match event.message:
            case bm.Contribution() as contribution:
                return self._contribution(event, contribution)
            case bm.FetchPoint() as fetch:
                return self._fetch(event, fetch)
            case bm.Command() as command:
                return self._command(command)
        raise AssertionError(event)

    @override
    def persist(self, checkpoint: int) -> Persist:
        # The first operation of a command: over this file, its record is executed again.
        before = {COORDINATOR: (0, self.number - 1)}
        return Persist(checkpoint, self._own.incarnation, self.version - 1, seen=before)

    # Copies and records.

    @property
    def may_be_copied(self) -> bool:
        """Returns whether the vectors are those of `counts`, and nothing is changing them."""
        return self._awaited is None and not self._lapsed

    @override
    def counts(self) -> ShardCounts:
        assert self.may_be_copied
        found = CommandCounts(self._last, tuple(self._scalars), self._result is not None)
        return ShardCounts(self.version, command=found)

    def _restore(self, counts: CommandCounts) -> None:
        """Continues where another copy was: behind a command, or in its evaluation."""
        command = self._last = counts.command
        if command is None:
            return
        self.number, self._scalars = command.number, list(counts.scalars)
        evaluate = evaluation_in(command.operations)
        if evaluate is not None:
            self._rest.extend(command.operations[command.operations.index(evaluate) + 1 :])
            self._begin(evaluate)
        if counts.is_done:
            self._evaluation = None
            self._rest.clear()
            self._result = bm.CommandResult(self.number, counts.scalars)

    def record_reason(self, record: Record) -> str | None:
        """Returns why a record cannot follow those before it."""
        match record.request.message:
            case bm.Command(number=number):
                return None if number > self.number else f"command {number} after {self.number}"
            case bm.EvaluationSum(evaluation=number, vector=vector):
                expected = max((stop for _, stop in self._own.ranges.values()), default=0)
                found = payload_bytes(record.request.payload)
                if found != expected * self._own.item_bytes:
                    return f"a sum of {found} bytes, not {expected * self._own.item_bytes}"
                if number != self.evaluation or vector not in self._sums:
                    return f"a sum of {vector!r} for evaluation {number}, in command {self.number}"
                return None
        return f"a record of a {type(record.request.message).__name__}"

    @override
    def replay(self, record: Record) -> list[ShardEffect]:
        reason = self.record_reason(record)
        assert reason is None and record.number == self.version + 1 and not self.busy, (record, reason)
        self.version = record.number
        match record.request.message:
            case bm.Command() as command:
                return without_replies(self._begin_command(command))
            case bm.EvaluationSum(vector=vector):
                effects: list[ShardEffect] = [WriteVector(vector, record.request.payload)]
                if vector != self._sums[-1]:  # where it is the last that was kept, all are summed again
                    return effects
                self._evaluation = None
                return [*effects, *without_replies(self._go_on())]
        raise AssertionError(record)

    def _kept(self, message: bm.Command | bm.EvaluationSum, payload: object = None) -> list[ShardEffect]:
        """Counts a record, for which somebody may wait."""
        self.version += 1
        if not self._keeps:
            return []
        is_order = isinstance(message, bm.Command)
        sender, incarnation = (COORDINATOR, 0) if is_order else (self._own.name, self._own.incarnation)
        return [Keep(Record(self.version, Received(sender, incarnation, message, payload)))]

    @override
    def sums_taken(self, payloads: Sequence[object]) -> list[ShardEffect]:
        self._awaited = None
        effects: list[ShardEffect] = []
        for vector, payload in zip(self._sums, payloads, strict=True):
            effects += self._kept(bm.EvaluationSum(self.number, vector), payload)
        return effects + (self._go_on() if self._next is None else self._command(self._next))

    def _summed(self) -> list[ShardEffect]:
        """Goes on behind an evaluation, whose sums are in their vectors."""
        if self._keeps:
            self._awaited = 0
            return [TakeSums(self._sums)]
        self.version += len(self._sums)
        return self._go_on()

    # Commands.

    def _command(self, command: bm.Command) -> list[ShardEffect]:
        if command.number < self.number:
            return []
        if command.number == self.number:
            return self._repeat()
        goes_back = any(isinstance(first, Restore) for first in command.operations[:1])
        is_done = self._result is not None or self._last is None
        is_next = goes_back or (is_done and command.number == self.number + 1)
        if self._keeps and not is_next:
            return [Send(COORDINATOR, bm.CommandsMissing(command.number, self.number))]
        if self._awaited is not None:
            if self._next is None or self._next.number < command.number:
                self._next = command
            return [Send(COORDINATOR, bm.MissingUnits(command.number, ()))]
        return self._kept(command) + self._begin_command(command)

    def _begin_command(self, command: bm.Command) -> list[ShardEffect]:
        effects: list[ShardEffect] = [] if self._evaluation is None else [DropGradients()]
        self._evaluation = self._result = self._next = None
        self._has_point = self._lapsed = False
        self.number, self._last = command.number, command
        self._delayed_acks.clear()  # parts that ask again get them
        self._rest.clear()
        self._rest.extend(command.operations)
        self._scalars = []
        return effects + self._go_on()

    def _repeat(self) -> list[ShardEffect]:
        """Answers the last command again.

        One that is being executed is answered later, and misses no units. One that only an earlier process
        has executed is not answered.
        """
        if self._awaited is not None:
            return [Send(COORDINATOR, bm.MissingUnits(self.number, ()))]
        if self._lapsed:
            self._lapsed = False
            return self._go_on()
        if self._evaluation is not None:
            return [Send(COORDINATOR, bm.MissingUnits(self.number, self._evaluation.missing_ranges()))]
        return [] if self._result is None else [Send(COORDINATOR, self._result)]

    def _go_on(self) -> list[ShardEffect]:
        """Continues up to the next operations whose scalars or gradients must be awaited, or to the end."""
        effects: list[ShardEffect] = []
        while self._rest:
            match self._rest[0]:
                case Evaluate() as evaluate:
                    self._rest.popleft()
                    effects += self._begin(evaluate)
                    if self._evaluation is not None:
                        return effects
                case ShowPoint():
                    self._rest.popleft()
                    effects += self._show()
                case Snapshot(checkpoint=checkpoint):
                    self._rest.popleft()
                    effects.append(self.persist(checkpoint))
                case Restore(checkpoint=earlier):
                    self._rest.popleft()
                    self._awaited = 0
                    return [*effects, LoadCheckpoint(earlier)]
                case _:
                    effects.append(RunOperations(self._next_operations()))
                    return effects
        self._result = bm.CommandResult(self.number, tuple(self._scalars))
        effects += [Send(COORDINATOR, self._result), *self._delayed_acks]
        self._delayed_acks.clear()
        return effects

    @override
    def tick(self, *, leased: bool) -> list[ShardEffect]:
        if not leased:
            return []
        acks = list[ShardEffect](self._delayed_acks)
        self._delayed_acks.clear()
        return acks

    def _next_operations(self) -> tuple[Operation, ...]:
        """Takes the operations that run in one go, and notes how many scalars they give."""
        taken: list[Operation] = []
        while self._rest and not isinstance(self._rest[0], Evaluate | ShowPoint | Snapshot | Restore):
            taken.append(self._rest.popleft())
        self._awaited = sum(map(n_scalars, taken))
        return tuple(taken)

    @override
    def operations_done(self, scalars: Sequence[float], *, leased: bool) -> list[ShardEffect]:
        """Continues with the command, or a newer one; without a lease, when the command is repeated."""
        assert len(scalars) == self._awaited, (scalars, self._awaited)
        self._awaited = None
        self._scalars += scalars
        if not leased:
            self._lapsed, self._next = True, None
            return []
        return self._go_on() if self._next is None else self._command(self._next)

    @override
    def is_current(self, reply: ShardEffect) -> bool:
        message = reply.message if isinstance(reply, Send) else None
        return not isinstance(message, bm.CommandResult) or message.number == self.number

    # Evaluations.

    def _begin(self, evaluate: Evaluate) -> list[ShardEffect]:
        """Begins an evaluation. Segments without contributors are zeros; if all are, there is no pause."""
        assert not any(isinstance(operation, Evaluate) for operation in self._rest), "one for each command"
        evaluation = Evaluation(evaluate, self._unit_size, self._own.ranges)
        self._rest.extendleft(zero(vector) for vector in evaluation.empty)
        if not evaluation.missing:
            return []
        self._evaluation, self._sums = evaluation, evaluation.vectors
        return self._show()

    def _show(self) -> list[ShardEffect]:
        """Sends the point to parts that have asked for it, and from now on to those that ask."""
        self._has_point = True
        waiting = [part for part, after in self._requests.items() if after < self.number]
        return [self._point(part) for part in waiting]

    def _point(self, part: str) -> Send:
        self._requests.pop(part, None)
        return Send(part, bm.Point(self.number), self._own.span(POINT, machine_of(part)))

    def _fetch(self, event: Received, fetch: bm.FetchPoint) -> list[ShardEffect]:
        """Answers at once, or when an evaluation begins that is new enough. A repeat is answered again.

        The point is sent even when all contributions are here: a replica that starts again may have to
        compute for another shard, or for the losses. A request does not change `x` after it has evaluated.
        """
        part = event.sender
        reason = self._own.rejection_reason(event)
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

    def _contribution(self, event: Received, contribution: bm.Contribution) -> list[ShardEffect]:
        """Counts the first contribution of a work unit and machine to the evaluation under way.

        Every one is acknowledged, but for those of a command that comes to this process again.
        """
        evaluation = self._evaluation if contribution.evaluation == self.number else None
        reason, unit = self._own.rejection_reason(event, "a contribution"), contribution.unit
        if reason is None and evaluation is not None and not 0 <= unit < evaluation.units:
            reason = (
                f"evaluation {self.number} has work units 0 to {evaluation.units - 1}; "
                f"{event.sender!r} contributes to {unit}"
            )
        if reason is not None:
            return [Refuse(event.sender, reason)]
        begun = self.number if self._has_point else self.number - 1
        if self._keeps and contribution.evaluation > begun:  # its point is from the process before
            return []
        machine = machine_of(event.sender)
        ack = Send(event.sender, bm.ContributionAck(contribution.evaluation, unit))
        if evaluation is None or evaluation.has(machine, unit):
            return [ack]
        sums = evaluation.add(machine, unit)
        beside = sum(sums.pop(0)) - unit if sums else None  # the first sum is of this unit and another
        effects: list[ShardEffect] = [StoreGradient(machine, self.number, unit, event.payload, beside)]
        effects += (AddGradient(machine, into, of) for into, of in sums)
        if evaluation.missing:
            return [*effects, ack]
        self._delayed_acks.append(ack)  # the result is urgent, and this is not
        self._evaluation = None
        effects += (
            MoveGradient(machine, unit, self._own.span(vector, machine))
            for machine, unit, vector in evaluation.sums()
        )
        return effects + self._summed()

    @override
    def validate(self) -> None:
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
            assert machine_of(part) in self._own.ranges and part in self._incarnations, part


def without_replies(effects: Sequence[ShardEffect]) -> list[ShardEffect]:
    """Returns the effects on vectors: those of a command that is executed again."""
    return [effect for effect in effects if not isinstance(effect, Send | Persist)]
