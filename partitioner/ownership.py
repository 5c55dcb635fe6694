"""Who owns which rows of each layer: the decision itself, from which everything else in a plan is derived."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from partita.layers import rows as row_sets
from partita.layers.graph import Graph, Grid
from partita.layers.losses import Loss
from partita.layers.rows import Rows
from partita.partitioner.held import Columns, Held


@dataclass(frozen=True, order=True)
class Piece:
    """The rows `[start, stop)` of a layer that one machine owns.

    Of a layer that is cut by its inputs, `inputs` are the rows of its input whose weights the machine has.
    """

    layer: str
    start: int
    stop: int
    machine: int
    inputs: tuple[int, int] | None = None

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

    Each row belongs to one machine, or on purpose to several, where its layer learns nothing of its own: then
    each has a copy, a node by itself that hears the same and feeds the machine that it is on. Machines
    without a copy are fed by the row's home, the first piece that has it.

    Inputs and targets belong to nobody: every machine is fed the rows that its pieces listen to. The one row
    of a loss whose scores are cut may belong to every machine that owns scores: each judges its own. Of a
    loss that several machines repeat besides, the first one counts.
    """

    graph: Graph
    machines: int
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        for grid in self.graph.computed:
            pieces = self.of(grid.name)
            owners = [piece.machine for piece in pieces]
            covered = row_sets.union(piece.rows for piece in pieces)
            repeated = row_sets.count(covered) < sum(piece.stop - piece.start for piece in pieces)
            if covered != ((0, grid.n_rows),) or (repeated and not self._may_repeat(grid)):
                raise ValueError(
                    f"the pieces of '{grid.name}' do not cover its {grid.n_rows} rows once: {pieces}"
                )
            if any(piece.start >= piece.stop or not 0 <= piece.machine < self.machines for piece in pieces):
                raise ValueError(f"a piece of '{grid.name}' is empty or on no machine: {pieces}")
            if len(set(owners)) < len(owners):
                raise ValueError(
                    f"a machine has two pieces of '{grid.name}'; give each machine one: {owners}"
                )
            if any(piece.inputs is not None for piece in pieces):
                self._check_inputs(grid)

    def _may_repeat(self, grid: Grid) -> bool:
        """Whether rows may belong to several machines; cut by inputs, all rows to all of them."""
        if self.by_inputs(grid.name):
            return all(piece.rows == (0, grid.n_rows) for piece in self.of(grid.name))
        return grid.repeatable

    def _check_inputs(self, grid: Grid) -> None:
        """Each row of the input is multiplied by one machine."""
        pieces, n_rows = self.of(grid.name), self.graph[grid.sources[0]].n_rows
        found = sorted(piece.inputs or (0, 0) for piece in pieces)
        met = [0, *(end for run in found for end in run), n_rows]
        if (
            not grid.layer.splits_sum
            or any(a != b for a, b in zip(met[::2], met[1::2], strict=True))
            or any(a >= b for a, b in found)
        ):
            raise ValueError(
                f"the pieces of '{grid.name}' do not cover the {n_rows} rows of its input once: {pieces}"
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

    def by_inputs(self, layer: str) -> bool:
        """Whether a layer is cut by its inputs: each machine has all rows of the weights for some inputs."""
        pieces = self.of(layer)
        return bool(pieces) and pieces[0].inputs is not None

    def inputs(self, layer: str, machine: int) -> tuple[int, int] | None:
        """The rows of its input whose weights a machine has, of a layer that is cut by its inputs."""
        return next((piece.inputs for piece in self.of(layer) if piece.machine == machine), None)

    def home(self, layer: str, machine: int) -> Rows:
        """The rows of a layer that a machine owns, and none before it: it feeds them to those without."""
        return self._homes.get((layer, machine), ())

    @cached_property
    def _homes(self) -> dict[tuple[str, int], Rows]:
        found: dict[tuple[str, int], Rows] = {}
        for layer, pieces in self._of.items():
            taken: Rows = ()
            for piece in pieces:
                found[layer, piece.machine] = row_sets.difference((piece.rows,), taken)
                taken = row_sets.union(taken, (piece.rows,))
        return found

    def fed(self, layer: str, feeder: int, listener: int) -> Rows:
        """The rows of a layer that one machine feeds to another, or to itself, where that listens to them."""
        own = self.rows(layer, listener)
        copies = () if own is None else (own,)
        if feeder == listener:
            return copies
        home = self.home(layer, feeder)
        return row_sets.difference(home, copies) if layer in self.copied else home

    @cached_property
    def copied(self) -> frozenset[str]:
        """The layers of which several machines have the same rows."""
        return frozenset(p.layer for p in self.pieces if self.home(p.layer, p.machine) != (p.rows,))

    def judges(self, loss: str) -> tuple[int, ...]:
        """The machines that each judge their own scores, in the order of those; () if one judges all."""
        if loss not in self._judges:
            self._judges[loss] = self._found_judges(loss)
        return self._judges[loss]

    @cached_property
    def _judges(self) -> dict[str, tuple[int, ...]]:
        return {}

    def _found_judges(self, loss: str) -> tuple[int, ...]:
        layer = self.graph[loss].layer
        if not isinstance(layer, Loss) or not layer.splits_scores or len(self.of(loss)) < 2:
            return ()
        scores = self.graph[loss].sources[0]
        found = tuple(piece.machine for piece in self.of(scores) if self.home(scores, piece.machine))
        return found if sorted(found) == sorted(piece.machine for piece in self.of(loss)) else ()

    def counted(self, loss: str) -> tuple[int, ...]:
        """The machines whose losses add up to the loss: its judges, or the first that has it."""
        return self.judges(loss) or (self.of(loss)[0].machine,)

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
        if piece.inputs is not None:
            return (piece.inputs,)
        if piece.machine in self.judges(
            edge.consumer
        ):  # of scores its own, and of a target with one for each
            scores = self.graph[self.graph[edge.consumer].sources[0]]
            if self.graph[edge.layer].shape == scores.shape:
                return self.home(scores.name, piece.machine)
        return self.graph.source_rows(edge.consumer, piece.rows, edge.number)

    def returned(self, edge: Edge, machine: int) -> Rows:
        """The rows of `edge.layer` for which the machine's piece of `edge.consumer` has errors.

        They are those that it listens to; a loss that is only repeated has none.
        """
        of_loss = edge.consumer in self.graph.losses
        if of_loss and machine not in self.counted(edge.consumer):
            return ()
        return self.needed(edge, machine)

    def passed_on(self, edge: Edge, machine: int) -> Rows:
        """Those whose errors end at their home; the errors of copies stay with them, on the machine."""
        if edge.layer not in self.copied:
            return self.returned(edge, machine)
        return self._passed_on.get((edge, machine), ())

    @cached_property
    def _passed_on(self) -> dict[tuple[Edge, int], Rows]:
        found = {}
        for edge, machine in (key for key in self._needed if key[0].layer in self.copied):
            own = self.rows(edge.layer, machine)
            copies = row_sets.difference(() if own is None else (own,), self.home(edge.layer, machine))
            found[edge, machine] = row_sets.difference(self.returned(edge, machine), copies)
        return found

    def heard(self, edge: Edge, machine: int) -> Rows:
        """The machine's rows of `edge.layer` to which somebody listens along the edge."""
        if edge.layer not in self.copied:
            return row_sets.intersection(self._returned[edge], self.home(edge.layer, machine))
        listeners = (piece.machine for piece in self.of(edge.consumer))
        return row_sets.union(
            *(
                row_sets.intersection(self.returned(edge, listener), self.fed(edge.layer, machine, listener))
                for listener in listeners
            )
        )

    @cached_property
    def _returned(self) -> dict[Edge, Rows]:
        """For each edge the rows to which anybody listens along it."""
        found: dict[Edge, list[Rows]] = {}
        for edge, machine in self._needed:
            found.setdefault(edge, []).append(self.returned(edge, machine))
        return {edge: row_sets.union(*rows) for edge, rows in found.items()}

    def shares_errors(self, layer: str) -> tuple[int, ...]:
        """The machines that tell the others of a layer cut by its inputs the errors that came to them."""
        return tuple(
            piece.machine
            for piece in self.of(layer)
            if any(self.heard(edge, piece.machine) for edge in self.edges(layer))
        )

    def needed_by_all(self, layer: str, machine: int) -> Rows:
        """The rows of a layer that any piece of the machine listens to."""
        return row_sets.union(*(self.needed(edge, machine) for edge in self.edges(layer)))

    def flops(self, piece: Piece, *, batch: int) -> float:
        """Operations of a piece for a batch on the way up; of a loss that several judge, its share."""
        whole = flops_of(self.graph, piece, batch=batch)
        if not self.judges(piece.layer):
            return whole
        scores = self.graph[self.graph[piece.layer].sources[0]]
        return whole * row_sets.count(self.home(scores.name, piece.machine)) / scores.n_rows

    def held(self, layer: str, machine: int) -> tuple[Held, ...]:
        """What a machine has of each parameter of a layer; () where it has none of its own."""
        own, grid = self.rows(layer, machine), self.graph[layer]
        if own is None or machine in self.borrowers(layer):
            return ()
        if not self.by_inputs(layer):
            return tuple(Held(parameter, own) for parameter in grid.parameters)
        inputs = self.inputs(layer, machine) or (0, 0)
        per_row = self.graph[grid.sources[0]].nodes_per_row
        weight, *others = grid.parameters
        columns = Columns(len(weight.shape) - 1, inputs[0] * per_row, inputs[1] * per_row)
        rows = row_sets.bounds(self.home(layer, machine))
        return (
            Held(weight, (0, grid.n_rows), columns),
            *(Held(parameter, rows) for parameter in others),
        )

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


def flops_of(graph: Graph, piece: Piece, *, batch: int) -> float:
    """Operations of a piece for a batch on the way up; cut by inputs, of all rows over its share of them."""
    grid = graph[piece.layer]
    if piece.inputs is None:
        return piece_flops(grid, piece.rows, batch=batch)
    share = (piece.inputs[1] - piece.inputs[0]) / graph[grid.sources[0]].n_rows
    return share * piece_flops(grid, (0, grid.n_rows), batch=batch)
