"""Every message of a step: which rows of which layer travel from which machine to which, and why.

Up: a state goes once to each machine that needs it, however many edges lead there. Down: along each edge of
the network, a node's errors are summed over its receivers. Where nodes have few receivers the sum runs from
machine to machine in the order of the receivers' rows and ends at the owner, so that its bits do not depend
on the cut; in a fully connected layer, and wherever columns are cut, each machine sends the sum over its own
receivers to the owner. Where a row has copies, each copy is fed and summed for itself on its machine, and the
first one serves all machines that have none.

A layer that is cut by its inputs is no exception: its machines listen to different rows, so the states and
errors of its input mostly stay where they are. Instead its machines tell one another partial sums of its
nodes on the way up, and its errors on the way down.

Weights that all nodes of a cut layer share are lent by their home to every other machine of the layer, which
returns the sum of its gradients. Where every machine must know something of every other (of the scores that
it judges, of the size of its gradients), each sends its row to each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from partita.layers.box import BLOCK, NOTHING, BoxSet
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import NORMS, Buffer, BufferKind, Edge, activations
from partita.partitioner.ir.program import Operand
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.ir.step_kind import StepKind

_FORWARD: Final = frozenset(
    {BufferKind.ACTIVATIONS, BufferKind.PARAMETERS, BufferKind.SUMMARY, BufferKind.PARTIAL_SUMS}
)


@dataclass(frozen=True)
class Message:
    """BoxSet of a buffer that travel once a step from machine `source` to machine `destination`.

    Args:
        buffer: what travels.
        rows: of the buffer.
        n_bytes: of one message, for all examples of its portion.
    """

    buffer: Buffer
    rows: BoxSet
    source: int
    destination: int
    n_bytes: int

    @property
    def layer(self) -> str:
        """The layer of the buffer; "" for norms."""
        return self.buffer.layer

    @property
    def direction(self) -> Literal["forward", "backward"]:
        """The pass of the message: "forward" for activations, "backward" for gradients."""
        return "forward" if self.buffer.kind in _FORWARD else "backward"

    @property
    def is_of_weights(self) -> bool:
        """Whether it carries weights that are lent, or what was learnt with them."""
        return self.buffer.kind in (BufferKind.PARAMETERS, BufferKind.GRADIENT)

    def __str__(self) -> str:
        return f"{self.buffer}[{self.rows}] {self.source} -> {self.destination}, {self.n_bytes:,} bytes"


@dataclass(frozen=True)
class Sum:
    """A machine's turn in summing errors along an edge, for some rows of the sending layer.

    It starts from zero or goes on from `previous`'s sum; the result goes to `following` (None: it stays).
    """

    edge: Edge
    machine: int
    rows: BoxSet
    previous: int | None
    following: int | None


def messages_of(owned: Ownership, sizes: Sizes, kind: StepKind) -> tuple[Message, ...]:
    """Every message of a portion: of the way up in topological order, then of the way down."""
    up = [*_lent(owned, sizes), *_states(owned, sizes), *_partial(owned, sizes), *_summaries(owned, sizes)]
    if not kind.train:
        return tuple(up)
    down = [*_errors(owned, sizes), *_deltas(owned, sizes), *_returned(owned, sizes)]
    return (*up, *down, *(_norms(owned, sizes) if kind.norms else ()))


def of_portions(messages: Sequence[Message], *, micro_batches: int, overlap: int) -> tuple[Message, ...]:
    """Every message of a step of several portions: those of each, and for each minibatch those of what is
    learnt.
    """

    def of(number: int, *, learnt: bool, count: int) -> Iterator[Message]:
        for message in messages:
            if message.buffer.is_of_minibatch == learnt:
                yield replace(message, buffer=message.buffer.numbered(number)) if count > 1 else message

    total = micro_batches * overlap
    found = (of(n, learnt=False, count=total) for n in range(total))
    learnt = (of(n, learnt=True, count=overlap) for n in range(overlap))
    return tuple(message for some in (*found, *learnt) for message in some)


def _message(sizes: Sizes, operand: Operand, source: int, destination: int) -> Message:
    return Message(operand.buffer, operand.rows, source, destination, sizes.n_bytes(operand))


def _lent(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in owned.graph.computed:
        for other in owned.weight_receivers(grid.name):
            weights = Operand(Buffer(BufferKind.PARAMETERS, grid.name), BLOCK)
            yield _message(sizes, weights, owned.of(grid.name)[0].machine, other)


def _returned(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in reversed(owned.graph.computed):
        for other in owned.weight_receivers(grid.name):
            gradient = Operand(Buffer(BufferKind.GRADIENT, grid.name), BLOCK)
            yield _message(sizes, gradient, other, owned.of(grid.name)[0].machine)


def _summaries(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for loss in owned.graph.losses:
        yield from _to_each_other(sizes, Buffer(BufferKind.SUMMARY, loss), owned.summary_senders(loss))


def _norms(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    yield from _to_each_other(sizes, NORMS, owned.parameter_owners)


def _partial(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    """Sums over a machine's inputs, for every other machine that has the rows."""
    for grid in owned.graph.computed:
        pieces = owned.of(grid.name) if owned.is_input_split(grid.name) else ()
        for piece in pieces:
            for owner in pieces:
                if owner.machine != piece.machine:
                    sums = Operand(Buffer(BufferKind.PARTIAL_SUMS, grid.name), owner.rows)
                    yield _message(sizes, sums, piece.machine, owner.machine)


