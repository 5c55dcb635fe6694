"""The problem that a strategy solves, and prices of its pieces."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from partita.layers.box import BoxSet
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.assign import assigned, stays_with_scores
from partita.partitioner.assign.cuts import Cut, Cuts, cut_layer
from partita.partitioner.assign.piece import Piece
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.ir.sizes import ITEM_BYTES, PRECISIONS
from partita.partitioner.lower.lowering import Lowering
from partita.partitioner.lower.piece_program import feed
from partita.partitioner.plan import Plan
from partita.partitioner.predict.bound import lower_bound_s
from partita.partitioner.predict.cost import Costs


@dataclass(frozen=True)
class Task:
    """A network to be cut over a cluster, with the arguments of `partition`.

    Cuts by hand stand; a number of micro-batches not given is to be decided, and is one until then.
    """

    graph: Graph
    cluster: Cluster
    batch: int
    precision: str = "float32"
    by_hand: Cuts = field(default_factory=dict)
    micro_batches: int | None = 1

    @cached_property
    def costs(self) -> Costs:
        """Prices of instructions and messages."""
        return Costs(
            self.graph,
            self.cluster,
            batch=self.batch,
            precision=self.precision,
            micro_batches=self.n_micro_batches,
        )

    @property
    def n_micro_batches(self) -> int:
        """Number of micro-batches as far as it is decided."""
        return self.micro_batches or 1

    @cached_property
    def bound_s(self) -> float:
        """Lower bound on the step time of any plan, in seconds."""
        return lower_bound_s(self.costs)

    @cached_property
    def train(self) -> bool:
        """Returns whether a step trains."""
        return bool(self.graph.losses)

    def plan(self, cuts: Cuts) -> Plan:
        """Makes the plan of a cut of every layer.

        Raises:
            ValueError: a cut is impossible.
        """
        owned = assigned(self.graph, len(self.cluster), cuts)
        lowered = Lowering(owned, self.costs.sizes)
        count = self.n_micro_batches
        return Plan(self.graph, self.cluster, self.batch, owned, self.precision, count, lowered=lowered)

    def pieces(self, grid: Grid, cut: Cut) -> tuple[Piece, ...]:
        """Makes the pieces of a layer under a cut.

        Raises:
            ValueError: the cut is impossible.
        """
        return cut_layer(grid, cut, machines=len(self.cluster), source=self.graph[grid.sources[0]])

    @cached_property
    def free(self) -> Mapping[str, Grid]:
        """Layers to be cut: neither cut by hand nor losses that stay with their scores."""
        return {
            grid.name: grid
            for grid in self.graph.computed
            if grid.name not in self.by_hand and not stays_with_scores(self.graph, grid)
        }

    def row_s(self, grid: Grid, machine: int) -> float:
        """Prices a row of a layer, as its share of the whole layer, in seconds."""
        key = grid.name, self.cluster.kinds[machine]
        if key not in self._layer_s:
            self._layer_s[key] = self.layer_s(grid.name, grid.rows, machine) / grid.n_rows
        return self._layer_s[key]

    def layer_s(self, layer: str, rows: BoxSet, machine: int) -> float:
        """Prices all instructions of these rows of a layer in a step, in seconds."""
        key = self.geometry[layer], rows, self.cluster.kinds[machine]
        if key not in self._layer_s:
            self._layer_s[key] = self.costs.layer_s(layer, rows, machine, train=self.train)
        return self._layer_s[key]

    def piece_s(self, piece: Piece, pieces: Sequence[Piece]) -> float:
        """Prices a piece on its machine and the feeding of its inputs, in seconds.

        `pieces` are all pieces of the layer.
        """
        return self._computed_s(piece, pieces) + self._fed_s(piece)

    def _fed_s(self, piece: Piece) -> float:
        """Prices feeding a piece's inputs; an input counts for its first consumer."""
        took, graph = 0.0, self.graph
        for k, source in enumerate(graph[piece.layer].sources):
            if graph[source].is_placeholder and graph.consumers(source)[0] == (piece.layer, k):
                rows = (
                    BoxSet.of_rows(piece.inputs)
                    if piece.inputs
                    else graph.source_rows(piece.layer, piece.box.on(1), k)
                )
                took += self.costs.compute_s(feed(source, rows), piece.machine) * self.n_micro_batches
        return took

    def _computed_s(self, piece: Piece, pieces: Sequence[Piece]) -> float:
        if piece.inputs is None:
            return self.layer_s(piece.layer, piece.rows, piece.machine)
        shares = tuple(dict.fromkeys(each.rows for each in pieces))
        kind = self.cluster.kinds[piece.machine]
        key = self.geometry[piece.layer], piece.rows, piece.inputs, len(pieces), shares, kind
        if key not in self._layer_s:
            self._layer_s[key] = self.costs.inputs_s(piece, pieces, train=self.train)
        return self._layer_s[key]

    @cached_property
    def spreads(self) -> dict[tuple[int, ...], Cuts]:
        """Known spreads of the network over groups of machines; see `layouts.over`."""
        return {}

    @cached_property
    def _layer_s(self) -> dict[Hashable, float]:
        return {}

    @cached_property
    def geometry(self) -> Mapping[str, Hashable]:
        """A number for each layer; layers with equal numbers cost the same."""
        numbers: dict[Hashable, int] = {}
        return {
            grid.name: numbers.setdefault(_geometry_of(self.graph, grid), len(numbers))
            for grid in self.graph.grids
        }

    @cached_property
    def speeds(self) -> Mapping[int, float]:
        """Steps per second of the whole network on each machine alone."""
        took = {
            m: sum(self.layer_s(grid.name, grid.rows, m) for grid in self.graph.computed)
            for m in set(self.cluster.kinds)
        }
        return {m: 1.0 / max(took[kind], 1e-12) for m, kind in enumerate(self.cluster.kinds)}

    @cached_property
    def limits(self) -> Mapping[int, int]:
        """Memory limits of machines, in bytes."""
        machines = enumerate(self.cluster.machines)
        return {m: machine.memory_bytes for m, machine in machines if machine.memory_bytes is not None}

    @cached_property
    def tight_limits(self) -> Mapping[int, int]:
        """Limits that parts might exceed.

        Left out are machines with twice the memory of all parameters, six vectors of that length, and all
        activations and gradients with as many again in messages.
        """
        sizes = self.costs.sizes
        nodes = sum(
            grid.n_nodes * (1 + 2 * max(len(self.graph.consumers(grid.name)), 1)) for grid in self.graph.grids
        )
        states = nodes * self.batch * max(PRECISIONS[self.precision], ITEM_BYTES["int64"])
        plenty = 2 * (7 * self.graph.n_parameters * sizes.master_bytes + states)
        return {m: limit for m, limit in self.limits.items() if limit < plenty}


def _geometry_of(graph: Graph, grid: Grid) -> Hashable:
    if grid.is_placeholder:
        return grid.shape
    sources = tuple(graph[source].shape for source in grid.sources)
    learns = (
        grid.learns,
        grid.name in graph.needs_gradient,
        *(source in graph.needs_gradient for source in grid.sources),
    )
    given = tuple(
        graph[source].is_placeholder and graph.consumers(source)[0] == (grid.name, k)
        for k, source in enumerate(grid.sources)
    )
    sizes = tuple((p.size, p.shared) for p in grid.parameters)
    layer = grid.layer
    kind = (layer.kind, layer.activation, grid.wirings, grid.flops_per_node)
    return (kind, grid.shape, sources, learns, given, sizes)
