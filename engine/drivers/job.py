"""A job: the data and parameters of a training, and the files that hosts read them from."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from partita.engine.data.clients import Clients, Division
from partita.engine.data.columns import Columns
from partita.engine.data.conversion import has_labels, stored_type
from partita.engine.data.prepared import HostData, Prepared, files_in
from partita.engine.drivers.identity import identity
from partita.engine.files.sources import ArrayFile, DataSource
from partita.engine.files.stores import CheckpointStore, Folder
from partita.engine.kernels.kernel import Array
from partita.engine.numerics import master
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import save_parameters, shape_difference
from partita.engine.parameters.initial_values import initialise
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.coordinator_effects import INSTRUCTION_TIMEOUT_S
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.metric import Metric
from partita.engine.runtime.validation import ValidationData
from partita.engine.transport.mailbox import MAX_PAYLOAD
from partita.layers.graph import Grid
from partita.partitioner.plan import Plan

_MOST_VECTORS: Final = 256  # a method's history is the longest
_MOST_COUNTS: Final = 1 << 26
_BLOCK_BYTES: Final = 1 << 26


@dataclass(frozen=True)
class Job:
    """The work of one training, whatever the driver.

    Args:
        plan, seed: see `train`.
        arrays: those of the data that this process holds, by name: `[example, *shape]`.
        folder: temporary folder of the files that hosts read.
        sources: those of the data that are no arrays.
        store: where checkpoints are kept; None: in the temporary folder, for restarts within the run.
        instruction_timeout_s: seconds that one computation of a part may take.
        metrics: figures that are reported beside the loss.
        validation: the data of validations; None: there are none.
        prepared: how minibatches are made of the data, or of other data; None: as they are.
        draws: whether the first parameters are drawn; else they are a user's.
    """

    plan: Plan
    seed: int
    arrays: Mapping[str, Array]
    folder: Path
    sources: Mapping[str, DataSource] = field(default_factory=dict)
    store: CheckpointStore | None = None
    instruction_timeout_s: float = INSTRUCTION_TIMEOUT_S
    metrics: tuple[Metric, ...] = ()
    validation: ValidationData | None = None
    prepared: Prepared | None = None
    draws: bool = True

    @property
    def keep(self) -> bool:
        """Returns whether checkpoints stay when the run is over."""
        return self.store is not None

    @property
    def checkpoints(self) -> Path:
        """Folder of this machine in which checkpoints come together."""
        return self._store.folder(self.folder)

    @property
    def place(self) -> str:
        """Names the place of the checkpoints, for messages."""
        return str(self._store)

    @property
    def kept(self) -> Path | str | None:
        """The folder or the URL of checkpoints that stay; None where none does."""
        if self.store is None:
            return None
        return self.checkpoints if isinstance(self.store, Folder) else self.place

    @property
    def shared(self) -> bool:
        """Returns whether all machines of the run have the folder for checkpoints."""
        return self._store.is_shared

    @property
    def _store(self) -> CheckpointStore:
        return self.store or Folder(self.folder / "checkpoints")

    def opened(self, *, run: str = "") -> Checkpoints:
        """Returns the checkpoints, for the coordinator of a run. Raises OSError, ValueError."""
        return self._store.checkpoints(self.folder, run=run)

    @cached_property
    def examples(self) -> int:
        """Number of examples in the data."""
        if self.prepared is not None:
            return self.prepared.examples
        lengths = [len(array) for array in self.arrays.values()]
        return next(iter((*lengths, *(source.shape[0] for source in self.sources.values()))))

    @cached_property
    def checksum(self) -> str:
        """Checksum of all arrays, with their names and the order of the examples."""
        found = 0
        for name in sorted(self.arrays):
            found = zlib.crc32(name.encode(), found)
            for block in self._blocks(name):
                found = zlib.crc32(block.data, found)
        for name in sorted(self.sources):
            source = self.sources[name]
            found = zlib.crc32(f"{name} {getattr(source, 'checksum', source)}".encode(), found)
        if self._is_elsewhere:
            assert self.prepared is not None
            found = zlib.crc32(self.prepared.dataset.identity.encode(), found)
        return f"{found:08x}"

    def _blocks(self, name: str) -> Iterator[Array]:
        """Yields an array in the type of the network, some examples at a time."""
        array, grid = self.arrays[name], self._grids.get(name)
        dtype = array.dtype
        if grid is not None and dtype.kind in "biuf":
            dtype = np.dtype(np.int64) if has_labels(grid) else np.dtype(self.precision)
        rows = max(_BLOCK_BYTES // max(array[:1].nbytes, 1), 1)
        for start in range(0, len(array), rows):
            yield np.ascontiguousarray(array[start : start + rows], dtype)

    def divided(self, clients: Clients) -> Division:
        """Divides the data among clients. Raises ValueError where it has too few examples, or no labels."""
        if not clients.labels:
            return clients.divided(self.examples, self.seed)
        for name, grid in self._grids.items():
            if has_labels(grid) and grid.shape == (1,) and name in self.arrays:
                labels = np.asarray(self.arrays[name]).reshape(self.examples)
                return clients.divided(self.examples, self.seed, labels)
        raise ValueError(
            f"{clients} needs the label of each example, and the data has no array with one for a target; "
            "give arrays with labels, or labels=0"
        )

    @property
    def precision(self) -> str:
        """Type of the parameters, and of the data as users give it."""
        return master(self.plan.precision).name

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""
        return {name: parameter.shape for name, parameter in self.plan.graph.parameters.items()}

    @cached_property
    def network(self) -> dict[str, str]:
        """Text for each layer, which distinguishes this network from others of equal shapes."""
        return identity(self.plan.graph)

    @property
    def most_file_bytes(self) -> int:
        """Most bytes of one host's file in a checkpoint: some vectors of all parameters, and the counts."""
        size = sum(math.prod(shape) for shape in self.shapes.values())
        return _MOST_VECTORS * size * np.dtype(self.precision).itemsize + _MOST_COUNTS

    @property
    def initial(self) -> Path:
        """File of the parameters that a run from the start begins with."""
        return self.folder / "initial.safetensors"

    def check_sizes(self, *, shards: int, fragments: int = 1) -> None:
        """Refuses parameters that a machine and a shard cannot exchange in one message. Raises ValueError."""
        layout = layout_of(self.plan, shards=shards, fragments=fragments)
        most = MAX_PAYLOAD // np.dtype(self.precision).itemsize
        largest = max((o.machine_stop - o.machine_start for o in layout.shared_ranges), default=0)
        if largest > most:
            raise ValueError(
                f"a machine and a shard have {largest:,} parameters in common, and one message carries "
                f"{most:,}; use at least {math.ceil(layout.size / most)} shards"
            )

    def check_writable(self) -> None:
        """Makes the folder for checkpoints, and tries to write in it. Raises OSError."""
        self._store.check(self.folder)

    def write(self, initial: Mapping[str, Array] | None) -> None:
        """Writes the data and the first parameters where every host can read them."""
        for name, array in self.arrays.items():
            self.files[name].write(array)
        if initial is None:
            parameters = initialise(self.plan.graph.parameters.values(), self.seed, dtype=self.precision)
        else:
            parameters = {
                name: np.ascontiguousarray(values, self.precision) for name, values in initial.items()
            }
            why = shape_difference({name: values.shape for name, values in parameters.items()}, self.shapes)
            if why is not None:
                raise ValueError(f"the initial parameters do not fit the network: {why}")
        self.begin_with(parameters)

    def begin_with(self, parameters: Mapping[str, Vector]) -> None:
        """Writes the parameters that a run from the start begins with."""
        save_parameters(self.initial, parameters)

    @property
    def files(self) -> dict[str, ArrayFile]:
        """File of each array that this process holds, by name: in the type in which it was given, if that is
        small.
        """
        return {name: self._file_of(name, array) for name, array in self.arrays.items()}

    @property
    def validation_files(self) -> tuple[ArrayFile, ...]:
        """Files of the validation data that is given as arrays."""
        return () if self.validation is None else files_in(self.validation.sources)

    @property
    def served(self) -> dict[str, Path]:
        """The files of the data that hosts on other machines fetch from this one, by their names."""
        return {one.name: one.path for one in (*files_in(self.data), *self.validation_files)}

    @property
    def data(self) -> HostData:
        """The data, as parts open it."""
        if self.prepared is not None and self._is_elsewhere:
            return self.prepared
        sources: dict[str, DataSource] = {**self.files, **self.sources}
        return sources if self.prepared is None else replace(self.prepared, dataset=Columns(sources))

    @property
    def _is_elsewhere(self) -> bool:
        """Returns whether the data are neither arrays nor sources."""
        return not self.arrays and not self.sources

    @cached_property
    def _grids(self) -> dict[str, Grid]:
        return {grid.name: grid for grid in (*self.plan.graph.inputs, *self.plan.graph.targets)}

    def _file_of(self, name: str, array: Array) -> ArrayFile:
        path, grid = self.folder / f"{name.replace('/', '-')}.data", self._grids.get(name)
        is_made = self.prepared is not None and bool(self.prepared.transforms)
        dtype = array.dtype
        if grid is not None and not is_made:
            dtype = stored_type(grid, dtype, self.plan.precision)
        return ArrayFile(path, dtype.name if dtype.kind in "biuf" else dtype, array.shape)
