"""A driver without shards at work: replicas compute together, or agree at the end of rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.parameters.manifest import Manifest
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.names import part_name
from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.joined_hands import JoinedHands
from partita.engine.runtime.part_task import PartTask


class JoinedTrainer(Trainer):
    """A driver whose replicas work together, and keep the parameters."""

    def __init__(self, job: Job, driver: Driver, *, epochs: int, alone: bool) -> None:
        batch = driver.step_examples(plan_batch=job.plan.batch, examples=job.examples)
        self._batches: Final = JoinedBatches(job.examples, batch, seed=job.seed, minibatch=job.plan.batch)
        steps = self._batches.steps(0, job.examples, driver.replicas)
        super().__init__(job, driver, epochs=epochs, alone=alone, batch=batch, steps_per_epoch=steps)
        self.units_per_epoch = job.examples
        self._division: Final = None if driver.division is None else job.divided(driver.division)
        self._position = 0  # examples that a checkpoint holds

    @property
    @override
    def terms(self) -> str:
        if self.driver.is_sharded:
            return "durability: checkpoint (a replica's failure costs the steps since the last one)"
        if self.driver.groups > 1:
            return "durability: replicas (the failure of one costs the steps since groups last exchanged)"
        return "durability: replicas (the failure of one costs the step under way)"

    @property
    @override
    def together(self) -> int:
        return self.topology.replicas

    @property
    @override
    def inline(self) -> tuple[str, ...]:
        is_one = self.topology.replicas == self.topology.machines == 1
        return (part_name(0, 0),) if is_one and self.driver.inline == "all" else ()

    @override
    def check(self) -> None:
        """Checks nothing: vectors are exchanged in pieces of any size."""

    @override
    def mode(self, resumed: Resumed | None) -> JoinedMode:
        driver = self.driver
        settings: dict[str, Any] = {"groups": driver.groups, "describe": driver.describe}
        return JoinedMode(position=self._position, sharded=driver.is_sharded, **settings)

    @override
    def steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        return self._steps_to(self._position_in(manifest))

    def _position_in(self, manifest: Manifest) -> int:
        """Returns the examples that a checkpoint holds: exactly, if replicas did them together."""
        if manifest.done and manifest.units_per_epoch == self.job.examples:
            return int(manifest.epochs * self.job.examples)
        return self._batches.position(0, min(super().steps_in(manifest)), self.topology.replicas)

    def _steps_to(self, position: int) -> tuple[int, ...]:
        """Returns the whole steps up to a position, as if all replicas had always taken part."""
        replicas = self.topology.replicas
        steps = self._batches.steps(0, position, replicas)
        return (steps - (self._batches.position(0, steps, replicas) > position),) * replicas

    @override
    def resume(self, resumed: Resumed) -> None:
        if resumed.manifest is not None:
            until = self.outline.epochs * self.job.examples
            self._position = min(self._position_in(resumed.manifest), until)
            self.done = self._steps_to(self._position)

    @override
    def hands(self, checkpoint: int | None) -> JoinedHands:
        job, driver = self.job, self.driver
        return JoinedHands(
            optimizer=driver.optimizer,
            run=self.run_id,
            folder=job.checkpoints,
            checkpoint=checkpoint,
            initial=self.initial,
            first_step=min(self.done),
            precision=job.precision,
            batches=self._batches,
            division=self._division,
            sharded=driver.is_sharded,
            apart=driver.replicas_differ,
            unsent=driver.unsent,
            compress=driver.compress,
            reshuffles=driver.reshuffles,
            kept=driver.kept_vectors,
            scratch=driver.scratch_vectors,
            taught=driver.taught_minibatches,
        )

    @override
    def part(self, replica: int, machine: int, checkpoint: int | None) -> PartTask:
        task, group = super().part(replica, machine, checkpoint), replica % self.driver.groups
        assert isinstance(task.hands, JoinedHands), task.hands
        draws = group > 0 and self.job.draws
        return replace(task, hands=replace(task.hands, draws=self.job.seed + group if draws else None))
