"""The compiled loops of local contrast normalisation, examples innermost.

A window's mean and deviation are those of a place, not of a node, and a Gaussian may be taken axis by axis.
So channels are summed first, `[row, column, example]`, then columns, then rows: a place costs as many
operations as its window is high and wide, and a node a few more.

Axes: inputs, outputs and gradients `[row, column, channel, example]`, in storage type. Column 0 of outputs
lies over column `left` of `x`. Every sum has a fixed order, and that of an input's gradient runs over
receivers in ascending rows: cuts and threads change no bit. Means and squares are summed in float64, because
the variance is a small difference between them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled, downcast, fma, upcast


class Starts(NamedTuple):
    """The rows at which arrays begin.

    Args:
        out: first row that is computed.
        x: of the inputs.
        own: of the machine's outputs, and of their gradient.
        sums: of the sums over windows.
        left: column of the input over which column 0 of outputs lies.
        height: rows of the input.
    """

    out: int
    x: int
    own: int
    sums: int
    left: int
    height: int


@compiled
def add_channels(x: Array, sums: Array, scratch: Array, columns: Array) -> None:
    """Sums activations and their squares over channels and, weighted, over columns, for each row of `x`.

    `sums` is float64 `[row, 2, column, example]`, `scratch` has the shape of one row of it.
    """
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            first, second = scratch[0, column], scratch[1, column]
            first[:] = 0
            second[:] = 0
            for c in range(x.shape[2]):
                values = x[row, column, c]
                for e in range(len(first)):
                    value = upcast(values[e])
                    first[e] += value
                    second[e] += first.dtype.type(value) * first.dtype.type(value)
        for k in range(2):
            add_columns(scratch[k], sums[row, k], columns, 0)


@compiled
def add_columns(x: Array, out: Array, weights: Array, first: int) -> None:
    """Sums `[column, example]` over the window around each place, weighted; outside there are zeros.

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
    output: Array,
    saved: Array,
    scratch: Array,
    rows: Array,
    floor: float,
    starts: Starts,
) -> None:
    """Computes rows of the output.

    `saved` is `[row, 3, column, example]` of the output's rows: the mean; 1 over the divisor; and that over
    the variance, or 0 where the floor is larger. `scratch` has the shape of one row of `sums`.
    """
    half, n_channels, left = len(rows) // 2, x.shape[2], starts.left
    mean, square = scratch[0, 0], scratch[1, 0]
    for row in range(output.shape[0]):
        at = starts.out + row
        for column in range(output.shape[1]):
            mean[:] = 0
            square[:] = 0
            for k in range(max(0, half - at), min(len(rows), starts.height + half - at)):
                weight, place = rows[k] / n_channels, at + k - half - starts.sums
                means, squares = sums[place, 0, left + column], sums[place, 1, left + column]
                for e in range(len(mean)):
                    mean[e] = fma(weight, means[e], mean[e])
                    square[e] = fma(weight, squares[e], square[e])
            means, factors = saved[row, 0, column], saved[row, 1, column]
            _save(mean, square, floor, means, factors, saved[row, 2, column])
            for c in range(n_channels):
                inputs, values = x[at - starts.x, left + column, c], output[row, column, c]
                for e in range(len(means)):
                    values[e] = downcast((upcast(inputs[e]) - means[e]) * factors[e], values[e])


@compiled
def _save(mean: Array, square: Array, floor: float, means: Array, factors: Array, slopes: Array) -> None:
    for e in range(len(mean)):
        variance = square[e] - mean[e] * mean[e]
        deviation = math.sqrt(variance if variance > 0 else 0.0)
        factor = 1.0 / (deviation if deviation > floor else floor)
        means[e], factors[e] = mean[e], factor
        slopes[e] = factor / variance if deviation > floor else 0.0


@compiled
def sum_windows(
    x: Array, grad: Array, saved: Array, returned: Array, scratch: Array, columns: Array, left: int
) -> None:
    """Sums the gradients of the windows, by rows: an input x gets `returned[0] + x * returned[1]`.

    All arrays are of the same rows; `returned` is `[row, 2, column, example]` of the columns of `x`,
    `scratch` has the shape of one row of it.
    """
    for row in range(grad.shape[0]):
        for column in range(grad.shape[1]):
            means, factors, slopes = saved[row, 0, column], saved[row, 1, column], saved[row, 2, column]
            constant, slope = scratch[0, column], scratch[1, column]
            constant[:] = 0
            slope[:] = 0
            for c in range(grad.shape[2]):
                inputs, errors = x[row, left + column, c], grad[row, column, c]
                for e in range(len(constant)):
                    error = upcast(errors[e])
                    constant[e] += error
                    slope[e] = fma(error, upcast(inputs[e]) - means[e], slope[e])
            for e in range(len(constant)):
                slope[e] *= slopes[e]
                constant[e] = constant[e] * factors[e] - means[e] * slope[e]
        for k in range(2):
            add_columns(scratch[k, : grad.shape[1]], returned[row, k], columns, left)


@compiled
def backward_input(
    out: Array,
    x: Array,
    grad: Array,
    saved: Array,
    returned: Array,
    rows: Array,
    accumulate: bool,
    starts: Starts,
) -> None:
    """Computes rows of the input's gradient."""
    half, n_channels, left = len(rows) // 2, x.shape[2], starts.left
    total = np.empty(x.shape[3], returned.dtype)
    for row in range(out.shape[0]):
        at = starts.out + row
        low, high = max(starts.sums, at - half), min(starts.sums + len(returned), at + half + 1)
        for column in range(out.shape[1]):
            for c in range(n_channels):
                errors, inputs = out[row, column, c], x[at - starts.x, column, c]
                for e in range(len(total)):
                    total[e] = upcast(errors[e]) if accumulate else type(total[e])(0)
                for receiver in range(low, high):
                    weight = -rows[at - receiver + half] / type(rows[0])(n_channels)
                    place = receiver - starts.sums
                    constant, slope = returned[place, 0, column], returned[place, 1, column]
                    for e in range(len(total)):
                        total[e] = fma(weight, fma(upcast(inputs[e]), slope[e], constant[e]), total[e])
                    if receiver == at and 0 <= column - left < grad.shape[1]:
                        own = column - left
                        _add_own(total, grad[at - starts.own, own, c], saved[at - starts.own, 1, own])
                for e in range(len(total)):
                    errors[e] = downcast(total[e], errors[e])


@compiled
def _add_own(total: Array, errors: Array, factors: Array) -> None:
    """Adds a node's gradient with respect to its own input."""
    for e in range(len(total)):
        total[e] = fma(upcast(errors[e]), factors[e], total[e])
