"""Losses over scores `[score, example]` and a target; one machine has all scores.

The errors are those of the mean loss over the examples of the site's batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from partita.engine.kernels.kernel import Array, LossKernel, Site
from partita.engine.kernels.parallel import Team
from partita.engine.kernels.scalar import compiled
from partita.engine.kernels.views import columns, rows_of
from partita.layers.rows import Rows


class _ScoresKernel(LossKernel):
    """What the losses share: which errors are asked for, and where they go."""

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site)
        scores = site.sources[0]
        assert site.windows[0] == (0, scores.n_rows), (
            f"loss {site.grid.name} needs all scores, not {site.windows[0]}"
        )

    def errors(
        self,
        source: int,
        rows: Rows,
        out: Array,
        *,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        accumulate: bool,
    ) -> None:
        """The errors of the scores in these rows; `delta` is not read, nothing stands above a loss."""
        assert source == 0, "a target has no error"
        per_row = self.site.sources[0].nodes_per_row
        for run in rows:
            place = columns(rows_of(out, run, self.site.error_windows[0]))
            before = place.copy() if accumulate else None
            self._write_errors(place, columns(sources[0]), sources[1], run[0] * per_row)
            if before is not None:
                place += before

    @abstractmethod
    def _write_errors(self, out: Array, scores: Array, target: Array, first: int) -> None:
        """Writes the errors of the scores from number `first` on; all arrays are `[node, example]`."""


class SoftmaxCrossEntropyKernel(_ScoresKernel):
    """The negative log of the softmax probability of the right label.

    The exponentials of the way up are kept for the way down: with many classes they are what a loss costs.
    """

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site, team)
        self._classes = site.sources[0].n_nodes
        self._odds = np.empty((self._classes, site.batch), site.dtype)  # exp(score - largest)
        self._largest, self._scale = np.empty(site.batch, site.dtype), np.empty(site.batch, site.dtype)
        self._best = np.zeros(site.batch, np.int64)
        self._examples = np.arange(site.batch)
        _find_largest(self._odds[:1], self._largest, self._best)

    def up(
        self,
        sources: Sequence[Array],
        state: Array,
        parameters: Sequence[Array],
        *,
        block: tuple[int, int] | None = None,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """The loss of each example."""
        scores, labels = columns(sources[0]), self._labels(sources[1])
        _find_largest(scores, self._largest, self._best)
        np.subtract(scores, self._largest, out=self._odds)
        np.exp(self._odds, out=self._odds)
        total = np.sum(self._odds, axis=0)
        columns(state)[0] = np.log(total) + (self._largest - scores[labels, self._examples])
        np.divide(1 / self.site.batch, total, out=self._scale)

    def _write_errors(self, out: Array, scores: Array, target: Array, first: int) -> None:
        """Softmax less one hot; the odds are those of the step's way up."""
        np.multiply(self._odds[first : first + len(out)], self._scale, out=out)
        labels = self._labels(target) - first
        here = (labels >= 0) & (labels < len(out))
        out[labels[here], self._examples[here]] -= out.dtype.type(1 / self.site.batch)

    def metrics(self, sources: Sequence[Array], state: Array, count: int) -> tuple[float, int]:
        """The sum of the losses, and for how many examples the right label has the largest score."""
        losses = state.reshape(-1)[:count]
        right = (self._best == self._labels(sources[1]))[:count]
        return float(losses.sum(dtype=np.float64)), int((right & np.isfinite(losses)).sum())

    def _labels(self, target: Array) -> Array:
        given = target.reshape(-1)
        fits = (given >= 0) & (given < self._classes)
        if not fits.all():
            raise ValueError(
                f"{self.site.grid.layer.kind} '{self.site.grid.name}' was given the label {given[~fits][0]}; "
                f"with {self._classes} scores, labels are 0 to {self._classes - 1}"
            )
        return given.astype(np.int64)


class SquaredErrorKernel(_ScoresKernel):
    """Half the sum of squared differences."""

    def __init__(self, site: Site, team: Team) -> None:
        super().__init__(site, team)
        nothing = np.empty((0, 0), site.dtype)
        _squared_error(nothing, nothing, nothing)
        _squared_error_errors(nothing, nothing, nothing, 0, 1)

    def up(
        self,
        sources: Sequence[Array],
        state: Array,
        parameters: Sequence[Array],
        *,
        block: tuple[int, int] | None = None,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """The loss of each example."""
        _squared_error(columns(sources[0]), columns(sources[1]), columns(state))

    def _write_errors(self, out: Array, scores: Array, target: Array, first: int) -> None:
        _squared_error_errors(out, scores, columns(target), first, self.site.batch)

    def metrics(self, sources: Sequence[Array], state: Array, count: int) -> tuple[float, int]:
        """The sum of the losses; nothing is right or wrong."""
        return float(state.reshape(-1)[:count].sum(dtype=np.float64)), 0


@compiled
def _find_largest(scores: Array, largest: Array, best: Array) -> None:
    """The largest score of each example, and which it is (the first of equal ones)."""
    largest[...] = scores[0]
    best[...] = 0
    for k in range(1, scores.shape[0]):
        for e in range(scores.shape[1]):
            larger = scores[k, e] > largest[e]
            largest[e] = scores[k, e] if larger else largest[e]
            best[e] = k if larger else best[e]


@compiled
def _squared_error(scores: Array, target: Array, losses: Array) -> None:
    losses[...] = 0
    for k in range(scores.shape[0]):
        for e in range(scores.shape[1]):
            difference = scores[k, e] - target[k, e]
            losses[0, e] += difference * difference / 2


@compiled
def _squared_error_errors(out: Array, scores: Array, target: Array, first: int, batch: int) -> None:
    for k in range(out.shape[0]):
        for e in range(out.shape[1]):
            out[k, e] = (scores[first + k, e] - target[first + k, e]) / batch
