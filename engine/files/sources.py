"""Sources of data: where the examples of a training are, and how a host opens them.

A source is one array of the data. It travels with the task of a part, which opens it on its machine. To add
a source, write a class with a shape, a type and `open`; feeds need no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BLOCK_BYTES: Final = 1 << 26
"""Bytes of an array that are converted at once."""


class Rows(Protocol):
    """The examples of a source on a host: indexable by their numbers, from any thread.

    An object that has a method `ahead(chosen)` is told which examples will be used soon.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of examples, and the shape of each."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""

    def __getitem__(self, chosen: Any, /) -> Any:
        """Returns the examples of these numbers or of a slice, `[count, *shape]`."""


class OpensArrays(Protocol):
    """The files of a host, as far as a source needs them (`access.HostFiles`)."""

    def array(self, file: ArrayFile, /) -> Rows:
        """Opens an array of the coordinator's machine."""


class DataSource(ABC):
    """One array of the data: an example for each index of its first axis.

    Attributes:
        shape: the number of examples, and the shape of each.
        dtype: of the numbers.
    """

    shape: tuple[int, ...]
    dtype: Any

    def bound(self, name: str) -> DataSource:
        """Returns the source as the input or target of this name, where the run is started.

        Raises:
            OSError, ValueError: it cannot be one.
        """
        return self

    @abstractmethod
    def open(self, files: OpensArrays) -> Rows:
        """Opens the examples on a host. What it raises ends the run, or starts the host again."""


@dataclass(frozen=True)
class ArrayFile(DataSource):
    """An array in a file of the coordinator's machine: its numbers in C order.

    Hosts of that machine map the file; others fetch chunks of it from the coordinator's process, ahead of
    their use, and keep them.

    Args:
        path: of the file.
        dtype: of the numbers.
        shape: the number of examples, and the shape of each.
        offset: the byte at which the numbers begin.
        named: see `name`; the file's name without its suffix if not given.
    """

    path: Path
    dtype: Any
    shape: tuple[int, ...]
    offset: int = 0
    named: str = ""

    @property
    def name(self) -> str:
        """The name by which hosts ask for the file."""
        return self.named or self.path.stem

    def write(self, array: Array) -> None:
        """Writes the array to the file, some examples at a time, in the file's type."""
        assert array.shape == self.shape, (array.shape, self.shape)
        rows = max(_BLOCK_BYTES // max(array[:1].nbytes, 1), 1)
        with self.path.open("wb") as file:
            for start in range(0, len(array), rows):
                np.ascontiguousarray(array[start : start + rows], self.dtype).tofile(file)

    def open(self, files: OpensArrays) -> Rows:
        """Maps the file, or a copy of it that is fetched as it is needed."""
        return files.array(self)
