"""A lower bound on the step time of every plan of a network on a cluster, without a search.

Three bounds hold for each plan. Its machines do all the work, so the busiest takes at least the time of work
that is divided at will, each layer where it is fastest (`work_s`). Layers wait for one another, forward and
backward, each for at least its smallest instruction (`chain_s`). Where layers are fully connected, either one
machine does everything, or some layer waits for a message, and in training for the gradient that returns
(`apart_s`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from partita.layers.box import BLOCK, BoxSet
from partita.layers.connectivity import Full
from partita.layers.graph import Graph, Grid
from partita.partitioner.ir.buffer import activations
from partita.partitioner.ir.program import Instruction, Operand
from partita.partitioner.lower.piece_program import feed, forward, grad_input
from partita.partitioner.predict.cost import Costs

Numbers = npt.NDArray[np.float64]

ROUNDS: Final = 200
"""Iterations that improve the prices of machines."""


def lower_bound_s(costs: Costs) -> float:
    """Bounds any plan's step in seconds: of one micro-batch, or of as many as these costs are for."""
    if costs.sizes.micro_batches == 1:
        return Bound(costs).step_s
    whole = Costs(costs.graph, costs.cluster, batch=costs.sizes.batch, precision=costs.sizes.precision)
    return min(Bound(whole).step_s, Bound(costs).step_s)


class Bound:
    """The parts of the bound, for one network on one cluster."""

    def __init__(self, costs: Costs) -> None:
        self.costs, self.graph = costs, costs.graph
        self.train = bool(self.graph.losses)
        kinds: dict[int, list[int]] = {}
        for m, kind in enumerate(costs.cluster.kinds):
            kinds.setdefault(kind, []).append(m)
        self.of_kind = [machines[0] for machines in kinds.values()]
        self.counts = np.array([len(machines) for machines in kinds.values()], dtype=np.float64)
        self.seconds = np.array([list(self._took(m)) for m in self.of_kind])

    @property
    def step_s(self) -> float:
        """The largest of the bounds."""
        before_s = min(self.costs.step_s(m) for m in self.of_kind)
        return before_s + max(self.work_s, self.chain_s, min(self.alone_s, self.apart_s))

    @property
    def alone_s(self) -> float:
        """Least time of one machine that does everything."""
        return float(self.seconds.sum(axis=1).min())

    @property
    def work_s(self) -> float:
        """Least time of all work, divided at will: for any prices of machines that add up to one, its cost.

        (The dual of the linear program; prices are raised where machines would do too much.)
        """
        prices = 1 / np.maximum(self.seconds.sum(axis=1), 1e-30)
        best = 0.0
        for n in range(ROUNDS if len(prices) > 1 else 1):
            prices /= (prices * self.counts).sum()
            priced = prices[:, None] * self.seconds
            best = max(best, float(priced.min(axis=0).sum()))
            cheapest = priced.argmin(axis=0)
            loads = np.bincount(cheapest, self.seconds.min(axis=0), minlength=len(prices)) / self.counts
            prices *= np.exp((loads / max(loads.mean(), 1e-30) - 1) / (n + 2))
        return best

    @property
    def chain_s(self) -> float:
        """Longest chain of layers, forward and backward."""
        return max(self._rounds.values(), default=0.0)

    @property
    def apart_s(self) -> float:
        """Least time of more than one machine; 0 where they may need no message."""
        if len(self.costs.cluster) == 1 or not self._hangs_together():
            return 0.0 if len(self.costs.cluster) > 1 else self.alone_s
        message = self.costs.least_message_s
        ways = []
        for below, above in self._full_edges(losses=True):
            way = self._heights[below] + message + self._rounds[above]
            if self.train and {below, above} <= self.graph.needs_gradient:
                way += message + self._rests[below]
            ways.append(way)
        return min(ways)

    def _took(self, machine: int) -> Iterator[float]:
        """Seconds of each layer and input if this machine computed all of it, in the cheapest pieces."""
        for grid in self.graph.computed:
            rows = [grid.n_rows]
            while rows[-1] > 1:
                rows.append(rows[-1] // 2)
            yield min(
                self.costs.layer_s(grid.name, BoxSet.of_rows((0, n)), machine, train=self.train)
                * grid.n_rows
                / n
                for n in rows
            )
        for grid in self.graph.inputs:
            needed = BoxSet.union(
                *(
                    self.graph.source_rows(name, self.graph[name].whole.on(1), k)
                    for name, k in self.graph.consumers(grid.name)
                )
            )
            feed_s = self.costs.compute_s(feed(grid.name, needed), machine)
            yield feed_s * self.costs.sizes.micro_batches

    def _least(self, instruction: Instruction) -> float:
        return min(self.costs.compute_s(instruction, m) for m in self.of_kind)

    def _up(self, grid: Grid) -> float:
        return self._least(forward(grid, BLOCK, [BLOCK] * len(grid.sources)))

    def _down(self, grid: Grid) -> float:
        """Least instruction that passes a gradient on; 0 where none does."""
        error = Operand(activations(grid.name), BLOCK)
        errors = [
            grad_input(grid, k, BLOCK, error)
            for k, s in enumerate(grid.sources)
            if self.train and {s, grid.name} <= self.graph.needs_gradient
        ]
        return min(map(self._least, errors), default=0.0)

    @cached_property
    def _heights(self) -> dict[str, float]:
        """Longest forward chain up to each layer's activations."""
        found = {grid.name: 0.0 for grid in self.graph.grids if grid.is_placeholder}
        for grid in self.graph.computed:
            found[grid.name] = max(found[source] for source in grid.sources) + self._ups[grid.name]
        return found

    @cached_property
    def _rounds(self) -> dict[str, float]:
        """Longest chain from each layer forward to the end, and back to where it has passed gradients on."""
        found: dict[str, float] = {}
        for grid in reversed(self.graph.computed):
            above = max((found[name] for name, _ in self.graph.consumers(grid.name)), default=0.0)
            found[grid.name] = above + self._ups[grid.name] + self._downs[grid.name]
        return found

    @cached_property
    def _rests(self) -> dict[str, float]:
        """Longest backward chain below each layer."""
        found: dict[str, float] = {}
        for grid in self.graph.computed:
            below = [found[source] for source in grid.sources if source in self.graph.needs_gradient]
            found[grid.name] = self._downs[grid.name] + max(below) if below else 0.0
        return found

    @cached_property
    def _ups(self) -> dict[str, float]:
        return {grid.name: self._up(grid) for grid in self.graph.computed}

    @cached_property
    def _downs(self) -> dict[str, float]:
        return {grid.name: self._down(grid) for grid in self.graph.computed}

    def _full_edges(self, *, losses: bool) -> list[tuple[str, str]]:
        return [
            (source, grid.name)
            for grid in self.graph.computed
            if isinstance(grid.connectivity, Full) and (losses or grid.name not in self.graph.losses)
            for source in grid.sources
            if not self.graph[source].is_placeholder
        ]

    def _hangs_together(self) -> bool:
        """Returns whether full connections join at least two layers, and all but the losses."""
        layers = [grid.name for grid in self.graph.computed if grid.name not in self.graph.losses]
        reached, edges = {layers[0]}, self._full_edges(losses=False)
        while new := {n for edge in edges for n in edge if reached & set(edge)} - reached:
            reached |= new
        return len(layers) > 1 and reached == set(layers) and _judged_in_full(self.graph)


def _judged_in_full(graph: Graph) -> bool:
    return all(isinstance(graph[loss].connectivity, Full) for loss in graph.losses)
