"""All messages of a step.

Forward, an activation goes once to each machine that needs it, whatever the number of edges there. Backward,
a node's gradient is summed over its receivers, edge by edge. Where nodes have few receivers, the sum runs
from machine to machine in the order of the receivers' rows and ends at the owner, so that its bits do not
depend on the cut; in a fully connected layer, and wherever columns are cut, each machine sends the sum over
its own receivers to the owner. Each copy of a row is fed and summed on its own machine, and the first one
serves all machines that have none.

The machines of a layer cut by its inputs need different rows, so activations and gradients of its input
mostly stay where they are. Instead these machines exchange partial sums in the forward pass, and the gradient
of weighted sums in the backward pass.

Weights that all nodes of a cut layer share go from their primary owner to every other machine of the layer,
which returns the sum of its gradients; so do the numbers of a parameter that several layers use. Where every
machine needs a number of every other (summaries, their gradients, norms), each sends its row to each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final, Literal, TypeAlias

from partita.layers.box import BLOCK, NOTHING, BoxSet
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import NORMS, Buffer, BufferKind, Edge, activations, of_parameter
from partita.partitioner.ir.program import Operand
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.ir.step_kind import StepKind

_FORWARD: Final = frozenset(
    {BufferKind.ACTIVATIONS, BufferKind.PARAMETERS, BufferKind.SUMMARY, BufferKind.PARTIAL_SUMS}
)


@dataclass(frozen=True)
class Message:
    """Rows of a buffer that travel once a step from machine `source` to machine `destination`.

    Args:
        buffer: the buffer of the sender.
        rows: rows of the buffer.
        n_bytes: size, for all examples of its micro-batch.
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
        """Returns whether the message carries shared weights or their gradient."""
        return self.buffer.kind in (BufferKind.PARAMETERS, BufferKind.GRADIENT)

    def __str__(self) -> str:
        return f"{self.buffer}[{self.rows}] {self.source} -> {self.destination}, {self.n_bytes:,} bytes"


@dataclass(frozen=True)
class GradientSum:
    """A sum of gradients that a machine computes along an edge, for some rows of the sending layer.

    The sum starts from zero or continues that of machine `previous`; the result goes to machine `following`
    (None: it stays).
    """

    edge: Edge
    machine: int
    rows: BoxSet
    previous: int | None
    following: int | None


GradientSums: TypeAlias = dict[Edge, tuple[GradientSum, ...]]
_Route: TypeAlias = tuple[Buffer, BoxSet, int, int]
"""The buffer, rows, source and destination of a message."""


def messages_of(owned: Ownership, sizes: Sizes, kind: StepKind, sums: GradientSums) -> tuple[Message, ...]:
    """Lists the messages of a micro-batch: forward in topological order, then, in training, backward."""
    routes = [
        *_shared_weights(owned),
        *_placed(owned, BufferKind.PARAMETERS),
        *_activations(owned),
        *_partial_sums(owned),
        *_summaries(owned),
    ]
    if kind.train:
        routes += [*_grad_outputs(owned, sums), *_grad_preactivations(owned)]
        routes += [*_grad_summaries(owned), *_shared_gradients(owned), *_placed(owned, BufferKind.GRADIENT)]
    if kind.train and kind.norms:
        routes += _to_each_other(NORMS, owned.parameter_owners)
    return tuple(
        Message(buffer, rows, source, destination, sizes.n_bytes(Operand(buffer, rows)))
        for buffer, rows, source, destination in routes
    )


def of_micro_batches(messages: Sequence[Message], *, micro_batches: int, overlap: int) -> tuple[Message, ...]:
    """Lists the messages of a step; parameters and norms travel once for each minibatch."""

    def of(number: int, *, shared: bool, count: int) -> Iterator[Message]:
        for message in messages:
            if message.buffer.is_of_minibatch == shared:
                yield replace(message, buffer=message.buffer.numbered(number)) if count > 1 else message

    total = micro_batches * overlap
    found = (of(n, shared=False, count=total) for n in range(total))
    shared = (of(n, shared=True, count=overlap) for n in range(overlap))
    return tuple(message for some in (*found, *shared) for message in some)


def _shared_weights(owned: Ownership) -> Iterator[_Route]:
    for grid in owned.graph.computed:
        for other in owned.weight_receivers(grid.name):
            yield Buffer(BufferKind.PARAMETERS, grid.name), BLOCK, owned.of(grid.name)[0].machine, other


def _shared_gradients(owned: Ownership) -> Iterator[_Route]:
    for grid in reversed(owned.graph.computed):
        for other in owned.weight_receivers(grid.name) if grid.learns else ():
            yield Buffer(BufferKind.GRADIENT, grid.name), BLOCK, other, owned.of(grid.name)[0].machine


def _placed(owned: Ownership, kind: BufferKind) -> Iterator[_Route]:
    """Lists parameters that several layers use, from owners to users, or their gradients back."""
    backward = kind is BufferKind.GRADIENT
    for name in owned.graph.placed:
        if backward and not owned.placement.learns(name):
            continue
        for owner, user, numbers in owned.placement.transfers(name):
            if backward and not owned.placement.learners(name, user):
                continue
            ends = (user, owner) if backward else (owner, user)
            yield of_parameter(kind, name), BoxSet.of_rows(numbers), *ends


