"""A batch method at work: replicas evaluate what it asks for, and shards hold its vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.methods import LBFGS, Method
from partita.engine.parameters.journal_format import JournalHeader
from partita.engine.protocol.actions import Program
from partita.engine.protocol.durability.settings import Log, Replicated
from partita.engine.protocol.evaluation_mode import EvaluationMode
from partita.engine.protocol.names import part_name, shard_name
from partita.engine.runtime.assigned_hands import AssignedHands
from partita.engine.runtime.shard_policies import SumPolicy
from partita.layers.text import counted

INLINE_SIZE: Final = 1 << 16
"""Most parameters of a shard that is inline if nothing is said: operations on them take less than about a
millisecond, so the coordinator answers in time.
"""


class EvaluationTrainer(Trainer):
    """A driver with shards, whose program asks for operations on vectors; replicas evaluate for it."""

    unit = "iteration"

    @property
    @override
    def terms(self) -> str:
        keepers = self.driver.keepers
        if self.syncs_journal and self.job.keep:
            return "durability: log (no failure costs an answer, and a shard goes on from its log)"
        costs = "no death costs an answer; when the machine stops, those since the last checkpoint"
        if isinstance(keepers, Replicated):
            costs = f"a shard goes on from its backup; {costs}"
        return f"durability: {keepers.mode} ({costs})"

    @property
    @override
    def syncs_journal(self) -> bool:
        keepers = self.driver.keepers
        return isinstance(keepers, Log) and keepers.sync == "disk"

    def __init__(self, job: Job, driver: Driver, *, epochs: int, alone: bool) -> None:
        super().__init__(job, driver, epochs=0, alone=alone, batch=job.plan.batch, steps_per_epoch=1)
        self.objective: Final = driver.objective(plan_batch=job.plan.batch, examples=job.examples)
        self.unit_size: Final = driver.unit_size(self.objective)
        averaged = sorted(job.plan.graph.averaged)
        if averaged:
            raise ValueError(
                f"{', '.join(averaged)} are running averages, which a batch method does not update; train "
                "with Downpour or AllReduce, or write GroupNorm for BatchNorm"
            )
        frozen = sorted(job.plan.graph.frozen)
        if self.objective.l2 and frozen:
            raise ValueError(
                f"l2 is a term of all parameters, and {', '.join(frozen)} must keep their values: they are "
                "not trainable; leave l2 out"
            )
        self.plan = job.plan.with_batch(self.objective.portions.size)

    @property
    @override
    def learner(self) -> object:
        return getattr(self.driver, "method", self.driver)

    @property
    @override
    def journal(self) -> JournalHeader:
        job, objective = self.job, self.objective
        return JournalHeader(
            run=self.run_id,
            first_checkpoint=0,
            start="",
            shapes=job.shapes,
            network=job.network | dict.fromkeys(sorted(job.plan.graph.frozen), "not trainable"),
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
    @override
    def limit(self) -> int | None:
        limit: Any = getattr(self.learner, "max_iterations", None)
        return limit if isinstance(limit, int) else None

    @override
    def resume(self, resumed: Resumed) -> None:
        pass  # the coordinator repeats what the journal holds

    @property
    @override
    def position(self) -> int:
        return 0  # iterations that the journal holds are passed

    @override
    def mode(self, resumed: Resumed | None) -> EvaluationMode:
        manifest = None if resumed is None else resumed.manifest
        position = 0 if manifest is None else manifest.position or 0
        return EvaluationMode(unit_size=self.unit_size, position=position, backups=self.driver.backups)

    @override
    def hands(self, checkpoint: int | None) -> AssignedHands:
        return AssignedHands(shuffled=self.objective.sampled)

    @property
    @override
    def program(self) -> Callable[[Any], Program]:
        driver: Any = self.driver
        if isinstance(self.learner, Method):  # it stays here: a user's may hold what cannot be pickled
            driver = replace(driver, method=LBFGS())
        return driver.replica  # type: ignore[no-any-return]

    @property
    @override
    def inline(self) -> tuple[str, ...]:
        chosen, has = self.driver.inline, self.topology
        size = sum(math.prod(shape) for shape in self.job.shapes.values())
        if has.shards > 1 or chosen == "none" or (chosen == "auto" and size > INLINE_SIZE):
            return ()
        alone = chosen == "all" and has.machines == 1
        return (shard_name(0), part_name(0, 0)) if alone else (shard_name(0),)

    @override
    def policy(self, shard: int) -> SumPolicy:
        return SumPolicy(unit_size=self.unit_size, keeps=self.keeps_records)

    @override
    def beginning(self, resumed: Resumed | None) -> Iterator[str]:
        portions, batch = self.objective.portions, self.objective.batch
        n, of = (portions.per_epoch, "all data") if batch is None else (batch, "a batch")
        whole = f"{counted(n, 'portion')} of {portions.size}"
        yield f"{self.learner!r} on {of}: {whole}, {self.unit_size} for each push"
        if resumed is not None:
            manifest, plan = resumed.manifest, self.machine.plan
            where = "the start" if manifest is None else f"checkpoint {manifest.checkpoint}"
            journal = f"a journal of {plan.answered} answers"
            yield f"resumed from {where} and {journal}, at iteration {self.held(None)}"
            if plan.outcome is not None:
                yield "the method had ended already; allow more iterations or smaller tolerances"

    @override
    def held(self, committed: tuple[int, ...] | None) -> int:
        return sum(self.machine.mode.steps_done)  # the journal holds every one
