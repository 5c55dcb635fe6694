"""Early exits: places in a network where an example may end, once its scores are certain enough.

An exit is a cross-entropy loss over a row of scores, with a threshold for predictions. Training minimises the
weighted sum of all exits' losses. A prediction ends an example at the first exit where the normalised entropy
of its scores is below the threshold; only the other examples go further.

Source: Teerapittayanon, McDanel and Kung 2017, "Distributed Deep Neural Networks over the Cloud, the Edge and
End Devices", section III.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.layers.box import Shape
from partita.layers.checks import check_number
from partita.layers.cross_entropy import SoftmaxCrossEntropy
from partita.layers.graph import Graph


@dataclass(frozen=True)
class Exit(SoftmaxCrossEntropy):
    """A cross-entropy loss whose scores end the examples that they are certain of; see `Network.exit`.

    Args:
        weight, ignore_index, label_smoothing, loss_weight, name: as in `SoftmaxCrossEntropy`.
        threshold: normalised entropy, from 0 (ends no example) to 1 (ends all), below which an example ends.
            None: to be given to the prediction; the last exit needs none.

    Raises:
        ValueError: an argument is out of range, or the scores are no row of two or more.
    """

    threshold: float | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Refuses settings that are out of range. Raises ValueError."""
        super().check()
        if self.threshold is not None:
            self._settle(threshold=check_threshold(self.threshold, "the threshold is"))

    @property
    def note(self) -> str:
        """The threshold in words."""
        below = "at a threshold to be given" if self.threshold is None else f"below {self.threshold:g}"
        return f"ends examples by the normalised entropy of their scores, {below}"

    def target(self, scores: Shape) -> tuple[Shape, int | None]:
        """A label for each example.

        Raises:
            ValueError: the scores are not a row of two or more.
        """
        if len(scores) != 1:
            raise ValueError(
                f"the scores have shape {scores}, and an example ends as a whole; give it a row of scores, "
                "for example Dense(10)"
            )
        return super().target(scores)


def check_threshold(value: Any, what: str) -> float:
    """Returns a threshold. Raises ValueError unless it is a number from 0 to 1."""
    rule = "; write a number from 0 (ends no example) to 1 (ends all)"
    found = check_number(value, what, zero=True, rule=rule)
    if found > 1:
        raise ValueError(f"{what} {value!r}{rule}")
    return found


def exits_of(graph: Graph) -> dict[str, Exit]:
    """The exits of a network by their names, in the order in which examples meet them."""
    found = {name: graph[name].layer for name in graph.losses}
    return {name: layer for name, layer in found.items() if isinstance(layer, Exit)}


def normalised_entropy(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Entropy of the softmax of scores, divided by its largest value: from 0 (certain) to 1 (uniform).

    Args:
        scores: `[example, class]`, of two or more classes.

    Returns:
        `[example]`, float64.
    """
    given = np.asarray(scores, np.float64)
    relative = given - given.max(axis=1, keepdims=True)
    weights = np.exp(relative)
    total = weights.sum(axis=1)
    entropy = np.log(total) - (weights * relative).sum(axis=1) / total
    return np.asarray(entropy / math.log(given.shape[1]))
