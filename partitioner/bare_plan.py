"""Everything that follows from who owns what: messages, programs, the predicted step, memory.

Immutable; derived on demand. `plan.py` adds how it prints and draws itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from partita.layers import rows as row_sets
from partita.layers.graph import Graph
from partita.partitioner import cost
from partita.partitioner.cluster import Cluster
from partita.partitioner.lower import lower
from partita.partitioner.messages import Message, errors, states
from partita.partitioner.ownership import Ownership, Piece
from partita.partitioner.program import Program
from partita.partitioner.simulate import Playback, play

PRECISIONS = {"float32": 4, "float64": 8}
"""Bytes of a number."""


@dataclass(frozen=True)
class BarePlan:
    """One replica of a network over the machines of a cluster.

    Args:
        graph: the network.
        cluster: the machines.
        batch: examples in a minibatch.
        ownership: who owns which rows.
        precision: of states, errors and parameters.
    """

    graph: Graph
    cluster: Cluster
    batch: int
    ownership: Ownership
    precision: str = "float32"

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Every piece of every layer."""
        return self.ownership.pieces

    @property
    def bytes_per_node(self) -> int:
        """Of the states of one node for a batch."""
        return self.batch * PRECISIONS[self.precision]

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Every message of a training step, or of a prediction where the network has no loss."""
        up = states(self.ownership, bytes_per_node=self.bytes_per_node)
        return up + (errors(self.ownership, bytes_per_node=self.bytes_per_node) if self.graph.losses else ())

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """A step of training, for each machine."""
        return lower(self.ownership, self.messages, train=bool(self.graph.losses))

    @cached_property
    def upward_programs(self) -> tuple[Program, ...]:
        """The way up alone (to the losses, if there are any), for each machine."""
        up = tuple(message for message in self.messages if message.direction == "up")
        return lower(self.ownership, up, train=False)

    @cached_property
    def playback(self) -> Playback:
        """The predicted step: the programs, played on a virtual clock.

        Raises:
            Deadlock: never, for a plan of `partition`; tests look.
        """
        n_bytes = PRECISIONS[self.precision]
        return play(
            self.programs,
            lambda instruction, machine: cost.compute_seconds(
                instruction, self.graph, self.cluster.machines[machine], batch=self.batch, n_bytes=n_bytes
            ),
            lambda operand, source, destination: cost.message_seconds(
                operand, self.graph, self.cluster.link, batch=self.batch, n_bytes=n_bytes
            ),
        )

    @property
    def predicted_step_s(self) -> float:
        """Seconds of a training step, by the uncalibrated cost model."""
        return self.playback.step_s

    def n_parameters(self, machine: int) -> int:
        """How many numbers the machine's pieces learn."""
        return sum(
            stop - start
            for piece in self.pieces
            if piece.machine == machine
            for parameter in self.graph[piece.layer].parameters
            for start, stop in [parameter.span(piece.rows)]
        )

    def memory_bytes(self, machine: int) -> int:
        """Bytes of the machine's states, errors, parameters, gradients (also those accrued and in flight)."""
        owned, graph = self.ownership, self.graph
        nodes = 0
        for grid in graph.grids:
            windows = [owned.state_window(grid.name, machine)]
            if graph.losses and grid.name in graph.needs_error:
                windows += [owned.error_window(edge, machine) for edge in owned.edges(grid.name)]
                windows += [
                    row_sets.bounds(m.rows)
                    for m in self.messages
                    if m.destination == machine and m.direction == "down" and m.layer == grid.name
                ]
            nodes += sum(stop - start for start, stop in windows) * grid.nodes_per_row
        return nodes * self.bytes_per_node + 4 * self.n_parameters(machine) * PRECISIONS[self.precision]

    def for_prediction(self) -> Self:
        """The same plan without losses and targets: what `predict` plays."""
        graph = self.graph.without_losses()
        pieces = tuple(piece for piece in self.pieces if piece.layer in graph)
        return replace(self, graph=graph, ownership=replace(self.ownership, graph=graph, pieces=pieces))
