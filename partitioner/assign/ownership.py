"""Who owns which rows of each layer: the decision itself, from which everything else in a plan is derived."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from partita.layers.box import NOTHING, Box, BoxSet
from partita.layers.connectivity import OneToOne, Patch
from partita.layers.losses import Loss
from partita.partitioner.assign.held import Columns, Held
from partita.partitioner.assign.holdings import Holdings
from partita.partitioner.assign.piece import Piece, flops_of
from partita.partitioner.ir.buffer import Edge


@dataclass(frozen=True)
class Ownership(Holdings):
    """Who has which rows, and what follows from it: who listens to what, and who sums which errors.

    Inputs and targets belong to nobody: every machine is fed the rows that its pieces listen to. The one row
    of a loss whose scores are cut may belong to every machine that owns scores: each judges its own. Of a
    loss that several machines repeat besides, the first one counts.
    """

    def across(self, edge: Edge) -> bool:
        """Whether columns matter along an edge: those of either picture are cut.

        The errors of such an edge are summed by part: a machine computes all that its receivers return at
        once, as whole rows of `heard_columns`, and each owner adds up what it gets.
        """
        return self.is_boxed(edge.layer) and not self.narrow.isdisjoint((edge.layer, edge.consumer))

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

    def needed(self, edge: Edge, machine: int) -> BoxSet:
        """The rows of `edge.layer` that the machine's piece of `edge.consumer` listens to."""
        return self._needed.get((edge, machine), NOTHING)

    @cached_property
    def _needed(self) -> dict[tuple[Edge, int], BoxSet]:
        return {
            (edge, piece.machine): self._needed_by(edge, piece)
            for edges in self._edges.values()
            for edge in edges
            for piece in self.of(edge.consumer)
        }

    def _needed_by(self, edge: Edge, piece: Piece) -> BoxSet:
        if piece.inputs is not None:
            return self._in_boxes(edge.layer, BoxSet.of_rows(piece.inputs))
        if self.judges(edge.consumer):  # of scores its own, and of a target with one for each
            scores = self.graph[self.graph[edge.consumer].sources[0]]
            if self.graph[edge.layer].shape == scores.shape:
                return self.home(scores.name, piece.machine)
        if self.across(edge):
            return self.graph.source_rows(edge.consumer, piece.box, edge.number, columns=True)
        return self._in_boxes(edge.layer, self.graph.source_rows(edge.consumer, piece.box.on(1), edge.number))

    def _in_boxes(self, layer: str, rows: BoxSet) -> BoxSet:
        """Whole rows, as sets of the layer's rows are written."""
        return rows.across((0, self.graph[layer].shape[1])) if self.is_boxed(layer) else rows

    def returned(self, edge: Edge, machine: int) -> BoxSet:
        """The rows of `edge.layer` for which the machine's piece of `edge.consumer` has errors.

        They are those that it listens to; a loss that is only repeated has none.
        """
        of_loss = edge.consumer in self.graph.losses
        if of_loss and machine not in self.counted(edge.consumer):
            return NOTHING
        return self.needed(edge, machine)

    def passed_on(self, edge: Edge, machine: int) -> BoxSet:
        """Those whose errors end at their home; the errors of copies stay with them, on the machine."""
        if edge.layer not in self.copied:
            return self.returned(edge, machine)
        return self._passed_on.get((edge, machine), NOTHING)

    @cached_property
    def _passed_on(self) -> dict[tuple[Edge, int], BoxSet]:
        found = {}
        for edge, machine in (key for key in self._needed if key[0].layer in self.copied):
            copies = self.rows(edge.layer, machine) - self.home(edge.layer, machine)
            found[edge, machine] = self.returned(edge, machine) - copies
        return found

    def heard(self, edge: Edge, machine: int) -> BoxSet:
        """The machine's rows of `edge.layer` to which somebody listens along the edge."""
        if edge.layer not in self.copied and not self.is_boxed(edge.layer):
            return self._returned[edge] & self.home(edge.layer, machine)
        listeners = (piece.machine for piece in self.of(edge.consumer))
        return BoxSet.union(
            *(
                self.returned(edge, listener) & self.fed(edge.layer, machine, listener)
                for listener in listeners
            )
        )

    @cached_property
    def _returned(self) -> dict[Edge, BoxSet]:
        """For each edge the rows to which anybody listens along it."""
        found: dict[Edge, list[BoxSet]] = {edge: [] for edges in self._edges.values() for edge in edges}
        for edge, machine in self._needed:
            found[edge].append(self.returned(edge, machine))
        return {edge: BoxSet.union(*rows) for edge, rows in found.items()}

    def shares_errors(self, layer: str) -> tuple[int, ...]:
        """The machines that tell the others of a layer cut by its inputs the errors that came to them."""
        return tuple(
            piece.machine
            for piece in self.of(layer)
            if any(self.heard(edge, piece.machine) for edge in self.edges(layer))
        )

    def needed_by_all(self, layer: str, machine: int) -> BoxSet:
        """The rows of a layer that any piece of the machine listens to."""
        found = self._needed_by_all.get((layer, machine))
        if found is None:
            found = BoxSet.union(*(self.needed(edge, machine) for edge in self.edges(layer)))
            self._needed_by_all[layer, machine] = found
        return found

    @cached_property
    def _needed_by_all(self) -> dict[tuple[str, int], BoxSet]:
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
        if not own or machine in self.borrowers(layer):
            return ()
        if not self.by_inputs(layer):
            return tuple(Held(parameter, own[0]) for parameter in grid.parameters)
        inputs = self.inputs(layer, machine) or (0, 0)
        per_row = self.graph[grid.sources[0]].nodes_per_row
        weight, *others = grid.parameters
        columns = Columns(len(weight.shape) - 1, inputs[0] * per_row, inputs[1] * per_row)
        rows = self.home(layer, machine).hull
        return (
            Held(weight, Box.whole((grid.n_rows,)), columns),
            *(Held(parameter, rows) for parameter in others),
        )

    def by_part(self, edge: Edge) -> bool:
        """Whether each machine sums the errors of its own receivers, and the owners add up the sums.

        Otherwise the sum runs through the machines in the order of the receivers' rows.
        """
        ordered = self.graph[edge.consumer].layer.connectivity.ordered_errors and not self.across(edge)
        return not ordered and len(self.of(edge.consumer)) > 1

    def state_window(self, layer: str, machine: int) -> Box:
        """The rows of a layer's states that a machine holds: its own, those it hears, and all between."""
        return self._window(layer, machine, self.needed_by_all(layer, machine))

    def error_window(self, edge: Edge, machine: int) -> Box:
        """The rows of `edge.layer` for which a machine holds the errors that `edge.consumer` returns.

        Along an edge across columns it holds those columns, too, that its receivers' kernel is given.
        """
        needed = self.needed(edge, machine)
        if self.across(edge) and needed:
            needed = needed | BoxSet(needed[:1]).across(self.heard_columns(edge, machine))
        return self._window(edge.layer, machine, needed)

    def _window(self, layer: str, machine: int, needed: BoxSet) -> Box:
        held = needed | self.rows(layer, machine)
        if held or not self.is_boxed(layer):
            return held.hull
        return Box(((0, 0), (0, self.graph[layer].shape[1])))

    def heard_columns(self, edge: Edge, machine: int) -> tuple[int, int]:
        """The columns of the picture `edge.layer` that the kernel of `edge.consumer` on a machine is given.

        To patches these are all that the machine holds, so that nothing is copied. A one-to-one layer has the
        same as itself, a judge those of its scores, and any other layer all columns.
        """
        consumer, wiring = self.graph[edge.consumer], self.graph[edge.consumer].layer.connectivity
        judged = consumer.sources[0] if self.judges(edge.consumer) else edge.consumer
        if judged != edge.consumer or isinstance(wiring, OneToOne):
            own = self.rows(judged, machine).hull
        else:
            own = self.state_window(edge.layer, machine) if isinstance(wiring, Patch) else Box()
        return own.columns or (0, self.graph[edge.layer].shape[1])
