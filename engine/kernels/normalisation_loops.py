"""The compiled loops of local contrast normalisation, examples innermost.

A window's mean and deviation are those of a place, not of a node, and a Gaussian may be taken axis by axis. So
channels are summed first, `[row, column, example]`, then columns, then rows: a place costs as many operations
as its window is high and wide, and a node a few more.

Axes: inputs, states and errors `[row, column, channel, example]`, as they are stored. Every sum has a fixed
order, and that of an input's error runs over receivers in ascending rows: cuts and threads change no bit.
Means and squares are summed in float64, because the variance is a small difference between them.
"""

from __future__ import annotations

import math

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled, fma, narrow, widen


@compiled
def add_channels(x: Array, sums: Array, scratch: Array, columns: Array) -> None:
    """The columns' weighted sums of states and of their squares, for each row of `x`.

    `sums` is float64 `[2, row, column, example]`, `scratch` `[2, column, example]` of one row.
    """
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            first, second = scratch[0, column], scratch[1, column]
            first[:] = 0
            second[:] = 0
            for c in range(x.shape[2]):
                states = x[row, column, c]
                for e in range(len(first)):
                    state = widen(states[e])
                    first[e] += state
                    second[e] += first.dtype.type(state) * first.dtype.type(state)
        for k in range(2):
            add_columns(scratch[k], sums[k, row], columns)


@compiled
def add_columns(x: Array, out: Array, weights: Array) -> None:
    """`[column, example]`: each place's weighted sum of the places around it; outside there are zeros."""
    half = len(weights) // 2
    for column in range(x.shape[0]):
        total = out[column]
        total[:] = 0
        for k in range(max(0, half - column), min(len(weights), x.shape[0] + half - column)):
            weight, values = weights[k], x[column + k - half]
            for e in range(len(total)):
                total[e] = fma(weight, values[e], total[e])


@compiled
def normalise(
    x: Array,
    sums: Array,
    window: int,
    height: int,
    state: Array,
    kept: Array,
    scratch: Array,
    rows: Array,
    floor: float,
    first: int,
) -> None:
    """Rows from `first` on. `x` and `sums` begin at row `window` of an input of `height` rows.

    `kept` is `[3, row, column, example]` of these rows: mean, what is multiplied with, and that times the
    inverse variance, or 0 where the floor holds. `scratch` is float64 `[2, example]`.
    """
    half, n_channels = len(rows) // 2, x.shape[2]
    mean, square = scratch[0], scratch[1]
    for row in range(state.shape[0]):
        at = first + row
        for column in range(state.shape[1]):
            mean[:] = 0
            square[:] = 0
            for k in range(max(0, half - at), min(len(rows), height + half - at)):
                weight, above = rows[k] / n_channels, at + k - half - window
                first_sums, second_sums = sums[0, above, column], sums[1, above, column]
                for e in range(len(mean)):
                    mean[e] = fma(weight, first_sums[e], mean[e])
                    square[e] = fma(weight, second_sums[e], square[e])
            for e in range(len(mean)):
                variance = max(0.0, square[e] - mean[e] * mean[e])
                deviation = math.sqrt(variance)
                factor = 1.0 / (deviation if deviation > floor else floor)
                kept[0, row, column, e] = mean[e]
                kept[1, row, column, e] = factor
                kept[2, row, column, e] = factor / variance if deviation > floor else 0.0
"""NaN"""
