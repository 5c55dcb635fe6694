"""A driver at work on one job: what the run loop asks of any driver.

A trainer makes the coordinator's machine and the tasks of the hosts, gives what identifies its checkpoints,
and words its lines. The run loop (`engine/run`) does the rest: checkpoints, the journal, resuming, the
display, Ctrl-C and the result.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.paced import Pacing
from partita.engine.files.catalogue import Catalogue
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.journal_format import JournalEntry, JournalHeader
from partita.engine.parameters.layout import Layout
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.reader import Checkpoint
from partita.engine.protocol.actions import Program
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import RunSettings
from partita.engine.protocol.durability import Replicated
from partita.engine.protocol.failure import RunFailed, report_of
from partita.engine.protocol.journaled_plan import JournalMismatch
from partita.engine.protocol.names import Topology
from partita.engine.protocol.views import JoinedBatches, Outline
from partita.engine.protocol.work_mode import UnknownAction, WorkMode
from partita.engine.runtime.backup import BackupTask
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.part_task import Hands, PartTask
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ShardPolicy
from partita.engine.runtime.shard_recovery import LogPlace
from partita.layers.checks import check_whole
from partita.layers.text import counted


@dataclass(frozen=True)
class Resumed:
    """The state from which a run goes on.

    Args:
        manifest: of the checkpoint; None: the first parameters.
        entries: entries of the journal; none for a driver without one.
        checkpoint: the checkpoint, of a driver without a journal.
    """

    manifest: Manifest | None
    entries: tuple[JournalEntry, ...] = ()
    checkpoint: Checkpoint | None = None


class Trainer(ABC):
    """One run of a driver.

    Attributes:
        job: the work.
        driver: its settings and programs.
        plan: of a replica.
        name: the driver's, in messages.
        run_id: id of this call: a run that goes on counts its pushes and commands anew.
        topology: numbers of the hosts.
        outline: the run, as the driver's program knows it.
        alone: whether no other trainer follows.
        steps: steps of an epoch, times the epochs; 0 where the number is not known.
        steps_per_epoch: of a replica, or of all that share them.
        units_per_epoch: in an epoch, of what a checkpoint says to be done.
        done: steps of each replica before this call.
        settings: of the run; set when it begins.
        logs: where shards keep logs, or have kept them; None: nowhere. Set when the run begins.
        initial: file of the parameters that the run began with.
        least: replicas with which the run begins and goes on; None: all of them.
        pacing: when the run stops for callbacks; set before it begins.
        machine: the coordinator; set when the run begins.
    """

    unit: ClassVar[str] = "step"
    """Word for what is counted: a "step" of a replica, or an "iteration" of a batch method."""

    machine: Coordinator

    def __init__(
        self, job: Job, driver: Driver, *, epochs: int, alone: bool, batch: int, steps_per_epoch: int
    ) -> None:
        """Reads and starts nothing yet.

        Args:
            job: the work.
            driver: its settings and programs.
            epochs: passes over the data.
            alone: whether no other trainer follows.
            batch: examples of a replica in a step.
            steps_per_epoch: of a replica, or of all that share them.

        Raises:
            ValueError: there are too many steps, or the settings do not fit the job.
        """
        self.job: Final = job
        self.driver: Final = driver
        self.plan = job.plan
        self.name: Final = type(driver).__name__
        self.run_id: Final = uuid.uuid4().hex
        is_replicated = isinstance(driver.keepers, Replicated)
        machines = len(job.plan.cluster)
        self.topology: Final = Topology(driver.replicas, machines, driver.shards, replicated=is_replicated)
        self.outline: Final = Outline(epochs, job.examples, batch, driver.replicas)
        self.steps: Final = check_whole(epochs * steps_per_epoch, "the number of steps is", least=0)
        self.steps_per_epoch = self.units_per_epoch = steps_per_epoch
        self.least: Final = driver.least
        self.alone: Final = alone
        self.settings = RunSettings()
        self.logs: LogPlace | None = None
        self.initial = job.initial
        self.pacing = Pacing()
        self.done = (0,) * driver.replicas

    def coordinator(self, resumed: Resumed | None) -> Coordinator:
        """Makes the coordinator's machine, of a run with `settings`.

        Raises:
            RunFailed: the user's code failed.
            ValueError: the run cannot go on from there.
        """
        mode, entries = self.mode(resumed), () if resumed is None else resumed.entries
        schedule = self.pacing.around(self.driver.coordinator, works=mode.works, replicas=self.together)
        try:
            self.machine = Coordinator(
                schedule,
                self.outline,
                mode,
                self.topology,
                journal=[(entry.digest, entry.scalars) for entry in entries],
                settings=self.settings,
            )
        except (JournalMismatch, UnknownAction, KeyboardInterrupt):
            raise
        except BaseException as error:  # the program may be a user's
            report = report_of(error)
            raise RunFailed.of(f"{mode.program} failed: {report.reason}", report.traceback) from error
        return self.machine

    # What differs with how the replicas work.

    @property
    @abstractmethod
    def terms(self) -> str:
        """The possible cost of a failure, announced when the run starts."""

    @abstractmethod
    def mode(self, resumed: Resumed | None) -> WorkMode:
        """Makes the coordinator's knowledge of the work."""

    @property
    def learner(self) -> object:
        """The optimizer, or the batch method, as checkpoints name it."""
        return self.driver.optimizer

    @abstractmethod
    def hands(self, checkpoint: int | None) -> Hands:
        """Makes the hands of parts, of which those that keep parameters start from a checkpoint."""

    @property
    def program(self) -> Callable[[Any], Program]:
        """The program of a part."""
        return self.driver.replica

    def part(self, replica: int, machine: int, checkpoint: int | None) -> PartTask:
        """Makes the task of a part that starts from a checkpoint; None: from `initial`."""
        job, driver = self.job, self.driver
        return PartTask(
            plan=self.plan,
            machine=machine,
            replica=replica,
            replicas=driver.replicas,
            data=job.data,
            examples=job.examples,
            seed=job.seed,
            shards=driver.shards,
            fragments=driver.n_fragments,
            instruction_timeout_s=job.instruction_timeout_s,
            program=self.program,
            hands=self.hands(checkpoint),
            metrics=job.metrics,
            validation=job.validation,
        )

    def policy(self, shard: int) -> ShardPolicy:
        """Returns the use that a shard makes of gradients."""
        raise AssertionError(f"{self.name} has no shards")

    def backup(self, shard: int, checkpoint: int | None) -> BackupTask:
        """Makes the task of a shard's backup, in a run that began with a checkpoint; None: with `initial`."""
        return BackupTask(self.shard(shard, checkpoint))

    @property
    def copy_bytes(self) -> int:
        """The bytes of one copy of all that shards hold."""
        optimizer, item = self.policy(0).optimizer, np.dtype(self.job.precision).itemsize
        vectors = 1 + (0 if optimizer is None else len(optimizer.state_names))
        return layout_of(self.job.plan, shards=1).size * vectors * item

    def shard(self, shard: int, checkpoint: int | None) -> ShardTask:
        """Makes the task of a shard that starts from a checkpoint; None: from `initial`."""
        job = self.job
        return ShardTask(
            shard=shard,
            layout=self.layout,
            run=self.run_id,
            folder=job.checkpoints,
            checkpoint=checkpoint,
            initial=self.initial,
            precision=job.precision,
            policy=self.policy(shard),
            heartbeats=self.settings.timeouts.heartbeats,
            durability=self.driver.keepers,
            logs=self.logs,
            units_per_epoch=self.units_per_epoch,
        )

    @property
    def layout(self) -> Layout:
        """The places of all parameters on machines and shards, of each fragment."""
        return layout_of(self.job.plan, shards=self.topology.shards, fragments=self.driver.n_fragments)

    @property
    def pushes(self) -> Path | None:
        """Folder of the records of acknowledged pushes; None where parts note none."""
        return None

    @property
    def catalogue(self) -> Catalogue:
        """The files that hosts on other machines may read and write."""
        job = self.job
        return Catalogue(
            folder=job.folder,
            files={f"data/{name}": path for name, path in job.served.items()}
            | {f"initial/{path.name}": path for path in (job.initial, self.initial)},
            checkpoints=Checkpoints(job.checkpoints, run=self.run_id),
            pushes=self.pushes,
            shards=max(1, self.topology.shards),
            fragments=self.driver.n_fragments,
            most_bytes=job.most_file_bytes,
            shared=job.shared,
        )

    @property
    def inline(self) -> tuple[str, ...]:
        """The hosts that run in the coordinator's process, where no `places` are given."""
        return ()

    @property
    def keeps_records(self) -> bool:
        """Returns whether somebody keeps the records of shards."""
        return self.topology.shards > 0 and self.driver.keepers.keeps

    @property
    def syncs_journal(self) -> bool:
        """Returns whether an entry of the journal is on the disk before it is used."""
        return False

    @property
    def journal(self) -> JournalHeader | None:
        """Header of the journal of a run from the start; None: the driver keeps none."""
        return None

    @property
    def together(self) -> int:
        """Returns the number of replicas that do each step together."""
        return 1

    @property
    def position(self) -> int:
        """Examples of the run that were done before this call, as far as steps follow one another."""
        batches = JoinedBatches(self.outline.examples, self.outline.batch)
        return batches.position(0, sum(self.done) // self.together, self.together)

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
        self.job.check_sizes(shards=self.topology.shards, fragments=self.driver.n_fragments)

    def steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        """Converts a checkpoint's steps to this job's, for each replica: epochs stay epochs.

        With another number of replicas each has done their mean.
        """
        before, replicas = manifest.steps, self.topology.replicas
        if len(before) == replicas and not manifest.done:
            return tuple(step * self.steps_per_epoch // manifest.units_per_epoch for step in before)
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
        elif resumed is not None:
            yield "resumed from the logs of the shards; there is no checkpoint yet"

    def held(self, committed: tuple[int, ...] | None) -> int:
        """Returns the steps, or iterations, in what is kept on the disk.

        Args:
            committed: the steps that the last checkpoint holds; None without a checkpoint.
        """
        return sum(committed or ())

    def far(self, n: int) -> str:
        """Words a number of steps of all replicas, or of iterations: "3 of 40 steps"."""
        return f"{n} of {counted(self.total, self.unit)}" if self.total else counted(n, self.unit)
