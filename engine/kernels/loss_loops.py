"""The compiled loops of losses: scores `[score, example]`, examples innermost; sums over scores in float64.

Each loop takes the examples `[begin, end)`, so that threads can share a batch. The bits of an example and a
score do not depend on where they lie. Scores of a machine begin at number `first`.

`metrics`, float64 `[2, example]`: the loss, and 1 where the scores are right. `saved`, `[2, example]` in the
type of masters, is kept for the gradient: the largest score, and the factor from an exponential relative to
it to a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import ZERO, compiled, compiled_to_be_called, downcast, upcast
from partita.engine.numerics.functions import exponential, logistic

_FACTORS = 512
"""Number of factors between 1 and 2 that are multiplied before the logarithm of their product is taken."""


@compiled
def tally(metrics: Array, count: int) -> tuple[float, int]:
    """Sums the losses of the first `count` examples, and counts those that are right."""
    loss, n_right = 0.0, 0.0
    for e in range(count):
        loss += metrics[0, e]
        n_right += metrics[1, e]
    return loss, int(n_right)


@compiled
def all_fit(labels: Array, classes: int) -> bool:
    """Whether every label `[1, example]` names one of the classes."""
    fit = True
    for e in range(labels.shape[1]):
        fit &= 0 <= labels[0, e] < classes
    return fit


@compiled_to_be_called
def find_largest(scores: Array, largest: Array, begin: int, end: int) -> None:
    """Finds the largest score of each example."""
    most = largest[begin:end]
    most[:] = -np.inf
    for k in range(scores.shape[0]):
        row = scores[k, begin:end]  # counted from 0, so that LLVM sees that no index is negative
        for e in range(len(most)):
            score = upcast(row[e])
            most[e] = score if score > most[e] else most[e]


@compiled_to_be_called
def summarise_softmax(scores: Array, summary: Array, totals: Array, begin: int, end: int) -> None:
    """Writes the largest score of each example, and in row 1 the sum of exponentials relative to it."""
    find_largest(scores, summary[0], begin, end)
    most, total = summary[0, begin:end], totals[begin:end]
    total[:] = 0
    for k in range(scores.shape[0]):
        row = scores[k, begin:end]
        for e in range(len(total)):
            total[e] += exponential(upcast(row[e]) - most[e])
    for e in range(len(total)):  # assigned as an array, Numba's grad message costs a second to compile
        summary[1, begin + e] = total[e]


@compiled_to_be_called
def evaluate_softmax(
    scores: Array,
    first: int,
    labels: Array,
    summaries: Array,
    saved: Array,
    metrics: Array,
    output: Array,
    mean_over: int,
    begin: int,
    end: int,
) -> None:
    """Writes the loss of each example whose label is among these scores; else 0."""
    for e in range(begin, end):
        largest = summaries[0, 0, e]
        for piece in range(1, summaries.shape[0]):
            largest = max(largest, summaries[piece, 0, e])
        total = 0.0
        for piece in range(summaries.shape[0]):
            total += summaries[piece, 1, e] * math.exp(summaries[piece, 0, e] - largest)
        saved[0, e], saved[1, e] = largest, 1 / (total * mean_over)
        place, loss, right = labels[0, e] - first, 0.0, False
        if 0 <= place < scores.shape[0]:
            score = upcast(scores[place, e])
            loss = math.log(total) + (largest - score)
            right = score >= largest and math.isfinite(loss)
        metrics[0, e], metrics[1, e] = loss, right
        output[0, e] = downcast(loss, output[0, e])


@compiled
def evaluate_whole_softmax(
    scores: Array,
    labels: Array,
    summaries: Array,
    saved: Array,
    metrics: Array,
    output: Array,
    mean_over: int,
    begin: int,
    end: int,
) -> None:
    """Summarises and evaluates in one call where all scores are here."""
    summarise_softmax(scores, summaries[0], metrics[0], begin, end)
    evaluate_softmax(scores, ZERO, labels, summaries, saved, metrics, output, mean_over, begin, end)


@compiled
def softmax_gradient(
    out: Array, scores: Array, labels: Array, saved: Array, first: int, mean_over: int, accumulate: bool
) -> None:
    """Writes softmax less one hot."""
    batch = out.shape[1]
    one = saved.dtype.type(1) / saved.dtype.type(mean_over)
    largest, scale = saved[0], saved[1]
    for k in range(out.shape[0]):
        for e in range(batch):
            grad = exponential(upcast(scores[k, e]) - largest[e]) * scale[e]
            grad -= one if labels[0, e] == first + k else one - one
            out[k, e] = downcast(upcast(out[k, e]) + grad if accumulate else grad, out[k, e])


@compiled_to_be_called
def add_softplus(scores: Array, losses: Array, products: Array, begin: int, end: int) -> None:
    """Sums `log(1 + exp(score))` over these scores, for each example.

    Each term is the larger of 0 and the score, plus `log(1 + exp(-|score|))`; of the latter, many are
    multiplied before a logarithm is taken.
    """
    loss, product = losses[begin:end], products[begin:end]
    loss[:] = 0
    product[:] = 1
    for k in range(scores.shape[0]):
        row = scores[k, begin:end]
        for e in range(len(loss)):
            score = upcast(row[e])
            loss[e] += score if score > 0 else score - score
            product[e] *= 1.0 + exponential(-abs(score))
        if k % _FACTORS == _FACTORS - 1 or k == scores.shape[0] - 1:
            for e in range(len(loss)):
                loss[e] += math.log(product[e])
                product[e] = 1


@compiled_to_be_called
def evaluate_one_vs_rest(
    scores: Array,
    first: int,
    labels: Array,
    summaries: Array,
    metrics: Array,
    output: Array,
    begin: int,
    end: int,
) -> None:
    """Writes the sum of these classifiers' losses for each example."""
    add_softplus(scores, metrics[0], metrics[1], begin, end)
    for e in range(begin, end):
        place, right = labels[0, e] - first, False
        if 0 <= place < scores.shape[0]:
            score = upcast(scores[place, e])
            metrics[0, e] -= score
            right = math.isfinite(metrics[0, e])
            for piece in range(summaries.shape[0]):
                right = right and score >= summaries[piece, 0, e]
        metrics[1, e] = right
        output[0, e] = downcast(metrics[0, e], output[0, e])


