"""The compiled loops of losses: scores `[score, example]`, examples innermost; sums over scores in float64.

Each loop takes the examples `[begin, end)`, so that threads can share a batch. What it finds for an example
and a score does not depend on where they lie.

`judged` is what a loss leaves for its metrics, float64 `[2, example]`: the loss, and 1 where the scores are
right. `kept` is what it leaves for its errors, `[2, example]` in the type of masters: the largest score, and
what turns an exponential relative to it into an error.
"""

from __future__ import annotations

import math

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import ZERO, compiled, compiled_to_be_called, downcast, upcast
from partita.engine.numerics.functions import exponential, logistic

_FACTORS = 512
"""How many numbers from 1 to 2 are multiplied before a logarithm is taken of the product."""


@compiled
def tally(judged: Array, count: int) -> tuple[float, int]:
    """Of the first `count` examples, the sum of the losses, and how many are right."""
    loss, n_right = 0.0, 0.0
    for e in range(count):
        loss += judged[0, e]
        n_right += judged[1, e]
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
    """The largest score of each example."""
    most = largest[begin:end]
    most[:] = -np.inf
    for k in range(scores.shape[0]):
        row = scores[k, begin:end]  # counted from 0, so that LLVM sees that no index is negative
        for e in range(len(most)):
            score = upcast(row[e])
            most[e] = score if score > most[e] else most[e]


@compiled_to_be_called
def summarise_softmax(scores: Array, summary: Array, totals: Array, begin: int, end: int) -> None:
    """Row 0: the largest score of each example. Row 1: the sum of exponentials relative to it."""
    find_largest(scores, summary[0], begin, end)
    most, total = summary[0, begin:end], totals[begin:end]
    total[:] = 0
    for k in range(scores.shape[0]):
        row = scores[k, begin:end]
        for e in range(len(total)):
            total[e] += exponential(upcast(row[e]) - most[e])
    for e in range(len(total)):  # assigned as an array, Numba's error message costs a second to compile
        summary[1, begin + e] = total[e]


@compiled_to_be_called
def judge_softmax(
    scores: Array,
    first: int,
    labels: Array,
    summaries: Array,
    kept: Array,
    judged: Array,
    state: Array,
    mean_over: int,
    begin: int,
    end: int,
) -> None:
    """The loss of an example whose label is among these scores, which begin at number `first`; else 0."""
    for e in range(begin, end):
        largest = summaries[0, 0, e]
        for piece in range(1, summaries.shape[0]):
            largest = max(largest, summaries[piece, 0, e])
        total = 0.0
        for piece in range(summaries.shape[0]):
            total += summaries[piece, 1, e] * math.exp(summaries[piece, 0, e] - largest)
        kept[0, e], kept[1, e] = largest, 1 / (total * mean_over)
        place, loss, right = labels[0, e] - first, 0.0, False
        if 0 <= place < scores.shape[0]:
            score = upcast(scores[place, e])
            loss = math.log(total) + (largest - score)
            right = score >= largest and math.isfinite(loss)
        judged[0, e], judged[1, e] = loss, right
        state[0, e] = downcast(loss, state[0, e])


@compiled
def judge_whole_softmax(
    scores: Array,
    labels: Array,
    summaries: Array,
    kept: Array,
    judged: Array,
    state: Array,
    mean_over: int,
    begin: int,
    end: int,
) -> None:
    """The same where all scores are here: one call."""
    summarise_softmax(scores, summaries[0], judged[0], begin, end)
    judge_softmax(scores, ZERO, labels, summaries, kept, judged, state, mean_over, begin, end)


@compiled
def write_softmax_errors(
    out: Array, scores: Array, labels: Array, kept: Array, first: int, mean_over: int, accumulate: bool
) -> None:
    """Softmax less one hot, for scores that begin at number `first`."""
    batch = out.shape[1]
    one = kept.dtype.type(1) / kept.dtype.type(mean_over)
    largest, scale = kept[0], kept[1]
    for k in range(out.shape[0]):
        for e in range(batch):
            error = exponential(upcast(scores[k, e]) - largest[e]) * scale[e]
            error -= one if labels[0, e] == first + k else one - one
            out[k, e] = downcast(upcast(out[k, e]) + error if accumulate else error, out[k, e])


