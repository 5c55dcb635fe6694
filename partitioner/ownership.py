"""Who owns which rows of each layer: the decision itself, from which everything else in a plan is derived."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from partita.layers import rows as row_sets
from partita.layers.connectivity import OneToOne, Patch
from partita.layers.graph import Graph, Grid
from partita.layers.losses import Loss
from partita.layers.rows import Rows, Run
from partita.partitioner.tiling import are_tiles


@dataclass(frozen=True, order=True)
class Piece:
    """The rows `[start, stop)` of a layer that one machine owns.

    Args:
        layer: its name.
        start, stop: of axis 0.
        machine: whose.
        columns: `[left, right)` of axis 1; of every piece of a picture where some picture is cut into tiles.
    """

    layer: str
    start: int
    stop: int
    machine: int
    columns: tuple[int, int] | None = None

    @property
    def rows(self) -> Run:
        """`(start, stop)`, or `(start, stop, left, right)`."""
        return (self.start, self.stop, *(self.columns or ()))

    def __repr__(self) -> str:
        columns = "" if self.columns is None else f", columns={self.columns}"
        rows = f"start={self.start}, stop={self.stop}"
        return f"Piece(layer={self.layer!r}, {rows}, machine={self.machine}{columns})"


@dataclass(frozen=True)
class Edge:
    """One input of one layer: `consumer` listens to `layer`. Named `layer<consumer`, as errors flow."""

    layer: str
    consumer: str
    number: int

    @property
    def name(self) -> str:
        """`h1<h2`; a layer that is several inputs of one consumer adds the input's number."""
        return f"{self.layer}<{self.consumer}" + (f"#{self.number}" if self.number else "")


