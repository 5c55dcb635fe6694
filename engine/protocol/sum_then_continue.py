"""Policy of a batch method: each command is executed once, each contribution to its sums counts once.

A command's operations are executed in order. At an evaluation the shard pauses: it sends its slice of the
point to every part that asks, and takes the gradient of every (work unit, machine) once, whoever computed it;
they are summed in a tree that depends on the numbers of the work units alone. Then it finishes the command,
and answers. While operations run, it receives messages and starts nothing.

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
    Snapshot,
    n_scalars,
    zero,
)
from partita.engine.protocol.evaluation import Evaluation
from partita.engine.protocol.events import Persist, Received, Refuse, Send
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
)


class SumThenContinue(Policy):
    """Executes commands. `version` is the number of the last one that it has begun."""

    orders = (bm.Command,)
    requests = (bm.FetchPoint, bm.Contribution)

    def __init__(self, own: ShardRanges, *, unit_size: int, number: int = 0) -> None:
        """Creates the policy of a shard that starts, or starts again.

        Args:
            own: the shard's name, incarnation and ranges.
            unit_size: portions in a work unit.
            number: of the last command in its checkpoint; only those above it are executed.
        """
        self.version = number
        self._own: Final = own
        self._unit_size: Final = unit_size
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

    @property
    def evaluation(self) -> int | None:
        """The number of the evaluation that is under way."""
        return None if self._evaluation is None else self.version

    @property
    def busy(self) -> bool:
        """Whether operations are running."""
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
        return Persist(checkpoint, self._own.incarnation, self.version)

    # Commands.

    def _command(self, command: bm.Command) -> list[ShardEffect]:
        if command.number < self.version:
            return []
        if command.number == self.version:
            return self._repeat()
        if self._awaited is not None:
            if self._next is None or self._next.number < command.number:
                self._next = command
            return [Send(COORDINATOR, bm.MissingUnits(command.number, ()))]
        effects: list[ShardEffect] = [] if self._evaluation is None else [DropGradients()]
        self._evaluation = self._result = self._next = None
        self._has_point = self._lapsed = False
        self.version = command.number
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
            return [Send(COORDINATOR, bm.MissingUnits(self.version, ()))]
        if self._lapsed:
            self._lapsed = False
            return self._go_on()
        if self._evaluation is not None:
            return [Send(COORDINATOR, bm.MissingUnits(self.version, self._evaluation.missing_ranges()))]
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
        self._result = bm.CommandResult(self.version, tuple(self._scalars))
        effects += [Send(COORDINATOR, self._result), *self._delayed_acks]
        self._delayed_acks.clear()
        return effects

    @override
    def tick(self, *, leased: bool) -> list[Send]:
        if not leased:
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

    # Evaluations.

    def _begin(self, evaluate: Evaluate) -> list[ShardEffect]:
        """Begins an evaluation. Segments without contributors are zeros; if all are, there is no pause."""
        assert not any(isinstance(operation, Evaluate) for operation in self._rest), "one for each command"
        evaluation = Evaluation(evaluate, self._unit_size, self._own.ranges)
        self._rest.extendleft(zero(vector) for vector in evaluation.empty)
        if not evaluation.missing:
            return []
        self._evaluation, self._has_point = evaluation, True
        waiting = [part for part, after in self._requests.items() if after < self.version]
        return [self._point(part) for part in waiting]

    def _point(self, part: str) -> Send:
        self._requests.pop(part, None)
        return Send(part, bm.Point(self.version), self._own.span(POINT, machine_of(part)))

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
        if self._has_point and fetch.after < self.version:
            return [self._point(part)]
        self._requests[part] = max(fetch.after, self._requests.get(part, fetch.after))
        return []

    def _contribution(self, event: Received, contribution: bm.Contribution) -> list[ShardEffect]:
        """Counts the first contribution of a work unit and machine to the evaluation under way.

        Every one is acknowledged.
        """
        evaluation = self._evaluation if contribution.evaluation == self.version else None
        reason, unit = self._own.rejection_reason(event, "a contribution"), contribution.unit
        if reason is None and evaluation is not None and not 0 <= unit < evaluation.units:
            reason = (
                f"evaluation {self.version} has work units 0 to {evaluation.units - 1}; "
                f"{event.sender!r} contributes to {unit}"
            )
        if reason is not None:
            return [Refuse(event.sender, reason)]
        machine = machine_of(event.sender)
        ack = Send(event.sender, bm.ContributionAck(contribution.evaluation, unit))
        if evaluation is None or evaluation.has(machine, unit):
            return [ack]
        sums = evaluation.add(machine, unit)
        beside = sum(sums.pop(0)) - unit if sums else None  # the first sum is of this unit and another
        effects: list[ShardEffect] = [StoreGradient(machine, self.version, unit, event.payload, beside)]
        effects += (AddGradient(machine, into, of) for into, of in sums)
        if evaluation.missing:
            return [*effects, ack]
        self._delayed_acks.append(ack)  # the result is urgent, and this is not
        self._evaluation = None
        effects += (
            MoveGradient(machine, unit, self._own.span(vector, machine))
            for machine, unit, vector in evaluation.sums()
        )
        return effects + self._go_on()

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
        assert self._next is None or (self._awaited is not None and self._next.number > self.version)
        if self._has_point:
            assert all(after >= self.version for after in self._requests.values()), self._requests
        if self._result is not None:
            assert self._result.number == self.version, (self._result, self.version)
        for part in self._requests:
            assert machine_of(part) in self._own.ranges and part in self._incarnations, part
