"""Who owns which rows of each layer: the decision itself, from which everything else in a plan is derived."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from partita.layers import rows as row_sets
from partita.layers.graph import Graph, Grid
from partita.layers.losses import Loss
from partita.layers.rows import Rows


@dataclass(frozen=True, order=True)
class Piece:
    """The rows `[start, stop)` of a layer that one machine owns."""

    layer: str
    start: int
    stop: int
    machine: int

    @property
    def rows(self) -> tuple[int, int]:
        """`(start, stop)`."""
        return self.start, self.stop


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

    Inputs and targets belong to nobody: every machine is fed the rows that its pieces listen to. The one row
    of a loss whose scores are cut may belong to every machine that owns scores: each judges its own.
    """

    graph: Graph
    machines: int
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        for grid in self.graph.computed:
            pieces = self.of(grid.name)
            if self.judges(grid.name):
                self._check_judges(grid.name)
                continue
            met = [0, *(stop for piece in pieces for stop in piece.rows), grid.n_rows]
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
        for piece in sorted(self.pieces):
            found.setdefault(piece.layer, []).append(piece)
        return {layer: tuple(pieces) for layer, pieces in found.items()}

    def rows(self, layer: str, machine: int) -> tuple[int, int] | None:
        """The rows of a layer that a machine owns, if any."""
        return self._rows.get((layer, machine))

    @cached_property
    def _rows(self) -> dict[tuple[str, int], tuple[int, int]]:
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
        pieces, (first, last) = self.of(layer), row_sets.bounds(rows)
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
        return self.graph.source_rows(edge.consumer, piece.rows, edge.number)

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
        return row_sets.union(*(self.needed(edge, machine) for edge in self.edges(layer)))

    def flops(self, piece: Piece, *, batch: int) -> float:
        """Operations of a piece for a batch on the way up; of a loss that several judge, its share."""
        whole = piece_flops(self.graph[piece.layer], piece.rows, batch=batch)
        if not self.judges(piece.layer):
            return whole
        scores = self.graph[self.graph[piece.layer].sources[0]]
        start, stop = self.rows(scores.name, piece.machine) or (0, 0)
        return whole * (stop - start) / scores.n_rows

    def by_part(self, edge: Edge) -> bool:
        """Whether each machine sums the errors of its own receivers, and the owners add up the sums.

        Otherwise the sum runs through the machines in the order of the receivers' rows.
        """
        ordered = self.graph[edge.consumer].layer.connectivity.ordered_errors
        return not ordered and len(self.of(edge.consumer)) > 1

    def state_window(self, layer: str, machine: int) -> tuple[int, int]:
        """The rows of a layer's states that a machine holds: its own, those it hears, and all between."""
        own = self.rows(layer, machine)
        return row_sets.bounds(
            row_sets.union(self.needed_by_all(layer, machine), () if own is None else (own,))
        )

    def error_window(self, edge: Edge, machine: int) -> tuple[int, int]:
        """The rows of `edge.layer` for which a machine holds the errors that `edge.consumer` returns."""
        own = self.rows(edge.layer, machine)
        return row_sets.bounds(row_sets.union(self.needed(edge, machine), () if own is None else (own,)))


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


def piece_flops(grid: Grid, rows: tuple[int, int], *, batch: int) -> float:
    """Operations of these rows for a batch on the way up."""
    return (rows[1] - rows[0]) * math.prod(grid.shape[1:]) * grid.flops_per_node * batch
