"""Copies data that this process alone can read to files, from which hosts read it.

That is the one copy on disk that data needs: of a generator that can be read once, and of objects that cannot
be pickled. Other machines fetch chunks of the files from this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from partita.engine.data.dataset import DataError, Dataset
from partita.engine.data.items import arrays_of
from partita.engine.files.access import HostFiles
from partita.engine.files.sources import ArrayFile

Array = npt.NDArray[Any]

_BLOCK: Final = 256


def spooled(dataset: Dataset, folder: Path) -> dict[str, ArrayFile]:
    """Copies a data set, some examples at a time. Raises DataError, OSError."""
    reader = dataset.open(HostFiles())
    spool = _Spool(folder)
    try:
        for start in range(0, dataset.examples, _BLOCK):
            chosen = np.arange(start, min(start + _BLOCK, dataset.examples))
            spool.add(reader.read(chosen, dataset.fields))
        return spool.files()
    finally:
        spool.close()
        reader.close()


def spooled_once(items: Iterable[Any], folder: Path) -> dict[str, ArrayFile]:
    """Copies examples that come once. Raises DataError."""
    spool, number = _Spool(folder), 0
    try:
        for item in items:
            spool.add({name: array[None] for name, array in arrays_of(item, f"example {number}").items()})
            number += 1
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"the generator failed at example {number}: {type(error).__name__}: {error}"
        ) from error
    finally:
        spool.close()
    if not number:
        raise DataError("the generator has no examples; it may have been read before")
    return spool.files()


class _Spool:
    """A file for each field."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._like: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._open: dict[str, Any] = {}

    def add(self, arrays: Mapping[str, Array]) -> None:
        for name, array in arrays.items():
            like = array.shape[1:], array.dtype
            if self._like.setdefault(name, like) != like:
                raise DataError(
                    f"'{name}' of example {self._count} is {like[1]} of shape {like[0]}, and of those before "
                    f"{self._like[name][1]} of shape {self._like[name][0]}; give all the same"
                )
            if name not in self._open:
                self._open[name] = self._path(name).open("wb")
            np.ascontiguousarray(array).tofile(self._open[name])
        if arrays.keys() != self._like.keys():
            raise DataError(f"example {self._count} has {', '.join(arrays)}, not {', '.join(self._like)}")
        self._count += len(next(iter(arrays.values())))

    def _path(self, name: str) -> Path:
        return self._folder / f"spool-{name.encode().hex()}.data"

    def files(self) -> dict[str, ArrayFile]:
        return {
            name: ArrayFile(self._path(name), dtype, (self._count, *shape))
            for name, (shape, dtype) in self._like.items()
        }

    def close(self) -> None:
        for file in self._open.values():
            file.close()
