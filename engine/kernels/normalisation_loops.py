"""The compiled loops of local contrast normalisation, examples innermost.

A window's mean and deviation are those of a place, not of a node, and a Gaussian may be taken axis by axis.
So channels are summed first, `[row, column, example]`, then columns, then rows: a place costs as many
operations as its window is high and wide, and a node a few more.

Axes: inputs, states and errors `[row, column, channel, example]`, as they are stored. Every sum has a fixed
order, and that of an input's error runs over receivers in ascending rows: cuts and threads change no bit.
Means and squares are summed in float64, because the variance is a small difference between them.
"""

from __future__ import annotations

import math

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled, downcast, fma, upcast


@compiled
def add_channels(x: Array, sums: Array, scratch: Array, columns: Array) -> None:
    """The columns' weighted sums of states and of their squares, for each row of `x`.

    `sums` is float64 `[row, 2, column, example]`, `scratch` is as one row of it.
    """
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            first, second = scratch[0, column], scratch[1, column]
            first[:] = 0
            second[:] = 0
            for c in range(x.shape[2]):
                states = x[row, column, c]
                for e in range(len(first)):
                    state = upcast(states[e])
                    first[e] += state
                    second[e] += first.dtype.type(state) * first.dtype.type(state)
        for k in range(2):
            add_columns(scratch[k], sums[row, k], columns, 0)


@compiled
def add_columns(x: Array, out: Array, weights: Array, first: int) -> None:
    """`[column, example]`: each place's weighted sum of the places around it; outside there are zeros.

    Column 0 of `x` lies at column `first` of `out`.
    """
    half = len(weights) // 2 + first
    for column in range(out.shape[0]):
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
    left: int,
) -> None:
    """Rows from `first` on; `x` and `sums` begin at row `window` of an input of `height` rows. Column 0 of
    the state lies over column `left` of `x`.

    `kept` is `[row, 3, column, example]` of the state's rows: the mean; 1 over what is divided by; and that
    over the variance, or 0 where the floor is larger. `scratch` is as one row of `sums`.
    """
    half, n_channels = len(rows) // 2, x.shape[2]
    mean, square = scratch[0, 0], scratch[1, 0]
    for row in range(state.shape[0]):
        at = first + row
        for column in range(state.shape[1]):
            mean[:] = 0
            square[:] = 0
            for k in range(max(0, half - at), min(len(rows), height + half - at)):
                weight, heard = rows[k] / n_channels, at + k - half - window
                means, squares = sums[heard, 0, left + column], sums[heard, 1, left + column]
                for e in range(len(mean)):
                    mean[e] = fma(weight, means[e], mean[e])
                    square[e] = fma(weight, squares[e], square[e])
            means, factors = kept[row, 0, column], kept[row, 1, column]
            _keep(mean, square, floor, means, factors, kept[row, 2, column])
            for c in range(n_channels):
                inputs, states = x[at - window, left + column, c], state[row, column, c]
                for e in range(len(means)):
                    states[e] = downcast((upcast(inputs[e]) - means[e]) * factors[e], states[e])


@compiled
def _keep(mean: Array, square: Array, floor: float, means: Array, factors: Array, slopes: Array) -> None:
    """Of one place, for each example."""
    for e in range(len(mean)):
        variance = square[e] - mean[e] * mean[e]
        deviation = math.sqrt(variance if variance > 0 else 0.0)
        factor = 1.0 / (deviation if deviation > floor else floor)
        means[e], factors[e] = mean[e], factor
        slopes[e] = factor / variance if deviation > floor else 0.0


@compiled
def find_returned(
    x: Array, delta: Array, kept: Array, returned: Array, scratch: Array, columns: Array, left: int
) -> None:
    """What windows return to the states in them: for a state x, `returned[0] + x * returned[1]`, by rows.

    All are of the same rows; `returned` is `[row, 2, column, example]` of the columns of `x`, `scratch` is as
    one row of it. Column 0 of `delta` lies over column `left` of `x`.
    """
    for row in range(delta.shape[0]):
        for column in range(delta.shape[1]):
            means, factors, slopes = kept[row, 0, column], kept[row, 1, column], kept[row, 2, column]
            constant, slope = scratch[0, column], scratch[1, column]
            constant[:] = 0
            slope[:] = 0
            for c in range(delta.shape[2]):
                inputs, errors = x[row, left + column, c], delta[row, column, c]
                for e in range(len(constant)):
                    error = upcast(errors[e])
                    constant[e] += error
                    slope[e] = fma(error, upcast(inputs[e]) - means[e], slope[e])
            for e in range(len(constant)):
                slope[e] *= slopes[e]
                constant[e] = constant[e] * factors[e] - means[e] * slope[e]
        for k in range(2):
            add_columns(scratch[k, : delta.shape[1]], returned[row, k], columns, left)


@compiled
def find_errors(
    out: Array,
    start: int,
    x: Array,
    window: int,
    delta: Array,
    kept: Array,
    first: int,
    returned: Array,
    heard: int,
    rows: Array,
    accumulate: bool,
    scratch: Array,
    left: int,
) -> None:
    """Rows of the input from `start` on.

    `x` begins at row `window`, `delta` and `kept` at row `first`, `returned` at row `heard`; `scratch` is as
    one row of it. Column 0 of `delta` lies over column `left` of `x`.
    """
    half, n_channels, total = len(rows) // 2, x.shape[2], scratch[0, 0]
    for row in range(out.shape[0]):
        at = start + row
        low, high = max(heard, at - half), min(heard + len(returned), at + half + 1)
        for column in range(out.shape[1]):
            for c in range(n_channels):
                errors, inputs = out[row, column, c], x[at - window, column, c]
                for e in range(len(total)):
                    total[e] = upcast(errors[e]) if accumulate else type(total[e])(0)
                for listener in range(low, high):
                    weight = -rows[at - listener + half] / type(rows[0])(n_channels)
                    place = listener - heard
                    constant, slope = returned[place, 0, column], returned[place, 1, column]
                    for e in range(len(total)):
                        total[e] = fma(weight, fma(upcast(inputs[e]), slope[e], constant[e]), total[e])
                    if listener == at and 0 <= column - left < delta.shape[1]:
                        own = column - left
                        _add_own(total, delta[at - first, own, c], kept[at - first, 1, own])
                for e in range(len(total)):
                    errors[e] = downcast(total[e], errors[e])


@compiled
def _add_own(total: Array, errors: Array, factors: Array) -> None:
    """What a node returns to its own state."""
    for e in range(len(total)):
        total[e] = fma(upcast(errors[e]), factors[e], total[e])
