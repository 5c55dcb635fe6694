"""The trainers of all drivers: replicas work on their own, together, or evaluate what is asked for.

Which of them a driver has follows from its settings and programs, see `trainers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from partita.engine.drivers.compressed import keeps_unsent
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.scaled_losses import check_driver
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.files.push_log import pushes_of_part, pushes_to_shard
from partita.engine.methods import LBFGS, Method
from partita.engine.parameters.journal_format import JournalHeader
from partita.engine.parameters.manifest import Manifest
from partita.engine.protocol.actions import Program
from partita.engine.protocol.durability.settings import Log, Replicated
from partita.engine.protocol.evaluation_mode import EvaluationMode
from partita.engine.protocol.joined_mode import JoinedMode
from partita.engine.protocol.leased_mode import LeasedMode
from partita.engine.protocol.merging import UnitSizes
from partita.engine.protocol.names import part_name, shard_name
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.staleness import Compensated
from partita.engine.protocol.views import JoinedBatches
from partita.engine.runtime.assigned_hands import AssignedHands
from partita.engine.runtime.joined_hands import JoinedHands
from partita.engine.runtime.leased_hands import LeasedHands
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy, SumPolicy
from partita.layers.text import counted

INLINE_SIZE: Final = 1 << 16
"""Most parameters of a shard that is inline if nothing is said: operations on them take less than about a
millisecond, so the coordinator answers in time.
"""


def trainers(driver: Driver, job: Job, epochs: int) -> Sequence[Trainer]:
    """Returns the trainers of a job, which run one after another.

    Without shards, replicas work together; with shards they work on their own, or evaluate.

    Args:
        driver: its settings and programs.
        job: the work.
        epochs: passes over the data; 0 for a driver without epochs.

    Raises:
        ValueError: the settings do not fit the job, or the driver has no program.
    """
    found: list[Trainer] = []
    stages = driver.stages(epochs)
    for n, (stage, passes) in enumerate(stages, 1):
        one = stage.fitted(job.plan)
        check_driver(one, job.plan)
        one.check_programs()
        kind = JoinedTrainer if not one.shards else EvaluationTrainer if one.evaluates else LeasedTrainer
        found.append(kind(job, one, epochs=passes, alone=n == len(stages)))
    return found


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


class LeasedTrainer(Trainer):
    """A driver with shards, whose replicas share the steps and work on their own."""

    @property
    @override
    def terms(self) -> str:
        keepers = self.driver.keepers
        alone = "; without a folder for checkpoints none of them outlives the run"
        return f"durability: {keepers}{alone if isinstance(keepers, Log) and not self.job.keep else ''}"

    @property
    @override
    def learner(self) -> object:
        """The optimizer whose state the shards have."""
        return self.driver.optimizer_of_shards

    def __init__(self, job: Job, driver: Driver, *, epochs: int, alone: bool) -> None:
        batch = job.plan.batch * driver.minibatches
        steps = -(-job.examples // batch)
        super().__init__(job, driver, epochs=epochs, alone=alone, batch=batch, steps_per_epoch=steps)
        self._acknowledged: Final = job.folder / f"acknowledged-{self.run_id}"
        """Folder in which parts record the pushes that shards have acknowledged."""
        self._units_done: tuple[tuple[int, int], ...] = ()
        self._cut_otherwise: int | None = (
            None  # the checkpoint that is resumed, if its units are not this run's
        )
        self._partly_held = 0  # units that only some of its files hold, and that are done again

    @override
    def check(self) -> None:
        super().check()
        optimizer, sparse = self.driver.optimizer, sorted(self.plan.graph.sparse)
        if sparse and not optimizer.supports_sparse:
            raise ValueError(
                f"'{sparse[0]}' is sparse, and {optimizer} changes rows that have no gradient; use SGD or "
                "Adagrad without weight_decay, or leave sparse=True out"
            )
        if sparse and self.driver.pushes_changes:
            raise ValueError(
                f"'{sparse[0]}' is sparse, and {type(self.driver).__name__} exchanges changes of whole "
                "parameters; leave sparse=True out, or use Downpour"
            )
        if sparse and isinstance(self.driver.staleness, Compensated):
            raise ValueError(
                f"'{sparse[0]}' is sparse, and Compensated() corrects gradients of whole parameters; leave "
                "sparse=True out, or use Damped()"
            )
        if sparse and any(machine.device != "cpu" for machine in self.plan.cluster.machines):
            raise ValueError(
                f"'{sparse[0]}' is sparse, which parts on a GPU cannot push; leave sparse=True out"
            )

    @property
    @override
    def total(self) -> int:
        return self.steps  # the replicas share them

    @override
    def steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        return self._shares(self._units_in(manifest))

    def _shares(self, units: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        n, replicas = sum(stop - start for start, stop in units), self.topology.replicas
        return tuple((n + one) // replicas for one in reversed(range(replicas)))

    def _units_in(self, manifest: Manifest) -> tuple[tuple[int, int], ...]:
        """Returns the steps that a checkpoint holds, as ranges: epochs stay epochs."""
        old, new = manifest.units_per_epoch, self.steps_per_epoch
        if not manifest.done:
            return ((0, int(manifest.epochs * new)),)
        return tuple((-(-start * new // old), stop * new // old) for start, stop in manifest.done)

    @override
    def resume(self, resumed: Resumed) -> None:
        if resumed.manifest is None:
            return
        units = Ranges(self._units_in(resumed.manifest))
        if not self._keeps_units(resumed):
            self._cut_otherwise = resumed.manifest.checkpoint
            self._take_units(resumed, units)
        found = ((start, min(stop, self.steps)) for start, stop in units)
        self._units_done = tuple((start, stop) for start, stop in found if start < stop)
        self.done = self._shares(self._units_done)

    def _keeps_units(self, resumed: Resumed) -> bool:
        """Returns whether shards can go on from what their own files say: the same units, in the same
        numbers.
        """
        assert resumed.manifest is not None
        found, layout = resumed.checkpoint, self.layout
        return (
            found is not None
            and resumed.manifest.units_per_epoch == self.steps_per_epoch
            and len(found.records) == layout.shards
            and all(
                found.has(shard_name(k), layout.slots_of(k))
                and found.units(shard_name(k)).keys()
                == {(o.shard_start, o.shard_stop) for o in layout.machines_of(k)}
                for k in range(layout.shards)
            )
        )

    def _take_units(self, resumed: Resumed, done: Ranges) -> None:
        """Adds the units that all files of a checkpoint hold to those that are done."""
        found = resumed.checkpoint
        if found is None or found.manifest.units_per_epoch != self.steps_per_epoch:
            return
        held = [units for shard in found.records for units in found.units(shard).values()]
        some = Ranges()
        for one in (one for units in held for one in units):
            some.cover(*one)
        everywhere = some
        for units in held:
            everywhere = Ranges(everywhere.common(units))
        for one in everywhere:
            done.cover(*one)
        self._partly_held = some.size - sum(stop - start for start, stop in some.common(done))

    @override
    def beginning(self, resumed: Resumed | None) -> Iterator[str]:
        yield from super().beginning(resumed)
        if self._partly_held:
            yield (
                f"{counted(self._partly_held, 'step')} that only some shards hold are done again, and count "
                "twice there; with the same plan and number of shards each step counts once"
            )

    @override
    def shard(self, shard: int, checkpoint: int | None) -> ShardTask:
        task = super().shard(shard, checkpoint)
        return replace(task, keeps_units=checkpoint != self._cut_otherwise)

    @override
    def mode(self, resumed: Resumed | None) -> LeasedMode:
        most_ahead = self.driver.staleness.most_ahead
        return LeasedMode(done=self._units_done, resumes=resumed is not None, most_ahead=most_ahead)

    @override
    def hands(self, checkpoint: int | None) -> LeasedHands:
        driver, acknowledged = self.driver, self._acknowledged
        return LeasedHands(
            optimizer=driver.optimizer,
            acknowledged=acknowledged,
            run=self.run_id,
            folder=self.job.checkpoints,
            checkpoint=checkpoint,
            changes=driver.pushes_changes,
            minibatches=driver.minibatches,
            merges=driver.merges,
            compress=driver.compress,
            reports_each=driver.staleness.most_ahead is not None,
            moves_by=driver.moves_by,
            unsent=driver.unsent if keeps_unsent(driver) and not isinstance(driver.keepers, Log) else None,
        )

    @override
    def part(self, replica: int, machine: int, checkpoint: int | None) -> PartTask:
        task = super().part(replica, machine, checkpoint)
        assert isinstance(task.hands, LeasedHands), task.hands
        shards = self.topology.shards
        earlier = pushes_of_part(self._acknowledged, part_name(replica, machine), shards=shards)
        return replace(task, hands=replace(task.hands, earlier=earlier))

    @override
    def policy(self, shard: int) -> ApplyPolicy:
        acknowledged = pushes_to_shard(self._acknowledged, shard, shards=self.topology.shards)
        driver, examples = self.driver, self.job.examples
        return ApplyPolicy(
            optimizer=driver.optimizer_of_shards,
            acknowledged=acknowledged,
            staleness=driver.staleness,
            compress=driver.compress,
            unsent=driver.unsent if keeps_unsent(driver) else None,
            merging=driver.merging,
            sizes=UnitSizes(examples, self.plan.batch * driver.minibatches),
        )

    @property
    @override
    def pushes(self) -> Path:
        return self._acknowledged


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
