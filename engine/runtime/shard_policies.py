"""Settings of a shard's policies, which a driver chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.shard_effects import Policy, ShardRanges
from partita.engine.protocol.sum_then_continue import SumThenContinue


def no_records(policy: Policy) -> None:
    """Replays nothing: the checkpoint is all that there is."""


class ShardPolicy(Protocol):
    """Settings of a policy, which can be pickled."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that the shard applies, if its state is among the vectors."""

    def replaying(self, own: ShardRanges, restored: RestoredState) -> Policy:
        """Returns a machine that carries out the records of an earlier run."""

    def machine(
        self, own: ShardRanges, restored: RestoredState, replay: Callable[[Policy], object] = ...
    ) -> Policy:
        """Returns the policy's machine, with the counts of the checkpoint that the shard starts from.

        `replay` gives it the records since.
        """


@dataclass(frozen=True, kw_only=True)
class ApplyPolicy:
    """Gradients are applied on arrival, as Downpour does.

    Args:
        optimizer: of the replicas; a shard applies what it leaves to one.
        acknowledged: for each part, the records of its processes about the shard, ascending.
    """

    optimizer: Optimizer
    acknowledged: Mapping[str, tuple[PushRecord, ...]] = field(default_factory=dict)

    def replaying(self, own: ShardRanges, restored: RestoredState) -> ApplyOnArrival:
        """Returns a policy for the records of an earlier run, see `ShardPolicy`."""
        return ApplyOnArrival(own, restored=restored)

    def machine(
        self, own: ShardRanges, restored: RestoredState, replay: Callable[[Policy], object] = no_records
    ) -> Policy:
        """Returns the policy, see `ShardPolicy`."""
        policy = self.replaying(own, restored)
        replay(policy)
        policy.learn(self.acknowledged)
        return policy


@dataclass(frozen=True, kw_only=True)
class SumPolicy:
    """Commands pause at an evaluation until all gradients are summed, as Sandblaster's do.

    Args:
        unit_size: portions in a work unit.
    """

    unit_size: int

    @property
    def optimizer(self) -> None:
        """None: a method's commands update the parameters."""

    def replaying(self, own: ShardRanges, restored: RestoredState) -> SumThenContinue:
        """Returns a policy for the records of an earlier run, see `ShardPolicy`."""
        return SumThenContinue(own, unit_size=self.unit_size, number=restored.version)

    def machine(
        self, own: ShardRanges, restored: RestoredState, replay: Callable[[Policy], object] = no_records
    ) -> Policy:
        """Returns the policy, see `ShardPolicy`."""
        policy = self.replaying(own, restored)
        replay(policy)
        return policy
