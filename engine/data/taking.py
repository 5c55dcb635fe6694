"""Makes a data set of whatever a user hands over.

Packages are never imported for this: what comes from one that was not imported cannot be here.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np

from partita.engine.data.columns import Columns, HeldArray
from partita.engine.data.dataset import DataError, Dataset
from partita.engine.data.items import ArrowTable, Items
from partita.engine.data.loader import Loader
from partita.engine.data.naming import naming_of
from partita.engine.data.npz_files import Npz
from partita.engine.data.parquet_files import Parquet
from partita.engine.data.pictures import SUFFIXES, Pictures
from partita.engine.data.spool import spooled, spooled_once
from partita.engine.data.stream import Stream
from partita.layers.graph import Grid

MOST_PICKLED: Final = 1 << 28
"""Bytes of a data set that each host may get a copy of."""


@dataclass(frozen=True)
class Taken:
    """Data that a user handed over, by its kind.

    Args:
        loader: the settings.
        columns: a mapping with an array or a source for each input and target; None: see `dataset`, `once`.
        dataset: a data set.
        once: examples that can be read once.
    """

    loader: Loader
    columns: Mapping[str, Any] | None = None
    dataset: Dataset | None = None
    once: Iterator[Any] | None = None


def taken_of(
    given: Any,
    wanted: Sequence[Grid],
    *,
    batch: int,
    others: Collection[str] = (),
    kept: Collection[str] = (),
) -> Taken | None:
    """Finds out what was handed over; None where it is no data.

    Args:
        given: the data, or a `Loader` of it.
        wanted: the inputs, and the targets that are needed, in their order.
        batch: examples of a minibatch.
        others: names of further inputs and targets.
        kept: names of further columns that are read.

    Raises:
        ValueError: it is of a kind that cannot be used as it is.
    """
    loader = given if isinstance(given, Loader) else Loader(given)
    torch: Any = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(loader.data, torch.DataLoader):
        loader = _of_data_loader(loader.data, torch, batch=batch)
    data = loader.data
    if isinstance(data, Mapping):
        return Taken(loader, columns=_no_splits(data))
    if torch is not None and isinstance(data, torch.TensorDataset):
        tensors = dict(zip((grid.name for grid in wanted), data.tensors, strict=False))
        return Taken(loader, columns=tensors)
    if _is_frame(data):
        return Taken(
            loader, columns=_of_frame(data, wanted, others, kept, transforms=bool(loader.transforms))
        )
    if isinstance(data, str | Path):
        return Taken(loader, dataset=_of_pattern(data))
    if isinstance(data, Iterator):
        return Taken(loader, once=data)
    dataset = _dataset_of(data, torch)
    return None if dataset is None else Taken(loader, dataset=dataset)


def _dataset_of(data: Any, torch: Any) -> Dataset | None:
    package = type(data).__module__.partition(".")[0]
    if isinstance(data, Stream):
        return data.counted()
    if isinstance(data, Dataset):
        return data
    is_stream = torch is not None and isinstance(data, torch.IterableDataset)
    if is_stream or (package == "datasets" and not hasattr(data, "num_rows")):
        known = len(data) if hasattr(type(data), "__len__") else 0
        return Stream(partial(iter, data), examples=known).counted()
    if package == "datasets":
        return ArrowTable(data)
    has_items = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if has_items and not isinstance(data, np.ndarray | list | tuple | bytes) and not hasattr(data, "numpy"):
        return Items(data)
    return Stream(data).counted() if callable(data) else None


def _no_splits(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuses several data sets of Hugging Face."""
    if type(data).__module__.partition(".")[0] == "datasets":
        raise DataError(
            f"the data is a {type(data).__name__} with {', '.join(map(repr, data))}; give one of them, as "
            f"data[{next(iter(data), 'train')!r}]"
        )
    return data


