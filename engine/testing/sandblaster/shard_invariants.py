"""Checks one process of a shard: each command is done once, each gradient counts once, at its own time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from typing_extensions import override

from partita.engine.protocol.batch_messages import CommandResult, ContributionAck, Point
from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Operation,
    Restore,
    Scalars,
    ShowPoint,
    Snapshot,
    zero,
)
from partita.engine.protocol.events import Persist, Send
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.sum_then_continue import SumThenContinue
from partita.engine.testing.host import Numbers
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.sandblaster.invariants import RunInvariants
from partita.engine.testing.shards import ShardChecks
from partita.engine.testing.vectors import Vector, Vectors


class ShardInvariants(ShardChecks):
    """The operations that one process of a shard has done, and must do next."""

    def __init__(self, run: RunInvariants, life: ProcessId, vectors: Vectors, number: int) -> None:
        """Begins with these vectors, which the shard changes, after the command of this number, if any."""
        self._run = run
        self._life = life
        self._name = life[0]
        self._vectors = vectors
        self._machines = run.shared.layout.of_shard[life[0]]
        self._number = -1
        self._seen = number  # as the machine began
        self._given_up = max(run.commands, default=0)  # what was under way when it was launched
        self._rest: deque[Operation] = deque()
        self._zeros: list[Operation] = []
        self._scalars: list[float] = []
        self._evaluation: Evaluate | None = None
        self._point: Vector | None = None
        self._counted: set[tuple[int, int]] = set()

    def continues(self, policy: SumThenContinue) -> None:
        """Begins behind the last command, or in its evaluation, as records or another copy of the shard have
        it. What it answers and evaluates is checked from there on.
        """
        number, counts = policy.number, policy.counts().command
        self._seen = number
        if number not in self._run.commands or counts is None or counts.command is None:
            return
        self._number = number
        require(counts.command == self._run.commands[number], "I7", self._life, "has", counts.command)
        operations = list(counts.command.operations)
        if any(isinstance(one, ShowPoint) for one in operations):
            self._point = self._vectors.get(POINT, ())
        evaluate = next((n for n, one in enumerate(operations) if isinstance(one, Evaluate)), None)
        if evaluate is not None:
            self._rest = deque(operations[evaluate:])
            self._pause()
        if counts.is_done:
            self._evaluation = None
            self._zeros.clear()
            self._rest.clear()
        self._scalars = list(counts.scalars)

    @override
    def begins(self, number: int) -> None:
        """Requires that a new command is newer (I7); it may interrupt an evaluation."""
        if number == self._seen:
            return
        self._seen = number
        require(number > self._number, "I7", self._life, "begins command", number, "after", self._number)
        require(number in self._run.commands, "I7", self._life, "begins", number, "which nobody gave")
        self._run.writers.require_current(self._life, "begins command", number)
        self._number = number
        self._rest = deque(self._run.commands[number].operations)
        self._zeros, self._scalars, self._evaluation, self._point = [], [], None, None
        self._pause()

    def _pause(self) -> None:
        """Begins an evaluation, if that is next. One to which nobody contributes is over at once. Where the
        point is shown to parts, it is this one.
        """
        if self._rest and isinstance(self._rest[0], ShowPoint):
            self._rest.popleft()
            self._point = self._vectors.get(POINT, ())
        if not self._rest or not isinstance(self._rest[0], Evaluate):
            return
        evaluation = self._rest.popleft()
        assert isinstance(evaluation, Evaluate)
        self._point = self._vectors.get(POINT, ())
        self._run.begins(self._name, self._number, self._point)
        empty = [s.vector for s in evaluation.segments if not s.count or not self._machines]
        self._zeros = [zero(vector) for vector in empty]
        if self._machines and self._run.expected(self._number):
            self._evaluation = evaluation
            self._counted.clear()

    def _go_on(self) -> None:
        """Ends an evaluation: everything must have been counted, and be in its vector."""
        asked = self._evaluation
        if asked is None:
            return
        missing = self._run.expected(self._number) * len(self._machines) - len(self._counted)
        require(not missing, "I6", self._life, "ends evaluation", self._number, "without", missing, "of it")
        sums = self._run.sums(self._number, asked, self._name)
        for segment, expected in zip(asked.segments, sums, strict=True):
            held = self._vectors.get(segment.vector)
            if segment.count:
                require(held == expected, "I6", self._life, segment, "gives", held, "not", expected)
        self._evaluation = None

    def _next(self, operation: Operation) -> None:
        self._go_on()
        if operation in self._zeros:
            self._zeros.remove(operation)
            return
        wanted = self._rest.popleft() if self._rest else None
        require(operation == wanted, "I7", self._life, "does", operation, "and not", wanted)

    @override
    def does(self, operations: Sequence[Operation]) -> None:
        """Requires that these operations are the next ones, once (I7)."""
        for operation in operations:
            self._next(operation)

    @override
    def done(self, scalars: Sequence[float]) -> None:
        """Takes the scalars of the operations."""
        self._scalars += scalars
        self._pause()

    @override
    def persists(self, order: Persist) -> None:
        """Requires that vectors are saved when the command says so, between two operations (I5)."""
        self._next(Snapshot(order.checkpoint))
        self._pause()

    @override
    def reverts(self, checkpoint: int | None) -> None:
        """Requires that the shard goes back when the command says so. To be called afterwards."""
        self._next(Restore(checkpoint))
        self._pause()

    @override
    def sends(self, send: Send, payload: Callable[[], Numbers]) -> None:
        """Checks points, acknowledgements and scalars."""
        match send.message:
            case Point(evaluation=evaluation):
                self.shows(evaluation, machine_of(send.to), tuple(payload()))
            case ContributionAck(evaluation=evaluation, unit=unit):
                self.acknowledges(evaluation, unit, machine_of(send.to))
            case CommandResult(number=number, scalars=scalars):
                self.answers(number, scalars)

    @override
    def keeps(self, evaluation: int, unit: int, machine: int, payload: Vector) -> None:
        """Requires that a counted contribution is the first, of this evaluation, at its point (I6, I9)."""
        what = (evaluation, unit, machine)
        self._run.writers.require_current(self._life, "counts", what)
        inside = self._evaluation is not None and evaluation == self._number
        require(inside, "I6", self._life, "counts", what, "in command", self._number)
        require((unit, machine) not in self._counted, "I6", self._life, "counts", what, "twice")
        expected = self._run.gradient(evaluation, unit, machine, self._name)
        require(payload == expected, "I6", self._life, "counts", what, "as", payload, "and it is", expected)
        self._counted.add((unit, machine))

    def acknowledges(self, evaluation: int, unit: int, machine: int) -> None:
        """Requires that an acknowledged contribution counts, or that its evaluation is over (I6)."""
        what = (evaluation, unit, machine)
        self._run.writers.require_current(self._life, "acknowledges", what)
        under_way = evaluation == self._number and self._evaluation is not None
        counts = not under_way or (unit, machine) in self._counted
        known = evaluation <= max(self._number, self._given_up)
        require(counts and known, "I6", self._life, "acknowledges", what, "uncounted")
        self._run.taken.add((self._name, *what))

    def shows(self, evaluation: int, machine: int, payload: Vector) -> None:
        """Requires that a shard sends the point of its command's evaluation (I6), as the one writer (I4)."""
        self._run.writers.require_current(self._life, "shows the point of", evaluation)
        point = self._point if evaluation == self._number else None
        require(point is not None, "I6", self._life, "shows the point of", evaluation, "in", self._number)
        assert point is not None
        start, stop = self._machines[machine]
        held, expected = payload, point[start:stop]
        require(held == expected, "I6", self._life, "shows", held, "and the point was", expected)

    def answers(self, number: int, scalars: Scalars) -> None:
        """Requires that a command is answered when all is done, with its scalars (I7), by the writer (I4)."""
        self._run.writers.require_current(self._life, "answers command", number)
        require(number == self._number, "I7", self._life, "answers", number, "in command", self._number)
        self._go_on()
        left = [*self._zeros, *self._rest]
        require(not left, "I7", self._life, "answers", number, "and has not done", left)
        require(scalars == tuple(self._scalars), "I7", self._life, "answers", scalars, "not", self._scalars)
