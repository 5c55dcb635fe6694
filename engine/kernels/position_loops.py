"""The compiled loops of the softmax cross-entropy at positions: scores `[position, score and example]`, where
all scores of a position lie in one line, examples innermost.

A batch of a language model is small and its scores are many, so a loop over the examples alone would be
shorter than a vector. Lanes are the examples of `GROUP` scores at a time, as they lie in memory; the lanes of
an example are joined at the end of a position. A position's scores are read twice in succession, the second
time from the processor's cache. Exponentials are of the type of masters, their sums float64.

Each loop takes some positions, so that threads can share them. The bits of a position and an example do not
depend on where they lie, nor on how many others there are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba.extending import register_jitable

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled, downcast, upcast
from partita.engine.numerics.functions import exponential

GROUP: Final = 16
"""Scores whose examples are lanes side by side."""


@compiled
def summarise(
    scores: Array, spread: Array, largest: Array, totals: Array, spread_sums: Array, begin: int, end: int
) -> None:
    """Writes for each position `[begin, end)` and example the largest score, the sum of exponentials relative
    to it, and, where `spread` has numbers, the sum of these times (largest less score).

    `spread` is `[score and example]` or empty; the others are `[position, example]`, sums in float64.
    """
    n = min(GROUP * largest.shape[1], scores.shape[1])
    most, total = np.empty(n, largest.dtype), np.empty(n, totals.dtype)
    for position in range(begin, end):
        numbers = scores[position]
        _find_largest(numbers, most, largest[position])
        _sum_exponentials(numbers, most, total, totals[position])
        if len(spread):
            _sum_spread(numbers, spread, most, total, spread_sums[position])


@register_jitable
def _find_largest(numbers: Array, most: Array, largest: Array) -> None:
    """Finds the largest score of each example, and writes it into all of its lanes."""
    for lane in range(len(most)):
        most[lane] = -np.inf
    for first in range(0, len(numbers), len(most)):
        row = numbers[first : first + len(most)]
        for lane in range(len(row)):
            score = upcast(row[lane])
            most[lane] = score if score > most[lane] else most[lane]
    n_examples = len(largest)
    for e in range(n_examples):
        largest[e] = -np.inf
        for lane in range(e, len(most), n_examples):
            largest[e] = most[lane] if most[lane] > largest[e] else largest[e]
    _repeat(largest, most)


@register_jitable
def _sum_exponentials(numbers: Array, most: Array, total: Array, totals: Array) -> None:
    for lane in range(len(total)):
        total[lane] = 0
    for first in range(0, len(numbers), len(most)):
        row = numbers[first : first + len(most)]
        for lane in range(len(row)):
            total[lane] += exponential(upcast(row[lane]) - most[lane])
    _join(total, totals)


@register_jitable
def _sum_spread(numbers: Array, spread: Array, most: Array, total: Array, totals: Array) -> None:
    for lane in range(len(total)):
        total[lane] = 0
    for first in range(0, len(numbers), len(most)):
        row, factors = numbers[first : first + len(most)], spread[first : first + len(most)]
        for lane in range(len(row)):
            total[lane] += factors[lane] * (most[lane] - upcast(row[lane]))
    _join(total, totals)


@register_jitable
def _repeat(values: Array, lanes: Array) -> None:
    """Writes the value of each example into all of its lanes."""
    for first in range(0, len(lanes), len(values)):
        row = lanes[first : first + len(values)]
        for e in range(len(values)):
            row[e] = values[e]


@register_jitable
def _join(total: Array, totals: Array) -> None:
    """Adds up the lanes of each example."""
    n_examples = len(totals)
    for e in range(n_examples):
        totals[e] = 0
        for lane in range(e, len(total), n_examples):
            totals[e] += total[lane]


@compiled
def write_gradient(
    out: Array,
    scores: Array,
    spread: Array,
    labels: Array,
    factors: Array,
    accumulate: bool,
    begin: int,
    end: int,
) -> None:
    """Writes `exp(score - largest) * scale - spread * share`, less `hot` at the label, for these positions.

    `factors`, `[4, position, example]` in the type of masters, has the largest score, and the factors scale,
    share and hot. A score whose scale is 0 gets none of its exponential, even if it is no number.
    """
    n_examples = labels.shape[1]
    lanes = np.empty((3, min(GROUP * n_examples, scores.shape[1])), factors.dtype)
    most, scale, share = lanes[0], lanes[1], lanes[2]
    before = np.empty(n_examples, factors.dtype)
    for position in range(begin, end):
        numbers, place = scores[position], out[position]
        _repeat(factors[0, position], most)
        _repeat(factors[1, position], scale)
        _repeat(factors[2, position], share)
        for e in range(n_examples):
            before[e] = upcast(place[labels[position, e] * n_examples + e]) if accumulate else 0.0
        for first in range(0, len(numbers), len(most)):
            row, grads = numbers[first : first + len(most)], place[first : first + len(most)]
            smooth = spread[first : first + len(most)]
            _write_group(grads, row, smooth, most, scale, share, accumulate)
        for e in range(n_examples):
            at = labels[position, e] * n_examples + e
            grad = _softmax(upcast(numbers[at]), most[e], scale[e]) - factors[3, position, e]
            if len(spread):
                grad -= spread[at] * share[e]
            place[at] = downcast(before[e] + grad if accumulate else grad, place[at])


@register_jitable
def _write_group(
    grads: Array, row: Array, smooth: Array, most: Array, scale: Array, share: Array, accumulate: bool
) -> None:
    """Writes the gradient of a group of scores, without what is the label's."""
    if len(smooth):
        for lane in range(len(row)):
            grad = _softmax(upcast(row[lane]), most[lane], scale[lane]) - smooth[lane] * share[lane]
            grads[lane] = downcast(upcast(grads[lane]) + grad if accumulate else grad, grads[lane])
    else:
        for lane in range(len(row)):
            grad = _softmax(upcast(row[lane]), most[lane], scale[lane])
            grads[lane] = downcast(upcast(grads[lane]) + grad if accumulate else grad, grads[lane])


@register_jitable
def _softmax(score: float, largest: float, scale: float) -> float:
    share = exponential(score - largest) * scale
    return share if scale != 0 else scale
