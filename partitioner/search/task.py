"""What is to be decided, and what a decision takes: its programs are played on the virtual clock."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from partita.layers.box import BoxSet
from partita.layers.graph import Graph, Grid
from partita.partitioner.assign.assign import assigned
from partita.partitioner.assign.cuts import Cuts
from partita.partitioner.assign.piece import Piece
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.ir.program import Program
from partita.partitioner.ir.sizes import ITEM_BYTES, PRECISIONS
from partita.partitioner.lower.piece_program import feed
from partita.partitioner.plan import Plan
from partita.partitioner.predict.bound import lower_bound_s
from partita.partitioner.predict.cost import Costs


@dataclass(frozen=True)
class Task:
    """A network to be cut.

    Args:
        graph: the network.
        cluster: over these machines.
        batch: examples in a minibatch.
        precision: of states and errors.
        by_hand: cuts that stand.
        micro_batches: into how many portions the minibatch is divided; None: to be decided, meanwhile one.
    """

    graph: Graph
    cluster: Cluster
    batch: int
    precision: str = "float32"
    by_hand: Cuts = field(default_factory=dict)
    micro_batches: int | None = 1

    @cached_property
    def costs(self) -> Costs:
        """Of instructions and messages."""
        return Costs(
            self.graph,
            self.cluster,
            batch=self.batch,
            precision=self.precision,
            micro_batches=self.portions,
        )

    @property
    def portions(self) -> int:
        """Into how many the minibatch is divided, as far as it is decided."""
        return self.micro_batches or 1

    @cached_property
    def bound_s(self) -> float:
        """What no plan's step can be below."""
        return lower_bound_s(self.costs)

    @cached_property
    def train(self) -> bool:
        """Whether a step learns."""
        return bool(self.graph.losses)

    def plan(self, cuts: Cuts) -> Plan:
        """The plan of a cut of every layer.

        Raises:
            ValueError: a cut cannot be.
        """
        owned = assigned(self.graph, len(self.cluster), cuts)
        return Plan(self.graph, self.cluster, self.batch, owned, self.precision, self.portions)

    def layer_s(self, layer: str, rows: BoxSet, machine: int) -> float:
        """Seconds of these rows of a layer on a machine, all that a step does with them."""
        key = self.geometry[layer], rows, self.cluster.kinds[machine]
        if key not in self._layer_s:
            self._layer_s[key] = self.costs.layer_s(layer, rows, machine, train=self.train)
        return self._layer_s[key]

    def piece_s(self, piece: Piece, pieces: Sequence[Piece]) -> float:
        """Seconds of a piece on its machine, and of feeding it with what is given.

        Args:
            piece: of a layer.
            pieces: all of the layer.
        """
        return self._computed_s(piece, pieces) + self._fed_s(piece)

    def _fed_s(self, piece: Piece) -> float:
        """Seconds to feed the inputs that a piece hears; one counts for the first layer that hears it."""
        took, graph = 0.0, self.graph
        for k, source in enumerate(graph[piece.layer].sources):
            if graph[source].is_placeholder and graph.consumers(source)[0] == (piece.layer, k):
                rows = (
                    BoxSet.of_rows(piece.inputs)
                    if piece.inputs
                    else graph.source_rows(piece.layer, piece.box.on(1), k)
                )
                took += self.costs.compute_s(feed(source, rows), piece.machine) * self.portions
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
        """The network over groups of machines, as far as that was asked for; see `layouts.over`."""
        return {}

    @cached_property
    def _layer_s(self) -> dict[Hashable, float]:
        return {}

    @cached_property
    def geometry(self) -> Mapping[str, Hashable]:
        """For each layer a number: layers that have the same one cost the same."""
        numbers: dict[Hashable, int] = {}
        return {
            grid.name: numbers.setdefault(_geometry_of(self.graph, grid), len(numbers))
            for grid in self.graph.grids
        }

    @cached_property
    def speeds(self) -> Mapping[int, float]:
        """How much of the network each machine could do in a second, alone."""
        took = {
            m: sum(self.layer_s(grid.name, grid.rows, m) for grid in self.graph.computed)
            for m in set(self.cluster.kinds)
        }
        return {m: 1.0 / max(took[kind], 1e-12) for m, kind in enumerate(self.cluster.kinds)}

    @cached_property
    def limits(self) -> Mapping[int, int]:
        """The memory of the machines that have a limit (bytes)."""
        machines = enumerate(self.cluster.machines)
        return {m: machine.memory_bytes for m, machine in machines if machine.memory_bytes is not None}

    @cached_property
    def tight_limits(self) -> Mapping[int, int]:
        """Those of which it is not plain that any part, even the whole network, fits.

        Plain is it where there is twice the room of all parameters with six vectors of that length besides,
        and of all states and errors with as many again on their way.
        """
        sizes = self.costs.sizes
        nodes = sum(
            grid.n_nodes * (1 + 2 * max(len(self.graph.consumers(grid.name)), 1)) for grid in self.graph.grids
        )
        states = nodes * self.batch * max(PRECISIONS[self.precision], ITEM_BYTES["int64"])
        plenty = 2 * (7 * self.graph.n_parameters * sizes.master_bytes + states)
        return {m: limit for m, limit in self.limits.items() if limit < plenty}


@dataclass(frozen=True)
class Decision:
    """A cut for every layer, but for losses that lie where their scores do; and how a step is divided.

    Args:
        cuts: by layer; those by hand stand.
        micro_batches: into how many portions a minibatch is divided.
        programs: of a step, where the strategy has made them to play them; one for each machine.
    """

    cuts: Cuts
    micro_batches: int = 1
    programs: tuple[Program, ...] = field(default=(), compare=False, repr=False)


def _geometry_of(graph: Graph, grid: Grid) -> Hashable:
    """What layers of equal cost have in common."""
    if grid.is_placeholder:
        return grid.shape
    sources = tuple(graph[source].shape for source in grid.sources)
    learns = (grid.name in graph.needs_error, *(source in graph.needs_error for source in grid.sources))
    given = tuple(
        graph[source].is_placeholder and graph.consumers(source)[0] == (grid.name, k)
        for k, source in enumerate(grid.sources)
    )
    sizes = tuple((p.size, p.shared) for p in grid.parameters)
    layer = grid.layer
    kind = (layer.kind, layer.activation, layer.connectivity, grid.flops_per_node)
    return (kind, grid.shape, sources, learns, given, sizes)
