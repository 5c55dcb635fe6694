"""The softmax cross-entropy over scores `(positions, classes)`, with any of its settings, on a CPU.

Compiled loops read the scores, see `position_loops`; what is one number for each position and example is
computed in NumPy, in float64. No two machines share a position, so none is summarised for another. Gradients
are those of the mean loss over the real examples of the minibatch, and over the positions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from partita.engine.kernels import position_loops as loops
from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.losses import refuse_label
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import flat, rows_of
from partita.engine.numerics import downcast_array, upcast_array
from partita.layers import SoftmaxCrossEntropy
from partita.layers.box import Span, Spans

_LOSS, _RIGHT, _WRONG = range(3)
"""The metrics of a position and an example; a wrong label names no class."""


class PositionCrossEntropyKernel(LossKernel):
    """The negative log of the softmax probability of the right label, at each position.

    A third input has a factor for each position and example.
    """

    layer = SoftmaxCrossEntropy

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Losses of rows of scores, one for each position."""
        return len(context.sources[0].shape) == 2 and super().computes(context)

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        assert isinstance(context.grid.layer, SoftmaxCrossEntropy)
        self._loss, (self._n_positions, self._n_classes) = context.grid.layer, context.sources[0].shape
        self._own, self._scores = context.windows[0], arrays.inputs[0]
        self._labels, *self._weights = (
            rows_of(array, self._own, window)
            for array, window in zip(arrays.inputs[1:], context.windows[1:], strict=True)
        )
        self._class_weights = None if self._loss.weight is None else np.array(self._loss.weight)
        each = self._loss.label_smoothing / self._n_classes
        spread = each * (np.ones(self._n_classes) if self._class_weights is None else self._class_weights)
        self._spread_total = float(spread.sum())
        spread = np.repeat(spread, context.batch) if each else np.zeros(0)
        self._spread = spread.astype(context.master)
        shape = self._labels.shape
        self._largest, self._factors = np.zeros(shape, context.master), np.zeros((4, *shape), context.master)
        self._totals, self._spread_sums = np.zeros(shape), np.zeros(shape)
        self._places = np.zeros(shape, np.int64)
        self._metrics = np.zeros((3, *shape))

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Writes the loss of each position that is here, and 0 for the others."""
        given = _lines(self._scores), self._spread, self._largest, self._totals, self._spread_sums
        summarise = self._over_positions(len(self._scores), lambda *own: loops.summarise(*given, *own))

        def call() -> None:
            summarise()
            with np.errstate(all="ignore"):  # a score that is not finite shows in the loss
                self._evaluate()

        return call

    def _evaluate(self) -> None:
        """Computes losses, metrics and the factors of the gradient from the summary of each position."""
        fits = (self._labels >= 0) & (self._labels < self._n_classes)
        counts = self._counts(self._labels)
        np.clip(self._labels, 0, self._n_classes - 1, out=self._places)
        factor = np.full(fits.shape, 1.0 - self._loss.label_smoothing)
        if self._class_weights is not None:
            factor *= self._class_weights[self._places]
        found = np.take_along_axis(self._scores, self._places[:, None], axis=1)[:, 0]
        score, log_total = upcast_array(found).astype(np.float64), np.log(self._totals)
        losses = np.where(fits, factor * (log_total + (self._largest - score)), 0.0)
        losses += self._spread_total * log_total + self._spread_sums
        weight = np.ones(fits.shape)
        for weights in self._weights:
            weight *= upcast_array(weights)
        losses = np.where(counts, losses * weight, 0.0)
        self._write_output(losses)
        self._metrics[_LOSS], self._metrics[_WRONG] = losses, counts & ~fits
        self._metrics[_RIGHT] = fits & counts & (score >= self._largest) & np.isfinite(score)
        weight *= self._loss.loss_weight / (self.mean_over * self._n_positions)
        scale = weight * (factor + self._spread_total) / self._totals
        given = self._largest, scale, weight, weight * factor * fits
        for place, values in zip(self._factors, given, strict=True):
            place[:] = np.where(counts, values, 0.0)

    def _write_output(self, losses: Array) -> None:
        """Writes the activations of the nodes, `[1, position, example]`."""
        whole = np.zeros(self.arrays.output.shape)
        whole[0, slice(*self._own)] = losses
        downcast_array(whole, self.arrays.output)

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the scores at these positions."""
        assert source == 0, "a target has no gradient"
        out, window = self.arrays.grad_input(0), self.context.grad_windows[0]
        return sequence(*(self._gradient(rows_of(out, span, window), span, accumulate) for span in rows))

    def _gradient(self, out: Array, rows: Span, accumulate: bool) -> Call:
        here = slice(rows[0] - self._own[0], rows[1] - self._own[0])
        scores, places, factors = self._scores[here], self._places[here], self._factors[:, here]
        given = _lines(out), _lines(scores), self._spread, places, factors, accumulate
        return self._over_positions(len(out), lambda *own: loops.write_gradient(*given, *own))

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses, and the number of right labels, of this machine's positions.

        Raises:
            ValueError: a label names no score.
        """
        loss, n_right, n_wrong = self._metrics[..., :count].sum(axis=(1, 2)).tolist()
        if n_wrong:
            refuse_label(self.context, int(self._labels[:, :count][self._metrics[_WRONG, :, :count] > 0][0]))
        return loss / self._n_positions, int(n_right)

    def count_labels(self, count: int) -> int:
        """The labels that are not ignored, of all positions."""
        return int(self._counts(self.arrays.inputs[1][:, :count]).sum())

    def _counts(self, labels: Array) -> Array:
        """Returns whether each label is not ignored."""
        ignored = self._loss.ignore_index
        return np.ones(labels.shape, np.bool_) if ignored is None else labels != ignored

    def _over_positions(self, count: int, work: Callable[[int, int], None]) -> Call:
        return split_spans(self.pool, ((0, count),), work, operations=self.context.operations)


def _lines(scores: Array) -> Array:
    """`[position, score and example]` of C-contiguous `[position, score, example]`."""
    return flat(scores).reshape(len(scores), scores[0].size)
