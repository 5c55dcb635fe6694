"""What is to be decided, and what a decision takes: its programs are played on the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from partita.layers.graph import Graph
from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.cluster import Cluster
from partita.partitioner.cost import Costs
from partita.partitioner.cuts import Cuts
from partita.partitioner.settle import settled


@dataclass(frozen=True)
class Task:
    """A network to be cut.

    Args:
        graph: the network.
        cluster: over these machines.
        batch: examples in a minibatch.
        precision: of states and errors.
        by_hand: cuts that stand.
    """

    graph: Graph
    cluster: Cluster
    batch: int
    precision: str = "float32"
    by_hand: Cuts = field(default_factory=dict)

    @cached_property
    def costs(self) -> Costs:
        """Of instructions and messages."""
        return Costs(self.graph, self.cluster, batch=self.batch, precision=self.precision)

    @cached_property
    def train(self) -> bool:
        """Whether a step learns."""
        return bool(self.graph.losses)

    def plan(self, cuts: Cuts) -> BarePlan:
        """The plan of a cut of every layer.

        Raises:
            ValueError: a cut cannot be.
        """
        owned = settled(self.graph, len(self.cluster), cuts)
        return BarePlan(self.graph, self.cluster, self.batch, owned, self.precision)

    def layer_s(self, layer: str, rows: tuple[int, int], machine: int) -> float:
        """Seconds of these rows of a layer on a machine, all that a step does with them."""
        return self.costs.layer_s(layer, (rows,), machine, train=self.train)

    @cached_property
    def limits(self) -> Mapping[int, int]:
        """The memory of the machines that have a limit (bytes)."""
        machines = enumerate(self.cluster.machines)
        return {m: machine.memory_bytes for m, machine in machines if machine.memory_bytes is not None}


def excess_bytes(plan: BarePlan) -> int:
    """By how much parts exceed the memory of their machines, in all."""
    limits = ((m, machine.memory_bytes) for m, machine in enumerate(plan.cluster.machines))
    return sum(max(plan.memory_bytes(m) - limit, 0) for m, limit in limits if limit is not None)
