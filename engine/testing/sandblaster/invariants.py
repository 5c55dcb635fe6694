"""Checks Sandblaster against the naive reference, after every event.

The checks see what crosses the surface of the machines and nothing inside. `SandblasterInvariants` checks the
journal and the checkpoints, which outlive a coordinator, a `RunInvariants` one run's hosts, and a
`ShardInvariants` (in `shard_invariants`) one process of a shard.
"""

from __future__ import annotations

from partita.engine.protocol.batch_messages import Assignment, Command
from partita.engine.protocol.commands import (
    Evaluate,
    Iterated,
    Restore,
    Swap,
    WorkUnit,
    reads,
    work_units_of,
    writes,
)
from partita.engine.protocol.coordinator_effects import AppendJournal, Commit
from partita.engine.protocol.coordinator_effects import EndRun as Ending
from partita.engine.testing.disk import Disk
from partita.engine.testing.invariants import ProcessId, Writers, require
from partita.engine.testing.layout import Layout
from partita.engine.testing.sandblaster.function import Function
from partita.engine.testing.sandblaster.reference import Evaluated, Reference, cut, evaluate
from partita.engine.testing.vectors import Vector, Vectors


class SandblasterInvariants:
    """The invariants over all coordinators of a schedule."""

    def __init__(
        self, reference: Reference, function: Function, layout: Layout, disk: Disk, *, unit_size: int
    ) -> None:
        self.reference = reference
        self.function = function
        self.layout = layout
        self.unit_size = unit_size
        self._disk = disk
        self._reported = 0
        self._live = _live_vectors(reference)
        self._evaluated: dict[tuple[Vector, Evaluate], Evaluated] = {}

    def evaluated(self, x: Vector, asked: Evaluate) -> Evaluated:
        """The result that an evaluation at this point must have."""
        key = (x, asked)
        if key not in self._evaluated:
            self._evaluated[key] = evaluate(self.function, x, asked, self.unit_size)
        return self._evaluated[key]

    def records(self, record: AppendJournal) -> None:
        """Requires that the journal is that of the reference, to the bit (I6, I10)."""
        index, scalars = record.index, self.reference.scalars
        require(index == len(self._disk.journal), "I10", record, "comes after", len(self._disk.journal))
        require(index < len(scalars), "I10", record, "is of none of the", len(scalars), "requests")
        require(record.scalars == scalars[index], "I6", record, "and it is", scalars[index])

    def commits(self, order: Commit) -> None:
        """Requires that a whole checkpoint holds what the journal says that it does (I5)."""
        position, disk = order.position, self._disk
        require(position is not None and 0 <= position <= disk.synced, "I5", order, "after", disk.synced)
        assert position is not None
        usable = filter(disk.is_usable, disk.manifests.values())
        before = max((commit.position or 0 for commit in usable), default=0)
        require(position >= before, "I5", order, "goes back from", before)
        for entry in order.entries:
            self._require_state(entry.shard, disk.files[entry.file].contents.vectors, position)

    def _require_state(self, shard: str, found: Vectors, position: int) -> None:
        expected = self.reference.states[position][shard]
        zeros = (0.0,) * self.layout.sizes[shard]  # a vector that does not exist yet
        for name in sorted(self._live[position]):
            held, wanted = found.get(name, zeros), expected.get(name, zeros)
            require(held == wanted, "I5", shard, "holds", name, held, "instead of", wanted)

    def resumes(self) -> None:
        """Begins another coordinator, which reports the iterations that the journal does not hold."""
        self._reported = 0

    def advances(self, iterated: Iterated) -> None:
        """Requires that iterations are reported in order, none twice by the same coordinator."""
        following = self.reference.iterations[self._reported :]
        require(iterated in following, "I10", iterated, "after", self._reported, "iterations")
        self._reported += following.index(iterated) + 1

    def ends(self, ending: Ending) -> None:
        """Requires that a whole run and its last checkpoint are at the end of the reference (I10)."""
        require(ending.outcome == self.reference.outcome, "I10", ending, "instead of", self.reference.outcome)
        n_requests = len(self.reference.requests)
        require(len(self._disk.journal) == n_requests, "I10", len(self._disk.journal), "of", n_requests)
        newest = self._disk.newest()
        held = newest.position if newest is not None else 0
        require(held == n_requests, "I10", "the last checkpoint holds", held, "of", n_requests, "requests")


def _live_vectors(reference: Reference) -> list[frozenset[str]]:
    """By position: the vectors whose numbers matter then, as they are read later or are in the result."""
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


