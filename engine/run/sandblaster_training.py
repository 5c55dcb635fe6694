"""Sandblaster at work on a job: its tasks, its coordinator, the meaning of its journal and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.methods import Method
from partita.engine.parameters.journal_format import JournalHeader
from partita.engine.protocol.coordinator_effects import (
    AppendJournal,
    CoordinatorEffect,
    EndRun,
    IterationDone,
    RunSettings,
)
from partita.engine.protocol.failure import report_of
from partita.engine.protocol.journaled_method import JournalMismatch
from partita.engine.protocol.sandblaster_coordinator import SandblasterCoordinator
from partita.engine.run.iterations import Iterations
from partita.engine.run.job import Job
from partita.engine.run.run import Run
from partita.engine.run.run_journal import RunJournal
from partita.engine.run.supervisor import RunFailed
from partita.engine.run.training import Training
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.sandblaster_part import SandblasterPartTask
from partita.engine.runtime.sandblaster_shard import SandblasterShardTask
from partita.layers.text import counted

if TYPE_CHECKING:
    from partita.engine.run.display import Display


class SandblasterTraining(Training):
    """One run of a job under Sandblaster."""

    terms = (
        "durability: process (no death costs an answer; when the machine stops, those since the last "
        "checkpoint)"
    )

    _iterations: Iterations
    _coordinating: SandblasterCoordinator

    def __init__(self, job: Job, driver: Sandblaster) -> None:
        """Divides the data into portions.

        Raises:
            ValueError: the settings do not fit the plan or the number of examples.
        """
        super().__init__(job, driver)
        self.driver: Final = driver
        self.objective: Final = driver.objective(plan_batch=job.plan.batch, examples=job.examples)
        self.unit_size: Final = driver.unit_size(self.objective)
        self.plan: Final = job.plan.with_batch(self.objective.portions.size)
        self._journal: Final = RunJournal(self.store, self._header())
        self._position = 0

    def _header(self) -> JournalHeader:
        job, objective = self.job, self.objective
        return JournalHeader(
            run=self.run_id,
            first_checkpoint=0,
            start="",
            shapes=job.shapes,
            network=job.network,
            precision=job.plan.precision,
            method=self.driver.method_text,
            data=job.checksum if job.keep else "",
            examples=job.examples,
            portion=objective.portions.size,
            unit_size=self.unit_size,
            batch=objective.batch,
            overlap=objective.overlap,
            l2=objective.l2,
            seed=job.seed,
        )

    @property
    def _learner(self) -> Method:
        return self.driver.method

    @property
    def _run_of_files(self) -> str:
        return self._journal.header.run

    @override
    def check(self) -> None:
        self.job.check_sizes(shards=self.driver.shards)

    @override
    def find(self) -> bool:
        found = self._journal.find(others=self.driver.warm_start is not None)
        if not found:
            return False
        unknown = self._unknown_network("the journal", self._journal.header.network)
        self.skipped = (*self._journal.skipped, *unknown)
        if self._journal.checkpoint is not None:
            manifest = self._journal.checkpoint
            self.resumed, self._position = manifest.checkpoint, manifest.position or 0
        return True

    def _shard(self, shard: int, checkpoint: int | None) -> SandblasterShardTask:
        job = self.job
        return SandblasterShardTask(
            shard=shard,
            layout=layout_of(self.plan, shards=self.driver.shards),
            run=self.run_id,
            folder=job.checkpoints,
            checkpoint=checkpoint,
            initial=self._start,
            precision=job.precision,
            unit_size=self.unit_size,
            heartbeats=self._timeouts.heartbeats,
        )

    def _part(self, *, replica: int, machine: int) -> SandblasterPartTask:
        job, driver = self.job, self.driver
        return SandblasterPartTask(
            self.plan,
            machine,
            replica,
            driver.replicas,
            job.files,
            job.examples,
            job.seed,
            driver.shards,
            job.instruction_timeout_s,
            self.objective.sampled,
        )

    @property
    def _start(self) -> Path:
        """File of the parameters that the method began with."""
        return self._journal.start or self.job.initial

    def _coordinator(self, settings: RunSettings) -> SandblasterCoordinator:
        try:
            self._coordinating = SandblasterCoordinator(
                self.topology,
                begin=lambda: self.driver.method.steps(self.objective),
                unit_size=self.unit_size,
                journal=[(entry.digest, entry.scalars) for entry in self._journal.entries],
                position=self._position,
                backups=self.driver.backups,
                settings=settings,
            )
        except JournalMismatch:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the method may be a user's
            report = report_of(error)
            failure = RunFailed(f"the method failed: {report.reason}")
            failure.add_note(report.traceback)
            raise failure from error
        self._journal.begin(first_checkpoint=settings.next_checkpoint)
        return self._coordinating

    def _gauge(self) -> Iterations:
        self._iterations = Iterations(getattr(self.driver.method, "max_iterations", None))
        return self._iterations

    def _beginning(self) -> Iterator[str]:
        portions, size = self.objective.portions, self.objective.portions.size
        batch = self.objective.batch
        n, of = (portions.per_epoch, "all data") if batch is None else (batch, "a batch")
        whole = counted(n, "portion")
        yield f"{self.driver.method!r} on {of}: {whole} of {size}, {self.unit_size} for each push"
        if self._journal.found:
            coordinating = self._coordinating
            where = "the start" if self.resumed is None else f"checkpoint {self.resumed}"
            yield (
                f"resumed from {where} and a journal of {coordinating.recorded} answers, "
                f"at iteration {coordinating.iterations}"
            )
            if coordinating.outcome is not None:
                yield "the method had ended already; allow more iterations or smaller tolerances"

    def _note(self, effect: CoordinatorEffect, display: Display) -> None:
        match effect:
            case IterationDone(iterated=iterated):
                display.update(effect)
                if iterated.note:
                    display.print_line(f"iteration {iterated.iteration}: {iterated.note}")
            case _:
                raise AssertionError(effect)

    @override
    def record(self, record: AppendJournal) -> None:
        if self.job.keep:  # a run that cannot be resumed needs no journal
            self._journal.append(record.index, record.digest, record.scalars, start=self.job.initial)

    def _before_commit(self) -> None:
        if self.job.keep:
            self._journal.sync(start=self.job.initial)

    def _kept(self) -> str:
        done = self._coordinating.iterations
        if not self.job.keep or not len(self._journal) or not done:
            return ""
        held = f"holds {counted(done, 'iteration')}"
        return f"the journal in {self.job.checkpoints} {held}, and {self._goes_on()}"

    def _finished(self, done: EndRun, display: Display) -> Run:
        job, now, outcome = self.job, self._coordinating, done.outcome
        if outcome is not None and outcome.kind == "failed":
            raise RunFailed(outcome.reason)
        parameters = self._parameters(done, start=self._start)
        run = Run(
            job.plan,
            parameters,
            seconds=self._iterations.seconds,
            history=tuple(self._iterations.history),
            checkpoint=job.checkpoints if job.keep else None,
            iterations=now.iterations,
            outcome=outcome,
        )
        if not done.complete or outcome is None:
            raise self._stopped(f"stopped after {counted(now.iterations, 'iteration')}", run)
        display.print_line(outcome.reason)
        return run

    def _close(self) -> None:
        self._journal.close()
