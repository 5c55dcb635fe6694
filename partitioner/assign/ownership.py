"""Ownership: the rows of each layer that each machine owns. Everything else in a plan follows from it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter

from partita.layers.box import NOTHING, Box, BoxSet, Span
from partita.layers.connectivity import OneToOne, Patch
from partita.layers.graph import Graph, Grid
from partita.layers.losses import Loss
from partita.partitioner.assign.coverage import check_coverage, is_tile, with_columns
from partita.partitioner.assign.parameter_slice import ParameterSlice
from partita.partitioner.assign.piece import Piece, flops_of
from partita.partitioner.assign.placement import Placement
from partita.partitioner.ir.buffer import Edge
from partita.partitioner.memoised import memoised


@dataclass(frozen=True)
class Ownership:
    """The pieces of every computed layer; a machine has at most one piece of a layer.

    Rows of a layer without weights of its own may be replicated: each replica receives the same inputs and
    serves its own machine. The first piece that has a row is its primary owner and serves all machines
    without a replica.

    Inputs and targets belong to nobody: every machine is fed the rows that its pieces read. The one row of a
    loss whose scores are cut may belong to every machine that owns scores: each evaluates its own loss shard.
    Of a loss that is only replicated, the first machine's counts.

    If some picture is cut into tiles, the pieces of all pictures name their columns, and sets of their rows
    are sets of tiles; such pictures are not replicated. Otherwise no piece names columns.

    Raises:
        ValueError: the pieces of a layer do not cover it once.
    """

    graph: Graph
    machines: int
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", with_columns(self.graph, self.pieces))
        for grid in self.graph.computed:
            check_coverage(grid, self.of(grid.name), self.graph, self.machines, self.tiled)

    @cached_property
    def tiled(self) -> frozenset[str]:
        """The layers whose columns are cut."""
        return frozenset(piece.layer for piece in self.pieces if is_tile(self.graph, piece))

    def is_boxed(self, layer: str) -> bool:
        """Returns whether sets of the layer's rows name columns too."""
        return bool(self.tiled) and self.graph[layer].is_picture

    def of(self, layer: str) -> tuple[Piece, ...]:
        """The pieces of a layer, in ascending rows."""
        return self._of.get(layer, ())

    @cached_property
    def _of(self) -> dict[str, tuple[Piece, ...]]:
        ordered = sorted(self.pieces, key=lambda piece: (piece.layer, piece.box, piece.machine))
        return {layer: tuple(pieces) for layer, pieces in groupby(ordered, key=attrgetter("layer"))}

    def of_machine(self, machine: int) -> tuple[Piece, ...]:
        """The pieces of a machine, in the order of the network's layers."""
        return self._of_machine.get(machine, ())

    @cached_property
    def _of_machine(self) -> dict[int, tuple[Piece, ...]]:
        found: dict[int, list[Piece]] = {}
        for grid in self.graph.computed:
            for piece in self.of(grid.name):
                found.setdefault(piece.machine, []).append(piece)
        return {machine: tuple(pieces) for machine, pieces in found.items()}

    def rows(self, layer: str, machine: int) -> BoxSet:
        """The rows of a layer that a machine owns."""
        return self._rows.get((layer, machine), NOTHING)

    @cached_property
    def _rows(self) -> dict[tuple[str, int], BoxSet]:
        return {(piece.layer, piece.machine): piece.rows for piece in self.pieces}

    def is_input_split(self, layer: str) -> bool:
        """Returns whether each machine has the weights of some inputs, for all rows of the layer."""
        pieces = self.of(layer)
        return bool(pieces) and pieces[0].inputs is not None

    def input_span(self, layer: str, machine: int) -> Span | None:
        """The rows of its input whose weights a machine has; None unless the layer is cut by its inputs."""
        return next((piece.inputs for piece in self.of(layer) if piece.machine == machine), None)

    @cached_property
    def replicated(self) -> frozenset[str]:
        """The layers of which several machines have the same rows."""
        return frozenset(
            grid.name
            for grid in self.graph.computed
            if len(self.of(grid.name)) > 1
            and sum(piece.box.size for piece in self.of(grid.name))
            > (grid.whole.size if self.is_boxed(grid.name) else grid.n_rows)
        )

    def primary_rows(self, layer: str, machine: int) -> BoxSet:
        """The rows of a layer of which a machine is the primary owner."""
        return self._primary_rows.get((layer, machine), NOTHING)

    @cached_property
    def _primary_rows(self) -> dict[tuple[str, int], BoxSet]:
        """`rows`, without those of other replicas in earlier pieces."""
        found = dict(self._rows)
        for layer in self.replicated:
            taken = NOTHING
            for piece in self.of(layer):
                found[layer, piece.machine] = piece.rows - taken
                taken |= piece.rows
        return found

    def rows_from(self, layer: str, owner: int, receiver: int) -> BoxSet:
        """The rows of a layer that one machine supplies to another, or to itself."""
        if owner == receiver:
            return self.rows(layer, receiver)
        primary = self.primary_rows(layer, owner)
        return primary - self.rows(layer, receiver) if layer in self.replicated else primary

    def suppliers(self, layer: str, rows: BoxSet, receiver: int) -> list[tuple[Piece, BoxSet]]:
        """The pieces of a layer that supply some of these rows to a machine, with the rows; ascending."""
        if layer not in self.replicated:
            return self.primary_owners(layer, rows)
        found = ((piece, rows & self.rows_from(layer, piece.machine, receiver)) for piece in self.of(layer))
        return [(piece, some) for piece, some in found if some]

    def primary_owners(self, layer: str, rows: BoxSet) -> list[tuple[Piece, BoxSet]]:
        """The pieces that are primary owners of some of these rows, with the rows; ascending."""
        if not rows:
            return []
        pieces = self.of(layer)
        if layer in self.replicated:
            found = ((piece, rows & self.primary_rows(layer, piece.machine)) for piece in pieces)
        else:
            first, last = rows.hull[0]
            start = bisect_right(pieces, first, key=lambda piece: piece.stop)
            stop = bisect_left(pieces, last, key=lambda piece: piece.start)
            found = ((piece, rows & piece.rows) for piece in pieces[start:stop])
        return [(piece, some) for piece, some in found if some]

    @memoised
    def loss_shards(self, loss: str) -> tuple[int, ...]:
        """The machines that each evaluate their own scores, in the order of these; () if one does all."""
        layer = self.graph[loss].layer
        if not isinstance(layer, Loss) or not layer.splits_scores or len(self.of(loss)) < 2:
            return ()
        scores = self.graph[loss].sources[0]
        found = tuple(p.machine for p in self.of(scores) if self.primary_rows(scores, p.machine))
        return found if sorted(found) == sorted(piece.machine for piece in self.of(loss)) else ()

    def loss_owners(self, loss: str) -> tuple[int, ...]:
        """The machines whose losses add up to the loss: its shards, or the first that has it."""
        return self.loss_shards(loss) or (self.of(loss)[0].machine,)

    @memoised
    def summary_senders(self, layer: str) -> tuple[int, ...]:
        """The machines that send one another a summary of their rows (of a loss: of their scores), in the
        order of these; () where one has all, or needs none.
        """
        grid = self.graph[layer]
        if grid.summary is None or isinstance(grid.layer, Loss):
            return () if grid.summary is None else self.loss_shards(layer)
        return tuple(piece.machine for piece in self.of(layer)) if len(self.of(layer)) > 1 else ()

    def returns_summary(self, layer: str) -> bool:
        """Returns whether these machines exchange the gradient of the summary, too."""
        return self.graph[layer].returns_summary and bool(self.summary_senders(layer))

    def weight_receivers(self, layer: str) -> tuple[int, ...]:
        """The machines that use a layer's shared weights but do not own them, in the order of pieces.

        None in a layer that is cut by its inputs, where each machine owns the weights of its own, or whose
        parameters have places of their own, see `placement`.
        """
        shares = self.graph[layer].shares_weights and layer not in self.graph.tied
        shares = shares and not self.is_input_split(layer)
        return tuple(piece.machine for piece in self.of(layer)[1:]) if shares else ()

    @cached_property
    def parameter_owners(self) -> tuple[int, ...]:
        """The machines that own parameters that learn, ascending."""
        found = {
            piece.machine
            for piece in self.pieces
            if self.graph[piece.layer].learns
            and piece.layer not in self.graph.tied
            and piece.machine not in self.weight_receivers(piece.layer)
        }
        for name in filter(self.placement.learns, self.graph.placed):
            found.update(self.placement.owners(name))
        return tuple(sorted(found))

    @cached_property
    def placement(self) -> Placement:
        """Owners and users of the parameters that several layers use."""
        return Placement(self)

    def parameter_slices(self, layer: str, machine: int) -> tuple[ParameterSlice, ...]:
        """The part of each parameter of a layer that a machine owns."""
        if layer in self.graph.tied:
            return self.placement.slices(layer, machine)
        return () if machine in self.weight_receivers(layer) else self.used_slices(layer, machine)

    def used_slices(self, layer: str, machine: int) -> tuple[ParameterSlice, ...]:
        """The part of each parameter of a layer that the machine's rows use."""
        own, grid = self.rows(layer, machine), self.graph[layer]
        if not own:
            return ()
        if self.is_input_split(layer):
            return self._slices_by_inputs(grid, machine)
        box = own[0] if layer in self.tiled else own[0].on(1)
        return tuple(ParameterSlice(parameter, box) for parameter in grid.parameters)

    def _slices_by_inputs(self, grid: Grid, machine: int) -> tuple[ParameterSlice, ...]:
        """Columns of the weight (rows, where these are the inputs), if there is one, and the biases of rows
        of which the machine is the primary owner; shared ones belong to the first machine.
        """
        inputs, found = self.input_span(grid.name, machine) or (0, 0), []
        is_first = self.of(grid.name)[0].machine == machine
        for n, parameter in enumerate(grid.parameters):
            apart = replace(parameter, shared=False, by_inputs=False)
            if parameter.by_inputs:
                per_row = parameter.shape[0] // self.graph[grid.sources[0]].n_rows
                found.append(ParameterSlice(apart, Box.of_rows(inputs[0] * per_row, inputs[1] * per_row)))
            elif n == 0:
                per_row = parameter.shape[-1] // self.graph[grid.sources[0]].n_rows
                columns = (inputs[0] * per_row, inputs[1] * per_row)
                found.append(ParameterSlice(apart, Box((*Box.whole(parameter.shape[:-1]), columns))))
            elif parameter.shared:
                found.append(ParameterSlice(apart, Box.of_rows(0, parameter.shape[0] * is_first)))
            else:
                found.append(ParameterSlice(apart, self.primary_rows(grid.name, machine).hull))
        return tuple(found)

    @memoised
    def edges(self, layer: str) -> tuple[Edge, ...]:
        """The edges to the consumers of a layer, in the order in which gradients are summed."""
        return tuple(Edge(layer, consumer, number) for consumer, number in self.graph.consumers(layer))

    @memoised
    def grad_edges(self, layer: str) -> tuple[Edge, ...]:
        """The edges along which gradients return to a layer: those to consumers that do not stop them."""
        return tuple(edge for edge in self.edges(layer) if edge.consumer in self.graph.needs_gradient)

    def needed(self, edge: Edge, machine: int) -> BoxSet:
        """The rows of `edge.layer` that the machine's piece of `edge.consumer` reads."""
        return self._needed.get((edge, machine), NOTHING)

    @cached_property
    def _needed(self) -> dict[tuple[Edge, int], BoxSet]:
        return {
            (edge, piece.machine): self._needed_by(edge, piece)
            for grid in self.graph.grids
            for edge in self.edges(grid.name)
            for piece in self.of(edge.consumer)
        }

    def _needed_by(self, edge: Edge, piece: Piece) -> BoxSet:
        if piece.inputs is not None:
            return self._in_boxes(edge.layer, BoxSet.of_rows(piece.inputs))
        if self.loss_shards(edge.consumer):  # own scores, and a target's rows if it has one for each
            scores = self.graph[self.graph[edge.consumer].sources[0]]
            if self.graph[edge.layer].shape == scores.shape:
                return self.primary_rows(scores.name, piece.machine)
        if self.crosses_tiles(edge):
            return self.graph.source_rows(edge.consumer, piece.box, edge.number, columns=True)
        return self._in_boxes(edge.layer, self.graph.source_rows(edge.consumer, piece.box.on(1), edge.number))

    def _in_boxes(self, layer: str, rows: BoxSet) -> BoxSet:
        """Whole rows in the form of the layer's sets."""
        return rows.across((0, self.graph[layer].shape[1])) if self.is_boxed(layer) else rows

    def needed_by_all(self, layer: str, machine: int) -> BoxSet:
        """The rows of a layer that any piece of the machine reads."""
        return self._needed_by_all.get((layer, machine), NOTHING)

    @cached_property
    def _needed_by_all(self) -> dict[tuple[str, int], BoxSet]:
        found: dict[tuple[str, int], list[BoxSet]] = {}
        for (edge, machine), rows in self._needed.items():
            found.setdefault((edge.layer, machine), []).append(rows)
        return {key: BoxSet.union(*sets) for key, sets in found.items()}

    def grad_rows(self, edge: Edge, machine: int) -> BoxSet:
        """The rows of `edge.layer` whose gradients the machine's piece of `edge.consumer` computes.

        They are the rows that it reads; none for a loss that is replicated and does not count.
        """
        of_loss = edge.consumer in self.graph.losses
        if of_loss and machine not in self.loss_owners(edge.consumer):
            return NOTHING
        return self.needed(edge, machine)

    def primary_grad_rows(self, edge: Edge, machine: int) -> BoxSet:
        """The `grad_rows` that end at primary owners; gradients of a replica's rows stay with it."""
        if edge.layer not in self.replicated:
            return self.grad_rows(edge, machine)
        replicas = self.rows(edge.layer, machine) - self.primary_rows(edge.layer, machine)
        return self.grad_rows(edge, machine) - replicas

    def consumed_rows(self, edge: Edge, machine: int) -> BoxSet:
        """The machine's rows of `edge.layer` to which gradients return along the edge."""
        if edge.layer not in self.replicated and not self.is_boxed(edge.layer):
            return self._all_grad_rows(edge) & self.primary_rows(edge.layer, machine)
        consumers = (piece.machine for piece in self.of(edge.consumer))
        return BoxSet.union(
            *(
                self.grad_rows(edge, consumer) & self.rows_from(edge.layer, machine, consumer)
                for consumer in consumers
            )
        )

    @memoised
    def _all_grad_rows(self, edge: Edge) -> BoxSet:
        """The union of `grad_rows` over the machines."""
        return BoxSet.union(*(self.grad_rows(edge, piece.machine) for piece in self.of(edge.consumer)))

    def grad_senders(self, layer: str) -> tuple[int, ...]:
        """The machines of a layer cut by its inputs that send the gradients of its nodes to the others."""
        return tuple(
            piece.machine
            for piece in self.of(layer)
            if any(self.consumed_rows(edge, piece.machine) for edge in self.grad_edges(layer))
        )

    def crosses_tiles(self, edge: Edge) -> bool:
        """Returns whether either picture of an edge is cut into tiles.

        The gradients of such an edge are summed by machine: each computes all that its consumers return at
        once, as whole rows of `kernel_columns`, and each owner adds up the parts that it receives.
        """
        return self.is_boxed(edge.layer) and not self.tiled.isdisjoint((edge.layer, edge.consumer))

    def sums_by_machine(self, edge: Edge) -> bool:
        """Returns whether each machine sums the gradients of its own consumers, and the owners add up the
        sums.

        Otherwise the sum runs through the machines in the order of the consumers' rows.
        """
        ordered = self.graph[edge.consumer].connectivity.ordered_gradients
        return not (ordered and not self.crosses_tiles(edge)) and len(self.of(edge.consumer)) > 1

    def flops(self, piece: Piece, *, batch: int) -> float:
        """Floating-point operations of a piece for a batch, forward; of a loss shard, its share."""
        whole = flops_of(self.graph, piece, batch=batch)
        if not self.loss_shards(piece.layer):
            return whole
        scores = self.graph[self.graph[piece.layer].sources[0]]
        return whole * scores.nodes_in(self.primary_rows(scores.name, piece.machine)) / scores.n_nodes

    def state_window(self, layer: str, machine: int) -> Box:
        """The rows of activations that a machine holds: its own, those that it reads, and all between."""
        return self._window(layer, machine, self.needed_by_all(layer, machine))

    def error_window(self, edge: Edge, machine: int) -> Box:
        """The rows of `edge.layer` for which a machine holds the gradients that `edge.consumer` returns.

        Along an edge that crosses tiles it also holds the columns that the consumer's kernel is given.
        """
        needed = self.needed(edge, machine)
        if self.crosses_tiles(edge) and needed:
            needed |= BoxSet(needed[:1]).across(self.kernel_columns(edge, machine))
        return self._window(edge.layer, machine, needed)

    def _window(self, layer: str, machine: int, needed: BoxSet) -> Box:
        held = needed | self.rows(layer, machine)
        if held or not self.is_boxed(layer):
            return held.hull
        return Box(((0, 0), (0, self.graph[layer].shape[1])))

    def kernel_columns(self, edge: Edge, machine: int) -> Span:
        """The columns of the picture `edge.layer` that the kernel of `edge.consumer` on a machine is given.

        Patches are given all columns that the machine holds, so that nothing is copied; a one-to-one layer
        its own columns, a loss shard those of its scores, and any other layer all columns.
        """
        consumer, wiring = self.graph[edge.consumer], self.graph[edge.consumer].wirings[edge.number]
        reader = consumer.sources[0] if self.loss_shards(edge.consumer) else edge.consumer
        if reader != edge.consumer or isinstance(wiring, OneToOne):
            own = self.rows(reader, machine).hull
        else:
            own = self.state_window(edge.layer, machine) if isinstance(wiring, Patch) else Box()
        return own.columns or (0, self.graph[edge.layer].shape[1])