def _of_data_loader(given: Any, torch: Any, *, batch: int) -> Loader:
    """Takes the data set of a `DataLoader`, whether it shuffles, and the number of its workers."""
    default = sys.modules["torch.utils.data"].default_collate
    if given.collate_fn is not default:
        raise ValueError(
            "the DataLoader has a collate_fn of its own, which is not called; write what it does as a "
            "transform of a minibatch: Loader(dataset, transform=...)"
        )
    shuffle: bool = False
    if not isinstance(given.dataset, torch.IterableDataset):
        known = (torch.RandomSampler, torch.SequentialSampler)
        if not isinstance(given.sampler, known) or getattr(given.sampler, "replacement", False):
            raise ValueError(
                f"the DataLoader has a {type(given.sampler).__name__}, and every example comes once in an "
                "epoch here; weigh examples in the loss instead: Loss()(scores, target, sample_weight=...)"
            )
        shuffle = isinstance(given.sampler, torch.RandomSampler)
    if given.batch_size != batch:
        warnings.warn(
            f"the DataLoader has batches of {given.batch_size}, and the plan of {batch}, which are used",
            stacklevel=2,
        )
    workers = given.num_workers
    return Loader(given.dataset, shuffle=shuffle, workers=max(workers, 1), processes=workers > 0)


def _is_frame(data: Any) -> bool:
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _of_frame(
    frame: Any, wanted: Sequence[Grid], others: Collection[str], kept: Collection[str], *, transforms: bool
) -> dict[str, Any]:
    """Returns the columns of a frame, joined to the inputs."""
    columns = {}
    for name in frame.columns:
        values = frame[name].to_numpy()
        if values.dtype == object and len(values) and np.ndim(values[0]):
            values = np.stack([np.asarray(value) for value in values])
        columns[str(name)] = values
    table = Columns({name: HeldArray(values) for name, values in columns.items()})
    naming = naming_of(table, wanted, others={*others, *kept}, transforms=transforms)
    return naming.keeping(table, kept).named(columns)


def _of_pattern(pattern: str | Path) -> Dataset:
    suffix = Path(pattern).suffix.lower()
    if suffix == ".npz":
        return Npz(pattern)
    if suffix in (".parquet", ".pq"):
        return Parquet(pattern)
    if Path(pattern).is_dir() or suffix in SUFFIXES:
        return Pictures(pattern)
    raise DataError(
        f"the data is {str(pattern)!r}; give a pattern of .npz or .parquet files, of pictures, as "
        "'flowers/*/*.png', or a folder with a folder of pictures for each class"
    )


def portable(taken: Taken, folder: Path, note: Any = lambda line: None) -> Dataset:
    """Returns a data set that hosts can open: itself, or a copy in files of the folder.

    Args:
        taken: a data set, or examples that can be read once.
        folder: of the run.
        note: called with a line where data is copied.

    Raises:
        DataError, OSError: the data cannot be read, or not be written.
    """
    if taken.once is not None:
        note("the data is a generator, which can be read once: it is read now, to a temporary file")
        return _Spooled.of(spooled_once(taken.once, folder))
    assert taken.dataset is not None
    try:
        n_bytes = len(cloudpickle.dumps(taken.dataset))
        why = f"has {n_bytes >> 20:,} MiB of its own" if n_bytes > MOST_PICKLED else ""
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being pickled
        why = f"cannot be sent to other processes ({type(error).__name__}: {error})"
    if not why:
        return taken.dataset
    note(f"the data {why}: it is read now, to a temporary file")
    return replace(_Spooled.of(spooled(taken.dataset, folder)), by_place=taken.dataset.in_order)


@dataclass(frozen=True)
class _Spooled(Columns):
    """A copy in files. The names of its fields are places where the examples were tuples."""

    by_place: bool = False

    @classmethod
    def of(cls, files: Mapping[str, Any]) -> _Spooled:
        """Returns the data set of some files."""
        return cls(files, by_place=all(name.isdigit() for name in files))

    @property
    def in_order(self) -> bool:  # type: ignore[override]
        """Returns whether the fields are named by their places."""
        return self.by_place
