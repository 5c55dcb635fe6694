"""The softmax cross-entropy over scores `[score, example]`; other losses run by their `forward`.

A machine evaluates the scores in its window: all of them, or its own together with a summary of all machines'
scores. Gradients are those of the mean loss over the real examples of the minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from partita.engine.kernels import loss_loops as loops
from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import columns, rows_of
from partita.layers import Exit, SoftmaxCrossEntropy
from partita.layers.box import Spans


class SoftmaxCrossEntropyKernel(LossKernel):
    """The negative log of the softmax probability of the right label."""

    layer = SoftmaxCrossEntropy

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Computes losses of a row of scores, with no weights and no further settings."""
        layer, plain = context.grid.layer, len(context.sources) == 2 and context.grid.n_nodes == 1
        return plain and layer == cls.layer(name=layer.name) and super().computes(context)

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self._scores, self._output = columns(arrays.inputs[0]), columns(arrays.output)
        self._labels, self._whole = columns(arrays.inputs[1]), arrays.summaries is None
        self._first = context.windows[0][0] * context.sources[0].nodes_per_row
        alone = np.zeros((1, 2, context.batch), context.master)
        self._summaries = alone if arrays.summaries is None else arrays.summaries
        self._saved, self._metrics = (
            np.zeros((2, context.batch), context.master),
            np.zeros((2, context.batch)),
        )
        assert not self._whole or context.windows[0] == (0, context.sources[0].n_rows), (
            f"loss {context.grid.name} needs all scores, or a summary of them, not {context.windows[0]}"
        )
        self.metrics(0)
        self._write_gradient(self._scores[:0], slice(0, 0), accumulate=False)()

    def summarise(self, piece: int) -> Call:
        """Writes each example's largest score, and the sum of exponentials relative to it."""
        given = self._scores, self._summaries[piece], self._metrics[0]
        return self._over_examples(lambda begin, end: loops.summarise(*given, begin, end))

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Writes the loss of each example, as far as it depends on this machine's scores."""
        given, labels = (self._summaries, self._saved, self._metrics, self._output), self._labels
        scores, number, classes = self._scores, self._first, self.context.sources[0].n_nodes

        def work(begin: int, end: int) -> None:
            if self._whole:
                loops.evaluate_whole(scores, labels, *given, (begin, end))
            else:
                loops.evaluate(scores, number, labels, *given, (begin, end))

        evaluate = self._over_examples(work)

        def call() -> None:
            if not loops.all_fit(labels, classes):
                refuse_label(self.context, int(labels[(labels < 0) | (labels >= classes)][0]))
            evaluate()

        loops.all_fit(np.zeros((1, 0), labels.dtype), classes)
        return call

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the scores in these rows."""
        assert source == 0, "a target has no gradient"
        out, window = self.arrays.grad_input(0), self.context.grad_windows[0]
        per_row, calls = self.context.sources[0].nodes_per_row, []
        for start, stop in rows:
            here = slice(start * per_row - self._first, stop * per_row - self._first)
            place = columns(rows_of(out, (start, stop), window))
            calls.append(self._write_gradient(place, here, accumulate=accumulate))
        return sequence(*calls)

    def _write_gradient(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        given = self._scores[here], self._labels, self._saved, self._first + here.start
        return lambda: loops.write_gradient(out, *given, self.mean_over, accumulate)

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses and the number of right examples, for this machine's scores."""
        return loops.tally(self._metrics, count)

    def _over_examples(self, work: Callable[[int, int], None]) -> Call:
        return split_spans(self.pool, ((0, self.context.batch),), work, operations=self.context.operations)


def refuse_label(context: KernelContext, label: int) -> None:
    """Raises ValueError for a label that no score belongs to."""
    classes = context.sources[0].shape[-1]
    raise ValueError(
        f"{context.label} was given the label {label}; with {classes} scores, labels are 0 to {classes - 1}"
    )


class ExitKernel(SoftmaxCrossEntropyKernel):
    """The loss of an exit, whose threshold only predictions read."""

    layer = Exit

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Computes what the cross-entropy's kernel does, whatever the threshold."""
        layer = context.grid.layer
        assert isinstance(layer, Exit)
        plain = replace(context.grid, layer=replace(layer, threshold=None))
        return super().computes(replace(context, grid=plain))
