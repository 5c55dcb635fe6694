"""A driver whose replicas run a program, at work on a job: replicas keep the parameters, without shards."""

from __future__ import annotations

from typing import Final, Protocol

from typing_extensions import override

from partita.engine.drivers.job import Job
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.protocol.actions import Plan, Program
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.names import Topology
from partita.engine.protocol.views import Member, Outline
from partita.engine.runtime.joint_sampler import JointSampler
from partita.engine.runtime.program_part import ProgramPartTask

_WHOLE: Final = "durability: replicas (the failure of one costs the step under way)"
_SHARDED: Final = "durability: checkpoint (a replica's failure costs the steps since the last one)"


class Programs(Protocol):
    """The two programs of a `Driver`, and the settings that its coordinator and parts need."""

    replicas: int

    @property
    def least(self) -> int | None:
        """The replicas with which a run begins and goes on; None: all of them."""

    @property
    def is_sharded(self) -> bool:
        """Whether each replica keeps only its own range of the optimizer's state."""

    def coordinator(self, run: Outline) -> Plan:
        """Yields the work of the run."""

    def replica(self, me: Member) -> Program:
        """Yields what one part does, step by step."""


class ProgramTrainer(Trainer):
    """One run of a job.

    Attributes:
        driver: its two programs.
        optimizer: of the updates.
    """

    def __init__(
        self, job: Job, driver: Programs, *, epochs: int, optimizer: Optimizer, alone: bool = True
    ) -> None:
        """Plans the steps of some epochs, which all replicas do together; see `Trainer`."""
        sampler = JointSampler(examples=job.examples, batch=job.plan.batch, seed=job.seed)
        per_epoch = sampler.steps_per_epoch(driver.replicas)
        topology = Topology(driver.replicas, len(job.plan.cluster), 0)
        super().__init__(
            job,
            topology,
            steps=epochs * per_epoch,
            steps_per_epoch=per_epoch,
            least=driver.least,
            alone=alone,
        )
        self.name = type(driver).__name__
        self.terms = _SHARDED if driver.is_sharded else _WHOLE
        self.driver: Final = driver
        self.optimizer: Final = optimizer
        self._epochs: Final = epochs

    @property
    @override
    def learner(self) -> Optimizer:
        return self.optimizer

    @override
    def check(self) -> None:
        """Checks nothing: vectors are exchanged in pieces of any size."""

    @override
    def coordinator(self, resumed: Resumed | None) -> Coordinator:
        job, driver = self.job, self.driver
        return Coordinator(
            driver.coordinator,
            Outline(self._epochs, job.examples, job.plan.batch, driver.replicas),
            JoinedMode(done=min(self.done), sharded=driver.is_sharded),
            self.topology,
            settings=self.settings,
        )

    @override
    def part(self, replica: int, machine: int, checkpoint: int | None) -> ProgramPartTask:
        job, driver = self.job, self.driver
        return ProgramPartTask(
            plan=job.plan,
            machine=machine,
            replica=replica,
            replicas=driver.replicas,
            program=driver.replica,
            optimizer=self.optimizer,
            data=job.files,
            examples=job.examples,
            seed=job.seed,
            run=self.run_id,
            folder=job.checkpoints,
            checkpoint=checkpoint,
            initial=self.initial,
            first_step=min(self.done),
            precision=job.precision,
            instruction_timeout_s=job.instruction_timeout_s,
            sharded=driver.is_sharded,
        )
