"""Chooses the fields of a data set that are for each input and target of a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.engine.data.dataset import DataError, Dataset
from partita.engine.data.draws import Batch
from partita.layers.graph import Grid
from partita.layers.text import counted


@dataclass(frozen=True)
class Naming:
    """The fields of each array of a minibatch, as transforms and networks know it.

    Args:
        fields: by the name that an array has from here on: one field, or several numbers to be joined.
    """

    fields: Mapping[str, tuple[str, ...]]

    def named(self, read: Batch) -> Batch:
        """Returns the arrays of a minibatch by their new names."""
        return {
            name: read[fields[0]] if len(fields) == 1 else np.stack([read[one] for one in fields], axis=-1)
            for name, fields in self.fields.items()
        }

    def keeping(self, dataset: Dataset, names: Collection[str]) -> Naming:
        """Returns these and further fields, under their own names. Raises DataError where one is missing."""
        for name in names:
            if name not in dataset.fields:
                has = ", ".join(map(repr, dataset.fields))
                raise DataError(f"the data has no '{name}', which sample_weight names; it has {has}")
        return Naming({**{name: (name,) for name in names}, **self.fields})

    def of(self, names: Collection[str]) -> Naming:
        """Returns these names alone."""
        return Naming({name: fields for name, fields in self.fields.items() if name in names})

    @property
    def read(self) -> tuple[str, ...]:
        """The fields that are read."""
        return tuple(dict.fromkeys(one for fields in self.fields.values() for one in fields))


def naming_of(
    dataset: Dataset, wanted: Sequence[Grid], *, others: Collection[str] = (), transforms: bool = False
) -> Naming:
    """Finds the fields of inputs and targets: by their names, or else by their order.

    Where one input has no field of its name, numbers that belong to nothing else are joined to it, in their
    order: the columns of a table.

    Args:
        dataset: the data.
        wanted: the inputs, and the targets that are needed.
        others: names of further inputs and targets, for which fields may be there.
        transforms: whether transforms follow, which may make what is missing.

    Raises:
        DataError: an input or target has no field.
    """
    fields, names = dict(dataset.fields), [grid.name for grid in wanted]
    if dataset.in_order:
        return _by_order([*fields], names)
    missing = [grid for grid in wanted if grid.name not in fields]
    found = {name: (name,) for name in fields}
    if not missing:
        return Naming(found if transforms else {name: (name,) for name in names})
    free = [name for name in fields if name not in names and name not in others]
    (first, *more) = missing
    joined = [name for name in free if fields[name].shape == () and fields[name].dtype.kind in "biuf"]
    if not more and joined == free and len(free) == first.n_nodes:
        kept = {name: (name,) for name in names if name in fields}
        return Naming({first.name: tuple(free), **kept})
    if transforms:
        return Naming(found)
    width = f", and {counted(len(free), 'column')} for its {first.n_nodes:,} numbers" if free else ""
    raise DataError(
        f"the data has no '{first.name}'; it has {', '.join(map(repr, fields))}{width}; the network takes "
        f"{', '.join(map(repr, names))}: rename the fields, or make what is missing by a transform"
    )


def _by_order(fields: Sequence[str], names: Sequence[str]) -> Naming:
    if len(fields) < len(names):
        raise DataError(
            f"an example of the data has {counted(len(fields), 'array')}, and the network takes "
            f"{len(names)}: {', '.join(map(repr, names))}; give them in this order, or a dictionary by name"
        )
    return Naming({name: (field,) for name, field in zip(names, fields, strict=False)})