def _summaries(owned: Ownership) -> Iterator[_Route]:
    for grid in owned.graph.computed:
        yield from _to_each_other(Buffer(BufferKind.SUMMARY, grid.name), owned.summary_senders(grid.name))


def _grad_summaries(owned: Ownership) -> Iterator[_Route]:
    for grid in reversed(owned.graph.computed):
        if grid.name in owned.graph.needs_gradient and owned.returns_summary(grid.name):
            buffer = Buffer(BufferKind.GRAD_SUMMARY, grid.name)
            yield from _to_each_other(buffer, owned.summary_senders(grid.name))


def _to_each_other(buffer: Buffer, machines: tuple[int, ...]) -> Iterator[_Route]:
    """Lists the exchange of a buffer whose row n belongs to the n-th machine."""
    for (n, source), (_, destination) in permutations(enumerate(machines), 2):
        yield buffer, BoxSet.of_rows((n, n + 1)), source, destination


def _partial_sums(owned: Ownership) -> Iterator[_Route]:
    """Lists partial sums, for every other machine that has the rows."""
    for grid in owned.graph.computed:
        for piece, other in permutations(owned.of(grid.name), 2) if owned.is_input_split(grid.name) else ():
            yield Buffer(BufferKind.PARTIAL_SUMS, grid.name), other.rows, piece.machine, other.machine


def _grad_preactivations(owned: Ownership) -> Iterator[_Route]:
    """Lists gradients of weighted sums, for every other machine that has weights of these rows."""
    for grid in reversed(owned.graph.computed):
        buffer = Buffer(BufferKind.GRAD_PREACTIVATION, grid.name)
        senders = owned.grad_senders(grid.name) if owned.is_input_split(grid.name) else ()
        for piece, other in permutations(owned.of(grid.name), 2) if senders else ():
            if piece.machine in senders:
                yield buffer, piece.rows, piece.machine, other.machine


def _activations(owned: Ownership) -> Iterator[_Route]:
    for grid in owned.graph.computed:
        listeners = {piece.machine for edge in owned.edges(grid.name) for piece in owned.of(edge.consumer)}
        for destination in sorted(listeners):
            needed = owned.needed_by_all(grid.name, destination)
            for piece, rows in owned.suppliers(grid.name, needed, destination):
                if piece.machine != destination:
                    yield activations(grid.name), rows, piece.machine, destination


def _grad_outputs(owned: Ownership, sums: GradientSums) -> Iterator[_Route]:
    for grid in reversed(owned.graph.computed):
        for edge in owned.grad_edges(grid.name) if grid.name in owned.graph.needs_gradient else ():
            joined: dict[tuple[int, int], BoxSet] = {}
            for part in sums[edge]:
                if part.following is not None:
                    ends = part.machine, part.following
                    joined[ends] = joined.get(ends, NOTHING) | part.rows
            for (source, destination), rows in joined.items():
                yield edge.buffer, rows, source, destination


def gradient_sums(owned: Ownership) -> GradientSums:
    """Lists the sums of gradients along each edge, in the order of the machines' pieces."""
    found: GradientSums = {}
    for layer in owned.graph.needs_gradient:
        for edge in owned.grad_edges(layer):
            by_part = owned.sums_by_machine(edge) or owned.crosses_tiles(edge)
            found[edge] = _sums_by_part(owned, edge) if by_part else _sums_in_order(owned, edge)
    return found


def _sums_by_part(owned: Ownership, edge: Edge) -> tuple[GradientSum, ...]:
    return tuple(
        GradientSum(
            edge, piece.machine, rows, None, None if owner.machine == piece.machine else owner.machine
        )
        for piece in owned.of(edge.consumer)
        for owner, rows in owned.suppliers(edge.layer, owned.grad_rows(edge, piece.machine), piece.machine)
    )


def _sums_in_order(owned: Ownership, edge: Edge) -> tuple[GradientSum, ...]:
    """Splits each machine's rows by the machines before and after it in the sum; copies stay apart."""
    order = [piece.machine for piece in owned.of(edge.consumer)]
    before, behind = _nearest(owned, edge, order), _nearest(owned, edge, order[::-1])
    found = []
    for machine in order:
        copies = owned.grad_rows(edge, machine) - owned.primary_grad_rows(edge, machine)
        if copies:
            found.append(GradientSum(edge, machine, copies, None, None))
        for previous, rows in before[machine]:
            for following, others in behind[machine]:
                rest = rows & others
                if rest and following is not None:
                    found.append(GradientSum(edge, machine, rest, previous, following))
                    continue
                for owner, final in owned.primary_owners(edge.layer, rest):
                    home = None if owner.machine == machine else owner.machine
                    found.append(GradientSum(edge, machine, final, previous, home))
    return tuple(found)


def _nearest(
    owned: Ownership, edge: Edge, order: Sequence[int]
) -> dict[int, list[tuple[int | None, BoxSet]]]:
    """Splits the rows that each machine passes on by the last machine before it that does so too.

    The nearest comes first; None, where there is none, last. In a plan with tiles rows are whole here,
    without columns.
    """
    width = (0, owned.graph[edge.layer].shape[1]) if owned.is_boxed(edge.layer) else None
    place = {machine: n for n, machine in enumerate(order)}
    latest: list[tuple[int, int, int]] = []  # ascending runs of rows, each with who passed them on last
    found: dict[int, list[tuple[int | None, BoxSet]]] = {}
    for machine in order:
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