@compiled_to_be_called
def add_softplus(scores: Array, losses: Array, products: Array, begin: int, end: int) -> None:
    """Each example's sum over these scores of `log(1 + exp(score))`.

    That is the larger of 0 and the score, and `log(1 + exp(-|score|))`; of the latter, many are multiplied
    before a logarithm is taken.
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
def judge_one_against_all(
    scores: Array,
    first: int,
    labels: Array,
    summaries: Array,
    judged: Array,
    state: Array,
    begin: int,
    end: int,
) -> None:
    """What each of these classifiers, which begin at number `first`, costs an example."""
    add_softplus(scores, judged[0], judged[1], begin, end)
    for e in range(begin, end):
        place, right = labels[0, e] - first, False
        if 0 <= place < scores.shape[0]:
            score = upcast(scores[place, e])
            judged[0, e] -= score
            right = math.isfinite(judged[0, e])
            for piece in range(summaries.shape[0]):
                right = right and score >= summaries[piece, 0, e]
        judged[1, e] = right
        state[0, e] = downcast(judged[0, e], state[0, e])


@compiled
def judge_whole_one_against_all(
    scores: Array, labels: Array, summaries: Array, judged: Array, state: Array, begin: int, end: int
) -> None:
    """The same where all scores are here: one call."""
    find_largest(scores, summaries[0, 0], begin, end)
    judge_one_against_all(scores, ZERO, labels, summaries, judged, state, begin, end)


@compiled
def write_one_against_all_errors(
    out: Array, scores: Array, labels: Array, first: int, mean_over: int, accumulate: bool
) -> None:
    """Probability less one hot, for scores that begin at number `first`."""
    batch = out.shape[1]
    for k in range(out.shape[0]):
        for e in range(batch):
            error = logistic(upcast(scores[k, e]))
            error -= type(error)(1) if labels[0, e] == first + k else type(error)(0)
            error /= type(error)(mean_over)
            out[k, e] = downcast(upcast(out[k, e]) + error if accumulate else error, out[k, e])


@compiled
def judge_logistic(scores: Array, target: Array, judged: Array, state: Array, begin: int, end: int) -> None:
    """The cross-entropies of these scores with their targets; nothing is right or wrong."""
    add_softplus(scores, judged[0], judged[1], begin, end)
    loss = judged[0, begin:end]
    for k in range(scores.shape[0]):
        row, wanted = scores[k, begin:end], target[k, begin:end]
        for e in range(len(loss)):
            loss[e] -= upcast(row[e]) * upcast(wanted[e])
    for e in range(begin, end):
        judged[1, e] = 0
        state[0, e] = downcast(judged[0, e], state[0, e])


@compiled
def write_logistic_errors(out: Array, scores: Array, target: Array, mean_over: int, accumulate: bool) -> None:
    """Probability less target, of the mean over so many examples."""
    batch = out.shape[1]
    for k in range(out.shape[0]):
        for e in range(batch):
            error = logistic(upcast(scores[k, e])) - upcast(target[k, e])
            error /= type(error)(mean_over)
            out[k, e] = downcast(upcast(out[k, e]) + error if accumulate else error, out[k, e])


@compiled
def judge_squared(scores: Array, target: Array, judged: Array, state: Array, begin: int, end: int) -> None:
    """Half the sum of squared differences; nothing is right or wrong."""
    judged[:, begin:end] = 0
    loss = judged[0, begin:end]
    for k in range(scores.shape[0]):
        row, wanted = scores[k, begin:end], target[k, begin:end]
        for e in range(len(loss)):
            difference = upcast(row[e]) - upcast(wanted[e])
            loss[e] += difference * difference / 2
    for e in range(begin, end):
        state[0, e] = downcast(judged[0, e], state[0, e])


@compiled
def write_squared_errors(out: Array, scores: Array, target: Array, mean_over: int, accumulate: bool) -> None:
    """Differences, of the mean over so many examples."""
    batch = out.shape[1]
    for k in range(out.shape[0]):
        for e in range(batch):
            error = upcast(scores[k, e]) - upcast(target[k, e])
            error /= type(error)(mean_over)
            out[k, e] = downcast(upcast(out[k, e]) + error if accumulate else error, out[k, e])
