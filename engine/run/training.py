"""The run loop of every driver: checkpoints, the journal, resuming, the display, Ctrl-C, and the result.

A trainer (`drivers/trainer.py`) brings what is a driver's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from partita.engine.drivers.paced import Pacing
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.launch.launcher import Launcher
from partita.engine.parameters.files import load_parameters
from partita.engine.parameters.log import log_folders, next_log, remove_logs
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.module_names import module_entries
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.reader import Checkpoint
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.coordinator_effects import (
    AppendJournal,
    Commit,
    CoordinatorEvent,
    EndRun,
    Progress,
    RunSettings,
    Starting,
    Timeouts,
    Validated,
    WatchPolicy,
)
from partita.engine.protocol.durability import Log
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.kept_vector import states_of
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import backup_index, part_indices, shard_index
from partita.engine.run.callbacks.dispatch import Callbacks
from partita.engine.run.caller import Caller
from partita.engine.run.interrupt import Interrupted, stops_on_ctrl_c
from partita.engine.run.live_page import LivePage, PageOptions
from partita.engine.run.metrics import Metrics, Record
from partita.engine.run.phases import starting
from partita.engine.run.run import Run
from partita.engine.run.run_journal import RunJournal
from partita.engine.run.state_files import module_state
from partita.engine.run.stops import Stops
from partita.engine.run.supervisor import Supervisor, Work
from partita.engine.run.watched import WatchedRun, watched_path
from partita.engine.runtime.measured_host import clock_id
from partita.engine.runtime.reported_sums import ReportedSums
from partita.engine.runtime.shard_recovery import LogPlace
from partita.engine.runtime.task import HostTask
from partita.engine.runtime.versions import versions
from partita.layers.text import counted, readable_bytes

if TYPE_CHECKING:
    from partita.engine.run.display import Display


class Training(Work):
    """One run of a trainer.

    Attributes:
        trainer: what is the driver's own.
        store: checkpoints of the job.
        resumed: the state from which the run goes on; None: the job's first parameters.
    """

    def __init__(
        self,
        trainer: Trainer,
        caller: Caller,
        callbacks: Callbacks,
        pacing: Pacing,
        *,
        watch: bool | str | Path = False,
        page: PageOptions | None = None,
    ) -> None:
        """Reads and starts nothing yet.

        Args:
            trainer: what is the driver's own.
            caller: of the run, for messages.
            callbacks: of the call of `train`.
            pacing: when the run stops for them.
            watch: see `train`.
            page: of the live page; None for no page, and else `watch` holds.
        """
        self.trainer: Final = trainer
        self.store: Final = trainer.job.opened(run=trainer.run_id)
        self.resumed: Resumed | None = None
        self._caller: Final = caller
        self._callbacks: Final = callbacks
        self._stops: Final = Stops(trainer, callbacks, pacing)
        trainer.pacing = pacing
        self._watch: Final = watch
        self._page: Final = page
        self._live: LivePage | None = None
        self._watched: WatchedRun | None = None
        header = trainer.journal
        self._journal: Final = None if header is None else RunJournal(self.store, header)
        self._skipped: tuple[str, ...] = ()  # files that could not be used, one sentence each
        self._committed: tuple[int, ...] | None = None  # the steps that the last checkpoint holds
        self._commits = 0  # of this life

    # Resuming.

    def find(self, *, others: bool) -> bool:
        """Looks for a run to go on with, and says whether there is one.

        Args:
            others: whether an earlier trainer of this call goes on with other drivers' checkpoints.

        Raises:
            ValueError: there is one, and it cannot go on so.
        """
        self.resumed = self._found() if self._journal is None else self._found_journal(self._journal, others)
        if self.resumed is None:
            return False
        self.trainer.resume(self.resumed)
        manifest = self.resumed.manifest
        self._committed = None if manifest is None else self.trainer.steps_in(manifest)
        self._stops.restore({} if manifest is None else manifest.callbacks)
        return True

    def _found(self) -> Resumed | None:
        job, name, learner = self.trainer.job, self.trainer.name, self.trainer.learner
        found = self.store.latest(job.shapes, network=job.network)
        if found is None:
            return Resumed(None) if log_folders(self.store.folder) else None
        manifest, wrote = found.manifest, f"checkpoint {found.path} was written"
        if manifest.position is not None:
            raise ValueError(
                f"{wrote} by Sandblaster with {manifest.optimizer}, and {name} cannot go on with that; "
                "resume with Sandblaster, or give another folder"
            )
        held = set(found.common_names) - states_of(self.trainer.driver.kept_vectors)
        if isinstance(learner, Optimizer) and held != set(learner.state(1, job.precision)):
            raise ValueError(
                f"{wrote} with {manifest.optimizer}, whose state {learner} cannot go on with; resume with "
                "the same optimizer, or give another folder"
            )
        self._skip(found.skipped, f"checkpoint {found.path}", known=bool(manifest.network))
        return Resumed(manifest, checkpoint=found)

    def _found_journal(self, journal: RunJournal, others: bool) -> Resumed | None:
        if (found := journal.find(others=others)) is None:
            return None
        resumed, skipped = found
        self._skip(skipped, "the journal", known=bool(journal.header.network))
        self.trainer.initial = journal.start
        return resumed

    def _skip(self, skipped: Sequence[str], what: str, *, known: bool) -> None:
        """Keeps the sentences about a file; one that is older than the texts of networks adds a warning."""
        older = f"{what} does not say more of its network than shapes; see that the layers are the same"
        self._skipped = (*skipped, *(() if known else (older,)))

    @property
    def _resumed_checkpoint(self) -> int | None:
        """Number of the checkpoint from which the run goes on."""
        manifest = None if self.resumed is None else self.resumed.manifest
        return None if manifest is None else manifest.checkpoint

    # The run.

    def run(
        self, launcher: Launcher, display: Display, timeouts: Timeouts, *, first_checkpoint: int = 0
    ) -> Run:
        """Runs to the end.

        Args:
            launcher: starts the hosts.
            display: shows the progress.
            timeouts: of the run.
            first_checkpoint: number of the first checkpoint of a run that replaces an earlier one; 0 where
                nothing is replaced.

        Raises:
            RunFailed, Interrupted, ValueError, OSError: see `train`.
        """
        try:
            self._display, self._first = display, first_checkpoint
            self._own_logs = next_log(self.store.folder, self.trainer.run_id)
            if self._watch:
                self._begin_watching()
            run = self._run(launcher, timeouts)
            self._end_watching(self._callbacks.error, run.stopped)
            return run
        except BaseException as error:
            self._end_watching(error)
            raise
        finally:
            if self._journal is not None:
                self._journal.close()

    def _begin_watching(self) -> None:
        folder = self.store.folder if self.trainer.job.keep else None
        self._watched = WatchedRun(self.trainer, watched_path(self._watch, folder))
        self._display.print_line(f"records of this run: {self._watched.path}")
        if self._page is not None:
            self._live = LivePage(self._watched.path, save=self._page.save, say=self._display.print_line)

    def _end_watching(self, error: BaseException | None, stopped: str = "") -> None:
        """Writes the end of the run: by an error, or early for a reason."""
        watched, self._watched = self._watched, None
        if watched is not None and (trouble := watched.close(error, stopped)) is not None:
            self._display.print_line(trouble)
        live, self._live = self._live, None
        if live is not None:
            live.close()

    def _run(self, launcher: Launcher, timeouts: Timeouts) -> Run:
        trainer, display = self.trainer, self._display
        trainer.settings = RunSettings(
            run=trainer.run_id,
            next_checkpoint=self.store.next_number(),
            versions=versions(),
            least=trainer.least,
            timeouts=timeouts,
            keeps_records=trainer.keeps_records,
            validated=self._stops.validated,
            scale=self._callbacks.scale,
            watch=None if self._watched is None else WatchPolicy(clock=clock_id()),
        )
        trainer.logs = self._log_place()
        coordinator = trainer.coordinator(self.resumed)
        if self._journal is not None:
            next_checkpoint = trainer.settings.next_checkpoint
            self._journal.begin(first_checkpoint=next_checkpoint, start=trainer.job.initial)
        supervisor = Supervisor(launcher, coordinator, self, warn=display.print_line, observer=self._watched)
        with stops_on_ctrl_c(supervisor.request_stop):
            self._announce()
            self._metrics = self._metrics_of(trainer)
            display.follow(self._metrics)
            self._callbacks.begin(self)
            if self._callbacks.error is not None:
                raise self._callbacks.error
            try:
                done = supervisor.run()
                display.draw()
                if self._watched is not None:
                    self._watched.done(coordinator, done)
                return self._finished(done)
            except RunFailed as failure:
                raise failure.with_hint(self._kept()) from None

    def _log_place(self) -> LogPlace | None:
        """Returns the place where shards keep their logs, or have kept those that this run goes on from."""
        keeps = isinstance(self.trainer.driver.keepers, Log)
        resumes = self.resumed is not None and self._journal is None  # a journal gives commands again
        found = log_folders(self.store.folder) if resumes else []
        if not (keeps or found):
            return None
        own = self._own_logs.name
        return LogPlace(own, found[0][1].name if found else own)

    def _metrics_of(self, trainer: Trainer) -> Metrics:
        plan = trainer.job.plan
        return Metrics(
            trainer.limit,
            unit=trainer.unit,
            done=trainer.done,
            machines=len(plan.cluster),
            reported=ReportedSums.of(plan.graph, trainer.job.metrics),
            on_record=self._add_record,
        )

    def _add_record(self, record: Record) -> None:
        if self._watched is not None:
            self._watched.add(record)
        self._callbacks.call("on_record", record)

    def _announce(self) -> None:
        trainer, has = self.trainer, self.trainer.topology
        counts = (has.replicas, "replica"), (has.machines, "machine"), (has.shards, "shard")
        replicas, machines, shards = (counted(n, what) for n, what in counts)
        if trainer.least is not None and trainer.least < has.replicas:
            replicas = f"{trainer.least} to {replicas}"
        name, of_shards = trainer.job.plan.graph.name, f", {shards}" if has.shards else ""
        self._display.print_line(f"{name}: {replicas} of {machines}{of_shards}; {trainer.terms}")
        if has.replicated:
            size = readable_bytes(trainer.copy_bytes)
            each = " for each vector" if trainer.driver.evaluates else ""
            self._display.print_line(f"each shard has a backup; the second copies take {size} more{each}")
        for text in (*self._skipped, *trainer.beginning(self.resumed)):
            self._display.print_line(text)

    # What the coordinator asks for.

    @override
    def task_of(self, name: str, checkpoint: int | None) -> HostTask:
        checkpoint = self._resumed_checkpoint if checkpoint is None else checkpoint
        part, shard = part_indices(name), shard_index(name)
        if part is not None:
            return self.trainer.part(*part, checkpoint)
        if shard is not None:
            return self.trainer.shard(shard, checkpoint)
        backup = backup_index(name)
        assert backup is not None, f"{name} is neither a part nor a shard nor a backup"
        return self.trainer.backup(backup, self._resumed_checkpoint)

    @override
    def task_from_backup(self, name: str) -> HostTask:
        shard = shard_index(name)
        assert shard is not None, f"{name} is no shard"
        return replace(self.trainer.shard(shard, self._resumed_checkpoint), from_backup=True, logs=None)

    @override
    def record(self, record: AppendJournal) -> None:
        assert self._journal is not None, record
        if self.trainer.job.keep:  # a run that cannot be resumed needs no journal
            self._journal.append(record)
            if self.trainer.syncs_journal:
                self._journal.sync()

    @property
    def _lost_before(self) -> int:
        """Pushes that failures have cost up to the checkpoint from which the run goes on."""
        manifest = None if self.resumed is None else self.resumed.manifest
        return 0 if manifest is None else manifest.lost

    @override
    def commit(self, commit: Commit) -> str | None:
        trainer, job, journal = self.trainer, self.trainer.job, self._journal
        if journal is not None and job.keep:
            journal.sync()
        manifest = Manifest(
            checkpoint=commit.checkpoint,
            run=trainer.run_id if journal is None else journal.header.run,
            shapes=job.shapes,
            network=job.network,
            module=module_entries(module_state(job.plan.graph)),
            dtype=job.precision,
            optimizer=repr(trainer.learner),
            steps=commit.steps,
            units_per_epoch=trainer.units_per_epoch,
            entries=commit.entries,
            lost=commit.lost + self._lost_before,
            position=commit.position,
            done=commit.done,
            callbacks=self._stops.state(commit.checkpoint),
        )
        self.store.commit(manifest)
        self._committed, is_first, self._commits = commit.steps, not self._commits, self._commits + 1
        try:
            self.store.prune(first=self._first, held=self._callbacks.held)
            if not is_first:  # logs go back to the checkpoint before the newest
                remove_logs(self.store.folder, before=self._own_logs)
        except OSError as error:
            return (
                f"checkpoint {commit.checkpoint} is kept, and an older one could not be removed ({error}); "
                "the next one tries again"
            )
        return None

    @override
    def note(self, effect: Any) -> None:
        if isinstance(effect, Starting):
            self._display.phase(starting(effect, ("process", "processes")))
            return
        if isinstance(effect, Validated):
            found = self._stops.validate(effect, self._metrics)
            if found is not None:
                if self._watched is not None:
                    self._watched.validated(self._stops.validations[-1])
                self._display.validated(self._metrics.done_now, str(found))
            return
        assert isinstance(effect, Progress), effect
        self._display.update(effect)
        if effect.note:
            self._display.print_line(f"{self.trainer.unit} {effect.step}: {effect.note}")

    @override
    def note_commit(self, commit: Commit) -> None:
        self._stops.note_commit(commit.checkpoint)

    @override
    def committed(self, checkpoint: int) -> None:
        self._stops.committed(checkpoint)

    @override
    def look(self) -> tuple[list[CoordinatorEvent], str]:
        return self._stops.look()

    # What callbacks may know.

    @property
    def steps(self) -> int:
        """Steps done by all replicas, or iterations."""
        return self._metrics.done_now

    @property
    def epoch(self) -> float:
        """Epochs done, with a fraction; iterations under a batch method."""
        trainer = self.trainer
        return self.steps / (trainer.steps_per_epoch * trainer.together)

    def saved(self, checkpoint: int | None) -> Run:
        """Returns the plan with the parameters of a checkpoint."""
        return Run(self.trainer.job.plan, self._parameters(self._checkpoint(checkpoint)))

    # The end.

    def _kept(self) -> str:
        """The files of the run, and how to go on with it; empty when there are none."""
        trainer, job, journal = self.trainer, self.trainer.job, self._journal
        held = trainer.held(self._committed)
        if not job.keep or not held or (journal is not None and not len(journal)):
            return ""
        what = "checkpoint" if journal is None else "journal"
        holds = f"the {what} in {job.place} holds {trainer.far(held)}"
        return f"{holds}, and {self._caller.again} goes on from it"

    def _finished(self, done: EndRun) -> Run:
        """Makes the result of the run. Raises Interrupted, RunFailed."""
        trainer, outcome = self.trainer, done.outcome
        if outcome is not None and outcome.kind == "failed":
            raise RunFailed(outcome.reason)
        if done.complete:
            with contextlib.suppress(OSError):  # the last checkpoint has all of it
                remove_logs(self.store.folder)
        held, stopped = self._callbacks.held, self._stops.why(sum(done.steps))
        found = self._checkpoint(done.checkpoint if held is None else held)
        run = Run(
            trainer.job.plan,
            self._parameters(found),
            seconds=self._metrics.seconds,
            lost_pushes=done.lost,
            history=tuple(self._metrics.history),
            checkpoint=trainer.job.kept,
            outcome=outcome,
            stopped=stopped,
            validations=tuple(self._stops.validations),
            loss_scale=self._loss_scale(found),
        )
        if run.loss_scale is not None:
            self._display.print_line(str(run.loss_scale))
        if trainer.unit == "iteration":
            run = replace(run, iterations=sum(done.steps))
        else:
            run = replace(run, steps=trainer.done if self._committed is None else self._committed)
        if not done.complete and not stopped:
            stopped, kept = f"stopped after {trainer.far(sum(done.steps))}", self._kept()
            raise Interrupted(f"{stopped}; {kept}" if kept else stopped, run)
        if outcome is not None or stopped:
            self._display.print_line(stopped if outcome is None else outcome.reason)
        if self._callbacks.error is not None and (kept := self._kept()):
            self._callbacks.error.add_note(kept)
        prepared = trainer.job.prepared
        if prepared is not None and (line := self._metrics.read.sentence(prepared)):
            self._display.print_line(line)
        return run

    def _parameters(self, found: Checkpoint | None) -> dict[str, Vector]:
        """Parameters of the run's last checkpoint, or of its start."""
        if found is None:
            return load_parameters(self.trainer.initial, self.trainer.job.shapes)
        return found.parameters()

    def _loss_scale(self, found: Checkpoint | None) -> ScaleState | None:
        """The loss scale in the run's last checkpoint; None where losses are not scaled."""
        if self.trainer.job.plan.precision != "float16" or found is None:
            return None
        return next((one.loss_scale for one in found.records.values()), None)

    def _checkpoint(self, number: int | None) -> Checkpoint | None:
        """The run's last checkpoint; None: there is none, it stands where it began."""
        number = self._resumed_checkpoint if number is None else number
        return None if number is None else self.store.open(number, self.trainer.job.shapes)
