"""Losses over scores `[score, example]` and a target.

A machine judges the scores in its window: all of them, or its own, and then it knows a summary of everybody's
where the loss needs one. The errors are those of the mean loss over the real examples of the minibatch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from partita.engine.kernels import loss_loops as loops
from partita.engine.kernels.kernel import Array, Arrays, Call, KernelContext, LossKernel
from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.kernels.views import columns, rows_of
from partita.layers.box import Spans


class _ScoresKernel(LossKernel):
    """What the losses share: which scores are here, and where their errors go."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.scores, self.state = columns(arrays.inputs[0]), columns(arrays.output)
        self.first = context.windows[0][0] * context.sources[0].nodes_per_row
        self.judged = np.zeros((2, context.batch))
        self.metrics(0)
        self._write_errors(self.scores[:0], slice(0, 0), accumulate=False)()

    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """The errors of the scores in these rows; nothing stands above a loss."""
        assert source == 0, "a target has no error"
        out, window, per_row = (
            self.arrays.grad_input(0),
            self.context.grad_windows[0],
            self.context.sources[0].nodes_per_row,
        )
        calls = []
        for start, stop in rows:
            here = slice(start * per_row - self.first, stop * per_row - self.first)
            place = columns(rows_of(out, (start, stop), window))
            calls.append(self._write_errors(place, here, accumulate=accumulate))

        def call() -> None:
            for write in calls:
                write()

        return call

    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the losses, and how many examples are right: as far as the scores here can tell."""
        return loops.tally(self.judged, count)

    @abstractmethod
    def _write_errors(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        """Writes the errors of these of the scores."""

    def _of_examples(self, work: Callable[[int, int], None]) -> Call:
        """Shares the examples among the threads."""
        work(0, 0)
        return lambda: self.pool.split(0, self.context.batch, work, operations=self.context.operations)


class _LabelKernel(_ScoresKernel):
    """What the losses share whose target is a label; where scores are cut, machines know of one another's."""

    n_summary: int
    """How many numbers for each example a machine tells the others."""

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
        """The loss of each example, as far as it is of the scores here."""
        judge, labels, classes = (
            self._of_examples(self._judge()),
            self.labels,
            self.context.sources[0].n_nodes,
        )

        def call() -> None:
            if not loops.all_fit(labels, classes):
                self._refuse(labels, classes)
            judge()

        loops.all_fit(np.zeros((1, 0), labels.dtype), classes)
        return call

    @abstractmethod
    def _judge(self) -> Callable[[int, int], None]:
        """What judges the examples `[begin, end)`."""

    def _refuse(self, labels: Array, classes: int) -> None:
        wrong = labels[(labels < 0) | (labels >= classes)]
        raise ValueError(
            f"{self.context.label} was given the label {wrong[0]}; "
            f"with {classes} scores, labels are 0 to {classes - 1}"
        )


class SoftmaxCrossEntropyKernel(_LabelKernel):
    """The negative log of the softmax probability of the right label."""

    n_summary = 2

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        self.kept = np.zeros((2, context.batch), context.master)
        super().__init__(context, arrays, pool)

    def summarise(self, piece: int) -> Call:
        """Each example's largest score here, and the sum of exponentials relative to it."""
        scores, summary, total = self.scores, self.summaries[piece], self.judged[0]
        return self._of_examples(
            lambda begin, end: loops.summarise_softmax(scores, summary, total, begin, end)
        )

    def _judge(self) -> Callable[[int, int], None]:
        given = self.labels, self.summaries, self.kept, self.judged, self.state
        scores, first = self.scores, self.first
        if self.whole:
            return lambda begin, end: loops.judge_whole_softmax(scores, *given, self.mean_over, begin, end)
        return lambda begin, end: loops.judge_softmax(scores, first, *given, self.mean_over, begin, end)

    def _write_errors(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        scores, first, labels, kept = self.scores[here], self.first + here.start, self.labels, self.kept
        given = scores, labels, kept, first
        return lambda: loops.write_softmax_errors(out, *given, self.mean_over, accumulate)


class OneAgainstAllKernel(_LabelKernel):
    """A logistic classifier for each score."""

    n_summary = 1

    def summarise(self, piece: int) -> Call:
        """Each example's largest score here."""
        scores, largest = self.scores, self.summaries[piece, 0]
        return self._of_examples(lambda begin, end: loops.find_largest(scores, largest, begin, end))

    def _judge(self) -> Callable[[int, int], None]:
        given = self.labels, self.summaries, self.judged, self.state
        scores, first = self.scores, self.first
        if self.whole:
            return lambda begin, end: loops.judge_whole_one_against_all(scores, *given, begin, end)
        return lambda begin, end: loops.judge_one_against_all(scores, first, *given, begin, end)

    def _write_errors(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        scores, first, labels = self.scores[here], self.first + here.start, self.labels
        given = scores, labels, first
        return lambda: loops.write_one_against_all_errors(out, *given, self.mean_over, accumulate)


class _TargetKernel(_ScoresKernel):
    """What the losses share that compare each score with a number of its own."""

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        self.target = columns(rows_of(arrays.inputs[1], context.windows[0], context.windows[1]))
        super().__init__(context, arrays, pool)


class LogisticCrossEntropyKernel(_TargetKernel):
    """The cross-entropy of each score's logistic with its target."""

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """The sum over the scores, for each example."""
        given = self.scores, self.target, self.judged, self.state
        return self._of_examples(lambda begin, end: loops.judge_logistic(*given, begin, end))

    def _write_errors(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        scores, target = self.scores[here], self.target[here]
        return lambda: loops.write_logistic_errors(out, scores, target, self.mean_over, accumulate)


class SquaredErrorKernel(_TargetKernel):
    """Half the sum of squared differences."""

    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """The sum over the scores, for each example."""
        given = self.scores, self.target, self.judged, self.state
        return self._of_examples(lambda begin, end: loops.judge_squared(*given, begin, end))

    def _write_errors(self, out: Array, here: slice, *, accumulate: bool) -> Call:
        scores, target = self.scores[here], self.target[here]
        return lambda: loops.write_squared_errors(out, scores, target, self.mean_over, accumulate)
