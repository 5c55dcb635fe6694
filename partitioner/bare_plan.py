"""Everything that follows from who owns what: messages, programs, the predicted step, memory.

Immutable; derived on demand. `plan.py` adds how it prints and draws itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from partita.layers.graph import Graph
from partita.partitioner import cost
from partita.partitioner.cluster import Cluster
from partita.partitioner.lower import lower
from partita.partitioner.messages import Message, errors, states
from partita.partitioner.ownership import Ownership, Piece
from partita.partitioner.program import Program
from partita.partitioner.simulate import Playback, play
from partita.partitioner.windows import ITEM_BYTES, WindowPlan, windows_of

PRECISIONS = {name: ITEM_BYTES[name] for name in ("float32", "float64")}
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

    def windows(self, program: Program) -> dict[str, WindowPlan]:
        """The arrays of states and errors that a machine holds to play one of the plan's programs."""
        return windows_of(self.ownership, program, batch=self.batch, precision=self.precision)

    def memory_bytes(self, machine: int) -> int:
        """Bytes of the arrays of the machine's part.

        Counted are the windows of states and errors, and vectors as long as the machine's parameters: the
        parameters and their gradient; in training also what has accrued, what is in flight, and one vector
        for the state of the update rule (some rules keep none, some more). Left out are the scratch memory of
        kernels, the index tables of `Node` layers, messages in flight, and Python itself.

        Raises:
            ValueError: the network has a loss, but a layer without a way down.
        """
        vectors = 5 if self.graph.losses else 2
        windows = self.windows(self.programs[machine]).values()
        numbers = vectors * self.n_parameters(machine)
        return sum(window.n_bytes for window in windows) + numbers * PRECISIONS[self.precision]

    def for_prediction(self) -> Self:
        """The same plan without losses and targets: what `predict` plays."""
        graph = self.graph.without_losses()
        pieces = tuple(piece for piece in self.pieces if piece.layer in graph)
        return replace(self, graph=graph, ownership=replace(self.ownership, graph=graph, pieces=pieces))
