"""The contract of a data set: what it holds, and how a host reads examples of it.

A `Dataset` is a description: it is pickled, travels with the task of a part, and each host opens it by
itself. All kinds of data that users hand over become one. To add a kind, write a class with `fields`,
`examples` and `open`; feeds, shuffling, transforms and reading ahead need no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from partita.engine.files.sources import OpensArrays

Array = npt.NDArray[Any]


class DataError(ValueError):
    """Data that cannot be used, found when it was read. Reading it again would end the same way."""


@dataclass(frozen=True)
class Field:
    """One array of a data set.

    Args:
        shape: of an example.
        dtype: of the numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def n_bytes(self) -> int:
        """Bytes of an example."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @classmethod
    def of(cls, example: Array) -> Field:
        """Returns the field of which this is an example."""
        return cls(example.shape, example.dtype)


class Reader(ABC):
    """An open data set on a host."""

    @abstractmethod
    def read(self, chosen: Array, names: Collection[str]) -> dict[str, Array]:
        """Reads examples. May be called from several threads at a time.

        Args:
            chosen: numbers of the examples, `[count]`, int64, in any order.
            names: of the fields that are wanted; a reader may return more.

        Returns:
            `[count, *shape]` by field.

        Raises:
            DataError: the data cannot be used; the sentence names the example or the file.
            OSError: it cannot be read at present.
        """

    def keep(self, n_bytes: int) -> None:  # noqa: B027 - most keep nothing
        """Keeps at least so many bytes of what was read last, where single examples cannot be read."""

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Closes what is open."""


class Dataset(ABC):
    """Examples, each with the same fields.

    Attributes:
        fields: the arrays of an example, by name.
        examples: the number of examples.
        in_order: whether the fields have no names of their own: the first is for the first input of the
            network, and targets follow inputs.
        blocks: the sizes of the blocks in which examples are read, which then cost as much as all examples of
            the block; () where any example can be read by itself.
        seekable: whether blocks can be read in any order.
    """

    fields: Mapping[str, Field]
    examples: int
    in_order: ClassVar[bool] = False
    blocks: tuple[int, ...] = ()
    seekable: bool = True

    @abstractmethod
    def open(self, files: OpensArrays) -> Reader:
        """Opens the examples on a host."""

    @property
    def identity(self) -> str:
        """Words that change when the data does, as far as that is known: resumed runs compare them."""
        return f"{type(self).__name__} {sorted(self.fields)} {self.examples}"

    @property
    def example_bytes(self) -> int:
        """Bytes of an example, with all fields."""
        return sum(field.n_bytes for field in self.fields.values())
