"""The compiled loops of the softmax cross-entropy: scores `[score, example]`, examples innermost; sums over
scores in float64.

Each loop takes some examples, so that threads can share a batch. The bits of an example and a score do not
depend on where they lie. Scores of a machine begin at number `first`.

`metrics`, float64 `[2, example]`: the loss, and 1 where the scores are right. `saved`, `[2, example]` in the
type of masters, is kept for the gradient: the largest score, and the factor from an exponential relative to
it to a probability.
"""

from __future__ import annotations

import math

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import ZERO, compiled, compiled_to_be_called, downcast, upcast
from partita.engine.numerics.functions import exponential


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
    """Returns whether every label `[1, example]` names one of the classes."""
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
def summarise(scores: Array, summary: Array, totals: Array, begin: int, end: int) -> None:
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
def evaluate(
    scores: Array,
    first: int,
    labels: Array,
    summaries: Array,
    saved: Array,
    metrics: Array,
    output: Array,
    examples: tuple[int, int],
) -> None:
    """Writes the loss of each example `[begin, end)` whose label is among these scores; else 0."""
    for e in range(examples[0], examples[1]):
        largest = summaries[0, 0, e]
        for piece in range(1, summaries.shape[0]):
            largest = max(largest, summaries[piece, 0, e])
        total = 0.0
        for piece in range(summaries.shape[0]):
            total += summaries[piece, 1, e] * math.exp(summaries[piece, 0, e] - largest)
        saved[0, e], saved[1, e] = largest, 1 / total
        place, loss, right = labels[0, e] - first, 0.0, False
        if 0 <= place < scores.shape[0]:
            score = upcast(scores[place, e])
            loss = math.log(total) + (largest - score)
            right = score >= largest and math.isfinite(loss)
        metrics[0, e], metrics[1, e] = loss, right
        output[0, e] = downcast(loss, output[0, e])


@compiled
def evaluate_whole(
    scores: Array,
    labels: Array,
    summaries: Array,
    saved: Array,
    metrics: Array,
    output: Array,
    examples: tuple[int, int],
) -> None:
    """Summarises and evaluates in one call where all scores are here."""
    summarise(scores, summaries[0], metrics[0], examples[0], examples[1])
    evaluate(scores, ZERO, labels, summaries, saved, metrics, output, examples)


@compiled
def write_gradient(
    out: Array, scores: Array, labels: Array, saved: Array, first: int, mean_over: int, accumulate: bool
) -> None:
    """Writes softmax less one hot, for the mean over so many examples."""
    one = saved.dtype.type(1) / saved.dtype.type(mean_over)
    largest, scale = saved[0], saved[1]
    for k in range(out.shape[0]):
        for e in range(out.shape[1]):
            grad = exponential(upcast(scores[k, e]) - largest[e]) * (scale[e] * one)
            grad -= one if labels[0, e] == first + k else one - one
            out[k, e] = downcast(upcast(out[k, e]) + grad if accumulate else grad, out[k, e])
