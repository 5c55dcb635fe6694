"""A job: what the tasks of all hosts of a training are made from, and the files that hosts read it from."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from partita.engine.drivers.data import Array
from partita.engine.drivers.downpour import Downpour
from partita.engine.numerics import master
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import difference, load_parameters, make_folder, save_parameters
from partita.engine.parameters.initialise import initialise
from partita.engine.parameters.manifest import Manifest
from partita.engine.parameters.reader import Checkpoint
from partita.engine.protocol.names import part_indices, shard_index
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.feed import ArrayFile, Sampler
from partita.engine.runtime.serving import ShardTask
from partita.engine.runtime.task import Task
from partita.engine.runtime.training import TrainTask
from partita.engine.transport.mailbox import MAX_PAYLOAD
from partita.layers.graph import Grid
from partita.layers.layer import Given
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        plan, driver, seed: as `train` was given them.
        examples: how many there are.
        folder: for the files that hosts read; it goes when the run is over.
        checkpoints: folder for checkpoints.
    """

    plan: Plan
    driver: Downpour
    seed: int
    examples: int
    folder: Path
    checkpoints: Path

    @cached_property
    def steps_per_epoch(self) -> int:
        """Of each replica. Raises ValueError when its share of the data is smaller than a batch."""
        return Sampler(
            examples=self.examples,
            batch=self.plan.batch,
            minibatches=self.driver.overlap,
            seed=self.seed,
            replica=0,
            replicas=self.driver.replicas,
        ).steps_per_epoch

    @property
    def precision(self) -> str:
        """Of parameters, and of the data as users give it."""
        return master(self.plan.precision).name

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every parameter."""
        return {name: parameter.shape for name, parameter in self.plan.graph.parameters.items()}

    @property
    def initial(self) -> Path:
        """The file of the parameters that a run from the start begins with."""
        return self.folder / "initial.safetensors"

    def find_checkpoint(self) -> Checkpoint | None:
        """The newest one in the folder.

        Raises:
            ValueError: none can be used, or it is of another rule.
        """
        found = Checkpoints(self.checkpoints).latest(self.shapes)
        rule = self.driver.rule
        if found is not None and set(found.state_names) != set(rule.state(1, self.precision)):
            raise ValueError(
                f"checkpoint {found.path} was written with {found.manifest.rule}, whose state {rule} cannot "
                "go on with; resume with the same rule, or give another folder"
            )
        return found

    def steps_in(self, manifest: Manifest) -> tuple[int, ...]:
        """What a checkpoint's steps are in this job, for each replica: epochs stay epochs.

        With another number of replicas each has done their mean.
        """
        before, replicas = manifest.steps, self.driver.replicas
        if len(before) == replicas:
            return tuple(step * self.steps_per_epoch // manifest.steps_per_epoch for step in before)
        mean = sum(before) * self.steps_per_epoch // (manifest.steps_per_epoch * len(before))
        return (mean,) * replicas

    def check_sizes(self) -> None:
        """What a machine keeps on a shard travels in one message. Raises ValueError where it is too much."""
        layout = layout_of(self.plan, shards=self.driver.shards)
        most = MAX_PAYLOAD // np.dtype(self.precision).itemsize
        largest = max((o.machine_stop - o.machine_start for o in layout.overlaps), default=0)
        if largest > most:
            raise ValueError(
                f"a machine and a shard have {largest:,} parameters in common, and one message carries "
                f"{most:,}; use at least {math.ceil(layout.size / most)} shards"
            )

    def check_writable(self) -> None:
        """Makes the folder for checkpoints and a file in it that vanishes. Raises OSError or ValueError."""
        try:
            make_folder(self.checkpoints)
            with tempfile.TemporaryFile(dir=self.checkpoints):
                pass
        except OSError as error:
            raise OSError(
                f"no checkpoint can be written in {self.checkpoints} ({error.strerror or error}); "
                "give another folder"
            ) from error

    def write(self, arrays: Mapping[str, Array], initial: Mapping[str, Array] | str | Path | None) -> None:
        """Puts the data and the first parameters where every host can read them."""
        for name, array in arrays.items():
            self._files[name].write(array)
        if initial is None:
            parameters = initialise(self.plan.graph.parameters.values(), self.seed, dtype=self.precision)
        elif isinstance(initial, str | Path):
            parameters = load_parameters(initial, self.shapes)
        else:
            parameters = {
                name: np.ascontiguousarray(values, self.precision) for name, values in initial.items()
            }
            why = difference({name: values.shape for name, values in parameters.items()}, self.shapes)
            if why is not None:
                raise ValueError(f"the initial parameters do not fit the network: {why}")
        save_parameters(self.initial, parameters)

    def task_of(self, name: str, checkpoint: int | None, *, run: str) -> Task:
        """The task of a host, which starts from this checkpoint (a shard; None: from the beginning)."""
        part, shard = part_indices(name), shard_index(name)
        if part is not None:
            return self._part(replica=part[0], machine=part[1])
        assert shard is not None, f"{name} is neither a part nor a shard"
        plan, driver = self.plan, self.driver
        layout = layout_of(plan, shards=driver.shards)
        return ShardTask(
            shard, layout, driver.rule, run, self.checkpoints, checkpoint, self.initial, self.precision
        )

    def _part(self, *, replica: int, machine: int) -> TrainTask:
        plan, driver = self.plan, self.driver
        return TrainTask(
            plan,
            machine,
            replica,
            driver.replicas,
            self._files,
            self.examples,
            self.seed,
            driver.shards,
            driver.rule,
            driver.fetch_every,
            driver.push_every,
            driver.run_ahead,
            driver.overlap,
        )

    @property
    def _files(self) -> dict[str, ArrayFile]:
        graph = self.plan.graph
        return {grid.name: self._file_of(grid) for grid in (*graph.inputs, *graph.targets)}

    def _file_of(self, grid: Grid) -> ArrayFile:
        path = self.folder / f"{grid.name}.data"
        if isinstance(grid.layer, Given) and grid.layer.classes is not None:
            return ArrayFile(path, "int64", (self.examples,))
        return ArrayFile(path, self.precision, (self.examples, *grid.shape))
