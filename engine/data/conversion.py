"""Checks the numbers of examples, and converts them to the type that the network computes in.

Arrays stay in the type in which they were given until a minibatch is made of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import DataError, Field
from partita.engine.numerics import master
from partita.layers.graph import Grid
from partita.layers.layer import Placeholder
from partita.layers.text import counted

Array = npt.NDArray[Any]

_BLOCK_BYTES: Final = 1 << 26
"""Bytes that are checked at once."""


def has_labels(grid: Grid) -> bool:
    """Returns whether an input or target holds numbers of classes."""
    return isinstance(grid.layer, Placeholder) and grid.layer.classes is not None


def converted(grid: Grid, array: Array, precision: str, *, numbers: Array | None = None) -> Array:
    """Returns examples of an input or target in the type of the network; labels as int64.

    Args:
        grid: the input or target.
        array: `[example, *shape]`; labels `[example]`. Integers and bool become floats of the same value.
        precision: precision of the plan.
        numbers: the number of each example in the data; counted from 0 if not given.

    Raises:
        DataError: the numbers are no real ones, are not finite, name no class, or have another shape.
    """
    array = fitted(grid, array)
    assert isinstance(grid.layer, Placeholder)
    if grid.layer.classes is not None:
        check = _check_labels if grid.shape == (1,) else _check_classes
        check(grid.name, array, grid.layer.classes, grid.layer.ignored, numbers)
        return array.astype(np.int64, copy=False)
    wanted = master(precision)
    if array.dtype.kind not in "biuf":
        raise DataError(f"'{grid.name}' holds {_kind(array)}, not real numbers; convert it to {wanted}")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=wanted)
    if array.dtype.kind == "f":
        _check_finite(grid.name, array, found, numbers)
    return found


def check_whole_array(grid: Grid, array: Array, precision: str) -> Array:
    """Checks all examples, some at a time, and returns them in their own type. Raises DataError."""
    found = fitted(grid, array)
    rows = max(_BLOCK_BYTES // max(Field.of(found[0]).n_bytes, 1), 1) if len(found) else 1
    for start in range(0, max(len(found), 1), rows):
        block = found[start : start + rows]
        converted(grid, block, precision, numbers=np.arange(start, start + len(block)))
    return found


def stored_type(grid: Grid, dtype: np.dtype[Any], precision: str) -> np.dtype[Any]:
    """Returns the type in which examples are kept until a minibatch is made: the given one, if small."""
    wanted = np.dtype(np.int64) if has_labels(grid) else master(precision)
    return dtype if dtype.itemsize < wanted.itemsize else wanted


def fitted(grid: Grid, array: Array) -> Array:
    """Returns examples with the shape that the network declares. Raises DataError."""
    if has_labels(grid) and grid.shape == (1,):
        return _one_label_each(grid, array)
    if array.ndim == 1 and grid.shape == (1,):
        array = array[:, None]
    if array.ndim < 1 or array.shape[1:] != grid.shape:
        alone = "; for one example give array[None]" if array.shape == grid.shape else ""
        moved = grid.shape[-1:] + grid.shape[:-1]
        if not alone and len(grid.shape) == 3 and array.shape[1:] == moved:
            alone = "; its channels come first: move them, np.moveaxis(array, 1, -1), or by ChannelsLast()"
        raise DataError(
            f"'{grid.name}' has shape {array.shape}, but the network declares {grid.shape} for each example; "
            f"give an array of shape (examples, {', '.join(map(str, grid.shape))}){alone}"
        )
    return array


def _nth(numbers: Array | None, place: int) -> int:
    return place if numbers is None else int(numbers[place])


def _check_finite(name: str, given: Array, found: Array, numbers: Array | None) -> None:
    """Refuses NaN and infinity, given or made by conversion."""
    axes = tuple(range(1, found.ndim))
    bad: Array = ~np.asarray(np.isfinite(found).all(axis=axes))
    if not bad.any():
        return
    large: Array = bad & np.isfinite(given).all(axis=axes)
    if large.any():
        raise DataError(
            f"'{name}' has numbers too large for {found.dtype} in {int(large.sum())} of {len(bad)} "
            f"examples, first in example {_nth(numbers, int(large.argmax()))}; scale it, or plan with "
            "precision='float64'"
        )
    raise DataError(
        f"'{name}' is not finite in {int(bad.sum())} of {counted(len(bad), 'example')}, first in example "
        f"{_nth(numbers, int(bad.argmax()))}; remove them, or replace NaN and infinity by numbers"
    )


def _check_classes(name: str, array: Array, classes: int, ignored: int | None, numbers: Array | None) -> None:
    """Checks numbers of classes in any shape."""
    rule = f"its numbers are whole, from 0 to {classes - 1}{_or(ignored)}"
    if array.dtype.kind not in "iu":
        raise DataError(f"'{name}' holds {_kind(array)}; {rule}")
    strange = _strange(array, classes, ignored)
    outside: Array = np.asarray(strange.any(axis=tuple(range(1, array.ndim))))
    if outside.any():
        first = _nth(numbers, int(outside.argmax()))
        raise DataError(f"'{name}' names a class that is none in example {first}; {rule}")


def _check_labels(name: str, array: Array, classes: int, ignored: int | None, numbers: Array | None) -> None:
    """Checks one label for each example."""
    rule = f"labels are whole numbers from 0 to {classes - 1}{_or(ignored)}"
    if array.dtype.kind not in "iu":
        raise DataError(f"'{name}' holds {_kind(array)}; {rule}{_as_labels(array)}")
    outside = _strange(array, classes, ignored)
    if outside.any():
        first = int(outside.argmax())
        from_one = "; yours seem to begin at 1: subtract 1" if _from_one(array, classes) else ""
        raise DataError(
            f"'{name}' has the label {array[first]} in example {_nth(numbers, first)}, but the network has "
            f"{classes} classes; {rule}{from_one}"
        )


def _strange(array: Array, classes: int, ignored: int | None) -> Array:
    """Returns which numbers are no class, and not ignored."""
    strange: Array = (array < 0) | (array >= classes)
    return strange if ignored is None else strange & (array != ignored)


def _one_label_each(grid: Grid, array: Array) -> Array:
    assert isinstance(grid.layer, Placeholder)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        alone = "; for one example give array[None]" if array.ndim == 0 else ""
        marked = array.shape[1:] == (grid.layer.classes,)
        hot = "; if 1 marks its class, give array.argmax(axis=1)" if marked else ""
        raise DataError(
            f"'{grid.name}' has shape {array.shape}; give one label for each example, shape (examples,)"
            f"{alone}{hot}"
        )
    return array


def _or(ignored: int | None) -> str:
    return "" if ignored is None else f", or {ignored} where it is ignored"


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