def _deltas(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    """Errors that came to a machine, for every other machine that has weights of these rows."""
    for grid in reversed(owned.graph.computed):
        pieces = owned.of(grid.name) if owned.is_input_split(grid.name) else ()
        told = owned.grad_senders(grid.name) if pieces else ()
        for piece in pieces:
            for other in pieces:
                if piece.machine in told and other.machine != piece.machine:
                    deltas = Operand(Buffer(BufferKind.GRAD_PREACTIVATION, grid.name), piece.rows)
                    yield _message(sizes, deltas, piece.machine, other.machine)


def _to_each_other(sizes: Sizes, buffer: Buffer, machines: tuple[int, ...]) -> Iterator[Message]:
    """Row n of the buffer is the n-th machine's, and all must have all."""
    for n, source in enumerate(machines):
        for destination in machines:
            if source != destination:
                row = Operand(buffer, BoxSet.of_rows((n, n + 1)))
                yield _message(sizes, row, source, destination)


def _states(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in owned.graph.computed:
        listeners = {piece.machine for edge in owned.edges(grid.name) for piece in owned.of(edge.consumer)}
        for destination in sorted(listeners):
            needed = owned.needed_by_all(grid.name, destination)
            for piece, rows in owned.suppliers(grid.name, needed, destination):
                if piece.machine != destination:
                    yield _message(sizes, Operand(activations(grid.name), rows), piece.machine, destination)


def _errors(owned: Ownership, sizes: Sizes) -> Iterator[Message]:
    for grid in reversed(owned.graph.computed):
        for edge in owned.edges(grid.name) if grid.name in owned.graph.needs_error else ():
            joined: dict[tuple[int, int], BoxSet] = {}
            for turn in sums(owned, edge):
                if turn.following is not None:
                    key = (turn.machine, turn.following)
                    joined[key] = joined.get(key, NOTHING) | turn.rows
            for (source, destination), rows in joined.items():
                yield _message(sizes, Operand(edge.buffer, rows), source, destination)


def sums(owned: Ownership, edge: Edge) -> tuple[Sum, ...]:
    """Who sums which errors along an edge, from whom, and for whom; in the order of the machines' pieces."""
    by_part = owned.sums_by_machine(edge) or owned.crosses_tiles(edge)
    return _sums_by_part(owned, edge) if by_part else _sums_in_order(owned, edge)


def _sums_by_part(owned: Ownership, edge: Edge) -> tuple[Sum, ...]:
    return tuple(
        Sum(edge, piece.machine, rows, None, None if owner.machine == piece.machine else owner.machine)
        for piece in owned.of(edge.consumer)
        for owner, rows in owned.suppliers(edge.layer, owned.grad_rows(edge, piece.machine), piece.machine)
    )


def _sums_in_order(owned: Ownership, edge: Edge) -> tuple[Sum, ...]:
    """Splits each machine's rows by who had the rows before it and who has them next; copies stay apart."""
    turns = [piece.machine for piece in owned.of(edge.consumer)]
    before, behind = _nearest(owned, edge, turns), _nearest(owned, edge, turns[::-1])
    found = []
    for machine in turns:
        copies = owned.grad_rows(edge, machine) - owned.primary_grad_rows(edge, machine)
        if copies:
            found.append(Sum(edge, machine, copies, None, None))
        for previous, rows in before[machine]:
            for following, others in behind[machine]:
                rest = rows & others
                if rest and following is not None:
                    found.append(Sum(edge, machine, rest, previous, following))
                    continue
                for owner, final in owned.primary_owners(edge.layer, rest):
                    home = None if owner.machine == machine else owner.machine
                    found.append(Sum(edge, machine, final, previous, home))
    return tuple(found)


def _nearest(
    owned: Ownership, edge: Edge, turns: Sequence[int]
) -> dict[int, list[tuple[int | None, BoxSet]]]:
    """Splits the rows that each machine passes on by the last machine before it that does so too.

    The nearest comes first, and None last, where nobody did. Of a picture whose columns are cut elsewhere the
    rows are whole here: their columns are left out meanwhile.
    """
    width = (0, owned.graph[edge.layer].shape[1]) if owned.is_boxed(edge.layer) else None
    place = {machine: n for n, machine in enumerate(turns)}
    latest: list[tuple[int, int, int]] = []  # ascending runs of rows, each with who passed them on last
    found: dict[int, list[tuple[int | None, BoxSet]]] = {}
    for machine in turns:
        needed = owned.primary_grad_rows(edge, machine).rows
        shared: dict[int, list[tuple[int, int]]] = {}
        for start, stop in needed.spans:
            first = bisect_right(latest, start, key=lambda run: run[1])
            last = bisect_left(latest, stop, key=lambda run: run[0])
            met = latest[first:last]
            for a, b, other in met:
                shared.setdefault(other, []).append((max(a, start), min(b, stop)))
            kept = [(start, stop, machine)]
            if met and met[0][0] < start:
                kept.insert(0, (met[0][0], start, met[0][2]))
            if met and met[-1][1] > stop:
                kept.append((stop, met[-1][1], met[-1][2]))
            latest[first:last] = kept
        known = [(other, BoxSet.of_rows(*shared[other])) for other in sorted(shared, key=lambda m: -place[m])]
        rest = needed - BoxSet.union(*(rows for _, rows in known))
        split = [*known, *([(None, rest)] if rest else [])]
        found[machine] = [(m, rows if width is None else rows.across(width)) for m, rows in split]
    return found
