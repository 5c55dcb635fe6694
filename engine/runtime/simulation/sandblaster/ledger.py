"""Judges a run of Sandblaster against the naive reference, after every event.

It sees what crosses the surface of the machines and nothing inside. What outlives a coordinator (journal and
checkpoints) is judged by `Ledger`, what a run's hosts do by a `RunLedger`; each process of a shard has a
ledger of its own in `shard_ledger`.
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.engine.protocol.commands import (
    Evaluate,
    Iterated,
    Swap,
    WorkUnit,
    reads,
    work_units_of,
    writes,
)
from partita.engine.protocol.coordinator_effects import AppendJournal, Commit
from partita.engine.protocol.coordinator_effects import EndRun as Ending
from partita.engine.protocol.messages import Assignment, Command
from partita.engine.runtime.simulation.hosts import Layout
from partita.engine.runtime.simulation.judgement import Life, Writers, demand
from partita.engine.runtime.simulation.sandblaster.disk import Disk
from partita.engine.runtime.simulation.sandblaster.function import Function, Vector
from partita.engine.runtime.simulation.sandblaster.reference import Evaluated, Reference, cut, evaluate
from partita.engine.runtime.simulation.sandblaster.vectors import Vectors


class Ledger:
    """What must hold over all coordinators of a schedule."""

    def __init__(
        self, reference: Reference, function: Function, layout: Layout, disk: Disk, *, unit_size: int
    ) -> None:
        self.reference = reference
        self.function = function
        self.layout = layout
        self.unit_size = unit_size
        self._disk = disk
        self._told = 0
        self._live = _live_vectors(reference)
        self._evaluated: dict[tuple[Vector, Evaluate], Evaluated] = {}

    def evaluated(self, x: Vector, asked: Evaluate) -> Evaluated:
        """What an evaluation at this point must give."""
        key = (x, asked)
        if key not in self._evaluated:
            self._evaluated[key] = evaluate(self.function, x, asked, self.unit_size)
        return self._evaluated[key]

    def records(self, record: AppendJournal) -> None:
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
        zeros = (0.0,) * self.layout.sizes[shard]  # what a vector is that is not there yet
        for name in sorted(self._live[position]):
            held, wanted = found.get(name, zeros), expected.get(name, zeros)
            demand(held == wanted, "I5", shard, "holds", name, held, "instead of", wanted)

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
        self._units: dict[int, tuple[WorkUnit, ...]] = {}
        self._points: dict[int, dict[str, Vector]] = {}
        self._assignments: dict[tuple[int, int, int], Assignment] = {}
        self._sent: dict[Life, tuple[int, int]] = {}
        self.taken: set[tuple[str, int, int, int]] = set()  # (shard, evaluation, work unit, machine)

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
                self._units[command.number] = work_units_of(operation, self.ledger.unit_size)

    def hands_out(self, replica: int, incarnation: int, order: Assignment) -> None:
        """A turn is a work unit of its evaluation, and a number of a turn stands for one (I6)."""
        units = self._units.get(order.evaluation, ())
        demand(0 <= order.unit < len(units), "I6", order, "is of none of", units)
        unit = units[order.unit]
        demand((order.first, order.count) == (unit.first, unit.count), "I6", order, "is not", unit)
        assignment = (replica, incarnation, order.sequence)
        known = self._assignments.setdefault(assignment, order)
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

    def contributes(self, part: Life, evaluation: int, unit: int, machine: int) -> None:
        """A part sends the next gradient of an evaluation: every shard must have the one before (I6)."""
        before = self._sent.get(part, (0, 0))
        if before != (evaluation, unit) and before[0] == evaluation:
            for shard, _, _ in self.ledger.layout.of_machine[machine]:
                there = (shard, *before, machine) in self.taken
                demand(there, "I6", part, "goes on to", (evaluation, unit), shard, "has not", before)
        self._sent[part] = (evaluation, unit)

    # Shards.

    def begins(self, shard: str, evaluation: int, x: Vector) -> None:
        """An evaluation has begun on a shard, where its slice of the point is this."""
        known = self._points.setdefault(evaluation, {}).setdefault(shard, x)
        demand(known == x, "I6", shard, "begins evaluation", evaluation, "at", x, "and before at", known)

    def gradient(self, evaluation: int, unit: int, machine: int, shard: str) -> Vector:
        """What a machine must contribute to a shard."""
        order = self._units[evaluation][unit]
        gradients, _, _ = self.ledger.function.unit(self._x(evaluation), order.first, order.count)
        start, stop = next(
            (start, stop) for name, start, stop in self.ledger.layout.of_machine[machine] if name == shard
        )
        return gradients[machine][start:stop]

    def sums(self, evaluation: int, asked: Evaluate, shard: str) -> list[Vector]:
        """What must be in a shard's slices of the segments' vectors when everything was contributed."""
        done = self.ledger.evaluated(self._x(evaluation), asked)
        return [cut(gradients, self.ledger.layout)[shard] for gradients in done.gradients]

    def expected(self, evaluation: int) -> int:
        """How many work units an evaluation has."""
        return len(self._units[evaluation])

    def _x(self, evaluation: int) -> Vector:
        points, sizes = self._points[evaluation], self.ledger.layout.sizes
        for shard, size in sizes.items():
            demand(shard in points or not size, "I6", shard, "has not begun evaluation", evaluation)
        return tuple(number for shard in sizes for number in points.get(shard, ()))
