"""A driver at work on a job: what its hosts do, who coordinates them, what is kept, and what is left.

What every driver does is here; a driver's own is in `downpour_training` and `sandblaster_training`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from partita.engine.drivers.interrupt import Interrupted, stops_on_ctrl_c
from partita.engine.drivers.job import Job
from partita.engine.drivers.phases import starting
from partita.engine.drivers.progress import Gauge
from partita.engine.drivers.run import Run
from partita.engine.drivers.supervisor import RunFailed, Supervisor
from partita.engine.launch.launcher import Launcher
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AppendJournal,
    Commit,
    CoordinatorEffect,
    EndRun,
    Starting,
    Timeouts,
)
from partita.engine.protocol.names import Topology, part_indices, shard_index
from partita.engine.runtime.task import HostTask
from partita.layers.text import counted

if TYPE_CHECKING:
    from partita.engine.drivers.display import Display


class Settings(Protocol):
    """What every driver has."""

    @property
    def replicas(self) -> int:
        """Copies of the network."""

    @property
    def shards(self) -> int:
        """Servers among which the parameters are divided."""


@dataclass(frozen=True)
class Keeping:
    """When checkpoints are made, and which.

    Args:
        every_s: seconds from one to the next.
        timeout_s: seconds without progress after which one is given up.
        first: the number of the first one of a run that replaces an earlier one; 0 where nothing is replaced.
    """

    every_s: float = 30.0
    timeout_s: float = 120.0
    first: int = 0


class Training(ABC):
    """One run of a job under a driver.

    Attributes:
        job: what is trained.
        store: its checkpoints.
        resumed: the checkpoint from which it goes on; None: from the job's first parameters.
        skipped: newer checkpoints that could not be used, one sentence each.
    """

    def __init__(self, job: Job, settings: Settings) -> None:
        """Nothing is found and nothing has started yet."""
        self.job: Final = job
        self.run_id: Final = uuid.uuid4().hex
        """Of this call: a run that goes on counts its pushes and commands anew."""
        self.store: Final = Checkpoints(job.checkpoints, run=self.run_id)
        self.topology: Final = Topology(settings.replicas, len(job.plan.cluster), settings.shards)
        self.resumed: int | None = None
        self.skipped: tuple[str, ...] = ()
        self._timeouts = Timeouts()

    def _unknown_network(self, what: str, network: Mapping[str, str]) -> tuple[str, ...]:
        """What is said of a file from before networks had texts."""
        if network:
            return ()
        return (f"{what} does not say more of its network than shapes; see that the layers are the same",)

    @abstractmethod
    def check(self) -> None:
        """Looks at the settings, the plan and the data before anything starts. Raises ValueError."""

    @abstractmethod
    def find(self) -> bool:
        """Looks for a run to go on with, and says whether there is one.

        Raises:
            ValueError: there is one, and it cannot go on so.
        """

    def run(self, launcher: Launcher, display: Display, keeping: Keeping, *, start_timeout_s: float) -> Run:
        """Runs to the end.

        Raises:
            RunFailed, Interrupted, ValueError, OSError: see `train`.
        """
        try:
            return self._run(launcher, display, keeping, start_timeout_s)
        finally:
            self._close()

    def _run(self, launcher: Launcher, display: Display, keeping: Keeping, start_timeout_s: float) -> Run:
        self._keeping = keeping
        self._timeouts = timeouts = Timeouts(
            checkpoint_every_s=keeping.every_s, save_s=keeping.timeout_s, start_s=start_timeout_s
        )
        self._display = display
        supervisor = Supervisor(launcher, self._coordinator(timeouts), self, warn=display.say)
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
        display.say(f"{self.job.plan.graph.name}: {replicas} of {machines}, {shards}; {self._terms()}")
        for text in (*self.skipped, *self._beginning()):
            display.say(text)

    def commit(self, commit: Commit) -> str | None:
        """See `Work`."""
        self._before_commit()
        self.store.commit(self._manifest(commit))
        self._committed(commit)
        try:
            self.store.prune(first=self._keeping.first)
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
        """See `Work`."""
        if isinstance(effect, Starting):
            hosts = counted(effect.hosts, "process", "processes")
            self._display.phase(starting(hosts, ready=effect.ready, compiled=effect.compiled))
        else:
            self._note(effect, self._display)

    def _goes_on(self) -> str:
        """What is written to go on with the run."""
        return f"{self.job.caller.again} goes on from it"

    def _parameters(self, done: EndRun, *, start: Path) -> dict[str, Vector]:
        """Those that the run leaves: of its last checkpoint, or of where it began."""
        number = self.resumed if done.checkpoint is None else done.checkpoint
        if number is None:
            return load_parameters(start, self.job.shapes)
        return self.store.open(number, self.job.shapes).parameters()

    def _stopped(self, how_far: str, run: Run) -> Interrupted:
        kept = self._kept()
        return Interrupted(f"{how_far}; {kept}" if kept else how_far, run)

    def task_of(self, name: str, checkpoint: int | None) -> HostTask:
        """See `Work`."""
        checkpoint = self.resumed if checkpoint is None else checkpoint
        part, shard = part_indices(name), shard_index(name)
        if part is not None:
            return self._part(replica=part[0], machine=part[1])
        assert shard is not None, f"{name} is neither a part nor a shard"
        return self._shard(shard, checkpoint)

    # What is a driver's own.

    @abstractmethod
    def _part(self, *, replica: int, machine: int) -> HostTask: ...

    @abstractmethod
    def _shard(self, shard: int, checkpoint: int | None) -> HostTask: ...

    @abstractmethod
    def _coordinator(self, timeouts: Timeouts) -> Coordinator: ...

    @abstractmethod
    def _gauge(self) -> Gauge:
        """What is shown of it."""

    @abstractmethod
    def _terms(self) -> str:
        """What a failure can cost: said when the run starts."""

    @abstractmethod
    def _beginning(self) -> Iterator[str]:
        """Lines that say where it begins."""

    @abstractmethod
    def _note(self, effect: CoordinatorEffect, display: Display) -> None:
        """Carries out what the coordinator asks for besides hosts and checkpoints."""

    def _before_commit(self) -> None:  # noqa: B027 - nothing, unless a driver says so
        """A checkpoint is about to be committed."""

    @abstractmethod
    def _manifest(self, commit: Commit) -> Manifest: ...

    def _committed(self, commit: Commit) -> None:  # noqa: B027
        """A checkpoint is there now."""

    @abstractmethod
    def _kept(self) -> str:
        """What of the run is on disk, and how to go on with it; empty when there is nothing."""

    @abstractmethod
    def _finished(self, done: EndRun, display: Display) -> Run:
        """What the run leaves. Raises Interrupted, RunFailed."""

    def _close(self) -> None:  # noqa: B027
        """Lets go of files."""
