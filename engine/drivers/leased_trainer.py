"""A driver with shards at work: replicas lease steps, and exchange with the shards alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from typing_extensions import override

from partita.engine.drivers.compressed import keeps_unsent
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.job import Job
from partita.engine.drivers.trainer import Resumed, Trainer
from partita.engine.files.push_log import pushes_of_part, pushes_to_shard
from partita.engine.parameters.manifest import Manifest
from partita.engine.protocol.durability.settings import Log
from partita.engine.protocol.leased_mode import LeasedMode
from partita.engine.protocol.merging import UnitSizes
from partita.engine.protocol.names import part_name, shard_name
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.staleness import Compensated
from partita.engine.runtime.leased_hands import LeasedHands
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.layers.text import counted


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
