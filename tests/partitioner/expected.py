"""What must be true of a plan, from the layers' `connectivity.edges` and from who owns which rows alone.

Written apart from the partitioner's own derivation, row by row and slowly, so that one can be held against
the other.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from partita.layers import Graph, OneAgainstAll, SoftmaxCrossEntropy
from partita.layers.connectivity import PADDING
from partita.layers.rows import Rows
from partita.partitioner import Ownership

LABELLED = (SoftmaxCrossEntropy, OneAgainstAll)
"""Losses that compare all scores with one label."""


def members(rows: Rows) -> list[int]:
    """Every single row of a set."""
    return [row for start, stop in rows for row in range(start, stop)]


class Expected:
    """Answers about one plan's ownership."""

    def __init__(self, owned: Ownership) -> None:
        self.owned, self.graph = owned, owned.graph
        self.heard = cache(self._heard)

    def own(self, layer: str, machine: int) -> list[int]:
        """The rows of a layer that a machine owns."""
        return [
            row
            for piece in self.owned.pieces
            if piece.layer == layer and piece.machine == machine
            for row in range(piece.start, piece.stop)
        ]

    def by_inputs(self, layer: str) -> bool:
        """Whether each machine of a layer has the weights of some inputs."""
        return any(piece.inputs is not None for piece in self.owned.pieces if piece.layer == layer)

    def feeder(self, layer: str, row: int, machine: int) -> int:
        """Who feeds a row to a machine: its own copy, or else the first one."""
        owners = [other for other in self.owners(layer) if row in self.own(layer, other)]
        return machine if machine in owners else owners[0]

    def owners(self, layer: str) -> list[int]:
        """The machines of a layer, by the rows that they own."""
        return [piece.machine for piece in sorted(self.owned.pieces) if piece.layer == layer]

    def _heard(self, consumer: str, number: int, row: int) -> frozenset[int]:
        return frozenset(heard_rows(self.graph, consumer, number, row))

    def needed(self, consumer: str, number: int, machine: int) -> set[int]:
        """The rows of an input that a machine's piece of a layer listens to."""
        if self.by_inputs(consumer):
            runs = [p.inputs for p in self.owned.pieces if (p.layer, p.machine) == (consumer, machine)]
            return {row for run in runs if run is not None for row in range(*run)}
        if machine in self.judges(consumer):
            scores = self.graph[self.graph[consumer].sources[0]]
            if number == 0 or not isinstance(self.graph[consumer].layer, LABELLED):
                return self.judged(scores.name, machine)
        return {heard for row in self.own(consumer, machine) for heard in self.heard(consumer, number, row)}

    def judges(self, loss: str) -> list[int]:
        """The machines that each judge their own scores, by the rows of these; none if one judges all."""
        if loss not in self.graph.losses or len(self.owners(loss)) < 2:
            return []
        scores = self.graph[loss].sources[0]
        found = [machine for machine in self.owners(scores) if self.judged(scores, machine)]
        return found if sorted(found) == sorted(self.owners(loss)) else []

    def judged(self, scores: str, machine: int) -> set[int]:
        """The scores that a machine may judge: its own, where no machine before it has them."""
        return {row for row in self.own(scores, machine) if self.feeder(scores, row, -1) == machine}

    def counted(self, consumer: str) -> list[int]:
        """The machines of a layer that return errors: of a loss that is only repeated, the first."""
        owners = self.owners(consumer)
        repeated = consumer in self.graph.losses and not self.judges(consumer)
        return owners[:1] if repeated else owners

    def tells(self, loss: str) -> list[int]:
        """Those judges that must hear of one another: where the target is a label, all."""
        return self.judges(loss) if isinstance(self.graph[loss].layer, LABELLED) else []

    def borrowers(self, layer: str) -> list[int]:
        """The machines that use a layer's weights but do not own them."""
        shared = any(parameter.shared for parameter in self.graph[layer].parameters)
        return self.owners(layer)[1:] if shared else []

    def learners(self) -> list[int]:
        """The machines that own parameters."""
        return [
            machine
            for machine in range(self.owned.machines)
            if any(
                grid.parameters
                and machine in self.owners(grid.name)
                and machine not in self.borrowers(grid.name)
                for grid in self.graph.computed
            )
        ]

    def needed_by_all(self, layer: str, machine: int) -> set[int]:
        """The rows of a layer that anything on the machine listens to."""
        found: set[int] = set()
        for consumer, number in self.consumers(layer):
            found |= self.needed(consumer, number, machine)
        return found

    def consumers(self, layer: str) -> list[tuple[str, int]]:
        """Who listens to a layer, and as which of its inputs; in the order of the graph."""
        return [
            (g.name, k) for g in self.graph.grids for k, source in enumerate(g.sources) if source == layer
        ]

    def by_part(self, consumer: str) -> bool:
        """Whether the machines of a layer sum the errors of its inputs each for itself."""
        return (
            self.graph[consumer].layer.connectivity.ordered_errors is False and len(self.owners(consumer)) > 1
        )

    def error(self, layer: str, row: int, machine: int) -> list[tuple[str, int, int, int]]:
        """The terms of a row's error on a machine that has it, in order: each receiver that it feeds once.

        A term is (consumer, which of its inputs, the consumer's row, on which machine). Where machines sum
        for themselves, the owner's own receivers come first, and then the others machine by machine.
        """
        found = []
        for consumer, number in self.consumers(layer):
            listeners = [
                other
                for other in self.counted(consumer)
                if row in self.needed(consumer, number, other) and self.feeder(layer, row, other) == machine
            ]
            if self.by_part(consumer):
                listeners.sort(key=lambda other: other != machine)
            found += [
                (consumer, number, receiver, other)
                for other in listeners
                for receiver in self.receivers(consumer, other)
                if row in self.heard(consumer, number, receiver)
            ]
        return found

    def receivers(self, consumer: str, machine: int) -> list[int]:
        """The rows of a layer for which a machine has weights, and returns errors to its inputs."""
        if self.by_inputs(consumer):
            return list(range(self.graph[consumer].n_rows))
        return self.own(consumer, machine)

    def delta(self, layer: str, row: int, machine: int) -> list[tuple[str, int, int, int]]:
        """The terms of a row's error that all machines have together, machine by machine.

        The machine adds what comes before its own terms as one sum: own + (a + b) is (a + b) + own.
        """
        owners = sorted(other for other in self.owners(layer) if row in self.own(layer, other))
        owners.sort(key=lambda other: other != machine)
        return [term for other in owners for term in self.error(layer, row, other)]


def heard_rows(graph: Graph, consumer: str, number: int, row: int) -> set[int]:
    """The rows of an input that one row of a layer listens to, from the edges of its nodes."""
    grid, source = graph[consumer], graph[graph[consumer].sources[number]]
    if source in graph.targets:
        return set(range(source.n_rows))
    _, senders = grid.layer.connectivity.edges((row, row + 1), grid.shape, source.shape)
    return {int(sender) for sender in np.unique(senders[senders != PADDING] // source.nodes_per_row)}