class RunInvariants:
    """The invariants of one run's hosts.

    Attributes:
        shared: the invariants of all runs.
        writers: the incarnations that may act.
        commands: by number, as they were given.
        taken: the contributions that a shard has acknowledged: (shard, evaluation, unit, machine).
        goes_back: a shard has begun without the records since the last checkpoint.
    """

    goes_back = False

    def __init__(self, shared: SandblasterInvariants, writers: Writers) -> None:
        self.shared = shared
        self.writers = writers
        self.commands: dict[int, Command] = {}
        self._units: dict[int, tuple[WorkUnit, ...]] = {}
        self._points: dict[int, dict[str, Vector]] = {}
        self._assignments: dict[tuple[int, int, int], Assignment] = {}
        self._sent: dict[ProcessId, tuple[int, int]] = {}
        self.taken: set[tuple[str, int, int, int]] = set()

    # The coordinator.

    def commands_shard(self, command: Command) -> None:
        """Requires that a number stands for one command, for ever (I7), and that numbers rise."""
        known = self.commands.get(command.number)
        if known is not None:
            require(known == command, "I7", command, "has the number of", known)
            return
        is_restore = any(isinstance(one, Restore) for one in command.operations)
        require(self.goes_back or not is_restore, "D1", command, "and every shard has its records")
        self.goes_back = self.goes_back and not is_restore
        newest = max(self.commands, default=0)
        require(command.number > newest, "I7", command, "comes after", newest)
        self.commands[command.number] = command
        for operation in command.operations:
            if isinstance(operation, Evaluate):
                self._units[command.number] = work_units_of(operation, self.shared.unit_size)

    def assigns(self, replica: int, incarnation: int, order: Assignment) -> None:
        """Requires that an assignment is a work unit of its evaluation, always the same (I6)."""
        units = self._units.get(order.evaluation, ())
        require(0 <= order.unit < len(units), "I6", order, "is of none of", units)
        unit = units[order.unit]
        require((order.first, order.count) == (unit.first, unit.count), "I6", order, "is not", unit)
        assignment = (replica, incarnation, order.sequence)
        known = self._assignments.setdefault(assignment, order)
        require(known == order, "I6", order, "has the assignment of", known)

    # Parts.

    def plays(self, part: ProcessId, evaluation: int, machine: int, parameters: Vector) -> None:
        """Requires that an assignment is played at the point of its evaluation (I6)."""
        points = self._points.get(evaluation, {})
        for shard, start, stop in self.shared.layout.of_machine[machine]:
            begin, end = self.shared.layout.of_shard[shard][machine]
            require(shard in points, "I6", part, "plays", evaluation, "which has not begun on", shard)
            held, expected = parameters[start:stop], points[shard][begin:end]
            require(held == expected, "I6", part, "plays evaluation", evaluation, "at", held, "not", expected)

    def contributes(self, part: ProcessId, evaluation: int, unit: int, machine: int) -> None:
        """Requires that every shard has a part's gradient before the part sends the next one (I6)."""
        before = self._sent.get(part, (0, 0))
        if before != (evaluation, unit) and before[0] == evaluation:
            for shard, _, _ in self.shared.layout.of_machine[machine]:
                there = (shard, *before, machine) in self.taken
                require(there, "I6", part, "goes on to", (evaluation, unit), shard, "has not", before)
        self._sent[part] = (evaluation, unit)

    # Shards.

    def begins(self, shard: str, evaluation: int, x: Vector) -> None:
        """Requires that an evaluation begins on a shard at one slice of the point only."""
        known = self._points.setdefault(evaluation, {}).setdefault(shard, x)
        require(known == x, "I6", shard, "begins evaluation", evaluation, "at", x, "and before at", known)

    def gradient(self, evaluation: int, unit: int, machine: int, shard: str) -> Vector:
        """The gradient that a machine must contribute to a shard."""
        order = self._units[evaluation][unit]
        gradients, _, _ = self.shared.function.unit(self._x(evaluation), order.first, order.count)
        start, stop = next(
            (start, stop) for name, start, stop in self.shared.layout.of_machine[machine] if name == shard
        )
        return gradients[machine][start:stop]

    def sums(self, evaluation: int, asked: Evaluate, shard: str) -> list[Vector]:
        """A shard's slices of the segments' vectors when everything was contributed."""
        done = self.shared.evaluated(self._x(evaluation), asked)
        return [cut(gradients, self.shared.layout)[shard] for gradients in done.gradients]

    def expected(self, evaluation: int) -> int:
        """The number of work units of an evaluation."""
        return len(self._units[evaluation])

    def _x(self, evaluation: int) -> Vector:
        points, sizes = self._points[evaluation], self.shared.layout.sizes
        for shard, size in sizes.items():
            require(shard in points or not size, "I6", shard, "has not begun evaluation", evaluation)
        return tuple(number for shard in sizes for number in points.get(shard, ()))
