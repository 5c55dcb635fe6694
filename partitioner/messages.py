"""Every message of a step: which rows of which layer travel from which machine to which, and why.

Up: a state goes once to each machine that needs it, however many edges lead there. Down: along each edge of
the network, a node's errors are summed over its receivers. Where nodes have few receivers the sum runs from
machine to machine in the order of the receivers' rows and ends at the owner, so that its bits do not depend
on the cut; in a fully connected layer each machine sends the sum over its own receivers to the owner. Where a
row has copies, each copy is fed and summed for itself on its machine, and the first one serves all machines
that have none.

A layer that is cut by its inputs is no exception: its machines listen to different rows, so the states and
errors of its input mostly stay where they are. Instead its machines tell one another partial sums of its
nodes on the way up, and its errors on the way down.

Weights that all nodes of a cut layer share are lent by their home to every other machine of the layer, which
returns the sum of its gradients. Where every machine must know something of every other (of the scores that
it judges, of the size of its gradients), each sends its row to each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from partita.layers import rows as row_sets
from partita.layers.rows import Rows
from partita.partitioner.access import BLOCK
from partita.partitioner.buffer_names import DELTAS, GRADIENT, NORMS, PARAMETERS, SUMMARY, SUMS, layer_of
from partita.partitioner.ownership import Edge, Ownership
from partita.partitioner.program import Operand
from partita.partitioner.sizes import Sizes
from partita.partitioner.step_kind import StepKind


@dataclass(frozen=True)
class Message:
    """Rows of a buffer that travel once a step from machine `source` to machine `destination`.

    Args:
        direction: "up" for states and what else the way up needs, "down" for errors, gradients and norms.
        layer: whose nodes; "" for norms, which are of all.
        buffer: what they are, see `buffer_names`.
        rows: of the buffer.
        n_bytes: of one message, for the whole batch.
    """

    direction: Literal["up", "down"]
    layer: str
    buffer: str
    rows: Rows
    source: int
    destination: int
    n_bytes: int

    def __str__(self) -> str:
        rows = row_sets.text(self.rows)
        return f"{self.buffer}[{rows}] {self.source} -> {self.destination}, {self.n_bytes:,} bytes"


@dataclass(frozen=True)
class Sum:
    """A machine's turn in summing errors along an edge, for some rows of the sending layer.

    It starts from zero or goes on from `previous`'s sum; the result goes to `following` (None: it stays).
    """

    edge: Edge
    machine: int
    rows: Rows
    previous: int | None
    following: int | None


def messages_of(owned: Ownership, sizes: Sizes, kind: StepKind) -> tuple[Message, ...]:
    """Every message of a step: of the way up in topological order, then of the way down."""
    up = [*_lent(owned, sizes), *_states(owned, sizes), *_partial(owned, sizes), *_summaries(owned, sizes)]
    if not kind.train:
        return tuple(up)
    down = [*_errors(owned, sizes), *_deltas(owned, sizes), *_returned(owned, sizes)]
    return (*up, *down, *(_norms(owned, sizes) if kind.norms else ()))


def _message(
    sizes: Sizes, direction: Literal["up", "down"], operand: Operand, source: int, destination: int
) -> Message:
    buffer = operand.buffer
    layer = "" if buffer == NORMS else layer_of(buffer)
    return Message(direction, layer, buffer, operand.rows, source, destination, sizes.n_bytes(operand))


def _lent(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in owned.graph.computed:
        for other in owned.borrowers(grid.name):
            weights = Operand(grid.name + PARAMETERS, BLOCK)
            yield _message(sizes, "up", weights, owned.of(grid.name)[0].machine, other)


def _returned(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in reversed(owned.graph.computed):
        for other in owned.borrowers(grid.name):
            gradient = Operand(grid.name + GRADIENT, BLOCK)
            yield _message(sizes, "down", gradient, other, owned.of(grid.name)[0].machine)


def _summaries(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for loss in owned.graph.losses:
        yield from _to_each_other(sizes, "up", loss + SUMMARY, owned.tells(loss))


def _norms(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    yield from _to_each_other(sizes, "down", NORMS, owned.learners)


def _partial(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    """Sums over a machine's inputs, for every other machine that has the rows."""
    for grid in owned.graph.computed:
        pieces = owned.of(grid.name) if owned.by_inputs(grid.name) else ()
        for piece in pieces:
            for owner in pieces:
                if owner.machine != piece.machine:
                    sums = Operand(grid.name + SUMS, (owner.rows,))
                    yield _message(sizes, "up", sums, piece.machine, owner.machine)


