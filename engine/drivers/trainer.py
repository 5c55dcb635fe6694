"""A driver at work on one job: what the run loop asks of any driver.

A trainer makes the coordinator's machine and the tasks of the hosts, gives what identifies its checkpoints,
and words its lines. The run loop (`engine/run`) does the rest: checkpoints, the journal, resuming, the
display, Ctrl-C and the result.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from partita.engine.drivers.job import Job
from partita.engine.methods import Method
from partita.engine.parameters.journal_format import JournalEntry, JournalHeader
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import RunSettings
from partita.engine.protocol.names import Topology
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ShardPolicy
from partita.engine.runtime.task import HostTask
from partita.layers.checks import check_whole
from partita.layers.text import counted


@dataclass(frozen=True)
class Resumed:
    """The state from which a run goes on.

    Args:
        manifest: the checkpoint; None: the first parameters.
        entries: entries of the journal; none for a driver without one.
    """

    manifest: Manifest | None
    entries: tuple[JournalEntry, ...] = ()


class Trainer(ABC):
    """A driver at work on one job.

    This class is written for drivers whose replicas have a number of steps to do; one whose method decides
    when it is done has the other `unit`.

    Attributes:
        job: the work.
        run_id: id of this call: a run that goes on counts its pushes and commands anew.
        topology: numbers of the hosts.
        alone: whether no other trainer follows.
        steps: steps of each replica in all; 0 where the number is not known.
        done: steps of each replica before this call.
        steps_per_epoch: steps of a replica in an epoch.
        settings: of the run; set when it begins.
        initial: file of the parameters that the run began with.
        least: replicas with which the run begins and goes on; None: all of them.
    """

    name: str
    """The driver's name in messages."""

    terms: str
    """The possible cost of a failure, announced when the run starts."""

    unit: ClassVar[str] = "step"
    """Word for what is counted: a "step" of a replica, or an "iteration" of a batch method."""

    def __init__(
        self,
        job: Job,
        topology: Topology,
        *,
        steps: int = 0,
        steps_per_epoch: int = 1,
        least: int | None = None,
        alone: bool = True,
    ) -> None:
        """Reads and starts nothing yet; `alone` says that no other trainer follows.

        Raises:
            ValueError: there are too many steps.
        """
        self.job: Final = job
        self.topology: Final = topology
        self.run_id: Final = uuid.uuid4().hex
        self.steps: Final = check_whole(steps, "the number of steps is", least=0)
        self.steps_per_epoch: Final = steps_per_epoch
        self.least: Final = least
        self.alone: Final = alone
        self.settings = RunSettings()
        self.initial = job.initial
        self.done = (0,) * topology.replicas

    # A driver's own.

    @property
    @abstractmethod
    def learner(self) -> Optimizer | Method:
        """The optimizer or the batch method, as checkpoints name it."""

    @abstractmethod
    def coordinator(self, resumed: Resumed | None) -> Coordinator:
        """Makes the coordinator's machine, of a run with `settings`.

        Raises:
            RunFailed: the user's code failed.
            ValueError: the run cannot go on from there.
        """

    @abstractmethod
    def part(self, replica: int, machine: int, checkpoint: int | None) -> HostTask:
        """Makes the task of a part that starts from a checkpoint; None: from `initial`."""

    @property
    def policy(self) -> ShardPolicy:
        """The shards' use of gradients."""
        raise AssertionError(f"{self.name} has no shards")

    def shard(self, shard: int, checkpoint: int | None) -> HostTask:
        """Makes the task of a shard that starts from a checkpoint; None: from `initial`."""
        job = self.job
        return ShardTask(
            shard=shard,
            layout=layout_of(job.plan, shards=self.topology.shards),
            run=self.run_id,
            folder=job.checkpoints,
            checkpoint=checkpoint,
            initial=self.initial,
            precision=job.precision,
            policy=self.policy,
            heartbeats=self.settings.timeouts.heartbeats,
        )

    @property
    def inline(self) -> tuple[str, ...]:
        """The hosts that run in the coordinator's process, where no `places` are given."""
        return ()

    # What a driver with a journal, or without a known number of steps, says otherwise.

    @property
    def journal(self) -> JournalHeader | None:
        """Header of the journal of a run from the start; None: the driver keeps none."""
        return None

    @property
    def limit(self) -> int | None:
        """The largest number of steps of all replicas, or of iterations; None where there is no limit."""
        return self.total

    @property
    def total(self) -> int:
        """Steps of all replicas in all; 0 where the number is not known."""
        return self.steps * self.topology.replicas

    def check(self) -> None:
        """Checks the settings, the plan and the data before anything starts. Raises ValueError."""
        self.job.check_sizes(shards=self.topology.shards)

    def steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        """Converts a checkpoint's steps to this job's, for each replica: epochs stay epochs.

        With another number of replicas each has done their mean.
        """
        before, replicas = manifest.steps, self.topology.replicas
        if len(before) == replicas and not manifest.done:
            return tuple(step * self.steps_per_epoch // manifest.steps_per_epoch for step in before)
        return (int(manifest.epochs * self.steps_per_epoch),) * replicas

    def resume(self, resumed: Resumed) -> None:
        """Begins after what was done before."""
        if resumed.manifest is not None:
            self.done = tuple(min(done, self.steps) for done in self.steps_in(resumed.manifest))

    def beginning(self, resumed: Resumed | None) -> Iterator[str]:
        """Yields lines that say where the run begins. Called after `coordinator`."""
        if resumed is not None and resumed.manifest is not None:
            yield f"resumed from checkpoint {resumed.manifest.checkpoint} at step {sum(self.done)}"
            if sum(self.done) == self.total:
                more = "; ask for more epochs" if self.alone else ""
                yield f"the checkpoint has all {counted(self.total, 'step')} already{more}"

    def held(self, committed: tuple[int, ...] | None) -> int:
        """Returns the steps, or iterations, in what is kept on the disk.

        Args:
            committed: the steps that the last checkpoint holds; None without a checkpoint.
        """
        return sum(committed or ())

    def far(self, n: int) -> str:
        """Words a number of steps of all replicas, or of iterations: "3 of 40 steps"."""
        return f"{n} of {counted(self.total, self.unit)}" if self.total else counted(n, self.unit)
