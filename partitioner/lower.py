"""Lowering: from who owns what to a program for each machine.

Overlap is decided here, by the order of the list. On the way up a layer that splits its sum takes the block
of the machine's own rows first, and the others as they arrive. On the way down come, for each layer, first
the errors that another machine waits for, then the machine's own, then those that continue another's sum.
Gradients stand at the end: they fill the time in which errors travel.
"""

from __future__ import annotations

from typing import Literal

from partita.layers import rows as row_sets
from partita.layers.graph import Grid
from partita.layers.rows import Rows
from partita.partitioner.messages import Message, Sum, sums
from partita.partitioner.ownership import Edge, Ownership
from partita.partitioner.program import Instruction, Op, Operand, Program, ordered


def lower(owned: Ownership, messages: tuple[Message, ...], *, train: bool) -> tuple[Program, ...]:
    """One program for each machine: a step of training, or only its way up."""
    turns = _turns(owned) if train else {}
    outgoing, incoming = _by_buffer(messages, "source"), _by_buffer(messages, "destination")
    return tuple(
        _Lowering(
            owned,
            machine,
            outgoing=outgoing.get(machine, {}),
            incoming=incoming.get(machine, {}),
            turns=turns.get(machine, {}),
            train=train,
        ).program()
        for machine in range(owned.machines)
    )


def _turns(owned: Ownership) -> dict[int, dict[Edge, list[Sum]]]:
    """For each machine, its turns in summing errors along each edge."""
    found: dict[int, dict[Edge, list[Sum]]] = {}
    for layer in owned.graph.needs_error:
        for edge in owned.edges(layer):
            for turn in sums(owned, edge):
                found.setdefault(turn.machine, {}).setdefault(edge, []).append(turn)
    return found


def _by_buffer(
    messages: tuple[Message, ...], end: Literal["source", "destination"]
) -> dict[int, dict[str, list[Message]]]:
    """For each machine, the messages that it sends or receives, by the buffer that they speak of."""
    found: dict[int, dict[str, list[Message]]] = {}
    for message in messages:
        machine = message.source if end == "source" else message.destination
        found.setdefault(machine, {}).setdefault(message.buffer, []).append(message)
    return found


def parameters_of(own: Operand) -> Operand:
    """The parameters that belong to these rows of a layer."""
    return Operand(f"{own.buffer}.parameters", own.rows)


