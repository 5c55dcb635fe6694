"""Means over minibatches: the figures of `evaluate`, and of validations in the course of a training.

Sums are added in the order of the minibatches, in float64, so that both have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.runtime.metric import Metric
from partita.engine.runtime.reported_sums import ReportedSums
from partita.layers.difference_losses import HalfSquaredError
from partita.layers.graph import Graph
from partita.layers.text import counted


@dataclass(frozen=True)
class Evaluation:
    """Loss and accuracy of a network on data.

    Args:
        loss: mean over the examples.
        accuracy: fraction of the labels that are right, of all losses with labels; NaN without any.
        examples: number of examples.
        rms_error: root mean square of scores less targets, where the one loss is `HalfSquaredError`; else
            NaN.
        metrics: the mean of each loss, without its weight, where there are several; and `metrics`.
    """

    loss: float
    accuracy: float
    examples: int
    rms_error: float = math.nan
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """The figures that the network's losses have, in a line."""
        figures = [f"loss {self.loss:.4f}"]
        if not math.isnan(self.accuracy):
            figures.append(f"accuracy {self.accuracy:.3f}")
        if not math.isnan(self.rms_error):
            figures.append(f"root mean square error {self.rms_error:.4g}")
        figures += [f"{name} {figure:.4g}" for name, figure in self.metrics.items()]
        return f"{', '.join(figures)} on {counted(self.examples, 'example')}"


class Figures:
    """Sums over the minibatches so far."""

    def __init__(self, graph: Graph, metrics: Sequence[Metric] = ()) -> None:
        """No minibatch yet, of a network with these metrics beside the loss."""
        self.reported: Final = ReportedSums.of(graph, metrics)
        self._plain: Final = ReportedSums.of(graph)
        self._graph: Final = graph
        self._loss, self._correct, self._labels, self.examples = 0.0, 0, 0, 0
        self._losses = dict.fromkeys(self.reported.losses, 0.0)
        self._sums = np.zeros(len(self.reported))

    def add(
        self, *, loss: float, correct: int, labels: int, losses: Mapping[str, float], examples: int
    ) -> None:
        """Adds the means of a minibatch.

        Args:
            loss: mean over its examples.
            correct: labels that are right.
            labels: labels that count.
            losses: mean of each loss, where there are several.
            examples: that count.
        """
        self._loss += loss * examples
        self._correct += correct
        self._labels += labels
        self._losses = {name: part + losses[name] * examples for name, part in self._losses.items()}
        self.examples += examples

    def add_sums(self, sums: Sequence[float] | Array) -> None:
        """Adds further sums, in the order of `reported`."""
        self._sums += sums

    def add_parts(self, parts: Sequence[Sequence[float]], examples: int) -> None:
        """Adds what the parts of a replica report of a minibatch: loss, correct, and the further sums."""
        found = [part[2:] for part in parts if len(part) > 2]
        sums = np.sum(found, axis=0).tolist() if found else [0.0] * len(self.reported)
        self.add(
            loss=sum(part[0] for part in parts) / examples,
            correct=int(sum(part[1] for part in parts)),
            labels=int(self._plain.answers(sums, examples)),
            losses=self._plain.figures(sums),
            examples=examples,
        )
        self.add_sums(sums)

    def evaluation(self) -> Evaluation:
        """Returns the means over all minibatches."""
        mean = self._loss / self.examples
        accuracy = self._correct / self._labels if self._labels else math.nan
        figures = {name: part / self.examples for name, part in self._losses.items()}
        figures |= self.reported.metric_figures(self._sums.tolist())
        return Evaluation(mean, accuracy, self.examples, _rms_error(self._graph, mean), figures)


def _rms_error(graph: Graph, mean_loss: float) -> float:
    """Root mean square of all differences, where the mean loss consists of them."""
    losses = [graph[name] for name in graph.losses]
    if len(losses) > 1 or not isinstance(losses[0].layer, HalfSquaredError):
        return math.nan
    return math.sqrt(losses[0].layer.mean_square(mean_loss, graph[losses[0].sources[0]].shape))
