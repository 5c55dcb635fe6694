"""Metrics: figures about scores and targets that are reported beside the loss and change no gradient.

A metric turns some examples into sums, and sums into a figure. Sums of micro-batches, machines and replicas
add up, so the figure is that of all examples, however they are divided.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.layers.arguments import Arguments
from partita.layers.box import Shape
from partita.layers.checks import check_whole
from partita.layers.losses import LabelLoss, Loss, ScoreLoss


@dataclass(frozen=True)
class Metric(Arguments):
    """A figure about the scores and targets of a loss. A metric of one's own writes `update` and `result`.

    Args:
        loss: name of the loss whose scores and target it is given; every loss that it `fits` if not given.
        name: of the figure; by default that of the class, as in `top_k`.
    """

    loss: str | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    n_sums: ClassVar[int] = 2
    """The number of sums that `update` returns."""

    def fits(self, loss: Loss) -> bool:
        """Returns whether the metric is about the scores of such a loss."""
        return True

    def splits_scores(self, scores: Shape) -> bool:
        """Returns whether machines that share scores of this shape may each give their own rows: the sums
        add up.
        """
        return False

    @property
    def figure(self) -> str:
        """The figure's name in reports."""
        return self.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @abstractmethod
    def update(self, scores: Array, target: Array) -> Sequence[float]:
        """Returns sums over some examples; called in the processes that have the scores.

        Args:
            scores: `[example, *shape]`, float32 or float64. With labels, a row of scores for each label,
                `[label, class]`: positions follow one another, and ignored labels are left out.
            target: of the shape of the scores, or the labels `[label]`, int64.
        """

    @abstractmethod
    def result(self, sums: Sequence[float]) -> float:
        """Returns the figure from the sums of all examples; NaN where it has none."""


@dataclass(frozen=True)
class TopK(Metric):
    """The fraction of labels whose score is among the `k` largest. Equal scores count against the label.

    Args:
        k: at least 1; `TopK(1)` is the accuracy, but for equal scores.
        loss: see `Metric`.
        name: by default "top_5" and so on.

    Raises:
        ValueError: `k` is no whole number of at least 1.
    """

    k: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_whole(self.k, "TopK: k is"))

    @property
    def figure(self) -> str:
        """The figure's name in reports."""
        return self.name or f"top_{self.k}"

    def fits(self, loss: Loss) -> bool:
        """Returns whether one class of each label's scores is right."""
        return isinstance(loss, LabelLoss)

    def splits_scores(self, scores: Shape) -> bool:
        """Returns whether the rows are positions: machines may share those, but no classes."""
        return len(scores) > 1

    def update(self, scores: Array, target: Array) -> tuple[float, float]:
        """Counts labels with fewer than k other scores at or above theirs, and all labels."""
        own = scores[np.arange(len(scores)), target][:, None]
        others = (scores >= own).sum(axis=1) - 1
        return float(((others < self.k) & np.isfinite(own[:, 0])).sum()), float(len(scores))

    def result(self, sums: Sequence[float]) -> float:
        """Divides the first number by the second; NaN over nothing."""
        return _ratio(sums)


@dataclass(frozen=True)
class MeanAbsoluteError(Metric):
    """The mean absolute difference of scores and target, over examples and scores.

    Args:
        loss: see `Metric`.
        name: by default "mean_absolute_error".
    """

    def fits(self, loss: Loss) -> bool:
        """Returns whether each score has a number to be compared with."""
        return isinstance(loss, ScoreLoss)

    def splits_scores(self, scores: Shape) -> bool:
        """Returns True: absolute differences of rows add up to those of the whole."""
        return True

    def update(self, scores: Array, target: Array) -> tuple[float, float]:
        """Sums the differences, and counts them."""
        return float(np.abs(scores.astype(np.float64) - target).sum()), float(scores.size)

    def result(self, sums: Sequence[float]) -> float:
        """Divides the first number by the second; NaN over nothing."""
        return _ratio(sums)


def _ratio(sums: Sequence[float]) -> float:
    return sums[0] / sums[1] if sums[1] else float("nan")


_MEANT: Final[Mapping[str, str]] = {
    "accuracy": "losses with labels always report it; leave it out",
    "acc": "losses with labels always report the accuracy; leave it out",
    "sparse_categorical_accuracy": "losses with labels always report the accuracy; leave it out",
    "categorical_accuracy": "losses with labels always report the accuracy; leave it out",
    "loss": "it is always reported; leave it out",
    "mae": "write MeanAbsoluteError()",
    "mean_absolute_error": "write MeanAbsoluteError()",
    "top_k_categorical_accuracy": "write TopK(5)",
    "sparse_top_k_categorical_accuracy": "write TopK(5)",
    "top_k_accuracy": "write TopK(5)",
}


def check_metrics(metrics: object) -> tuple[Metric, ...]:
    """Returns the metrics as a tuple.

    Raises:
        ValueError: they are no list of metrics; the message says what to write for a name of Keras.
    """
    given = (metrics,) if isinstance(metrics, str | Metric) else metrics
    if not isinstance(given, Sequence):
        raise ValueError(f"metrics is {metrics!r}; give a list such as [TopK(5)]")
    for one in given:
        if not isinstance(one, Metric):
            meant = _MEANT.get(one.lower()) if isinstance(one, str) else None
            made = isinstance(one, type) and issubclass(one, Metric)
            rule = (
                f"write {one.__name__}()"
                if made
                else meant or "give for example TopK(5), or a Metric of your own"
            )
            raise ValueError(f"{one!r} is no metric; {rule}")
    return tuple(given)
