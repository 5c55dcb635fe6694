"""The sums that parts report beside the loss, and the figures that are made of them.

There are none for a network with one loss over labels or numbers and without metrics: then loss, right
examples and examples say everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.engine.kernels.kernel import Array, LossKernel
from partita.engine.numerics import upcast_array
from partita.engine.runtime.metric import Metric
from partita.layers.graph import Graph
from partita.layers.losses import LabelLoss, Loss
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class _Figure:
    """A metric of a loss: its name in reports, and where its sums begin."""

    name: str
    loss: str
    metric: Metric
    first: int

    @property
    def own(self) -> slice:
        """The metric's sums among all."""
        return slice(self.first, self.first + self.metric.n_sums)


@dataclass(frozen=True)
class ReportedSums:
    """The order of the sums: examples, the labels that count, each loss, and those of each metric.

    Args:
        graph: the network.
        counts_labels: whether labels are more or fewer than examples.
        losses: the losses, where there are several.
        metrics: metrics by loss.
    """

    graph: Graph
    counts_labels: bool
    losses: tuple[str, ...]
    metrics: tuple[_Figure, ...]

    @classmethod
    def of(cls, graph: Graph, metrics: Sequence[Metric] = ()) -> ReportedSums:
        """Returns the sums of a network.

        Raises:
            ValueError: a metric fits no loss, names one that is none, or has the name of another figure.
        """
        layers = {name: graph[name].layer for name in graph.losses}
        labelled = [graph[name] for name in graph.classifiers]
        counts = any(
            isinstance(g.layer, Loss) and (g.layer.ignored is not None or g.n_nodes > 1) for g in labelled
        )
        losses = graph.losses if len(graph.losses) > 1 else ()
        taken, found = {"loss", "accuracy", "staleness", *losses}, list[_Figure]()
        first = 1 + counts + len(losses)
        for metric in metrics:
            if metric.loss is not None and metric.loss not in layers:
                raise ValueError(
                    f"{metric!r} names no loss of '{graph.name}'; its losses are {', '.join(graph.losses)}"
                )
            fitting = [
                name
                for name, layer in layers.items()
                if isinstance(layer, Loss) and metric.fits(layer) and metric.loss in (None, name)
            ]
            if not fitting:
                kinds = ", ".join(f"{layer.kind} '{name}'" for name, layer in layers.items())
                raise ValueError(
                    f"{metric!r} does not fit the losses of '{graph.name}': {kinds}; leave it out"
                )
            for loss in fitting:
                name = f"{loss}.{metric.figure}" if losses else metric.figure
                if name in taken:
                    raise ValueError(
                        f"{metric!r} is called '{name}', and so is another figure; give it a name="
                    )
                taken.add(name)
                found.append(_Figure(name, loss, metric, first))
                first += metric.n_sums
        return cls(graph, counts, losses, tuple(found))

    def check(self, plan: Plan) -> None:
        """Refuses metrics that need scores which no machine has all of. Raises ValueError."""
        for one in self.metrics:
            scores = self.graph[self.graph[one.loss].sources[0]]
            machines = plan.ownership.loss_shards(one.loss)
            if len(machines) > 1 and not one.metric.splits_scores(scores.shape):
                raise ValueError(
                    f"{one.metric!r} needs all scores of an example, and '{scores.name}' is cut over "
                    f"machines {', '.join(map(str, machines))}; give one machine the loss, "
                    f"cuts={{{one.loss!r}: Whole({machines[0]})}}, or ask evaluate for the metric"
                )

    def __len__(self) -> int:
        found = self.counts_labels + len(self.losses) + sum(one.metric.n_sums for one in self.metrics)
        return found and found + 1

    def of_kernel(
        self,
        kernel: LossKernel,
        value: float,
        count: int,
        on_host: Callable[[Array], Array],
        *,
        is_first: bool,
    ) -> Array | None:
        """Returns the sums of a loss over the first examples of a kernel, float64; None where there are none.

        Args:
            kernel: of the loss, after its forward pass.
            value: the sum of its losses.
            count: the number of examples.
            on_host: returns an array of the kernel's device.
            is_first: whether the machine is the first that has some of the scores; it counts labels.
        """
        if not len(self):
            return None
        loss, found = kernel.context.grid.name, np.zeros(len(self))
        if is_first and loss == self.graph.losses[0]:
            found[0] = count
        if self.counts_labels and is_first and loss in self.graph.classifiers:
            found[1] = kernel.count_labels(count)
        if loss in self.losses:
            found[1 + self.counts_labels + self.losses.index(loss)] = value
        own = [one for one in self.metrics if one.loss == loss]
        if own:
            arrays = (upcast_array(on_host(array)) for array in kernel.arrays.inputs[:2])
            scores, target = (np.moveaxis(array, -1, 0)[:count] for array in arrays)
            (start, stop), (first, _), *_ = kernel.context.windows
            target, n_rows = self._counted(loss, target, kernel.context.sources[1].n_rows)
            if n_rows == kernel.context.sources[0].n_rows:  # a target for each row
                target = target[:, start - first : stop - first]
            self._update(found, own, *self.given(loss, scores, target))
        return found

    def of_arrays(self, scores: Mapping[str, Array], targets: Mapping[str, Array]) -> Array:
        """Returns the sums of the metrics over some examples.

        Args:
            scores: `[example, *shape]`, by layer.
            targets: `[example, *shape]`, or labels `[example]`, by name.
        """
        found = np.zeros(len(self))
        for loss in dict.fromkeys(one.loss for one in self.metrics):
            own, (layer, target, *_) = (
                [one for one in self.metrics if one.loss == loss],
                self.graph[loss].sources,
            )
            counted, _ = self._counted(loss, targets[target], self.graph[target].n_rows)
            self._update(found, own, *self.given(loss, scores[layer], counted))
        return found

    def _counted(self, loss: str, target: Array, n_rows: int) -> tuple[Array, int]:
        """The rows of a target `[example, ...]` that a loss reads, and how many they are of so many."""
        layer = self.graph[loss].layer
        assert isinstance(layer, Loss), loss
        rows = layer.label_rows
        return target if rows == slice(None) else target[:, rows], len(range(n_rows)[rows])

    def _update(self, found: Array, own: Sequence[_Figure], scores: Array, target: Array) -> None:
        for one in own:
            found[one.own] = self._updated(one.metric, scores, target)

    def _updated(self, metric: Metric, scores: Array, target: Array) -> Array:
        sums = np.asarray(metric.update(scores, target), np.float64)
        if sums.shape != (metric.n_sums,):
            raise ValueError(
                f"{metric!r}: update returned {sums.size} numbers, and its n_sums is {metric.n_sums}; let it "
                "return so many"
            )
        return sums

    def answers(self, sums: Sequence[float], examples: float) -> float:
        """The number of labels of the examples."""
        return sums[1] if self.counts_labels else examples * len(self.graph.classifiers)

    def figures(self, sums: Sequence[float]) -> dict[str, float]:
        """Returns the mean of each loss where there are several, and the metrics, from sums over examples."""
        if not len(self):
            return {}
        examples, first = sums[0], 1 + self.counts_labels
        parts = sums[first : first + len(self.losses)]
        found = {
            name: part / examples if examples else math.nan
            for name, part in zip(self.losses, parts, strict=True)
        }
        return found | self.metric_figures(sums)

    def metric_figures(self, sums: Sequence[float]) -> dict[str, float]:
        """Returns the metrics alone."""
        return {one.name: float(one.metric.result(sums[one.own])) for one in self.metrics}

    def given(self, loss: str, scores: Array, target: Array) -> tuple[Array, Array]:
        """Returns scores and target as a metric takes them, from `[example, *shape]` of both.

        The rows of the scores may be some of them; a target has those, or for labels of positions too.
        """
        layer = self.graph[loss].layer
        assert isinstance(layer, Loss), loss
        if not isinstance(layer, LabelLoss):
            return scores, target
        labels, rows = target.reshape(-1), scores.reshape(-1, scores.shape[-1])
        if layer.ignored is None:
            return rows, labels
        counts = labels != layer.ignored
        return rows[counts], labels[counts]
