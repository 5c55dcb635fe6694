"""Settings of a shard's policies, which a driver chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.copy_messages import ShardCounts
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.merge_on_quorum import MergeOnQuorum
from partita.engine.protocol.merging import Merging, UnitSizes
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.shard_effects import Policy, ShardRanges
from partita.engine.protocol.staleness import AS_IT_IS, Staleness
from partita.engine.protocol.sum_then_continue import SumThenContinue


def no_records(policy: Policy) -> None:
    """Replays nothing: the checkpoint is all that there is."""


class ShardPolicy(Protocol):
    """Settings of a policy, which can be pickled."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that the shard applies, if its state is among the vectors."""

    @property
    def compress(self) -> Compressor | None:
        """Makes the messages of pushes; None: they are whole gradients."""

    def replaying(self, own: ShardRanges, restored: RestoredState) -> Policy:
        """Returns a machine that carries out the records of an earlier run."""

    def machine(
        self, own: ShardRanges, restored: RestoredState, replay: Callable[[Policy], object] = ...
    ) -> Policy:
        """Returns the policy's machine, with the counts of the checkpoint that the shard starts from.

        `replay` gives it the records since.
        """

    def copied(self, own: ShardRanges, counts: ShardCounts) -> Policy:
        """Returns a machine with the counts of another copy of the shard."""


@dataclass(frozen=True, kw_only=True)
class ApplyPolicy:
    """Gradients are applied on arrival, as Downpour does.

    Args:
        optimizer: of the replicas; a shard applies what it leaves to one.
        acknowledged: for each part, the records of its processes about the shard, ascending.
        staleness: what is done about stale gradients.
        compress: makes the messages of pushes; None: they are whole gradients.
        unsent: the kind of what messages lack, which files then have, see `Driver.unsent`; None: they do not.
        merging: how long pushes wait for one another; None: not at all.
        sizes: examples of units of work, by which a merge is weighted.
    """

    optimizer: Optimizer
    staleness: Staleness = AS_IT_IS
    compress: Compressor | None = None
    unsent: str | None = None
    merging: Merging | None = None
    sizes: UnitSizes = field(default=UnitSizes(1, 1))
    acknowledged: Mapping[str, tuple[PushRecord, ...]] = field(default_factory=dict)

    def replaying(self, own: ShardRanges, restored: RestoredState) -> ApplyOnArrival:
        """Returns a policy for the records of an earlier run, see `ShardPolicy`."""
        keeps = self.unsent is not None
        if self.merging is not None:
            merging, sizes = self.merging, self.sizes
            return MergeOnQuorum(own, merging=merging, sizes=sizes, restored=restored, keeps_unsent=keeps)
        return ApplyOnArrival(own, restored=restored, staleness=self.staleness, keeps_unsent=keeps)

    def machine(
        self, own: ShardRanges, restored: RestoredState, replay: Callable[[Policy], object] = no_records
    ) -> Policy:
        """Returns the policy, see `ShardPolicy`."""
        policy = self.replaying(own, restored)
        replay(policy)
        policy.learn(self.acknowledged)
        return policy

    def copied(self, own: ShardRanges, counts: ShardCounts) -> Policy:
        """Returns the policy of another copy, see `ShardPolicy`."""
        return self.machine(own, RestoredState.of(counts))


@dataclass(frozen=True, kw_only=True)
class SumPolicy:
    """Commands pause at an evaluation until all gradients are summed, as Sandblaster's do.

    Args:
        unit_size: portions in a work unit.
        keeps: whether somebody keeps the shard's records.
    """

    unit_size: int
    keeps: bool = False

    @property
    def optimizer(self) -> None:
        """None: a method's commands update the parameters."""

    @property
    def compress(self) -> None:
        """None: gradients of an evaluation are whole."""

    def replaying(self, own: ShardRanges, restored: RestoredState) -> SumThenContinue:
        """Returns a policy for the records of an earlier run, see `ShardPolicy`."""
        _, number = restored.seen.get(COORDINATOR, (0, 0))
        counts = ShardCounts(restored.version)
        return SumThenContinue(
            own, unit_size=self.unit_size, number=number, restored=counts, keeps=self.keeps
        )

    def machine(
        self, own: ShardRanges, restored: RestoredState, replay: Callable[[Policy], object] = no_records
    ) -> Policy:
        """Returns the policy, see `ShardPolicy`."""
        policy = self.replaying(own, restored)
        replay(policy)
        return policy

    def copied(self, own: ShardRanges, counts: ShardCounts) -> SumThenContinue:
        """Returns the policy of another copy, see `ShardPolicy`."""
        return SumThenContinue(own, unit_size=self.unit_size, restored=counts, keeps=self.keeps)
