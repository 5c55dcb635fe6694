"""The cost model that sums: for each layer its slowest machine, and what it exchanges with its listeners.

It knows neither waiting nor overlap, so it does not predict a step; it ranks layouts, exactly enough to start
from. What layers of equal geometry cost is computed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from partita.layers.graph import Grid
from partita.layers.losses import Loss
from partita.layers.rows import bounds
from partita.partitioner.buffer_names import GRADIENT, PARAMETERS, SUMMARY
from partita.partitioner.cuts import Pieces, cut_layer
from partita.partitioner.ownership import Piece
from partita.partitioner.program import Operand
from partita.partitioner.search.elimination import Table
from partita.partitioner.search.layouts import Choice
from partita.partitioner.search.task import Task
from partita.partitioner.search.traffic import Numbers, Runs, Traffic, joined, traffic

JOINT_LIMIT: Final = 20_000
"""Where a layer and its listeners have more combinations of layouts, each listener is counted by itself."""
MOST_KINDS: Final = 32
"""So many machines stand for all, when the cheapest message is looked for."""


class Additive:
    """Costs of layouts, for one task."""

    def __init__(self, task: Task) -> None:
        self.task, self.graph, self.n_machines = task, task.graph, len(task.cluster)
        self._geometry = task.geometry
        self._known: dict[Hashable, float] = {}
        self._tables: dict[Hashable, Numbers] = {}
        self._moved: dict[Hashable, tuple[Traffic, Traffic]] = {}
        self._kernels: dict[Hashable, Numbers] = {}
        self._pieces: dict[tuple[str, Choice], tuple[Piece, ...]] = {}
        self._heard: dict[Hashable, Runs] = {}
        self._runs: dict[Hashable, Runs] = {}
        self.least_send_s, self.least_receive_s = self._least()

    def tables(self, choices: Mapping[str, Sequence[Choice]], *, exchange: float = 1.0) -> list[Table]:
        """The model as tables over the choices; exchanges count so many times."""
        found = []
        for grid in self.graph.computed:
            cuts = choices[grid.name]
            found.append(Table((grid.name,), np.array([self.compute_s(grid, cut) for cut in cuts])))
            listeners = self._listeners(grid)
            combinations = np.prod([float(len(choices[name])) for name in (grid.name, *listeners)])
            scopes = [listeners] if combinations <= JOINT_LIMIT else [(name,) for name in listeners]
            for scope in scopes if listeners else ():
                found.append(Table((grid.name, *scope), exchange * self._exchanges(grid, scope, choices)))
        return found

    def _exchanges(
        self, grid: Grid, scope: tuple[str, ...], choices: Mapping[str, Sequence[Choice]]
    ) -> Numbers:
        """What a layer exchanges with these listeners, for all combinations of choices.

        Between layers of equal geometry boundaries may differ by a few rows; what the first ones exchange
        stands for all.
        """
        names = (grid.name, *scope)
        key = tuple((self._geometry[name], tuple(map(_without_sizes, choices[name]))) for name in names)
        if key not in self._tables:
            costs = np.empty([len(choices[name]) for name in names])
            for place in np.ndindex(*costs.shape):
                cuts = {name: choices[name][n] for name, n in zip(names, place, strict=True)}
                costs[place] = self.exchange_s(grid, cuts)
            self._tables[key] = costs
        return self._tables[key]

    def _listeners(self, grid: Grid) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.graph.consumers(grid.name)))

    def cost_s(self, cuts: Mapping[str, Choice]) -> float:
        """Of a whole plan."""
        total = 0.0
        for grid in self.graph.computed:
            total += self.compute_s(grid, cuts.get(grid.name))
            if listeners := self._listeners(grid):
                total += self.exchange_s(grid, {n: cuts.get(n) for n in (grid.name, *listeners)})
        return total

    def compute_s(self, grid: Grid, cut: Choice) -> float:
        """The slowest machine's piece, and what lent weights take. Nothing for a loss with its scores."""
        if cut is None:
            return 0.0
        key = (self._geometry[grid.name], cut)
        if key not in self._known:
            pieces = self.pieces(grid, cut)
            took = max(self.task.layer_s(grid.name, piece.rows, piece.machine) for piece in pieces)
            self._known[key] = took + self._lent_s(grid, pieces)
        return self._known[key]

    def exchange_s(self, grid: Grid, cuts: Mapping[str, Choice]) -> float:
        """Of a layer's states, up, and of its errors, down; with what machines tell of their scores.

        Args:
            grid: the layer.
            cuts: of the layer, and of those that listen to it.
        """
        key = tuple((self._geometry[name], cut) for name, cut in cuts.items())
        if key not in self._known:
            up, down = self.moved(grid, cuts)
            row_bytes = self.task.costs.sizes.n_bytes(Operand(grid.name, ((0, 1),)))
            found = self._seconds(up, row_bytes) + self._seconds(down, row_bytes)
            self._known[key] = found + sum(self._judged_s(grid, name, cuts) for name in cuts)
        return self._known[key]

    def moved(self, grid: Grid, cuts: Mapping[str, Choice]) -> tuple[Traffic, Traffic]:
        """States up and errors down, of the listeners that the cuts name."""
        key = tuple((self._geometry[name], cut) for name, cut in cuts.items())
        if key not in self._moved:
            self._moved[key] = self._move(grid, cuts)
        return self._moved[key]

    def _move(self, grid: Grid, cuts: Mapping[str, Choice]) -> tuple[Traffic, Traffic]:
        owned = self.runs(grid, cuts[grid.name])
        heard = [
            self.heard(grid, name, number, cuts)
            for name, number in self.graph.consumers(grid.name)
            if name in cuts
        ]
        up = traffic(owned, joined(heard, self.n_machines), self.n_machines)
        down = Traffic.none(self.n_machines)
        if self.task.train and grid.name in self.graph.needs_error:
            for runs in heard:
                down = down + traffic(owned, runs, self.n_machines).reversed
        return up, down

    def pieces(self, grid: Grid, cut: Choice) -> tuple[Piece, ...]:
        """The pieces of a cut."""
        key = grid.name, cut
        if key not in self._pieces:
            assert cut is not None, f"{grid.name} lies where its scores do"
            source = self.graph[grid.sources[0]]
            self._pieces[key] = cut_layer(grid, cut, machines=self.n_machines, source=source)
        return self._pieces[key]

    def runs(self, grid: Grid, cut: Choice) -> Runs:
        """The pieces of a cut, as runs of rows."""
        key = self._geometry[grid.name], cut
        if key not in self._runs:
            self._runs[key] = Runs.of({piece.machine: piece.rows for piece in self.pieces(grid, cut)})
        return self._runs[key]

    def heard(self, grid: Grid, listener: str, number: int, cuts: Mapping[str, Choice]) -> Runs:
        """What each machine hears of a layer, along one input of a listener."""
        if cuts[listener] is None and self.graph[listener].sources[0] == grid.name:
            return self.runs(grid, cuts[grid.name])  # a loss that lies where its scores do
        if cuts[listener] is None:
            return Runs.of({})
        key = (self._geometry[grid.name], self._geometry[listener], number, cuts[listener])
        if key not in self._heard:
            pieces = self.pieces(self.graph[listener], cuts[listener])
            heard = {p.machine: bounds(self.graph.source_rows(listener, p.rows, number)) for p in pieces}
            self._heard[key] = Runs.of(heard)
        return self._heard[key]

    def lanes_s(self, cuts: Mapping[str, Choice]) -> float:
        """What the busiest threads of any machine do at least in a step of a plan: a bound on its step.

        Kernels' seconds, and apart from them messages: the states that it sends and takes in, and the errors
        of listeners that add them up machine by machine.
        """
        kernels, messenger = np.zeros(self.n_machines), np.zeros(self.n_machines)
        for grid in self.graph.computed:
            cut, listeners = cuts.get(grid.name), self._listeners(grid)
            if cut is not None:
                kernels += self._kernels_s(grid, cut)
            if listeners:
                up, down = self.moved(grid, {name: cuts.get(name) for name in (grid.name, *listeners)})
                for way in (up, down) if self._adds_by_part(listeners) else (up,):
                    messenger += way.sent * self.least_send_s + way.received * self.least_receive_s
        return float(max(kernels.max(), messenger.max()))

    def _kernels_s(self, grid: Grid, cut: Choice) -> Numbers:
        """Of each machine, for its piece of a layer."""
        key = self._geometry[grid.name], cut
        if key not in self._kernels:
            found = np.zeros(self.n_machines)
            for piece in self.pieces(grid, cut):
                found[piece.machine] = self.task.layer_s(grid.name, piece.rows, piece.machine)
            self._kernels[key] = found
        return self._kernels[key]

    def size(self, choices: Mapping[str, Choice]) -> int:
        """About how many instructions a candidate has."""
        found = 0.0
        for grid in self.graph.computed:
            cut = choices.get(grid.name)
            found += 5 * (1 if cut is None else len(self.pieces(grid, cut)))
            if listeners := self._listeners(grid):
                up, down = self.moved(grid, {n: choices.get(n) for n in (grid.name, *listeners)})
                found += 3 * float(up.sent.sum() + down.sent.sum())
        return int(found)

    def _adds_by_part(self, listeners: Sequence[str]) -> bool:
        return all(not self.graph[name].layer.connectivity.ordered_errors for name in listeners)

    def _seconds(self, way: Traffic, row_bytes: int) -> float:
        """Of the machine that has most messages, and of the one that has most bytes; with one latency."""
        if not way.sent.any():
            return 0.0
        took = 0.0
        for m in {int(np.argmax(way.sent + way.received)), int(np.argmax(way.sent_rows + way.received_rows))}:
            other = int(np.argmax((way.sent + way.received) * (np.arange(self.n_machines) != m)))
            messenger = wire = latency = 0.0
            for count, rows, ends in (
                (way.sent[m], way.sent_rows[m], (m, other)),
                (way.received[m], way.received_rows[m], (other, m)),
            ):
                if count:
                    cost = self.task.costs.message(int(rows / count * row_bytes), *ends)
                    messenger += count * (cost.send_s if ends[0] == m else cost.receive_s)
                    wire = max(wire, count * cost.wire_s)
                    latency = cost.latency_s
            took = max(took, max(messenger, wire) + latency)
        return took

    def _lent_s(self, grid: Grid, pieces: Sequence[Piece]) -> float:
        """Weights that all nodes share go to every other machine, and sums of gradients come back."""
        if not grid.shares_weights or len(pieces) == 1:
            return 0.0
        took = 0.0
        for buffer in (PARAMETERS, GRADIENT) if self.task.train else (PARAMETERS,):
            n_bytes = self.task.costs.sizes.n_bytes(Operand(grid.name + buffer, ((0, 1),)))
            took += self._to_each(n_bytes, [piece.machine for piece in pieces])
        return took

    def _judged_s(self, grid: Grid, loss: str, cuts: Mapping[str, Choice]) -> float:
        """The loss's own time, and what its judges tell one another, where it lies with its scores."""
        layer = self.graph[loss].layer
        if cuts[loss] is not None or not isinstance(layer, Loss) or self.graph[loss].sources[0] != grid.name:
            return 0.0
        pieces = self.pieces(grid, cuts[grid.name])
        took = max(self.task.layer_s(loss, (0, 1), p.machine) for p in pieces) / len(pieces)
        if layer.summary_rows and len(pieces) > 1:
            n_bytes = self.task.costs.sizes.n_bytes(Operand(loss + SUMMARY, ((0, 1),)))
            took += self._to_each(n_bytes, [piece.machine for piece in pieces])
        return took

    def _to_each(self, n_bytes: int, machines: Sequence[int]) -> float:
        """The first machine sends so much to each of the others."""
        cost = self.task.costs.message(n_bytes, machines[0], machines[-1])
        return (len(machines) - 1) * max(cost.send_s + cost.receive_s, cost.wire_s) + cost.latency_s

    def _least(self) -> tuple[float, float]:
        """Of a message's seconds on a messenger: the least between machines of any two kinds."""
        kinds = self.task.cluster.kinds
        firsts = dict(zip(reversed(kinds), reversed(range(len(kinds))), strict=True))
        lasts = dict(zip(kinds, range(len(kinds)), strict=True))
        some = sorted({*firsts.values(), *lasts.values()})[:MOST_KINDS]
        costs = [self.task.costs.message(1, a, b) for a in some for b in some if a != b]
        return min((c.send_s for c in costs), default=0.0), min((c.receive_s for c in costs), default=0.0)


def _without_sizes(cut: Choice) -> Choice:
    return replace(cut, sizes=None) if isinstance(cut, Pieces) else cut
