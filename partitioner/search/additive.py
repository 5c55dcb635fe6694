"""The additive cost model: for each layer its slowest machine, and the exchange with its consumers.

The model ignores waiting and overlap, so it ranks layouts but does not predict a step. Layers of equal
geometry are priced once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from partita.layers.box import BLOCK, Box
from partita.layers.graph import Grid
from partita.partitioner.assign.assign import stays_with_scores
from partita.partitioner.assign.cuts import (
    InputSplit,
    Replicated,
    RowSplit,
    Whole,
    following,
    follows_input,
)
from partita.partitioner.assign.piece import Piece
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Operand
from partita.partitioner.search.elimination import Table
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.message_counts import (
    MessageCounts,
    Numbers,
    Runs,
    count_messages,
    exchanged,
    joined,
)
from partita.partitioner.search.task import Task

JOINT_LIMIT: Final = 20_000
"""Above this number of combined layouts of a layer and its consumers, each consumer counts alone ..."""
JOINT_MACHINES: Final = 80_000
"""... or above this number divided by the number of machines."""
REMEMBERED: Final = 4_000_000
"""Numbers in remembered message counts, at most."""
MACHINES: Final = 256
"""An exchange over so many machines takes twice as long to price as one over few."""
COMPARED: Final = 100
"""Comparisons of arriving rows that take as long as making an instruction."""

T = TypeVar("T")


class Additive:
    """Costs of layouts for one task."""

    def __init__(self, task: Task) -> None:
        self.task, self.graph, self.n_machines = task, task.graph, len(task.cluster)
        self._geometry = task.geometry
        self._known: dict[Hashable, Any] = {}
        self._moved: dict[Hashable, tuple[MessageCounts, MessageCounts]] = {}
        self._none = MessageCounts.none(self.n_machines)
        self._consumers = {
            grid.name: tuple(dict.fromkeys(name for name, _ in self.graph.consumers(grid.name)))
            for grid in self.graph.computed
        }
        least = task.costs.least_message
        self.least_send_s, self.least_receive_s = (least.send_s, least.receive_s) if least else (0.0, 0.0)
        self.interrupts = np.array([task.costs.interrupts(m) for m in range(self.n_machines)])

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Makes a value once for a key, which begins with the kind of value."""
        found: T | None = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
        return found

    def tables(self, choices: Mapping[str, Sequence[Choice]], *, exchange: float = 1.0) -> list[Table]:
        """Tabulates the model over the choices; exchanges are multiplied by `exchange`."""
        found = []
        for grid in self.graph.computed:
            cuts = choices[grid.name]
            found.append(Table((grid.name,), np.array([self.compute_s(grid, cut) for cut in cuts])))
            for scope in self._scopes(grid, choices):
                found.append(Table((grid.name, *scope), exchange * self._exchanges(grid, scope, choices)))
        return found

    def effort(self, choices: Mapping[str, Sequence[Choice]]) -> int:
        """Estimates the exchanges to price for the tables; one over many machines counts several times."""
        found: dict[Hashable, int] = {}
        pieces = {cut: _n_machines(cut) for cuts in choices.values() for cut in cuts}
        for grid in self.graph.computed:
            for scope in self._scopes(grid, choices):
                names = (grid.name, *scope)
                mean = sum(sum(pieces[cut] for cut in choices[n]) / len(choices[n]) for n in names)
                each = 1.0 + (mean + self.n_machines) / MACHINES
                found[tuple(self._geometry[n] for n in names)] = int(each * _combinations(names, choices))
        return sum(found.values())

    def _scopes(self, grid: Grid, choices: Mapping[str, Sequence[Choice]]) -> list[tuple[str, ...]]:
        """Groups the consumers of a layer: all in one table, or each in its own if that is too large."""
        consumers = self._consumers[grid.name]
        limit = min(JOINT_LIMIT, JOINT_MACHINES // self.n_machines)
        if len(consumers) > 1 and _combinations((grid.name, *consumers), choices) > limit:
            return [(name,) for name in consumers]
        return [consumers] if consumers else []

    def _exchanges(
        self, grid: Grid, scope: tuple[str, ...], choices: Mapping[str, Sequence[Choice]]
    ) -> Numbers:
        """Prices the exchange of a layer with these consumers, for all combinations of choices.

        Boundaries of layers of equal geometry may differ by a few rows; the first such exchange stands for
        all.
        """
        names = (grid.name, *scope)

        def priced() -> Numbers:
            costs = np.empty([len(choices[name]) for name in names])
            for place in np.ndindex(*costs.shape):
                cuts = {name: choices[name][n] for name, n in zip(names, place, strict=True)}
                costs[place] = self.exchange_s(grid, cuts)
            return costs

        key = tuple((self._geometry[name], tuple(map(_without_sizes, choices[name]))) for name in names)
        return self._once(("exchanges", key), priced)

    def cost_s(self, cuts: Mapping[str, Choice]) -> float:
        """Prices a whole plan, in seconds."""
        total = 0.0
        for grid in self.graph.computed:
            total += self.compute_s(grid, cuts.get(grid.name))
            if len(near := self._near(grid, cuts)) > 1:
                total += self.exchange_s(grid, near)
        return total

    def _near(self, grid: Grid, cuts: Mapping[str, Choice]) -> dict[str, Choice]:
        """Selects the cuts of a layer and of its consumers."""
        return {name: cuts.get(name) for name in (grid.name, *self._consumers[grid.name])}

    def compute_s(self, grid: Grid, cut: Choice) -> float:
        """Prices the slowest piece and the exchange inside the layer: shared weights, sums over inputs.

        A loss that lies with its scores costs nothing.
        """
        if cut is None:
            return 0.0

        def priced() -> float:
            pieces = self.pieces(grid, cut)
            took = max(self.task.piece_s(piece, pieces) for piece in pieces)
            took += self._summaries_s(grid, [piece.machine for piece in pieces])
            return took + self._shared_weights_s(grid, pieces) + self._seconds(grid, self._inside(grid, cut))

        return self._once(("compute", self._geometry[grid.name], cut), priced)

    def _inside(self, grid: Grid, cut: Choice) -> tuple[MessageCounts, MessageCounts]:
        """Counts messages forward and backward between machines of a layer cut by its inputs."""

        def counted() -> tuple[MessageCounts, MessageCounts]:
            pieces = self.pieces(grid, cut)
            up = self._none if pieces[0].inputs is None else exchanged(pieces, self.n_machines)
            return up, up.reversed if self.task.train else self._none

        return self._once(("inside", self._geometry[grid.name], cut), counted)

    def exchange_s(self, grid: Grid, cuts: Mapping[str, Choice]) -> float:
        """Prices a layer's activations forward, its gradients backward, and summaries of scores.

        The cuts are those of the layer and of its consumers.
        """
        return self._once(
            ("exchange", self._key(cuts)),
            lambda: (
                self._seconds(grid, self._move(grid, cuts))
                + sum(self._loss_s(grid, name, cuts) for name in cuts)
            ),
        )

    def moved(self, grid: Grid, cuts: Mapping[str, Choice]) -> tuple[MessageCounts, MessageCounts]:
        """Counts messages forward and backward for the consumers that the cuts name."""
        key = self._key(cuts)
        if key not in self._moved:
            if 8 * self.n_machines * len(self._moved) >= REMEMBERED:
                self._moved.clear()
            self._moved[key] = self._move(grid, cuts)
        return self._moved[key]

    def _key(self, cuts: Mapping[str, Choice]) -> Hashable:
        return tuple((self._geometry[name], cut) for name, cut in cuts.items())

    def _move(self, grid: Grid, cuts: Mapping[str, Choice]) -> tuple[MessageCounts, MessageCounts]:
        owned, n_machines = self.runs(grid, cuts[grid.name]), self.n_machines
        edges = [(name, number) for name, number in self.graph.consumers(grid.name) if name in cuts]
        needed = [self.needed(grid, name, number, cuts) for name, number in edges]
        up = count_messages(owned, joined(needed, n_machines), n_machines)
        if not self.task.train or grid.name not in self.graph.needs_gradient:
            return up, self._none
        returned = [
            self._returned(name, runs, cuts)
            for (name, _), runs in zip(edges, needed, strict=True)
            if name in self.graph.needs_gradient
        ]
        if not returned:
            return up, self._none
        if len(returned) == 1 and returned[0] is needed[0]:
            return up, up.reversed
        down = np.sum([count_messages(owned, runs, n_machines) for runs in returned], axis=0)
        return up, MessageCounts(*down).reversed

    def _returned(self, consumer: str, needed: Runs, cuts: Mapping[str, Choice]) -> Runs:
        """Selects the machines that return gradients: of a replicated loss, the first alone."""
        cut, grid = cuts[consumer], self.graph[consumer]
        if (
            not isinstance(cut, Replicated)
            or consumer not in self.graph.losses
            or self._stays(consumer, cuts)
        ):
            return needed
        return needed.only(needed.machines == min(piece.machine for piece in self.pieces(grid, cut)))

    def pieces(self, grid: Grid, cut: Choice) -> tuple[Piece, ...]:
        """Makes the pieces of a cut."""
        assert cut is not None, f"{grid.name} lies where its scores do"
        return self._once(("pieces", grid.name, cut), lambda: self.task.pieces(grid, cut))

    def runs(self, grid: Grid, cut: Choice) -> Runs:
        """Makes the rows of each machine under a cut; rows of copies count for the first owner."""
        return self._once(
            ("runs", self._geometry[grid.name], cut),
            lambda: Runs.owned(self.pieces(grid, cut), self.n_machines, width=_width(grid)),
        )

    def placed(self, grid: Grid, cuts: Mapping[str, Choice]) -> tuple[Piece, ...]:
        """Makes the pieces of a layer under its cut and that of its input, which it may follow."""
        pieces, below = self.pieces(grid, cuts[grid.name]), grid.sources[0]
        if not follows_input(cuts[grid.name]) or cuts.get(below) is None:
            return pieces
        return following(pieces, self.pieces(self.graph[below], cuts[below]))

    def needed(self, grid: Grid, consumer: str, number: int, cuts: Mapping[str, Choice]) -> Runs:
        """Finds the rows of a layer that each machine needs along one input of a consumer."""
        if self._stays(consumer, cuts) and self.graph[consumer].sources[0] == grid.name:
            return self.runs(grid, cuts[grid.name])  # a loss that lies with its scores
        if cuts[consumer] is None:
            return Runs.of({})

        def found() -> Runs:
            pieces = self.placed(self.graph[consumer], cuts)
            columns = grid.is_picture and any(piece.columns is not None for piece in pieces)
            needed = {
                p.machine: Box((p.inputs,))
                if p.inputs
                else self.graph.source_rows(
                    consumer, p.box if columns else p.box.on(1), number, columns=columns
                ).hull
                for p in pieces
            }
            return Runs.of(needed, width=_width(grid))

        below = cuts[grid.name] if follows_input(cuts[consumer]) else None
        layers = self._geometry[grid.name], self._geometry[consumer]
        return self._once(("needed", layers, number, cuts[consumer], below), found)

    def _stays(self, loss: str, cuts: Mapping[str, Choice]) -> bool:
        """Returns whether a loss lies with its scores, also where it is replicated there."""
        grid, cut, scores = self.graph[loss], cuts[loss], cuts.get(self.graph[loss].sources[0])
        if not isinstance(cut, Replicated) or scores is None or not stays_with_scores(self.graph, grid):
            return cut is None
        evaluators = self.runs(self.graph[grid.sources[0]], scores).machines
        return sorted(evaluators) == sorted(piece.machine for piece in self.pieces(grid, cut))

    def lanes_s(self, cuts: Mapping[str, Choice]) -> float:
        """Bounds a plan's step from below by the busiest threads of any machine.

        Sums kernel seconds, and beside or on top of them messages: activations in and out, and gradients of
        consumers that add them up by machine.
        """
        kernels, communication = np.zeros((2, self.n_machines))
        for grid in self.graph.computed:
            cut, near = cuts.get(grid.name), self._near(grid, cuts)
            if cut is not None:
                kernels += self._kernels_s(grid, cuts)
                communication += self._least_s(self._inside(grid, cut)[0])
            if len(near) > 1:
                up, down = self.moved(grid, near)
                ordered = (self.graph[n].connectivity.ordered_gradients for n in near if n != grid.name)
                for way in (up,) if any(ordered) else (up, down):
                    communication += self._least_s(way) * self.task.n_micro_batches
        both = np.where(self.interrupts, kernels + communication, np.maximum(kernels, communication))
        return float(both.max())

    def _kernels_s(self, grid: Grid, cuts: Mapping[str, Choice]) -> Numbers:
        """Sums kernel seconds of each machine for a layer; a replicated loss counts nothing."""

        def summed() -> Numbers:
            found, pieces = np.zeros(self.n_machines), self.placed(grid, cuts)
            for piece in pieces if len(pieces) == 1 or grid.name not in self.graph.losses else ():
                found[piece.machine] = self.task.piece_s(piece, pieces)
            return found

        cut = cuts[grid.name]
        below = cuts.get(grid.sources[0]) if follows_input(cut) else None
        return self._once(("kernels", self._geometry[grid.name], cut, below), summed)

    def _least_s(self, way: MessageCounts) -> Numbers:
        return way.sent * self.least_send_s + way.received * self.least_receive_s

    def size(self, cuts: Mapping[str, Choice]) -> int:
        """Estimates the number of instructions of a candidate, with the effort of comparing arriving rows."""
        found = 0.0
        for grid in self.graph.computed:
            cut, near = cuts.get(grid.name), self._near(grid, cuts)
            pieces = () if cut is None else self.pieces(grid, cut)
            found += 5 * max(len(pieces), 1) + 6 * grid.shares_weights * len(pieces)
            if pieces and pieces[0].inputs is not None:
                found += 2 * _to_each_other(len(pieces))
            if len(near) > 1:
                for way in self.moved(grid, near):
                    found += 3 * float(way.sent.sum()) + float((way.received**2).sum()) / COMPARED
                if any(near[name] is None and self.graph[name].summary is not None for name in near):
                    found += _to_each_other(len(pieces))
            if grid.summary is not None:
                found += (1 + grid.returns_summary) * _to_each_other(len(pieces))
        return int(found)

    def _seconds(self, grid: Grid, ways: Sequence[MessageCounts]) -> float:
        """Prices messages of a layer's rows: of machines with most messages or bytes, with one latency."""
        row_bytes = self._n_bytes(BufferKind.ACTIVATIONS, grid)
        return sum(self._way_s(way, row_bytes) for way in ways if way.sent.any())

    def _n_bytes(self, kind: BufferKind, grid: Grid) -> int:
        return self.task.costs.sizes.n_bytes(Operand(Buffer(kind, grid.name), BLOCK))

    def _way_s(self, way: MessageCounts, row_bytes: int) -> float:
        took, n_messages = 0.0, way.sent + way.received
        for m in {int(np.argmax(n_messages)), int(np.argmax(way.sent_rows + way.received_rows))}:
            other = int(np.argmax(n_messages * (np.arange(self.n_machines) != m)))
            communication = wire = latency = 0.0
            for count, rows, ends in (
                (way.sent[m], way.sent_rows[m], (m, other)),
                (way.received[m], way.received_rows[m], (other, m)),
            ):
                if count:
                    cost = self.task.costs.message(int(rows / count * row_bytes), *ends)
                    communication += count * (cost.send_s if ends[0] == m else cost.receive_s)
                    wire = max(wire, count * cost.wire_s)
                    latency = cost.latency_s
            took = max(took, max(communication, wire) + latency)
        return took

    def _shared_weights_s(self, grid: Grid, pieces: Sequence[Piece]) -> float:
        """Prices sending shared weights to every other machine, and returning their gradients."""
        if not grid.shares_weights or len(pieces) == 1 or pieces[0].inputs is not None:
            return 0.0
        kinds = (BufferKind.PARAMETERS, BufferKind.GRADIENT)[: 1 + self.task.train]
        machines = [piece.machine for piece in pieces]
        return sum(self._to_each(self._n_bytes(kind, grid), machines) for kind in kinds)

    def _loss_s(self, grid: Grid, loss: str, cuts: Mapping[str, Choice]) -> float:
        """Prices a loss that lies with its scores, and the exchange of summaries."""
        if loss == grid.name or cuts[loss] is not None or self.graph[loss].sources[0] != grid.name:
            return 0.0
        evaluators = [int(machine) for machine in self.runs(grid, cuts[grid.name]).machines]
        took = max(self.task.layer_s(loss, BLOCK, machine) for machine in evaluators) / len(evaluators)
        return took + self._summaries_s(self.graph[loss], evaluators)

    def _summaries_s(self, grid: Grid, machines: Sequence[int]) -> float:
        """Prices the exchange of summaries, and of their gradients."""
        if grid.summary is None or len(machines) == 1:
            return 0.0
        n_bytes = self._n_bytes(BufferKind.SUMMARY, grid)
        return (1 + (self.task.train and grid.returns_summary)) * self._to_each(n_bytes, machines)

    def _to_each(self, n_bytes: int, machines: Sequence[int]) -> float:
        """Prices sending so many bytes from the first machine to each other one."""
        cost = self.task.costs.message(n_bytes, machines[0], machines[-1])
        return (len(machines) - 1) * max(cost.send_s + cost.receive_s, cost.wire_s) + cost.latency_s


def _width(grid: Grid) -> int:
    return grid.shape[1] if grid.is_picture else 1


def _to_each_other(n: int) -> float:
    """Estimates the instructions for an exchange between every two of n machines."""
    return n * (n - 1) * (3 + (n - 1) / COMPARED)


def _n_machines(cut: Choice) -> int:
    if cut is None or isinstance(cut, Whole):
        return 1
    return cut.machines if isinstance(cut.machines, int) else len(cut.machines)


def _combinations(layers: Sequence[str], choices: Mapping[str, Sequence[Choice]]) -> int:
    return math.prod(len(choices[layer]) for layer in layers)


def _without_sizes(cut: Choice) -> Choice:
    return replace(cut, sizes=None) if isinstance(cut, RowSplit | InputSplit) else cut