def _deltas(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    """Errors that came to a machine, for every other machine that has weights of these rows."""
    for grid in reversed(owned.graph.computed):
        pieces = owned.of(grid.name) if owned.by_inputs(grid.name) else ()
        told = owned.shares_errors(grid.name) if pieces else ()
        for piece in pieces:
            for other in pieces:
                if piece.machine in told and other.machine != piece.machine:
                    deltas = Operand(grid.name + DELTAS, (piece.rows,))
                    yield _message(sizes, "down", deltas, piece.machine, other.machine)


def _to_each_other(
    sizes: Sizes, direction: Literal["up", "down"], buffer: str, machines: tuple[int, ...]
) -> Iterator[Message]:
    """Row n of the buffer is the n-th machine's, and all must have all."""
    for n, source in enumerate(machines):
        for destination in machines:
            if source != destination:
                yield _message(sizes, direction, Operand(buffer, ((n, n + 1),)), source, destination)


def _states(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in owned.graph.computed:
        for destination in range(owned.machines):
            needed = owned.needed_by_all(grid.name, destination)
            for piece in owned.of(grid.name) if needed else ():
                rows = row_sets.intersection(needed, owned.fed(grid.name, piece.machine, destination))
                if rows and piece.machine != destination:
                    yield _message(sizes, "up", Operand(grid.name, rows), piece.machine, destination)


def _errors(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in reversed(owned.graph.computed):
        for edge in owned.edges(grid.name) if grid.name in owned.graph.needs_error else ():
            joined: dict[tuple[int, int], Rows] = {}
            for turn in sums(owned, edge):
                if turn.following is not None:
                    key = (turn.machine, turn.following)
                    joined[key] = row_sets.union(joined.get(key, ()), turn.rows)
            for (source, destination), rows in joined.items():
                yield _message(sizes, "down", Operand(edge.name, rows), source, destination)


def sums(owned: Ownership, edge: Edge) -> tuple[Sum, ...]:
    """Who sums which errors along an edge, from whom, and for whom; in the order of the machines' pieces."""
    return _sums_by_part(owned, edge) if owned.by_part(edge) else _sums_in_order(owned, edge)


def _sums_by_part(owned: Ownership, edge: Edge) -> tuple[Sum, ...]:
    return tuple(
        Sum(edge, piece.machine, rows, None, None if owner.machine == piece.machine else owner.machine)
        for piece in owned.of(edge.consumer)
        if (mine := owned.returned(edge, piece.machine))
        for owner in owned.of(edge.layer)
        if (rows := row_sets.intersection(mine, owned.fed(edge.layer, owner.machine, piece.machine)))
    )


def _sums_in_order(owned: Ownership, edge: Edge) -> tuple[Sum, ...]:
    """Splits each machine's rows by who had the rows before it and who has them next; copies stay apart."""
    turns = [piece.machine for piece in owned.of(edge.consumer)]
    found = []
    for place, machine in enumerate(turns):
        mine = owned.passed_on(edge, machine)
        copies = row_sets.difference(owned.returned(edge, machine), mine)
        if copies:
            found.append(Sum(edge, machine, copies, None, None))
        for previous, rows in _nearest(owned, edge, mine, reversed(turns[:place])):
            for following, rest in _nearest(owned, edge, rows, iter(turns[place + 1 :])):
                if following is not None:
                    found.append(Sum(edge, machine, rest, previous, following))
                    continue
                for owner in owned.of(edge.layer):
                    final = row_sets.intersection(rest, owned.home(edge.layer, owner.machine))
                    if final:
                        home = None if owner.machine == machine else owner.machine
                        found.append(Sum(edge, machine, final, previous, home))
    return tuple(found)


def _nearest(
    owned: Ownership, edge: Edge, rows: Rows, others: Iterable[int]
) -> list[tuple[int | None, Rows]]:
    """Splits rows by the first of the other machines that needs them too; None where nobody else does."""
    found: list[tuple[int | None, Rows]] = []
    for other in others:
        shared = row_sets.intersection(rows, owned.passed_on(edge, other))
        if shared:
            found.append((other, shared))
            rows = row_sets.difference(rows, shared)
    if rows:
        found.append((None, rows))
    return found
