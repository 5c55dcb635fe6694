"""Judges one process of a shard: each command is done once, each gradient counts once, at its own time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Operation,
    Restore,
    Scalars,
    Snapshot,
    zero,
)
from partita.engine.runtime.simulation.judgement import Life, demand
from partita.engine.runtime.simulation.sandblaster.function import Vector
from partita.engine.runtime.simulation.sandblaster.ledger import RunLedger
from partita.engine.runtime.simulation.sandblaster.vectors import Vectors


class ShardLedger:
    """What one process of a shard has done, and must do next."""

    def __init__(self, run: RunLedger, life: Life, vectors: Vectors) -> None:
        """One that begins with these vectors, which stay its own."""
        self._run = run
        self._life = life
        self._name = life[0]
        self._vectors = vectors
        self._machines = run.ledger.layout.of_shard[life[0]]
        self._number = -1
        self._given_up = max(run.commands, default=0)  # what was under way when it was launched
        self._rest: deque[Operation] = deque()
        self._zeros: list[Operation] = []
        self._scalars: list[float] = []
        self._evaluation: Evaluate | None = None
        self._point: Vector | None = None
        self._counted: set[tuple[int, int]] = set()

    def begins(self, number: int) -> None:
        """It begins a command: a newer one (I7), which may interrupt an evaluation."""
        demand(number > self._number, "I7", self._life, "begins command", number, "after", self._number)
        demand(number in self._run.commands, "I7", self._life, "begins", number, "which nobody gave")
        self._run.writers.demand_writer(self._life, "begins command", number)
        self._number = number
        self._rest = deque(self._run.commands[number].operations)
        self._zeros, self._scalars, self._evaluation, self._point = [], [], None, None
        self._pause()

    def _pause(self) -> None:
        """Goes into an evaluation, if that is next. One to which nobody contributes is over at once."""
        if not self._rest or not isinstance(self._rest[0], Evaluate):
            return
        evaluation = self._rest.popleft()
        assert isinstance(evaluation, Evaluate)
        self._point = self._vectors[POINT]
        self._run.begins(self._name, self._number, self._point)
        empty = [s.vector for s in evaluation.segments if not s.count or not self._machines]
        self._zeros = [zero(vector) for vector in empty]
        if self._machines and self._run.expected(self._number):
            self._evaluation = evaluation
            self._counted.clear()

    def _go_on(self) -> None:
        """Something is done after an evaluation: everything must have been counted, and be in its vector."""
        asked = self._evaluation
        if asked is None:
            return
        missing = self._run.expected(self._number) * len(self._machines) - len(self._counted)
        demand(not missing, "I6", self._life, "ends evaluation", self._number, "without", missing, "of it")
        sums = self._run.sums(self._number, asked, self._name)
        for segment, expected in zip(asked.segments, sums, strict=True):
            held = self._vectors.get(segment.vector)
            if segment.count:
                demand(held == expected, "I6", self._life, segment, "gives", held, "not", expected)
        self._evaluation = None

    def _next(self, operation: Operation) -> None:
        self._go_on()
        if operation in self._zeros:
            self._zeros.remove(operation)
            return
        wanted = self._rest.popleft() if self._rest else None
        demand(operation == wanted, "I7", self._life, "does", operation, "and not", wanted)

    def does(self, operations: Sequence[Operation]) -> None:
        """It is about to do these operations: those that come next, once (I7)."""
        for operation in operations:
            self._next(operation)

    def done(self, scalars: Sequence[float]) -> None:
        """They gave this."""
        self._scalars += scalars
        self._pause()

    def persists(self, checkpoint: int) -> None:
        """It keeps its vectors when it is told to, between two operations (I5)."""
        self._next(Snapshot(checkpoint))
        self._pause()

    def reverts(self, checkpoint: int | None) -> None:
        """It goes back when it is told to. Call it when that is done."""
        self._next(Restore(checkpoint))
        self._pause()

    def keeps(self, evaluation: int, unit: int, machine: int, payload: Vector) -> None:
        """A contribution counts: the first, of this evaluation, computed where it should be (I6, I9)."""
        what = (evaluation, unit, machine)
        self._run.writers.demand_writer(self._life, "counts", what)
        inside = self._evaluation is not None and evaluation == self._number
        demand(inside, "I6", self._life, "counts", what, "in command", self._number)
        demand((unit, machine) not in self._counted, "I6", self._life, "counts", what, "twice")
        expected = self._run.gradient(evaluation, unit, machine, self._name)
        demand(payload == expected, "I6", self._life, "counts", what, "as", payload, "and it is", expected)
        self._counted.add((unit, machine))

    def acknowledges(self, evaluation: int, unit: int, machine: int) -> None:
        """Whoever is told so need not say it again: it counts, or its evaluation is over (I6)."""
        what = (evaluation, unit, machine)
        self._run.writers.demand_writer(self._life, "acknowledges", what)
        under_way = evaluation == self._number and self._evaluation is not None
        counts = not under_way or (unit, machine) in self._counted
        known = evaluation <= max(self._number, self._given_up)
        demand(counts and known, "I6", self._life, "acknowledges", what, "uncounted")
        self._run.taken.add((self._name, *what))

    def shows(self, evaluation: int, machine: int, payload: Vector) -> None:
        """It hands out the point where its command evaluates (I6), while it is the one shard (I4)."""
        self._run.writers.demand_writer(self._life, "shows the point of", evaluation)
        point = self._point if evaluation == self._number else None
        demand(point is not None, "I6", self._life, "shows the point of", evaluation, "in", self._number)
        assert point is not None
        start, stop = self._machines[machine]
        held, expected = payload, point[start:stop]
        demand(held == expected, "I6", self._life, "shows", held, "and the point was", expected)

    def answers(self, number: int, scalars: Scalars) -> None:
        """A command is answered when all of it is done, with what it gave (I7), by the one shard (I4)."""
        self._run.writers.demand_writer(self._life, "answers command", number)
        demand(number == self._number, "I7", self._life, "answers", number, "in command", self._number)
        self._go_on()
        left = [*self._zeros, *self._rest]
        demand(not left, "I7", self._life, "answers", number, "and has not done", left)
        demand(scalars == tuple(self._scalars), "I7", self._life, "answers", scalars, "not", self._scalars)
