"""Losses over scores `[score, example]` and a target.

A machine evaluates the scores in its window: all of them, or its own together with a summary of all machines'
scores where the loss needs one. Gradients are those of the mean loss over the real examples of the minibatch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from partita.engine.kernels import loss_loops as loops
from partita.engine.kernels.calls import sequence, split_spans
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import columns, rows_of
from partita.layers import BinaryCrossEntropy, HalfSquaredError, OneVsRest, SoftmaxCrossEntropy
from partita.layers.box import Spans


class _ScoresKernel(LossKernel):
    """The scores of this machine, and where their gradient goes."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.scores, self.output = columns(arrays.inputs[0]), columns(arrays.output)
        self.first = context.windows[0][0] * context.sources[0].nodes_per_row
        self.example_metrics = np.zeros((2, context.batch))
        self.metrics(0)
        self._write_gradient(self.scores[:0], slice(0, 0), accumulate=False)()

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of the scores in these rows."""
        assert source == 0, "a target has no gradient"
        out, window = self.arrays.grad_input(0), self.context.grad_windows[0]
        per_row, calls = self.context.sources[0].nodes_per_row, []
        for start, stop in rows:
            here = slice(start * per_row - self.first, stop * per_row - self.first)
            place = columns(rows_of(out, (start, stop), window))
            calls.append(self._write_gradient(place, here, accumulate=accumulate))
        return sequence(*calls)

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses and the number of right examples, for this machine's scores."""
        return loops.tally(self.example_metrics, count)

    @abstractmethod
    def _write_gradient(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        """Writes the gradient of the scores `here`."""

    def _over_examples(self, work: Callable[[int, int], None]) -> Call:
        return split_spans(self.pool, ((0, self.context.batch),), work, operations=self.context.operations)


class _LabelKernel(_ScoresKernel):
    """A loss whose target is a label; machines that share the scores exchange summaries of theirs."""

    n_summary: ClassVar[int]
    """Numbers of a summary for each example."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        self.labels = columns(arrays.inputs[1])
        self.whole = arrays.summaries is None
        alone = np.zeros((1, self.n_summary, context.batch), context.master)
        self.summaries = alone if arrays.summaries is None else arrays.summaries
        assert not self.whole or context.windows[0] == (0, context.sources[0].n_rows), (
            f"loss {context.grid.name} needs all scores, or a summary of them, not {context.windows[0]}"
        )
        super().__init__(context, arrays, pool)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Writes the loss of each example, as far as it depends on this machine's scores."""
        evaluate, labels = self._over_examples(self._evaluate()), self.labels
        classes = self.context.sources[0].n_nodes

        def call() -> None:
            if not loops.all_fit(labels, classes):
                refuse_label(self.context, int(labels[(labels < 0) | (labels >= classes)][0]))
            evaluate()

        loops.all_fit(np.zeros((1, 0), labels.dtype), classes)
        return call

    @abstractmethod
    def _evaluate(self) -> Callable[[int, int], None]:
        """The function that evaluates examples `[begin, end)`."""


def refuse_label(context: KernelContext, label: int) -> None:
    """Raises ValueError for a label that no score belongs to."""
    classes = context.sources[0].n_nodes
    raise ValueError(
        f"{context.label} was given the label {label}; with {classes} scores, labels are 0 to {classes - 1}"
    )


class SoftmaxCrossEntropyKernel(_LabelKernel):
    """The negative log of the softmax probability of the right label."""

    layer = SoftmaxCrossEntropy
    n_summary = 2

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        self.saved = np.zeros((2, context.batch), context.master)
        super().__init__(context, arrays, pool)

    def summarise(self, piece: int) -> Call:
        """Writes each example's largest score, and the sum of exponentials relative to it."""
        given = self.scores, self.summaries[piece], self.example_metrics[0]
        return self._over_examples(lambda begin, end: loops.summarise_softmax(*given, begin, end))

    def _evaluate(self) -> Callable[[int, int], None]:
        given = self.labels, self.summaries, self.saved, self.example_metrics, self.output
        scores, first = self.scores, self.first
        if self.whole:
            return lambda begin, end: loops.evaluate_whole_softmax(scores, *given, self.mean_over, begin, end)
        return lambda begin, end: loops.evaluate_softmax(scores, first, *given, self.mean_over, begin, end)

    def _write_gradient(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        given = self.scores[here], self.labels, self.saved, self.first + here.start
        return lambda: loops.softmax_gradient(out, *given, self.mean_over, accumulate)


class OneVsRestKernel(_LabelKernel):
    """A logistic classifier for each score."""

    layer = OneVsRest
    n_summary = 1

    def summarise(self, piece: int) -> Call:
        """Writes each example's largest score."""
        given = self.scores, self.summaries[piece, 0]
        return self._over_examples(lambda begin, end: loops.find_largest(*given, begin, end))

    def _evaluate(self) -> Callable[[int, int], None]:
        given = self.labels, self.summaries, self.example_metrics, self.output
        scores, first = self.scores, self.first
        if self.whole:
            return lambda begin, end: loops.evaluate_whole_one_vs_rest(scores, *given, begin, end)
        return lambda begin, end: loops.evaluate_one_vs_rest(scores, first, *given, begin, end)

    def _write_gradient(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        given = self.scores[here], self.labels, self.first + here.start
        return lambda: loops.one_vs_rest_gradient(out, *given, self.mean_over, accumulate)


class _TargetKernel(_ScoresKernel):
    """A loss that compares each score with a number of its own."""

    evaluate: ClassVar[Callable[..., None]]
    gradient: ClassVar[Callable[..., None]]

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        self.target = columns(rows_of(arrays.inputs[1], context.windows[0], context.windows[1]))
        super().__init__(context, arrays, pool)

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Writes the sum over the scores, for each example."""
        given = self.scores, self.target, self.example_metrics, self.output
        return self._over_examples(lambda begin, end: self.evaluate(*given, begin, end))

    def _write_gradient(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        scores, target = self.scores[here], self.target[here]
        return lambda: self.gradient(out, scores, target, self.mean_over, accumulate)


class BinaryCrossEntropyKernel(_TargetKernel):
    """The cross-entropy of each score's logistic with its target."""

    layer = BinaryCrossEntropy
    evaluate = staticmethod(loops.evaluate_binary)
    gradient = staticmethod(loops.binary_gradient)


class HalfSquaredErrorKernel(_TargetKernel):
    """Half the sum of squared differences."""

    layer = HalfSquaredError
    evaluate = staticmethod(loops.evaluate_squared)
    gradient = staticmethod(loops.squared_gradient)
