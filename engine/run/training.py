"""A driver at work on a job: the tasks of its hosts, its coordinator, its checkpoints, and its result.

This is what drivers have in common; a driver's own is in `downpour_training` and `sandblaster_training`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from partita.engine.drivers.driver import Driver
from partita.engine.launch.launcher import Launcher
from partita.engine.methods import Method
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AppendJournal,
    Commit,
    CoordinatorEffect,
    EndRun,
    RunSettings,
    Starting,
    Timeouts,
)
from partita.engine.protocol.names import Topology, part_indices, shard_index
from partita.engine.run.interrupt import Interrupted, stops_on_ctrl_c
from partita.engine.run.iterations import Gauge
from partita.engine.run.job import Job
from partita.engine.run.phases import starting
from partita.engine.run.run import Run
from partita.engine.run.supervisor import RunFailed, Supervisor
from partita.engine.runtime.host import versions
from partita.engine.runtime.task import HostTask
from partita.layers.text import counted

if TYPE_CHECKING:
    from partita.engine.run.display import Display


@dataclass(frozen=True)
class CheckpointPolicy:
    """When checkpoints are written, and which are kept.

    Args:
        every_s: seconds from one checkpoint to the next.
        timeout_s: seconds without progress after which one is given up.
        first: number of the first checkpoint of a run that replaces an earlier one; 0 where nothing is
            replaced.
    """

    every_s: float = 30.0
    timeout_s: float = 120.0
    first: int = 0


class Training(ABC):
    """One run of a job under a driver.

    Attributes:
        job: the work.
        store: checkpoints of the job.
        resumed: checkpoint from which the run goes on; None: from the job's first parameters.
        skipped: newer checkpoints that could not be used, one sentence each.
        steps_per_epoch: steps of a replica in an epoch; 1 for a batch method.
    """

    terms: ClassVar[str]
    """The possible cost of a failure, announced when the run starts."""

    steps_per_epoch: int = 1

    def __init__(self, job: Job, settings: Driver) -> None:
        """Reads and starts nothing yet."""
        self.job: Final = job
        self.run_id: Final = uuid.uuid4().hex
        """Id of this call: a run that goes on counts its pushes and commands anew."""
        self.store: Final = Checkpoints(job.checkpoints, run=self.run_id)
        self.topology: Final = Topology(settings.replicas, len(job.plan.cluster), settings.shards)
        self.resumed: int | None = None
        self.skipped: tuple[str, ...] = ()
        self._timeouts = Timeouts()

    def _unknown_network(self, what: str, network: Mapping[str, str]) -> tuple[str, ...]:
        """The warning about a file that is older than the texts of networks."""
        if network:
            return ()
        return (f"{what} does not say more of its network than shapes; see that the layers are the same",)

    @abstractmethod
    def check(self) -> None:
        """Checks the settings, the plan and the data before anything starts. Raises ValueError."""

    @abstractmethod
    def find(self) -> bool:
        """Looks for a run to go on with, and says whether there is one.

        Raises:
            ValueError: there is one, and it cannot go on so.
        """

    def run(
        self, launcher: Launcher, display: Display, policy: CheckpointPolicy, *, start_timeout_s: float
    ) -> Run:
        """Runs to the end.

        Raises:
            RunFailed, Interrupted, ValueError, OSError: see `train`.
        """
        try:
            return self._run(launcher, display, policy, start_timeout_s)
        finally:
            self._close()

    def _run(
        self, launcher: Launcher, display: Display, policy: CheckpointPolicy, start_timeout_s: float
    ) -> Run:
        self._policy = policy
        self._timeouts = Timeouts(
            checkpoint_every_s=policy.every_s, save_s=policy.timeout_s, start_s=start_timeout_s
        )
        self._display = display
        settings = RunSettings(
            run=self.run_id,
            next_checkpoint=self.store.next_number(),
            versions=versions(),
            timeouts=self._timeouts,
        )
        supervisor = Supervisor(launcher, self._coordinator(settings), self, warn=display.print_line)
        with stops_on_ctrl_c(supervisor.request_stop):
            self._announce(display)
            display.follow(self._gauge())
            try:
                done = supervisor.run()
                display.draw()
                return self._finished(done, display)
            except RunFailed as failure:
                raise failure.with_hint(self._kept()) from None

    def _announce(self, display: Display) -> None:
        has = self.topology
        counts = (has.replicas, "replica"), (has.machines, "machine"), (has.shards, "shard")
        replicas, machines, shards = (counted(n, what) for n, what in counts)
        display.print_line(f"{self.job.plan.graph.name}: {replicas} of {machines}, {shards}; {self.terms}")
        for text in (*self.skipped, *self._beginning()):
            display.print_line(text)

    def commit(self, commit: Commit) -> str | None:
        """See the protocol `Work`."""
        self._before_commit()
        job = self.job
        manifest = Manifest(
            checkpoint=commit.checkpoint,
            run=self._run_of_files,
            shapes=job.shapes,
            network=job.network,
            dtype=job.precision,
            optimizer=repr(self._learner),
            steps=commit.steps,
            steps_per_epoch=self.steps_per_epoch,
            entries=commit.entries,
            lost=commit.lost,
            position=commit.position,
        )
        self.store.commit(manifest)
        self._committed(commit)
        try:
            self.store.prune(first=self._policy.first)
        except OSError as error:
            return (
                f"checkpoint {commit.checkpoint} is kept, and an older one could not be removed ({error}); "
                "the next one tries again"
            )
        return None

    def record(self, record: AppendJournal) -> None:
        """See `Work`; a driver without a journal is asked for none."""
        raise AssertionError(record)

    def note(self, effect: CoordinatorEffect) -> None:
        """See the protocol `Work`."""
        if isinstance(effect, Starting):
            hosts = counted(effect.hosts, "process", "processes")
            self._display.phase(starting(hosts, ready=effect.ready, compiled=effect.compiled))
        else:
            self._note(effect, self._display)

    def _goes_on(self) -> str:
        """Text that says how to go on with the run."""
        return f"{self.job.caller.again} goes on from it"

    def _parameters(self, done: EndRun, *, start: Path) -> dict[str, Vector]:
        """Parameters of the run's last checkpoint, or of its start."""
        number = self.resumed if done.checkpoint is None else done.checkpoint
        if number is None:
            return load_parameters(start, self.job.shapes)
        return self.store.open(number, self.job.shapes).parameters()

    def _stopped(self, how_far: str, run: Run) -> Interrupted:
        kept = self._kept()
        return Interrupted(f"{how_far}; {kept}" if kept else how_far, run)

    def task_of(self, name: str, checkpoint: int | None) -> HostTask:
        """See the protocol `Work`."""
        checkpoint = self.resumed if checkpoint is None else checkpoint
        part, shard = part_indices(name), shard_index(name)
        if part is not None:
            return self._part(replica=part[0], machine=part[1])
        assert shard is not None, f"{name} is neither a part nor a shard"
        return self._shard(shard, checkpoint)

    # A driver's own.

    @property
    @abstractmethod
    def _learner(self) -> Optimizer | Method:
        """The optimizer or the batch method, as checkpoints name it."""

    @abstractmethod
    def _part(self, *, replica: int, machine: int) -> HostTask: ...

    @abstractmethod
    def _shard(self, shard: int, checkpoint: int | None) -> HostTask: ...

    @abstractmethod
    def _coordinator(self, settings: RunSettings) -> Coordinator: ...

    @abstractmethod
    def _gauge(self) -> Gauge:
        """Makes the gauge of the display."""

    @abstractmethod
    def _beginning(self) -> Iterator[str]:
        """Yields lines that say where the run begins."""

    @abstractmethod
    def _note(self, effect: CoordinatorEffect, display: Display) -> None:
        """Carries out effects other than those for hosts and checkpoints."""

    def _before_commit(self) -> None:  # noqa: B027 - nothing, unless a driver says so
        """Called before a checkpoint is committed."""

    @property
    def _run_of_files(self) -> str:
        """Id of the run that the files belong to: this call's, unless it goes on with an earlier one's."""
        return self.run_id

    def _committed(self, commit: Commit) -> None:  # noqa: B027
        """Called when a checkpoint is committed."""

    @abstractmethod
    def _kept(self) -> str:
        """The files of the run, and how to go on with it; empty when there are none."""

    @abstractmethod
    def _finished(self, done: EndRun, display: Display) -> Run:
        """Makes the result of the run. Raises Interrupted, RunFailed."""

    def _close(self) -> None:  # noqa: B027
        """Closes files."""
