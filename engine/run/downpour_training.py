"""Downpour at work on a job: its tasks, its coordinator, and the meaning of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from partita.engine.drivers.downpour import Downpour
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.coordinator_effects import (
    Commit,
    CoordinatorEffect,
    EndRun,
    RunSettings,
)
from partita.engine.protocol.downpour_coordinator import DownpourCoordinator
from partita.engine.run.job import Job
from partita.engine.run.progress import Meter
from partita.engine.run.run import Run
from partita.engine.run.training import Training
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.downpour_part import DownpourPartTask
from partita.engine.runtime.downpour_shard import DownpourShardTask
from partita.engine.runtime.feed import Sampler
from partita.layers.checks import check_whole
from partita.layers.text import counted

if TYPE_CHECKING:
    from partita.engine.run.display import Display


class DownpourTraining(Training):
    """One run of a job under Downpour."""

    terms = "durability: checkpoint (a shard's failure costs its pushes since the last checkpoint)"

    _meter: Meter

    def __init__(self, job: Job, driver: Downpour, *, epochs: int, alone: bool = True) -> None:
        """Plans the steps of some epochs; `alone` says that no other training follows.

        Raises:
            ValueError: there are too many steps.
        """
        super().__init__(job, driver)
        self.driver: Final = driver
        self.alone: Final = alone
        self.steps_per_epoch = Sampler(
            examples=job.examples,
            batch=job.plan.batch,
            minibatches=driver.overlap,
            seed=job.seed,
            replica=0,
            replicas=driver.replicas,
        ).steps_per_epoch
        self.steps: Final = check_whole(epochs * self.steps_per_epoch, "the number of steps is")
        self.committed: tuple[int, ...] | None = None  # the steps that the last checkpoint holds
        self.done: tuple[int, ...] = (0,) * driver.replicas  # by each replica, before this run

    @property
    def _learner(self) -> Optimizer:
        return self.driver.optimizer

    @override
    def check(self) -> None:
        self.job.check_sizes(shards=self.driver.shards)

    @override
    def find(self) -> bool:
        found = self.store.latest(self.job.shapes, network=self.job.network)
        if found is None:
            return False
        manifest, optimizer = found.manifest, self.driver.optimizer
        if manifest.position is not None:
            raise ValueError(
                f"checkpoint {found.path} was written by Sandblaster with {manifest.optimizer}, and Downpour "
                "cannot go on with that; resume with Sandblaster, or give another folder"
            )
        if set(found.state_names) != set(optimizer.state(1, self.job.precision)):
            raise ValueError(
                f"checkpoint {found.path} was written with {manifest.optimizer}, whose state {optimizer} "
                "cannot go on with; resume with the same optimizer, or give another folder"
            )
        self.resumed = manifest.checkpoint
        self.skipped = (*found.skipped, *self._unknown_network(f"checkpoint {found.path}", manifest.network))
        self.committed = self._steps_in(manifest)
        self.done = tuple(min(done, self.steps) for done in self.committed)
        return True

    def _steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        """Converts a checkpoint's steps to this job's, for each replica: epochs stay epochs.

        With another number of replicas each has done their mean.
        """
        before, replicas = manifest.steps, self.driver.replicas
        if len(before) == replicas:
            return tuple(step * self.steps_per_epoch // manifest.steps_per_epoch for step in before)
        mean = sum(before) * self.steps_per_epoch // (manifest.steps_per_epoch * len(before))
        return (mean,) * replicas

    def _shard(self, shard: int, checkpoint: int | None) -> DownpourShardTask:
        job, driver = self.job, self.driver
        return DownpourShardTask(
            shard=shard,
            layout=layout_of(job.plan, shards=driver.shards),
            optimizer=driver.optimizer,
            run=self.run_id,
            folder=job.checkpoints,
            checkpoint=checkpoint,
            initial=job.initial,
            precision=job.precision,
            acknowledged=self._acknowledged,
            heartbeats=self._timeouts.heartbeats,
        )

    def _part(self, *, replica: int, machine: int) -> DownpourPartTask:
        job, driver = self.job, self.driver
        return DownpourPartTask(
            job.plan,
            machine,
            replica,
            driver.replicas,
            job.files,
            job.examples,
            job.seed,
            driver.shards,
            job.instruction_timeout_s,
            driver.optimizer,
            driver.fetch_every,
            driver.push_every,
            driver.run_ahead,
            self._acknowledged,
            driver.overlap,
        )

    @property
    def _acknowledged(self) -> Path:
        """Folder of this run in which parts record the pushes that shards have acknowledged."""
        return self.job.folder / f"acknowledged-{self.run_id}"

    def _coordinator(self, settings: RunSettings) -> DownpourCoordinator:
        return DownpourCoordinator(self.topology, steps=self.steps, done=self.done, settings=settings)

    def _gauge(self) -> Meter:
        plan = self.job.plan
        self._meter = Meter(self.steps, self.done, len(plan.cluster), classifiers=len(plan.graph.classifiers))
        return self._meter

    def _beginning(self) -> Iterator[str]:
        if self.resumed is not None:
            yield f"resumed from checkpoint {self.resumed} at step {sum(self.done)}"
            if min(self.done) == self.steps:
                total = self.steps * len(self.done)
                more = "; ask for more epochs" if self.alone else ""
                yield f"the checkpoint has all {counted(total, 'step')} already{more}"

    def _note(self, effect: CoordinatorEffect, display: Display) -> None:
        display.update(effect)

    def _committed(self, commit: Commit) -> None:
        self.committed = commit.steps

    def _kept(self) -> str:
        if not self.job.keep or self.committed is None or not any(self.committed):
            return ""
        total = self.steps * len(self.done)
        held = f"holds {sum(self.committed)} of {counted(total, 'step')}"
        return f"the checkpoint in {self.job.checkpoints} {held}, and {self._goes_on()}"

    def _finished(self, done: EndRun, display: Display) -> Run:
        job, meter = self.job, self._meter
        parameters = self._parameters(done, start=job.initial)
        steps = self.done if self.committed is None else self.committed
        folder = job.checkpoints if job.keep else None
        run = Run(job.plan, parameters, steps, meter.seconds, done.lost, tuple(meter.history), folder)
        if not done.complete:
            raise self._stopped(f"stopped after {sum(done.steps)} of {counted(meter.total, 'step')}", run)
        return run
