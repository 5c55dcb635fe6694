"""Everything that follows from who owns what: messages, programs, the predicted step, memory.

Immutable; derived on demand. `plan.py` adds how it prints and draws itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from partita.layers.graph import Graph
from partita.partitioner import cost
from partita.partitioner.arena import arena_bytes, arranged
from partita.partitioner.cluster import Cluster
from partita.partitioner.lower import lower
from partita.partitioner.memory import Driver, scratch_bytes, vector_bytes
from partita.partitioner.messages import Message, messages_of
from partita.partitioner.ownership import Ownership, Piece
from partita.partitioner.program import Program
from partita.partitioner.simulate import Playback, play
from partita.partitioner.sizes import Sizes
from partita.partitioner.step_kind import StepKind
from partita.partitioner.windows import WindowPlan, windows_of


@dataclass(frozen=True)
class BarePlan:
    """One replica of a network over the machines of a cluster.

    Args:
        graph: the network.
        cluster: the machines.
        batch: examples in a minibatch.
        ownership: who owns which rows.
        precision: of states and errors, and of parameters where kernels read them.
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
    def sizes(self) -> Sizes:
        """How many bytes a row of each buffer takes."""
        return Sizes(self.graph, self.batch, self.precision)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message of a training step, or of a prediction where the network has no loss."""
        return self.messages_for(StepKind())

    @property
    def programs(self) -> tuple[Program, ...]:
        """A step of training, for each machine; the way up where the network has no loss."""
        return self.programs_for(StepKind())

    @property
    def upward_programs(self) -> tuple[Program, ...]:
        """The way up alone (to the losses, if there are any), for each machine."""
        return self.programs_for(StepKind(train=False))

    def messages_for(self, kind: StepKind) -> tuple[Message, ...]:
        """Every message of a step of this kind."""
        kind = kind.of(self.graph)
        if kind not in self._messages:
            self._messages[kind] = messages_of(self.ownership, self.sizes, kind)
        return self._messages[kind]

    def programs_for(self, kind: StepKind) -> tuple[Program, ...]:
        """A step of this kind, for each machine."""
        kind = kind.of(self.graph)
        if kind not in self._programs:
            self._programs[kind] = lower(self.ownership, self.messages_for(kind), kind)
        return self._programs[kind]

    @cached_property
    def _messages(self) -> dict[StepKind, tuple[Message, ...]]:
        return {}

    @cached_property
    def _programs(self) -> dict[StepKind, tuple[Program, ...]]:
        return {}

    @cached_property
    def playback(self) -> Playback:
        """The predicted step: the programs, played on a virtual clock.

        Raises:
            Deadlock: never, for a plan of `partition`; tests look.
        """
        sizes, machines = self.sizes, self.cluster.machines
        return play(
            self.programs,
            lambda instruction, machine: cost.compute_seconds(instruction, sizes, machines[machine]),
            lambda operand, source, destination: cost.message_seconds(operand, sizes, self.cluster.link),
        )

    @property
    def predicted_step_s(self) -> float:
        """Seconds of a training step, by the uncalibrated cost model."""
        return self.playback.step_s

    def n_parameters(self, machine: int) -> int:
        """How many numbers the machine's pieces learn."""
        layers = (grid.name for grid in self.graph.computed)
        return sum(held.size for layer in layers for held in self.ownership.held(layer, machine))

    def windows(self, program: Program, *, keep: Collection[str] | None = None) -> dict[str, WindowPlan]:
        """The arrays of states, errors and sums that a machine holds to play one of the plan's programs.

        Args:
            program: of one of its machines.
            keep: the buffers that hold their rows until the next step begins; what is fed always does. Others
                may lie in the same memory, one after another. None: all keep theirs.
        """
        return arranged(self.ownership, program, windows_of(self.ownership, program, self.sizes), keep)

    @property
    def kept(self) -> tuple[str, ...]:
        """What a part that learns keeps of a step until the next: states, by which faults are found."""
        return tuple(grid.name for grid in self.graph.computed)

    def memory_bytes(
        self,
        machine: int,
        *,
        kind: StepKind = StepKind(),  # noqa: B008 - frozen
        driver: Driver = "downpour",
        rule_vectors: int = 1,
    ) -> int:
        """Bytes that the machine's part takes at most: its windows, its vectors, and scratch.

        Left out are other scratch of kernels, the index tables of `Node` layers, messages in flight, and
        Python itself.

        Args:
            machine: whose part.
            kind: of the steps that are played.
            driver: "downpour" keeps two vectors more than a "session": what has accrued, what is in flight.
            rule_vectors: how many vectors the update rule remembers: SGD none, Adagrad one, Adam two.

        Raises:
            ValueError: the network has a loss, but a layer without a way down.
        """
        program = self.programs_for(kind)[machine]
        threads = self.cluster.machines[machine].threads
        vectors = vector_bytes(
            self.sizes, self.n_parameters(machine), program.kind, driver=driver, rule_vectors=rule_vectors
        )
        windows = arena_bytes(self.windows(program, keep=self.kept if program.kind.train else None))
        return windows + vectors + scratch_bytes(self.ownership, program, self.sizes, threads=threads)

    def for_prediction(self) -> Self:
        """The same plan without losses and targets: what `predict` plays."""
        graph = self.graph.without_losses()
        pieces = tuple(piece for piece in self.pieces if piece.layer in graph)
        return replace(self, graph=graph, ownership=replace(self.ownership, graph=graph, pieces=pieces))
