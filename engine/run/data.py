"""Takes the user's data, and checks it before anything starts: every mistake gets one clear sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from partita.engine.data.columns import Columns, HeldArray
from partita.engine.data.conversion import check_whole_array, converted
from partita.engine.data.dataset import Dataset
from partita.engine.data.naming import naming_of
from partita.engine.data.prepared import Prepared
from partita.engine.data.rows import place_of
from partita.engine.data.taking import portable, taken_of
from partita.engine.data.transforms import Transform
from partita.engine.data.weighing import Weighing
from partita.engine.files.access import HostFiles
from partita.engine.files.host_files import Files
from partita.engine.files.sources import ArrayFile, DataSource
from partita.engine.run.arrays import Array, array_of
from partita.layers.graph import Graph, Grid
from partita.layers.node import Node
from partita.partitioner.plan import Plan

Data: TypeAlias = Any
"""An array or a source for each input and target, by name: `[example, *shape]`, labels `[example]`; or data
of another kind, see `partita.engine.data`."""

_BLOCK_BYTES: Final = 1 << 26
"""Bytes of a file that are checked at once."""

_MAPPED_BYTES: Final = 1 << 26
"""Bytes of a mapped array from which on it is read where it lies, instead of copied."""

_CHECKED_BYTES: Final = 1 << 30
"""Bytes of a file up to which it is checked before a run; beyond, each minibatch is when it is made."""


@dataclass(frozen=True)
class RunData:
    """Data as a run takes it.

    Args:
        arrays: in memory, checked, in the types in which they were given: `[example, *shape]` by name.
        sources: of the data that lies elsewhere.
        prepared: how minibatches are made; None: they are taken from arrays and sources as they are.
    """

    arrays: Mapping[str, Array]
    sources: Mapping[str, DataSource] = field(default_factory=dict)
    prepared: Prepared | None = None

    @property
    def examples(self) -> int:
        """The number of examples."""
        lengths = [len(array) for array in self.arrays.values()]
        lengths += [source.shape[0] for source in self.sources.values()]
        return lengths[0] if self.prepared is None else self.prepared.examples


def check_plan(value: object) -> None:
    """Refuses what is no plan. Raises ValueError."""
    if not isinstance(value, Plan):
        raise ValueError(
            f"the plan is a {type(value).__name__}; partition the network first: "
            "partition(network, Cluster.local(machines=2), batch=32)"
        )


def slow_nodes(graph: Graph) -> list[str]:
    """Describes node definitions that do not run as compiled loops, each with the line that is the reason.

    Imports the compiler if there are any nodes of a user's own.
    """
    if not any(isinstance(grid.layer, Node) for grid in graph.grids):
        return []
    from partita.engine.kernels import node

    return node.slow_nodes(graph)


def warn_of_slow_nodes(graph: Graph) -> None:
    """Warns of what `slow_nodes` describes."""
    for remark in slow_nodes(graph):
        from partita.engine.kernels.nodes.errors import SlowNodeWarning

        warnings.warn(remark, SlowNodeWarning, stacklevel=2)


def check_data(graph: Graph, data: Data, *, targets: bool, precision: str) -> dict[str, Array]:
    """Returns the arrays that feed the network: float32, or float64 if it computes in it; labels as int64.

    Args:
        graph: the network.
        data: arrays by name, as the user gave them; targets that are not needed are left out. A network
            without a loss takes any other names: it may be the rest of a network for prediction.
        targets: whether the losses need theirs.
        precision: precision of the plan.

    Raises:
        ValueError: an array is missing or unknown, is no array of real numbers, has the wrong shape or
            length, is not finite, or holds a label that is no class.
    """
    wanted = _wanted(graph, data, targets=targets, ignored=None)
    found = {}
    for grid in wanted:
        given = data[grid.name]
        array = given.array() if isinstance(given, Files) else array_of(grid.name, given)
        found[grid.name] = converted(grid, array, precision)
    _check_lengths({name: len(array) for name, array in found.items()})
    return found


def run_data(
    graph: Graph,
    data: Data,
    *,
    targets: bool,
    precision: str,
    batch: int,
    folder: Path,
    seed: int = 0,
    ignored: Collection[str] | None = None,
    here: bool = False,
    weighing: Weighing | None = None,
    note: Callable[[str], object] = lambda line: None,
) -> RunData:
    """Takes data of any kind for a run.

    Args:
        graph: see `check_data`.
        data: of any kind.
        targets: see `check_data`.
        precision: of the plan.
        batch: examples of a minibatch.
        folder: for a copy of what only this process can read.
        seed: of transforms.
        ignored: names that the data may have besides those of the network. If not given, a network without a
            loss takes any.
        here: whether this process alone reads the data, in the order in which it lies.
        weighing: how weights of examples are made, which are none of the network's targets.
        note: called with a line where data is copied.

    Raises:
        ValueError: the data do not fit the network, or cannot be read.
        OSError: the copy cannot be written.
    """
    names = [*graph.inputs, *(graph.targets if targets else ())]
    others = {grid.name for grid in (*graph.inputs, *graph.targets)} | set(ignored or ())
    kept = () if weighing is None else weighing.columns
    taken = taken_of(data, names, batch=batch, others=others, kept=kept)
    if taken is None:
        _wanted(graph, data, targets=targets, ignored=ignored)
        raise AssertionError("only a mapping passes")
    loader = taken.loader
    if taken.columns is not None:
        if not loader.transforms:
            _wanted(
                graph, taken.columns, targets=targets, ignored={*(ignored or ()), *kept} if kept else ignored
            )
        found = _columns(names, taken.columns, precision, kept=kept, free=bool(loader.transforms))
        dataset: Dataset = found.columns
        is_held = not found.sources if here else not found.is_read_ahead
        is_taken = is_held and (loader.is_plain or (here and not loader.transforms))
        if is_taken and (weighing is None or found.has(weighing.reads)):
            return RunData(found.weighed(weighing, {grid.name for grid in names}), found.sources)
    else:
        found, dataset = _Found(), portable(taken, folder, note)
        if not dataset.examples:
            raise ValueError("the data has no examples; give at least one")
    naming = naming_of(dataset, names, others={*others, *kept}, transforms=bool(loader.transforms))
    transforms: tuple[Transform, ...] = loader.transforms
    if weighing is not None:
        weighing.check(dataset.examples)
        naming, transforms = naming.keeping(dataset, kept), (*transforms, weighing)
        names += weighing.grids
    prepared = Prepared(
        dataset,
        naming,
        tuple(names),
        precision,
        transforms=transforms,
        ordering=loader.ordering(dataset),
        workers=loader.workers,
        processes=loader.processes,
        ahead_bytes=loader.ahead_bytes,
        seed=seed,
    )
    prepared.check(HostFiles())
    return RunData(found.arrays, found.sources, prepared)


@dataclass
class _Found:
    """Columns by where they lie."""

    arrays: dict[str, Array] = field(default_factory=dict)
    sources: dict[str, DataSource] = field(default_factory=dict)
    is_read_ahead: bool = False

    @property
    def columns(self) -> Columns:
        """All of them, to be read in this process."""
        return Columns({name: HeldArray(array) for name, array in self.arrays.items()} | self.sources)

    def has(self, names: Collection[str]) -> bool:
        """Returns whether all of these are arrays in memory."""
        return self.arrays.keys() >= set(names)

    def weighed(self, weighing: Weighing | None, names: Collection[str]) -> dict[str, Array]:
        """Returns the arrays of these names, and the weights of all examples. Raises DataError."""
        if weighing is None:
            return self.arrays
        weighing.check(self.columns.examples)
        made = weighing.of_columns(self.arrays)
        return {name: array for name, array in self.arrays.items() if name in names} | made


def _columns(
    wanted: Sequence[Grid],
    data: Mapping[str, Any],
    precision: str,
    *,
    kept: Collection[str] = (),
    free: bool,
) -> _Found:
    """Takes arrays and sources. `free`: transforms follow, which may take any, and are checked later."""
    grids, found = {grid.name: grid for grid in wanted}, _Found()
    for name in data if free else [*grids, *(one for one in kept if one in data and one not in grids)]:
        one = _column(name, data[name])
        if not isinstance(one, DataSource):
            unchecked = free or name not in grids
            found.arrays[name] = one if unchecked else check_whole_array(grids[name], one, precision)
            continue
        found.sources[name] = one
        n_bytes = math.prod(one.shape) * np.dtype(one.dtype).itemsize
        is_large = isinstance(data[name], Files) and n_bytes > _CHECKED_BYTES
        found.is_read_ahead |= is_large or isinstance(one, ArrayFile)
        if not free and name in grids:
            _check_source(grids[name], one if is_large else data[name], precision)
    lengths = {name: len(array) for name, array in found.arrays.items()}
    _check_lengths(lengths | {name: source.shape[0] for name, source in found.sources.items()})
    return found


def _column(name: str, given: Any) -> Array | DataSource:
    """Returns an array in memory, or the source of one that lies elsewhere."""
    if isinstance(given, DataSource):
        return given.bound(name)
    if isinstance(given, np.memmap) and given.nbytes > _MAPPED_BYTES:
        place = place_of(given)
        if place is not None:
            return ArrayFile(Path(place[0]), given.dtype, given.shape, offset=place[1], named=name)
    return array_of(name, given)


def _wanted(graph: Graph, data: Any, *, targets: bool, ignored: Collection[str] | None) -> list[Grid]:
    """Returns the inputs and targets that are needed. Raises ValueError where the data lacks one."""
    wanted = [*graph.inputs, *(graph.targets if targets else ())]
    known = {grid.name for grid in (*graph.inputs, *graph.targets)} | set(ignored or ())
    any_goes = ignored is None and not graph.losses
    if not isinstance(data, Mapping):
        raise ValueError(
            f"the data is a {type(data).__name__}; give a dictionary with an array for each of "
            f"{_names(wanted)}: {{{', '.join(f'{grid.name!r}: ...' for grid in wanted)}}}"
        )
    for name in data:
        if name not in known and not any_goes:
            raise ValueError(
                f"the data has '{name}', but the network takes {_names(wanted)}; rename it or leave it out"
            )
    for grid in wanted:
        if grid.name not in data:
            raise ValueError(f"the data has no '{grid.name}'; the network takes {_names(wanted)}")
    return wanted


def _check_lengths(lengths: Mapping[str, int]) -> None:
    """Refuses arrays of different lengths, or of none. Raises ValueError."""
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the arrays differ in their number of examples: {lengths}; give each example every array"
        )
    if not next(iter(lengths.values())):
        raise ValueError("the data has no examples; give at least one")


def _check_source(grid: Grid, source: DataSource, precision: str) -> None:
    """Refuses a source that does not fit; reads the examples of files. Raises ValueError."""
    if not isinstance(source, Files):
        converted(grid, np.empty((0, *source.shape[1:]), source.dtype), precision)
        return
    array = source.array()
    rows = max(_BLOCK_BYTES // max(array[:1].nbytes, 1), 1)
    for start in range(0, len(array), rows):
        try:
            converted(grid, array[start : start + rows], precision)
        except ValueError as error:
            last = min(start + rows, len(array))
            raise ValueError(f"{error} (examples {start} to {last} of {source.path})") from error


def _names(grids: Sequence[Grid]) -> str:
    return ", ".join(f"'{grid.name}'" for grid in grids)
