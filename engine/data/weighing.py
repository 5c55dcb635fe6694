"""Weights of examples, of a column or an array, times those of their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.data.conversion import converted, fitted
from partita.engine.data.dataset import DataError
from partita.engine.data.draws import Batch, Draws
from partita.layers.checks import check_finite
from partita.layers.example_weights import (
    label_loss,
    n_classes,
    weighable,
    weights_name,
    with_example_weights,
)
from partita.layers.graph import Graph, Grid

Array = npt.NDArray[Any]

SampleWeight = Array | str
"""A number for each example (or position), or the name of a column of the data."""
ClassWeight = Mapping[Any, float]
"""Weights by label; 1 for labels that are not named."""


@dataclass(frozen=True)
class Weighing:
    """Makes the weights of a minibatch, as the last of its transforms.

    Args:
        grids: the targets with the weights.
        labels: the target whose numbers `table` has weights for; None: labels count alike.
        table: weights by label; others count 1.
        column: name of the column with weights of examples; "": none.
        examples: weights of all examples; None: none.
    """

    grids: tuple[Grid, ...]
    labels: Grid | None = None
    table: Array = field(default_factory=lambda: np.ones(0))
    column: str = ""
    examples: Array | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read besides those of the network."""
        return (self.column,) if self.column else ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns from which weights are made."""
        return (*self.columns, *(() if self.labels is None else (self.labels.name,)))

    def check(self, n_examples: int) -> None:
        """Refuses an array of another length than the data. Raises DataError."""
        if self.examples is not None and len(self.examples) != n_examples:
            raise DataError(
                f"sample_weight has {len(self.examples)} numbers, and the data {n_examples} examples; give "
                "one for each"
            )

    def __call__(self, batch: Batch, draws: Draws) -> Batch:
        """Adds the weights of the examples of a minibatch."""
        given = batch.get(self.column) if self.examples is None else self.examples[draws.examples]
        return batch | self.made(batch, given)

    def of_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the weights of all examples, by the targets that take them."""
        return self.made(columns, columns.get(self.column) if self.examples is None else self.examples)

    def made(self, columns: Mapping[str, Array], given: Array | None) -> dict[str, Array]:
        """Returns the weights of some examples, by the targets that take them.

        Args:
            columns: of these examples.
            given: their own weights; None: 1.

        Raises:
            DataError: they are no finite numbers, or have another shape.
        """
        of_labels = None if self.labels is None else self._of_labels(self.labels, columns)
        found = {}
        for grid in self.grids:
            own = None if given is None else _spread(given, grid)
            known = [one for one in (own, of_labels) if one is not None]
            found[grid.name] = known[0] if len(known) == 1 else known[0] * known[1]
        return found

    def _of_labels(self, labels: Grid, columns: Mapping[str, Array]) -> Array:
        if labels.name not in columns:
            raise DataError(
                f"the data has no '{labels.name}', whose labels class_weight weighs; give it, too"
            )
        given = fitted(labels, columns[labels.name]).reshape(len(columns[labels.name]), -1)
        places = np.clip(np.nan_to_num(given), 0, len(self.table) - 1).astype(np.int64)
        found: Array = np.where(places == given, self.table[places], 1.0)
        return found


def weighing_of(
    graph: Graph, sample_weight: SampleWeight | None, class_weight: ClassWeight | None
) -> tuple[Graph, Weighing | None]:
    """Returns the network whose losses take weights, and how these are made.

    Args:
        graph: the network.
        sample_weight: see `train`.
        class_weight: see `train`.

    Raises:
        ValueError: the network has no loss that can be weighed so, it has weights of examples already, or a
            weight is no finite number.
    """
    if sample_weight is None and class_weight is None:
        return graph, None
    losses: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    if class_weight is not None:
        loss = label_loss(graph)
        losses, settings["labels"] = (loss,), graph[graph[loss].sources[1]]
        settings["table"] = _table(class_weight, n_classes(graph, loss))
    if isinstance(sample_weight, str):
        losses, settings["column"] = weighable(graph), sample_weight
    elif sample_weight is not None:
        losses, settings["examples"] = weighable(graph), np.asarray(sample_weight)
        if settings["examples"].ndim not in (1, 2):
            raise ValueError(
                f"sample_weight is {sample_weight!r}; give an array with a number for each example, or the "
                "name of a column of the data"
            )
    weighed = with_example_weights(graph, losses)
    found = Weighing(tuple(weighed[weights_name(loss)] for loss in losses), **settings)
    return weighed, found


def _table(class_weight: ClassWeight, classes: int) -> Array:
    """Weights by label. Raises ValueError."""
    if not isinstance(class_weight, Mapping):
        raise ValueError(f"class_weight is {class_weight!r}; give weights by label, as {{0: 1.0, 1: 5.0}}")
    found = np.ones(classes)
    for label, weight in class_weight.items():
        if isinstance(label, bool) or not isinstance(label, int | np.integer) or not 0 <= label < classes:
            raise ValueError(
                f"class_weight has a weight for {label!r}; labels are whole numbers from 0 to {classes - 1}"
            )
        found[label] = check_finite(weight, f"the class_weight of label {label} is")
    return found


def _spread(given: Array, grid: Grid) -> Array:
    """Returns weights of examples for each node of a target, checked. Raises DataError."""
    (positions,) = grid.shape
    if given.ndim == 1 or given.shape[1:] == (1,):
        given = np.broadcast_to(given.reshape(-1, 1), (len(given), positions))
    return converted(grid, given, "float64")