class _Lowering:
    """Collects one machine's instructions, and what each of them reads."""

    def __init__(
        self,
        owned: Ownership,
        machine: int,
        *,
        outgoing: dict[str, list[Message]],
        incoming: dict[str, list[Message]],
        turns: dict[Edge, list[Sum]],
        train: bool,
    ) -> None:
        self.owned, self.graph, self.machine, self.train = owned, owned.graph, machine, train
        self.outgoing, self.incoming, self.turns = outgoing, incoming, turns
        self.received: set[tuple[str, int]] = set()
        self.instructions: list[Instruction] = []
        self.reads: list[tuple[Operand, ...]] = []

    def program(self) -> Program:
        mine = [grid for grid in self.graph.computed if self._own(grid.name)]
        for grid in mine:
            self._up(grid)
        if self.train:
            for grid in reversed(mine):
                self._down(grid)
            for grid in reversed(mine):
                self._learn(grid)
        return ordered(self.machine, self.instructions, self.reads)

    def _own(self, layer: str) -> Rows:
        rows = self.owned.rows(layer, self.machine)
        return () if rows is None else (rows,)

    def _inputs(self, own: Operand) -> tuple[Operand, ...]:
        """The rows of each input that the machine's rows of a layer listen to."""
        return tuple(
            Operand(source, self.graph.source_rows(own.buffer, own.rows[0], k))
            for k, source in enumerate(self.graph[own.buffer].sources)
        )

    def _emit(
        self,
        op: Op,
        target: Operand,
        *sources: Operand,
        peer: int | None = None,
        accumulate: bool = False,
        reads: tuple[Operand, ...] = (),
    ) -> None:
        self.instructions.append(Instruction(op, target, sources, peer, accumulate))
        self.reads.append((*sources, *reads, *((target,) if op is Op.SEND or accumulate else ())))

    # The way up

    def _up(self, grid: Grid) -> None:
        target = Operand(grid.name, self._own(grid.name))
        for source in dict.fromkeys(grid.sources):
            self._obtain(source)
        needed = self._inputs(target)
        blocks = self._blocks(needed[0]) if grid.layer.splits_sum else [needed]
        for n, block in enumerate(blocks):
            op = Op.UP if n == len(blocks) - 1 else Op.MULTIPLY
            self._emit(op, target, *block, accumulate=n > 0, reads=(parameters_of(target),))
        for message in self.outgoing.get(grid.name, ()):
            self._emit(Op.SEND, Operand(message.buffer, message.rows), peer=message.destination)

    def _obtain(self, source: str) -> None:
        """Feeds or receives the rows of a layer that this machine's pieces listen to, once."""
        if (source, -1) in self.received:
            return
        self.received.add((source, -1))
        if self.graph[source].is_given:
            needed = self.owned.needed_by_all(source, self.machine)
            self._emit(Op.FEED, Operand(source, needed))
        for message in self.incoming.get(source, ()):
            self._emit(Op.RECV, Operand(message.buffer, message.rows), peer=message.source)

    def _blocks(self, needed: Operand) -> list[tuple[Operand, ...]]:
        """The machine's own rows first, then those of each other machine, in the order of their pieces."""
        if self.graph[needed.buffer].is_given:
            return [(needed,)]
        pieces = sorted(self.owned.of(needed.buffer), key=lambda piece: piece.machine != self.machine)
        found = [row_sets.intersection(needed.rows, (piece.rows,)) for piece in pieces]
        return [(Operand(needed.buffer, rows),) for rows in found if rows]

    # The way down

    def _down(self, grid: Grid) -> None:
        own = self._own(grid.name)
        if grid.name not in self.graph.needs_error:
            return
        error = self._gather(grid, own)
        if error is not None and grid.layer.activation != "linear":
            self._emit(Op.DELTA, error, Operand(grid.name, own), accumulate=True)
        for k, source in enumerate(grid.sources):
            if source in self.graph.needs_error:
                self._sum(Edge(source, grid.name, k), error)

    def _gather(self, grid: Grid, own: Rows) -> Operand | None:
        """Brings the errors of the machine's rows together; returns where (a loss is its own error: None)."""
        edges = self.owned.edges(grid.name)
        for edge in edges:
            arriving = self.incoming.get(edge.name, [])
            if not self.owned.by_part(edge):
                for message in arriving:
                    self._receive(message, edge.name)
                continue
            started = any(turn.following is None for turn in self.turns.get(edge, ()))
            for message in arriving:
                buffer = f"{edge.name}@{message.source}" if started else edge.name
                self._receive(message, buffer)
                if started:
                    target = Operand(edge.name, message.rows)
                    self._emit(Op.ADD, target, Operand(buffer, message.rows), accumulate=True)
                started = True
        if not edges:
            return None
        self._join(edges, own)
        return Operand(edges[0].name, own)

    def _join(self, edges: tuple[Edge, ...], own: Rows) -> None:
        """Adds the errors of all edges into the buffer of the first.

        A row to which nobody listens along the first edge still holds the sum of the step before (at first
        zero), so the first edge along which somebody does replaces it.
        """
        begun = self._heard(edges[0], own)
        for edge in edges[1:]:
            heard = self._heard(edge, own)
            added, copied = row_sets.intersection(heard, begun), row_sets.difference(heard, begun)
            for rows, accumulate in ((added, True), (copied, False)):
                if rows:
                    target = Operand(edges[0].name, rows)
                    self._emit(Op.ADD, target, Operand(edge.name, rows), accumulate=accumulate)
            begun = row_sets.union(begun, heard)

    def _heard(self, edge: Edge, rows: Rows) -> Rows:
        """Those of the rows to which somebody listens along the edge."""
        needed = (self.owned.needed(edge, machine) for machine in range(self.owned.machines))
        return row_sets.intersection(row_sets.union(*needed), rows)

    def _receive(self, message: Message, buffer: str) -> None:
        if (message.buffer, message.source) not in self.received:
            self.received.add((message.buffer, message.source))
            self._emit(Op.RECV, Operand(buffer, message.rows), peer=message.source)

    def _sum(self, edge: Edge, error: Operand | None) -> None:
        """Computes the errors of an input, first what others wait for, and sends them."""
        turns = sorted(
            self.turns.get(edge, ()), key=lambda turn: (turn.previous is not None, turn.following is None)
        )
        last = {turn.following: turn for turn in turns}
        for turn in turns:
            self._take_turn(turn, error)
            if turn.following is not None and last[turn.following] is turn:
                message = next(m for m in self.outgoing[edge.name] if m.destination == turn.following)
                self._emit(Op.SEND, Operand(edge.name, message.rows), peer=message.destination)

    def _take_turn(self, turn: Sum, error: Operand | None) -> None:
        for message in self.incoming.get(turn.edge.name, ()) if turn.previous is not None else ():
            if turn.previous == message.source:
                self._receive(message, turn.edge.name)
        consumer = turn.edge.consumer
        own = Operand(consumer, self._own(consumer))
        self._emit(
            Op.ERRORS,
            Operand(turn.edge.name, turn.rows),
            own if error is None else error,
            accumulate=turn.previous is not None,
            reads=(own, *self._inputs(own), parameters_of(own)),
        )

    def _learn(self, grid: Grid) -> None:
        if not grid.parameters:
            return
        own = self._own(grid.name)
        layer, gradient = Operand(grid.name, own), Operand(f"{grid.name}.gradient", own)
        error = Operand(self.owned.edges(grid.name)[0].name, own)
        self._emit(Op.GRADIENT, gradient, error, reads=(layer, *self._inputs(layer), parameters_of(layer)))
        self._emit(Op.UPDATE, parameters_of(layer), gradient, accumulate=True)
