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
from partita.partitioner.held import Columns, Held
from partita.partitioner.tiling import are_tiles


@dataclass(frozen=True, order=True)
class Piece:
    """The rows `[start, stop)` of a layer that one machine owns.

    Args:
        layer: its name.
        start, stop: of axis 0.
        machine: whose.
        columns: `[left, right)` of axis 1; of every piece of a picture where some picture is cut into tiles.
        inputs: of a layer that is cut by its inputs, the rows of its input whose weights the machine has.
    """

    layer: str
    start: int
    stop: int
    machine: int
    columns: tuple[int, int] | None = None
    inputs: tuple[int, int] | None = None

    @property
    def rows(self) -> Run:
        """`(start, stop)`, or `(start, stop, left, right)`."""
        return (self.start, self.stop, *(self.columns or ()))

    def __repr__(self) -> str:
        columns = "" if self.columns is None else f", columns={self.columns}"
        inputs = "" if self.inputs is None else f", inputs={self.inputs}"
        rows = f"start={self.start}, stop={self.stop}"
        return f"Piece(layer={self.layer!r}, {rows}, machine={self.machine}{columns}{inputs})"


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

    A picture may be cut into tiles: then every picture's pieces name their columns, and all sets of rows of a
    picture are boxes. Where no picture is, no piece names any. Such pictures have no copies.

    Inputs and targets belong to nobody: every machine is fed the rows that its pieces listen to. The one row
    of a loss whose scores are cut may belong to every machine that owns scores: each judges its own. Of a
    loss that several machines repeat besides, the first one counts.
    """

    graph: Graph
    machines: int
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", self._with_columns())
        for grid in self.graph.computed:
            pieces = self.of(grid.name)
            owners, runs = [piece.machine for piece in pieces], [piece.rows for piece in pieces]
            if not self._covers(grid, runs):
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

    def _covers(self, grid: Grid, runs: list[Run]) -> bool:
        """Whether these runs are all rows of a layer, each once, or more often where that may be."""
        if self.is_boxed(grid.name):
            if row_sets.count((grid.whole,)) < sum(row_sets.count((run,)) for run in runs):
                raise ValueError(
                    f"several machines have rows of the picture '{grid.name}', while "
                    f"'{min(self.narrow)}' is cut into tiles, which knows no copies; give each row of "
                    f"'{grid.name}' to one machine, or cut '{min(self.narrow)}' by rows"
                )
            return are_tiles(runs, grid.whole)
        repeated = sum(stop - start for start, stop, *_ in runs) > grid.n_rows
        return row_sets.union(runs) == ((0, grid.n_rows),) and (not repeated or self._may_repeat(grid, runs))

    def _may_repeat(self, grid: Grid, runs: list[Run]) -> bool:
        """Whether rows may belong to several machines; cut by inputs, all rows to all of them."""
        if self.by_inputs(grid.name):
            return all(run == (0, grid.n_rows) for run in runs)
        return grid.repeatable

    def _check_inputs(self, grid: Grid) -> None:
        """Each row of the input is multiplied by one machine."""
        pieces, source = self.of(grid.name), grid.sources[0]
        n_rows = self.graph[source].n_rows
        if self.is_boxed(grid.name) or source in self.narrow:
            raise ValueError(
                f"'{grid.name}' is cut by its inputs, which goes with no tiles, but '{min(self.narrow)}' is "
                f"cut into tiles; cut '{grid.name}' by rows"
            )
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

    def by_inputs(self, layer: str) -> bool:
        """Whether a layer is cut by its inputs: each machine has all rows of the weights for some inputs."""
        pieces = self.of(layer)
        return bool(pieces) and pieces[0].inputs is not None

    def inputs(self, layer: str, machine: int) -> tuple[int, int] | None:
        """The rows of its input whose weights a machine has, of a layer that is cut by its inputs."""
        if not self.by_inputs(layer):
            return None
        return next((piece.inputs for piece in self.of(layer) if piece.machine == machine), None)

    @cached_property
    def copied(self) -> frozenset[str]:
        """The layers of which several machines have the same rows."""
        return frozenset(
            grid.name
            for grid in self.graph.computed
            if len(self.of(grid.name)) > 1
            and sum(row_sets.count((piece.rows,)) for piece in self.of(grid.name)) > self._extent(grid)
        )

    def _extent(self, grid: Grid) -> int:
        return row_sets.count((grid.whole,)) if self.is_boxed(grid.name) else grid.n_rows

    def home(self, layer: str, machine: int) -> Rows:
        """The rows of a layer that a machine owns, and none before it: it feeds them to those without."""
        if layer in self.copied:
            return self._homes.get((layer, machine), ())
        own = self.rows(layer, machine)
        return () if own is None else (own,)

    @cached_property
    def _homes(self) -> dict[tuple[str, int], Rows]:
        """Of the layers of which there are copies."""
        found: dict[tuple[str, int], Rows] = {}
        for layer in self.copied:
            taken: Rows = ()
            for piece in self.of(layer):
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

    def feeders(self, layer: str, rows: Rows, listener: int) -> list[tuple[Piece, Rows]]:
        """The pieces of a layer that feed some of these rows to a machine, and which, in ascending rows."""
        if layer not in self.copied:
            return self.homes(layer, rows)
        found = ((piece, self.fed(layer, piece.machine, listener)) for piece in self.of(layer) if rows)
        shared = ((piece, row_sets.intersection(rows, of_piece)) for piece, of_piece in found)
        return [(piece, some) for piece, some in shared if some]

    def homes(self, layer: str, rows: Rows) -> list[tuple[Piece, Rows]]:
        """The pieces of a layer at which some of these rows are at home, and which, in ascending rows."""
        if not rows:
            return []
        if layer in self.copied:
            every = ((p, row_sets.intersection(rows, self.home(layer, p.machine))) for p in self.of(layer))
            return [(piece, shared) for piece, shared in every if shared]
        pieces, (first, last, *_) = self.of(layer), row_sets.bounds(rows)
        start = bisect_right(pieces, first, key=lambda piece: piece.stop)
        stop = bisect_left(pieces, last, key=lambda piece: piece.start)
        found = ((piece, row_sets.intersection(rows, (piece.rows,))) for piece in pieces[start:stop])
        return [(piece, shared) for piece, shared in found if shared]

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
            return self._in_boxes(edge.layer, (piece.inputs,))
        if self.judges(edge.consumer):  # of scores its own, and of a target with one for each
            scores = self.graph[self.graph[edge.consumer].sources[0]]
            if self.graph[edge.layer].shape == scores.shape:
                return self.home(scores.name, piece.machine)
        if self.across(edge):
            return self.graph.source_rows(edge.consumer, piece.rows, edge.number, boxes=True)
        return self._in_boxes(edge.layer, self.graph.source_rows(edge.consumer, piece.rows[:2], edge.number))

    def _in_boxes(self, layer: str, rows: Rows) -> Rows:
        """Whole rows, as sets of the layer's rows are written."""
        return row_sets.across(rows, (0, self.graph[layer].shape[1])) if self.is_boxed(layer) else rows

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
        if edge.layer not in self.copied and not self.is_boxed(edge.layer):
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
        found: dict[Edge, list[Rows]] = {edge: [] for edges in self._edges.values() for edge in edges}
        for edge, machine in self._needed:
            found[edge].append(self.returned(edge, machine))
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
        whole = flops_of(self.graph, piece, batch=batch)
        if not self.judges(piece.layer):
            return whole
        scores = self.graph[self.graph[piece.layer].sources[0]]
        own = self.home(scores.name, piece.machine)
        return whole * scores.nodes_in(own) / scores.n_nodes

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


def rows_worth(graph: Graph, piece: Piece) -> float:
    """How many whole rows of a layer have as many operations as a piece: of one cut by inputs, or a tile."""
    grid = graph[piece.layer]
    if piece.inputs is None:
        return grid.nodes_in((piece.rows,)) / grid.nodes_per_row
    return grid.n_rows * (piece.inputs[1] - piece.inputs[0]) / graph[grid.sources[0]].n_rows


def flops_of(graph: Graph, piece: Piece, *, batch: int) -> float:
    """Operations of a piece for a batch on the way up."""
    return rows_worth(graph, piece) * piece_flops(graph[piece.layer], (0, 1), batch=batch)
