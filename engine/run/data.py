"""Checks the user's arrays before anything starts: every mistake gets one clear sentence."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.files.host_files import Files
from partita.engine.files.sources import DataSource
from partita.engine.numerics import master
from partita.engine.run.arrays import Array, array_of
from partita.layers.graph import Graph, Grid
from partita.layers.layer import Placeholder
from partita.layers.node import Node
from partita.layers.text import counted
from partita.partitioner.plan import Plan

Data: TypeAlias = Mapping[str, npt.ArrayLike | DataSource]
"""An array or a source for each input and target, by name: `[example, *shape]`; labels are `[example]`."""

_BLOCK_BYTES: Final = 1 << 26
"""Bytes of a file that are checked at once."""


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


def check_data(
    graph: Graph,
    data: Data,
    *,
    targets: bool,
    precision: str,
    ignored: Collection[str] | None = None,
    sources: dict[str, DataSource] | None = None,
) -> dict[str, Array]:
    """Returns the arrays that feed the network: float32, or float64 if it computes in it; labels as int64.

    Args:
        graph: the network.
        data: as the user gave it; targets that are not needed are left out.
        targets: whether the losses need theirs.
        precision: precision of the plan.
        ignored: names that the data may have besides those of the network. If not given, a network without a
            loss takes any: it may be the rest of a network for prediction.
        sources: receives the sources in the data, which are then not among the arrays. If not given, files
            are read as arrays are.

    Raises:
        ValueError: an array is missing or unknown, is no array of real numbers, has the wrong shape or
            length, is not finite, or holds a label that is no class.
    """
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
    found: dict[str, Array] = {}
    lengths: dict[str, int] = {}
    for grid in wanted:
        if grid.name not in data:
            raise ValueError(f"the data has no '{grid.name}'; the network takes {_names(wanted)}")
        given = data[grid.name]
        if isinstance(given, DataSource) and sources is not None:
            source = sources[grid.name] = given.bound(grid.name)
            _check_source(grid, given, precision)
            lengths[grid.name] = source.shape[0]
            continue
        if isinstance(given, Files):
            given = given.array()
        found[grid.name] = _checked(grid, array_of(grid.name, given), precision)
        lengths[grid.name] = len(found[grid.name])
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the arrays differ in their number of examples: {lengths}; give each example every array"
        )
    if not next(iter(lengths.values())):
        raise ValueError("the data has no examples; give at least one")
    return found


def _check_source(grid: Grid, source: DataSource, precision: str) -> None:
    """Refuses a source that does not fit; reads the examples of files. Raises ValueError."""
    if not isinstance(source, Files):
        _checked(grid, np.empty((0, *source.shape[1:]), source.dtype), precision)
        return
    array = source.array()
    rows = max(_BLOCK_BYTES // max(array[:1].nbytes, 1), 1)
    for start in range(0, len(array), rows):
        try:
            _checked(grid, array[start : start + rows], precision)
        except ValueError as error:
            last = min(start + rows, len(array))
            raise ValueError(f"{error} (examples {start} to {last} of {source.path})") from error


def _checked(grid: Grid, array: Array, precision: str) -> Array:
    assert isinstance(grid.layer, Placeholder)
    if grid.layer.classes is not None and grid.shape == (1,):
        return _labels(grid.name, array, grid.layer.classes, grid.layer.ignored)
    if array.ndim == 1 and grid.shape == (1,):
        array = array[:, None]
    if array.shape[1:] != grid.shape or array.ndim < 1:
        alone = "; for one example give array[None]" if array.shape == grid.shape else ""
        raise ValueError(
            f"'{grid.name}' has shape {array.shape}, but the network declares {grid.shape} for each example; "
            f"give an array of shape (examples, {', '.join(map(str, grid.shape))}){alone}"
        )
    if grid.layer.classes is not None:
        return _classes(grid.name, array, grid.layer.classes, grid.layer.ignored)
    if array.dtype.kind not in "biuf":
        wanted = master(precision)
        raise ValueError(f"'{grid.name}' holds {_kind(array)}, not real numbers; convert it to {wanted}")
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(array, dtype=master(precision))
    _check_finite(grid.name, array, converted)
    return converted


def _check_finite(name: str, given: Array, converted: Array) -> None:
    """Refuses NaN and infinity, given or made by conversion. Raises ValueError."""
    axes = tuple(range(1, converted.ndim))
    bad: Array = ~np.asarray(np.isfinite(converted).all(axis=axes))
    if not bad.any():
        return
    large: Array = bad & np.isfinite(given).all(axis=axes)
    if large.any():
        raise ValueError(
            f"'{name}' has numbers too large for {converted.dtype} in {int(large.sum())} of {len(bad)} "
            f"examples, first in example {int(large.argmax())}; scale it, or plan with precision='float64'"
        )
    raise ValueError(
        f"'{name}' is not finite in {int(bad.sum())} of {counted(len(bad), 'example')}, first in example "
        f"{int(bad.argmax())}; remove them, or replace NaN and infinity by numbers"
    )


def _classes(name: str, array: Array, classes: int, ignored: int | None) -> Array:
    """Numbers of classes in any shape."""
    rule = f"its numbers are whole, from 0 to {classes - 1}{_or(ignored)}"
    if array.dtype.kind not in "iu":
        raise ValueError(f"'{name}' holds {_kind(array)}; {rule}")
    if array.size and array.min() >= 0 and array.max() < classes:
        return array.astype(np.int64)
    strange: Array = ((array < 0) | (array >= classes)) & (array != ignored)
    outside: Array = np.asarray(strange.any(axis=tuple(range(1, array.ndim))))
    if outside.any():
        first = int(outside.argmax())
        raise ValueError(f"'{name}' names a class that is none in example {first}; {rule}")
    return array.astype(np.int64)


def _or(ignored: int | None) -> str:
    return "" if ignored is None else f", or {ignored} where it is ignored"


def _labels(name: str, array: Array, classes: int, ignored: int | None) -> Array:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        alone = "; for one example give array[None]" if array.ndim == 0 else ""
        hot = "; if 1 marks its class, give array.argmax(axis=1)" if array.shape[1:] == (classes,) else ""
        raise ValueError(
            f"'{name}' has shape {array.shape}; give one label for each example, shape (examples,)"
            f"{alone}{hot}"
        )
    rule = f"labels are whole numbers from 0 to {classes - 1}{_or(ignored)}"
    if array.dtype.kind not in "iu":
        raise ValueError(f"'{name}' holds {_kind(array)}; {rule}{_as_labels(array)}")
    outside = ((array < 0) | (array >= classes)) & (array != ignored)
    if outside.any():
        first = int(outside.argmax())
        from_one = "; yours seem to begin at 1: subtract 1" if _from_one(array, classes) else ""
        raise ValueError(
            f"'{name}' has the label {array[first]} in example {first}, but the network has {classes} "
            f"classes; {rule}{from_one}"
        )
    return array.astype(np.int64)


def _from_one(labels: Array, classes: int) -> bool:
    return int(labels.min()) == 1 and int(labels.max()) == classes


def _as_labels(array: Array) -> str:
    """The expression that converts such an array to labels; "" where there is none."""
    if array.dtype.kind in "US":
        return "; number them: np.unique(array, return_inverse=True)[1]"
    if array.dtype.kind == "b" or (array.dtype.kind == "f" and bool((array == np.floor(array)).all())):
        return "; convert it: array.astype(np.int64)"
    return ""


def _kind(array: Array) -> str:
    return "text" if array.dtype.kind in "US" else str(array.dtype)


def _names(grids: Sequence[Grid]) -> str:
    return ", ".join(f"'{grid.name}'" for grid in grids)
