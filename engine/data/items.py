"""Data sets whose examples are Python objects: tuples, dictionaries, tensors, pictures, numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import DataError, Dataset, Field, Reader
from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]


def arrays_of(item: Any, what: str) -> dict[str, Array]:
    """Converts an example to arrays by name; those of a tuple are named by their places.

    Raises:
        DataError: a value is no array of numbers.
    """
    if isinstance(item, Mapping):
        named = {str(name): value for name, value in item.items()}
    else:
        values = item if isinstance(item, tuple | list) else (item,)
        named = {str(place): value for place, value in enumerate(values)}
    found = {}
    for name, value in named.items():
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise DataError(f"'{name}' of {what} is a {type(value).__name__}, no array ({error})") from error
        if array.dtype.kind not in "biuf":
            kind = type(value).__name__
            raise DataError(
                f"'{name}' of {what} is a {kind}, not real numbers; convert it in the data set (text to "
                "numbers, pictures to arrays of one size)"
            )
        found[name] = array
    return found


def stacked(items: Sequence[Mapping[str, Array]], numbers: Sequence[int], what: str) -> dict[str, Array]:
    """Joins examples, `[count, *shape]` by name.

    Args:
        items: the arrays of each example.
        numbers: of the examples, for errors.
        what: word for an example.

    Raises:
        DataError: they differ in their names or shapes.
    """
    first = items[0]
    for item, number in zip(items, numbers, strict=True):
        if item.keys() != first.keys():
            raise DataError(
                f"{what} {number} has {', '.join(item) or 'nothing'}, and {what} {numbers[0]} "
                f"{', '.join(first)}; give every example the same arrays"
            )
        for name, array in item.items():
            if array.shape != first[name].shape:
                raise DataError(
                    f"'{name}' of {what} {number} has shape {array.shape}, and of {what} {numbers[0]} "
                    f"{first[name].shape}; give every example the same shape"
                )
    return {name: np.stack([item[name] for item in items]) for name in first}


@dataclass(frozen=True, eq=False)
class Items(Dataset):
    """Anything with a length and examples by their numbers, such as a `torch.utils.data.Dataset`.

    Args:
        given: the object. It is pickled, and each host has its own.
    """

    given: Any

    @cached_property
    def fields(self) -> Mapping[str, Field]:  # type: ignore[override]
        """The arrays of example 0."""
        if not self.examples:
            return {}
        return {name: Field.of(array) for name, array in _item(self.given, 0).items()}

    @cached_property
    def in_order(self) -> bool:  # type: ignore[override]
        """Returns whether examples are tuples."""
        return bool(self.examples) and not isinstance(self.given[0], Mapping)

    @property
    def examples(self) -> int:  # type: ignore[override]
        """The length of the object."""
        return len(self.given)

    @property
    def identity(self) -> str:
        """The type and the length."""
        return f"{type(self.given).__qualname__} {self.examples}"

    def open(self, files: OpensArrays) -> Reader:
        """Reads the object as it is."""
        return _ItemReader(self.given)


class _ItemReader(Reader):
    def __init__(self, given: Any) -> None:
        self._given = given

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        numbers = chosen.tolist()
        together = getattr(self._given, "__getitems__", None)
        if together is None:
            return stacked([_item(self._given, number) for number in numbers], numbers, "example")
        try:
            found = together(numbers)
        except Exception:  # noqa: BLE001 - one by one, to name the example
            found = None
        if found is None:
            return stacked([_item(self._given, number) for number in numbers], numbers, "example")
        items = [arrays_of(one, f"example {n}") for one, n in zip(found, numbers, strict=True)]
        return stacked(items, numbers, "example")


def _item(given: Any, number: int) -> dict[str, Array]:
    """Returns an example. Raises DataError, which names it."""
    try:
        item = given[number]
    except Exception as error:
        name = type(given).__name__
        raise DataError(
            f"example {number} of the data ({name}) cannot be read: {type(error).__name__}: {error}"
        ) from error
    return arrays_of(item, f"example {number}")


@dataclass(frozen=True, eq=False)
class ArrowTable(Dataset):
    """A Hugging Face `datasets.Dataset`. Its Arrow files are mapped by every host that has them.

    Args:
        given: the data set, in any format.
    """

    given: Any

    @cached_property
    def fields(self) -> Mapping[str, Field]:  # type: ignore[override]
        """The columns, by example 0. Those that hold no numbers are left out."""
        if not self.examples:
            return {}
        found = {}
        for name, values in self.given.with_format("numpy")[:1].items():
            array = np.asarray(values)
            if array.dtype.kind in "biuf":
                found[name] = Field.of(array[0])
        return found

    @property
    def examples(self) -> int:  # type: ignore[override]
        """The number of rows."""
        return int(self.given.num_rows)

    @property
    def identity(self) -> str:
        """The fingerprint that `datasets` computes."""
        return f"{getattr(self.given, '_fingerprint', '')} {self.examples}"

    def open(self, files: OpensArrays) -> Reader:
        """Reads rows as arrays of NumPy."""
        return _ArrowReader(self.given)


class _ArrowReader(Reader):
    def __init__(self, given: Any) -> None:
        self._given = given.with_format("numpy")

    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        found = self._given.select_columns(list(names))[chosen.tolist()]
        read = {}
        for name, values in found.items():
            array = np.asarray(values)
            if array.dtype == object:  # rows that differ in shape
                items = [{name: np.asarray(value)} for value in values]
                array = stacked(items, chosen.tolist(), "example")[name]
            read[name] = array
        return read