@dataclass(frozen=True)
class Ownership:
    """The pieces of every computed layer, in ascending rows; each machine has at most one piece of a layer.

    A picture may be cut into tiles: then every picture's pieces name their columns, and all sets of rows of a
    picture are boxes. Where no picture is, no piece names any.

    Inputs and targets belong to nobody: every machine is fed the rows that its pieces listen to. The one row
    of a loss whose scores are cut may belong to every machine that owns scores: each judges its own.
    """

    graph: Graph
    machines: int
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", self._with_columns())
        for grid in self.graph.computed:
            pieces = self.of(grid.name)
            if self.judges(grid.name):
                self._check_judges(grid.name)
                continue
            met = [0, *(stop for piece in pieces for stop in piece.rows[:2]), grid.n_rows]
            if self.is_boxed(grid.name):
                met = [] if are_tiles([piece.rows for piece in pieces], grid.whole) else [0, 1]
            if not pieces or any(a != b for a, b in zip(met[::2], met[1::2], strict=True)):
                raise ValueError(
                    f"the pieces of '{grid.name}' do not cover its {grid.n_rows} rows once: {pieces}"
                )
            if any(piece.start >= piece.stop or not 0 <= piece.machine < self.machines for piece in pieces):
                raise ValueError(f"a piece of '{grid.name}' is empty or on no machine: {pieces}")
            owners = [piece.machine for piece in pieces]
            if len(set(owners)) < len(owners):
                raise ValueError(
                    f"a machine has two pieces of '{grid.name}'; give each machine one: {owners}"
                )

    def _with_columns(self) -> tuple[Piece, ...]:
        """The pieces with their columns, where some layer's columns are cut, and otherwise without."""
        graph, pieces = self.graph, self.pieces
        pictures = [p for p in pieces if p.layer in graph and graph[p.layer].is_picture]
        if not any(self._is_narrow(piece) for piece in pictures):
            return tuple(replace(p, columns=None) if p.columns else p for p in pieces)
        return tuple(
            replace(p, columns=(0, graph[p.layer].shape[1])) if p in pictures and p.columns is None else p
            for p in pieces
        )

    def _is_narrow(self, piece: Piece) -> bool:
        return piece.columns not in (None, (0, self.graph[piece.layer].shape[1]))

    @cached_property
    def narrow(self) -> frozenset[str]:
        """The layers whose columns are cut."""
        return frozenset(p.layer for p in self.pieces if p.columns is not None and self._is_narrow(p))

    def is_boxed(self, layer: str) -> bool:
        """Whether sets of the layer's rows are of boxes."""
        return bool(self.narrow) and self.graph[layer].is_picture

    def across(self, edge: Edge) -> bool:
        """Whether columns matter along an edge: those of either picture are cut.

        The errors of such an edge are summed by part: a machine computes all that its receivers return at
        once, as whole rows of `heard_columns`, and each owner adds up what it gets.
        """
        return self.is_boxed(edge.layer) and not self.narrow.isdisjoint((edge.layer, edge.consumer))

    def _check_judges(self, loss: str) -> None:
        scores = self.graph[loss].sources[0]
        found = sorted(piece.machine for piece in self.of(loss))
        expected = sorted(piece.machine for piece in self.of(scores))
        if found != expected or any(piece.rows != (0, 1) for piece in self.of(loss)):
            raise ValueError(
                f"the loss '{loss}' is on machines {found}, but its scores '{scores}' on {expected}; put it "
                "on all of them, or on one machine"
            )

    def of(self, layer: str) -> tuple[Piece, ...]:
        """The pieces of a layer, in ascending rows."""
        return self._of.get(layer, ())

    @cached_property
    def _of(self) -> dict[str, tuple[Piece, ...]]:
        found: dict[str, list[Piece]] = {}
        for piece in sorted(self.pieces, key=lambda piece: (piece.layer, piece.rows, piece.machine)):
            found.setdefault(piece.layer, []).append(piece)
        return {layer: tuple(pieces) for layer, pieces in found.items()}

    def rows(self, layer: str, machine: int) -> Run | None:
        """The rows of a layer that a machine owns, if any."""
        return self._rows.get((layer, machine))

    @cached_property
    def _rows(self) -> dict[tuple[str, int], Run]:
        return {(piece.layer, piece.machine): piece.rows for piece in self.pieces}

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

    def holders(self, layer: str, rows: Rows) -> list[tuple[Piece, Rows]]:
        """The pieces of a layer that have some of these rows, and which, in ascending rows."""
        if not rows:
            return []
        pieces, (first, last, *_) = self.of(layer), row_sets.bounds(rows)
        start = bisect_right(pieces, first, key=lambda piece: piece.stop)
        stop = bisect_left(pieces, last, key=lambda piece: piece.start)
        found = ((piece, row_sets.intersection(rows, (piece.rows,))) for piece in pieces[start:stop])
        return [(piece, shared) for piece, shared in found if shared]

    def judges(self, loss: str) -> tuple[int, ...]:
        """The machines that each judge their own scores, in the order of those; () if one judges all."""
        layer = self.graph[loss].layer
        if not isinstance(layer, Loss) or not layer.splits_scores or len(self.of(loss)) < 2:
            return ()
        return tuple(piece.machine for piece in self.of(self.graph[loss].sources[0]))

    def tells(self, loss: str) -> tuple[int, ...]:
        """Those judges that must tell one another of their scores: all, or none."""
        layer = self.graph[loss].layer
        return self.judges(loss) if isinstance(layer, Loss) and layer.summary_rows else ()

    def borrowers(self, layer: str) -> tuple[int, ...]:
        """The machines that use a layer's shared weights but do not own them, in the order of pieces."""
        shares = self.graph[layer].shares_weights
        return tuple(piece.machine for piece in self.of(layer)[1:]) if shares else ()

    @cached_property
    def learners(self) -> tuple[int, ...]:
        """The machines that own parameters, ascending."""
        found = {
            piece.machine
            for piece in self.pieces
            if self.graph[piece.layer].parameters and piece.machine not in self.borrowers(piece.layer)
        }
        return tuple(sorted(found))

    def edges(self, layer: str) -> tuple[Edge, ...]:
        """Who listens to a layer, in the order in which the errors of its nodes are summed."""
        return self._edges[layer]

    @cached_property
    def _edges(self) -> dict[str, tuple[Edge, ...]]:
        return {
            grid.name: tuple(Edge(grid.name, consumer, k) for consumer, k in self.graph.consumers(grid.name))
            for grid in self.graph.grids
        }

    def needed(self, edge: Edge, machine: int) -> Rows:
        """The rows of `edge.layer` that the machine's piece of `edge.consumer` listens to."""
        return self._needed.get((edge, machine), ())

    @cached_property
    def _needed(self) -> dict[tuple[Edge, int], Rows]:
        return {
            (edge, piece.machine): self._needed_by(edge, piece)
            for edges in self._edges.values()
            for edge in edges
            for piece in self.of(edge.consumer)
        }

    def _needed_by(self, edge: Edge, piece: Piece) -> Rows:
        if self.judges(edge.consumer):  # of scores its own, and as many of a target with one for each
            scores = self.graph[self.graph[edge.consumer].sources[0]]
            own = self.rows(scores.name, piece.machine)
            if own is not None and self.graph[edge.layer].shape == scores.shape:
                return (own,)
        if self.across(edge):
            return self.graph.source_rows(edge.consumer, piece.rows, edge.number, boxes=True)
        rows = self.graph.source_rows(edge.consumer, piece.rows[:2], edge.number)
        if not self.is_boxed(edge.layer):
            return rows
        return row_sets.across(rows, (0, self.graph[edge.layer].shape[1]))

    def heard(self, edge: Edge) -> Rows:
        """The rows of `edge.layer` to which anybody listens along the edge."""
        return self._heard[edge]

    @cached_property
    def _heard(self) -> dict[Edge, Rows]:
        found: dict[Edge, list[Rows]] = {edge: [] for edges in self._edges.values() for edge in edges}
        for (edge, _), rows in self._needed.items():
            found[edge].append(rows)
        return {edge: row_sets.union(*sets) for edge, sets in found.items()}

    def needed_by_all(self, layer: str, machine: int) -> Rows:
        """The rows of a layer that any piece of the machine listens to."""
        found = self._needed_by_all.get((layer, machine))
        if found is None:
            found = row_sets.union(*(self.needed(edge, machine) for edge in self.edges(layer)))
            self._needed_by_all[layer, machine] = found
        return found

    @cached_property
    def _needed_by_all(self) -> dict[tuple[str, int], Rows]:
        return {}

    def flops(self, piece: Piece, *, batch: int) -> float:
        """Operations of a piece for a batch on the way up; of a loss that several judge, its share."""
        whole = piece_flops(self.graph[piece.layer], piece.rows, batch=batch)
        if not self.judges(piece.layer):
            return whole
        scores = self.graph[self.graph[piece.layer].sources[0]]
        own = self.rows(scores.name, piece.machine)
        return whole * scores.nodes_in(() if own is None else (own,)) / scores.n_nodes

    def by_part(self, edge: Edge) -> bool:
        """Whether each machine sums the errors of its own receivers, and the owners add up the sums.

        Otherwise the sum runs through the machines in the order of the receivers' rows.
        """
        ordered = self.graph[edge.consumer].layer.connectivity.ordered_errors and not self.across(edge)
        return not ordered and len(self.of(edge.consumer)) > 1

    def state_window(self, layer: str, machine: int) -> Run:
        """The rows of a layer's states that a machine holds: its own, those it hears, and all between."""
        return self._window(layer, machine, self.needed_by_all(layer, machine))

    def error_window(self, edge: Edge, machine: int) -> Run:
        """The rows of `edge.layer` for which a machine holds the errors that `edge.consumer` returns.

        Along an edge across columns it holds those columns, too, that its receivers' kernel is given.
        """
        needed = self.needed(edge, machine)
        if self.across(edge) and needed:
            needed = row_sets.union(needed, row_sets.across(needed[:1], self.heard_columns(edge, machine)))
        return self._window(edge.layer, machine, needed)

    def _window(self, layer: str, machine: int, needed: Rows) -> Run:
        own = self.rows(layer, machine)
        held = row_sets.bounds(row_sets.union(needed, () if own is None else (own,)))
        return held if len(held) > 2 or not self.is_boxed(layer) else (0, 0, 0, self.graph[layer].shape[1])

    def heard_columns(self, edge: Edge, machine: int) -> tuple[int, int]:
        """The columns of the picture `edge.layer` that the kernel of `edge.consumer` on a machine is given.

        To patches these are all that the machine holds, so that nothing is copied. A one-to-one layer has the
        same as itself, a judge those of its scores, and any other layer all columns.
        """
        consumer, wiring = self.graph[edge.consumer], self.graph[edge.consumer].layer.connectivity
        judged = consumer.sources[0] if self.judges(edge.consumer) else edge.consumer
        if judged != edge.consumer or isinstance(wiring, OneToOne):
            own = self.rows(judged, machine)
        else:
            own = self.state_window(edge.layer, machine) if isinstance(wiring, Patch) else None
        return (0, self.graph[edge.layer].shape[1]) if own is None or len(own) < 4 else (own[2], own[3])


def boundaries(weights: Mapping[int, float], extent: int) -> tuple[int, ...]:
    """Cuts `extent` rows into pieces in proportion to the weights, at least one row each.

    Returns the boundaries, one more than there are weights, from 0 to `extent`.
    """
    total, met = sum(weights.values()), 0.0
    found = [0]
    for k, weight in enumerate(weights.values(), start=1):
        met += weight
        least, most = found[-1] + 1, extent - (len(weights) - k)
        found.append(min(max(round(extent * met / total), least), most))
    assert found[-1] == extent and all(a < b for a, b in pairwise(found))
    return tuple(found)


def piece_flops(grid: Grid, rows: Run, *, batch: int) -> float:
    """Operations of these rows for a batch on the way up."""
    return grid.nodes_in((rows,)) * grid.flops_per_node * batch
