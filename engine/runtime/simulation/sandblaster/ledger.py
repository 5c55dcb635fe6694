"""Judges a run of Sandblaster against the naive reference, after every event.

It sees what crosses the surface of the machines and nothing inside. What outlives a coordinator (journal and
checkpoints) is judged by `Ledger`, what a run's hosts do by a `RunLedger`, one process of a shard by a
`ShardLedger`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Iterated,
    Operation,
    Restore,
    Scalars,
    Snapshot,
    Stretch,
    Swap,
    reads,
    stretches_of,
    writes,
    zero,
)
from partita.engine.protocol.messages import Command, HandOut
from partita.engine.protocol.orders import Commit, Record
from partita.engine.protocol.orders import Done as Ending
from partita.engine.runtime.simulation.hosts import Layout
from partita.engine.runtime.simulation.judgement import Life, Writers, demand
from partita.engine.runtime.simulation.sandblaster.disk import Disk
from partita.engine.runtime.simulation.sandblaster.function import Function, Vector
from partita.engine.runtime.simulation.sandblaster.reference import Evaluated, Reference, cut, evaluate
from partita.engine.runtime.simulation.sandblaster.vectors import Vectors


class Ledger:
    """What must hold over all coordinators of a schedule."""

    def __init__(
        self, reference: Reference, function: Function, layout: Layout, disk: Disk, *, stretch: int
    ) -> None:
        self.reference = reference
        self.function = function
        self.layout = layout
        self.stretch = stretch
        self._disk = disk
        self._told = 0
        self._live = _live_vectors(reference)
        self._evaluated: dict[tuple[Vector, Evaluate], Evaluated] = {}

    def evaluated(self, x: Vector, asked: Evaluate) -> Evaluated:
        """What an evaluation at this point must give."""
        key = (x, asked)
        if key not in self._evaluated:
            self._evaluated[key] = evaluate(self.function, x, asked, self.stretch)
        return self._evaluated[key]

    def records(self, record: Record) -> None:
        """The journal says, entry by entry, what the reference says, to the bit (I6, I10)."""
        index, scalars = record.index, self.reference.scalars
        demand(index == len(self._disk.journal), "I10", record, "comes after", len(self._disk.journal))
        demand(index < len(scalars), "I10", record, "is of none of the", len(scalars), "requests")
        demand(record.scalars == scalars[index], "I6", record, "and it is", scalars[index])

    def commits(self, order: Commit, current: Mapping[str, int]) -> None:
        """A checkpoint is whole, newer than all, and holds what the journal says that it does (I5)."""
        position, disk = order.position, self._disk
        demand(tuple(entry.shard for entry in order.entries) == tuple(self.layout.sizes), "I5", order)
        demand(order.checkpoint > max(disk.manifests, default=0), "I5", order, "is not the newest")
        demand(position is not None and 0 <= position <= disk.synced, "I5", order, "after", disk.synced)
        assert position is not None
        before = max((commit.position or 0 for commit in disk.manifests.values()), default=0)
        demand(position >= before, "I5", order, "goes back from", before)
        for entry in order.entries:
            file = disk.files.get(entry.file)
            demand(file is not None and file.sha256 == entry.sha256, "I5", entry, "is not on disk")
            assert file is not None
            demand(current[entry.shard] == entry.epoch, "I5", entry, "is of an old epoch")
            self._demand_state(entry.shard, file.vectors, position)

    def _demand_state(self, shard: str, found: Vectors, position: int) -> None:
        expected = self.reference.states[position][shard]
        for name in sorted(self._live[position]):
            held = found.get(name)
            demand(held == expected[name], "I5", shard, "holds", name, held, "instead of", expected[name])

    def resumes(self) -> None:
        """Another coordinator begins: it tells of what the journal does not hold."""
        self._told = 0

    def tells(self, iterated: Iterated) -> None:
        """Iterations are told in order, none twice by the same coordinator."""
        following = self.reference.iterations[self._told :]
        demand(iterated in following, "I10", iterated, "after", self._told, "iterations")
        self._told += following.index(iterated) + 1

    def ends(self, ending: Ending) -> None:
        """A whole run has done all that the reference has, and its last checkpoint holds it (I10)."""
        demand(ending.outcome == self.reference.outcome, "I10", ending, "instead of", self.reference.outcome)
        n_requests = len(self.reference.requests)
        demand(len(self._disk.journal) == n_requests, "I10", len(self._disk.journal), "of", n_requests)
        newest = self._disk.newest()
        held = newest.position if newest is not None else 0
        demand(held == n_requests, "I10", "the last checkpoint holds", held, "of", n_requests, "requests")


def _live_vectors(reference: Reference) -> list[frozenset[str]]:
    """By position: the vectors whose numbers matter then, as they are read later, or are there in the end."""
    live = set(reference.states[-1]["shard 0"])
    found = [frozenset(live)]
    for request in reversed(reference.requests):
        for operation in reversed(request):
            if isinstance(operation, Swap):
                names = {operation.one: operation.other, operation.other: operation.one}
                live = {names.get(name, name) for name in live}
                continue
            live -= writes(operation)
            live |= reads(operation)
        found.append(frozenset(live))
    return found[::-1]


class RunLedger:
    """What one run's hosts may do.

    Attributes:
        ledger: of all runs.
        writers: who may be the host of a name.
        commands: by number, as they were given.
    """

    def __init__(self, ledger: Ledger, writers: Writers) -> None:
        self.ledger = ledger
        self.writers = writers
        self.commands: dict[int, Command] = {}
        self._stretches: dict[int, tuple[Stretch, ...]] = {}
        self._points: dict[int, dict[str, Vector]] = {}
        self._turns: dict[tuple[int, int, int], HandOut] = {}
        self._sent: dict[Life, tuple[int, int]] = {}
        self.taken: set[tuple[str, int, int, int]] = set()  # (shard, evaluation, stretch, machine)

    # The coordinator.

    def commands_shard(self, command: Command) -> None:
        """A number stands for one command, for ever (I7); numbers rise."""
        known = self.commands.get(command.number)
        if known is not None:
            demand(known == command, "I7", command, "has the number of", known)
            return
        newest = max(self.commands, default=0)
        demand(command.number > newest, "I7", command, "comes after", newest)
        self.commands[command.number] = command
        for operation in command.operations:
            if isinstance(operation, Evaluate):
                self._stretches[command.number] = stretches_of(operation, self.ledger.stretch)

    def hands_out(self, replica: int, incarnation: int, order: HandOut) -> None:
        """A turn is a stretch of its evaluation, and a number of a turn stands for one (I6)."""
        stretches = self._stretches.get(order.evaluation, ())
        demand(0 <= order.stretch < len(stretches), "I6", order, "is of none of", stretches)
        stretch = stretches[order.stretch]
        demand((order.first, order.count) == (stretch.first, stretch.count), "I6", order, "is not", stretch)
        turn = (replica, incarnation, order.turn)
        known = self._turns.setdefault(turn, order)
        demand(known == order, "I6", order, "has the turn of", known)

    # Parts.

    def plays(self, part: Life, evaluation: int, machine: int, parameters: Vector) -> None:
        """A turn is played at the point of its evaluation (I6)."""
        points = self._points.get(evaluation, {})
        for shard, start, stop in self.ledger.layout.of_machine[machine]:
            begin, end = self.ledger.layout.of_shard[shard][machine]
            demand(shard in points, "I6", part, "plays", evaluation, "which has not begun on", shard)
            held, expected = parameters[start:stop], points[shard][begin:end]
            demand(held == expected, "I6", part, "plays evaluation", evaluation, "at", held, "not", expected)

    def contributes(self, part: Life, evaluation: int, stretch: int, machine: int) -> None:
        """A part sends the next gradient of an evaluation: every shard must have the one before (I6)."""
        before = self._sent.get(part, (0, 0))
        if before != (evaluation, stretch) and before[0] == evaluation:
            for shard, _, _ in self.ledger.layout.of_machine[machine]:
                there = (shard, *before, machine) in self.taken
                demand(there, "I6", part, "goes on to", (evaluation, stretch), shard, "has not", before)
        self._sent[part] = (evaluation, stretch)

    # Shards.

    def begins(self, shard: str, evaluation: int, x: Vector) -> None:
        """An evaluation has begun on a shard, where its slice of the point is this."""
        known = self._points.setdefault(evaluation, {}).setdefault(shard, x)
        demand(known == x, "I6", shard, "begins evaluation", evaluation, "at", x, "and before at", known)

    def gradient(self, evaluation: int, stretch: int, machine: int, shard: str) -> Vector:
        """What a machine must contribute to a shard."""
        order = self._stretches[evaluation][stretch]
        gradients, _, _ = self.ledger.function.stretch(self._x(evaluation), order.first, order.count)
        start, stop = next(
            (start, stop) for name, start, stop in self.ledger.layout.of_machine[machine] if name == shard
        )
        return gradients[machine][start:stop]

    def sums(self, evaluation: int, asked: Evaluate, shard: str) -> list[Vector]:
        """What must be in a shard's slices of the segments' vectors when everything was contributed."""
        done = self.ledger.evaluated(self._x(evaluation), asked)
        return [cut(gradients, self.ledger.layout)[shard] for gradients in done.gradients]

    def expected(self, evaluation: int) -> int:
        """How many stretches an evaluation has."""
        return len(self._stretches[evaluation])

    def _x(self, evaluation: int) -> Vector:
        points, sizes = self._points[evaluation], self.ledger.layout.sizes
        for shard, size in sizes.items():
            demand(shard in points or not size, "I6", shard, "has not begun evaluation", evaluation)
        return tuple(number for shard in sizes for number in points.get(shard, ()))


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

    def keeps(self, evaluation: int, stretch: int, machine: int, payload: Vector) -> None:
        """A contribution counts: the first, of this evaluation, computed where it should be (I6, I9)."""
        what = (evaluation, stretch, machine)
        self._run.writers.demand_writer(self._life, "counts", what)
        inside = self._evaluation is not None and evaluation == self._number
        demand(inside, "I6", self._life, "counts", what, "in command", self._number)
        demand((stretch, machine) not in self._counted, "I6", self._life, "counts", what, "twice")
        expected = self._run.gradient(evaluation, stretch, machine, self._name)
        demand(payload == expected, "I6", self._life, "counts", what, "as", payload, "and it is", expected)
        self._counted.add((stretch, machine))

    def acknowledges(self, evaluation: int, stretch: int, machine: int) -> None:
        """Whoever is told so need not say it again: it counts, or its evaluation is over (I6)."""
        what = (evaluation, stretch, machine)
        self._run.writers.demand_writer(self._life, "acknowledges", what)
        under_way = evaluation == self._number and self._evaluation is not None
        counts = not under_way or (stretch, machine) in self._counted
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