@compiled
def evaluate_whole_one_vs_rest(
    scores: Array, labels: Array, summaries: Array, metrics: Array, output: Array, begin: int, end: int
) -> None:
    """Summarises and evaluates in one call where all scores are here."""
    find_largest(scores, summaries[0, 0], begin, end)
    evaluate_one_vs_rest(scores, ZERO, labels, summaries, metrics, output, begin, end)


@compiled
def one_vs_rest_gradient(
    out: Array, scores: Array, labels: Array, first: int, mean_over: int, accumulate: bool
) -> None:
    """Writes probability less one hot, for the mean over so many examples."""
    batch = out.shape[1]
    for k in range(out.shape[0]):
        for e in range(batch):
            grad = logistic(upcast(scores[k, e]))
            grad -= type(grad)(1) if labels[0, e] == first + k else type(grad)(0)
            grad /= type(grad)(mean_over)
            out[k, e] = downcast(upcast(out[k, e]) + grad if accumulate else grad, out[k, e])


@compiled
def evaluate_binary(
    scores: Array, target: Array, metrics: Array, output: Array, begin: int, end: int
) -> None:
    """Writes the sum of cross-entropies of these scores with their targets."""
    add_softplus(scores, metrics[0], metrics[1], begin, end)
    loss = metrics[0, begin:end]
    for k in range(scores.shape[0]):
        row, wanted = scores[k, begin:end], target[k, begin:end]
        for e in range(len(loss)):
            loss[e] -= upcast(row[e]) * upcast(wanted[e])
    for e in range(begin, end):
        metrics[1, e] = 0
        output[0, e] = downcast(metrics[0, e], output[0, e])


@compiled
def evaluate_squared(
    scores: Array, target: Array, metrics: Array, output: Array, begin: int, end: int
) -> None:
    """Writes half the sum of squared differences."""
    metrics[:, begin:end] = 0
    loss = metrics[0, begin:end]
    for k in range(scores.shape[0]):
        row, wanted = scores[k, begin:end], target[k, begin:end]
        for e in range(len(loss)):
            difference = upcast(row[e]) - upcast(wanted[e])
            loss[e] += difference * difference / 2
    for e in range(begin, end):
        output[0, e] = downcast(metrics[0, e], output[0, e])


def _target_gradient(predict: Callable[[Any], Any]) -> Callable[[Array, Array, Array, int, bool], None]:
    """The loop that writes predictions less targets, of the mean over so many examples."""

    @compiled
    def write(out: Array, scores: Array, target: Array, mean_over: int, accumulate: bool) -> None:
        for k in range(out.shape[0]):
            for e in range(out.shape[1]):
                grad = predict(upcast(scores[k, e])) - upcast(target[k, e])
                grad /= type(grad)(mean_over)
                out[k, e] = downcast(upcast(out[k, e]) + grad if accumulate else grad, out[k, e])

    return write


@register_jitable
def _identity(score: Any) -> Any:
    return score


binary_gradient: Final = _target_gradient(logistic)
squared_gradient: Final = _target_gradient(_identity)
