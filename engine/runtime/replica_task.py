"""What every task of a replica's part has in common, whatever the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from partita.engine.parameters.layout import Layout
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.feed import ArrayFile
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class ReplicaTask:
    """One machine's part of one replica. Its role is a driver's.

    Args:
        plan, machine, replica, replicas: whose part.
        data: a file for each input and target, `[example, *shape]`.
        examples: how many there are.
        seed: of the order of the examples.
        shards: how many hold the parameters.
        instruction_timeout_s: seconds that one computation may take.
    """

    plan: Plan
    machine: int
    replica: int
    replicas: int
    data: Mapping[str, ArrayFile]
    examples: int
    seed: int
    shards: int
    instruction_timeout_s: float

    @property
    def threads(self) -> int:
        """See `HostTask`."""
        return self.plan.cluster.machines[self.machine].threads

    @property
    def rank(self) -> tuple[int, int]:
        """See `HostTask`."""
        return self.replica * len(self.plan.cluster) + self.machine, self.replicas * len(self.plan.cluster)

    @cached_property
    def layout(self) -> Layout:
        """Where the parameters are."""
        return layout_of(self.plan, shards=self.shards)
