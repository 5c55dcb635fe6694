"""Loops of batch normalisation: sums over examples and places for each channel, and passes over all numbers.

Arrays are `[place, channel, example]`. A lane is a channel of one example: vectors run over lanes, which lie
side by side, so few examples fill them, too. Sums over few places are in the arrays' precision, those over
all places in float64; their order does not depend on which channels a call is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled, fma

_LANES = 1024
"""Lanes at a time: some rows of them fit the first cache."""
_PLACES = 16
"""Places whose sum is in the arrays' precision."""


@register_jitable
def _difference(difference: Any, grad: Any) -> Any:
    return difference


@register_jitable
def _grad(difference: Any, grad: Any) -> Any:
    return grad


def _summing(value: Callable[[Any, Any], Any]) -> Callable[..., None]:
    @compiled
    def add_up(x: Array, grad: Array, mean: Array, real: int, found: Array, begin: int, end: int) -> None:
        """Writes the sums of a value, and of `value * (x - mean)`, over the places and the real examples.

        Args:
            x: `[place, channel, example]`.
            grad: likewise.
            mean: `[channel]`, of their type.
            real: the examples that count, the first ones.
            found: receives the two sums, float64 `[2, channel]`.
            begin: the first channel.
            end: the channel behind the last.
        """
        n_places, _, batch = x.shape
        width = max(1, _LANES // batch)
        lanes, totals = np.empty((3, width, batch), x.dtype), np.empty((2, width, batch))
        for first in range(begin, end, width):
            n = min(width, end - first)
            for channel in range(n):
                lanes[0, channel] = mean[first + channel]
            means = lanes[0, :n].reshape(-1)
            own, products = lanes[1, :n].reshape(-1), lanes[2, :n].reshape(-1)
            sums, product_sums = totals[0, :n].reshape(-1), totals[1, :n].reshape(-1)
            sums[:] = 0
            product_sums[:] = 0
            for start in range(0, n_places, _PLACES):
                own[:] = 0
                products[:] = 0
                for place in range(start, min(start + _PLACES, n_places)):
                    row = x[place, first : first + n].reshape(-1)
                    grads = grad[place, first : first + n].reshape(-1)
                    for i in range(len(means)):
                        difference = row[i] - means[i]
                        factor = value(difference, grads[i])
                        own[i] += factor
                        products[i] = fma(factor, difference, products[i])
                for i in range(len(means)):
                    sums[i] += own[i]
                    product_sums[i] += products[i]
            for channel in range(n):
                found[0, first + channel] = totals[0, channel, :real].sum()
                found[1, first + channel] = totals[1, channel, :real].sum()

    return add_up


_add_up_differences = _summing(_difference)

add_up_gradients = _summing(_grad)
"""The sums of `grad`, and of `grad * (x - mean)`."""


def moments(x: Array, real: int, found: Array, begin: int, end: int) -> None:
    """Writes count, mean and sum of squared differences from it, of channels `[begin, end)`.

    Args:
        x: `[place, channel, example]`.
        real: the examples that count, the first ones.
        found: receives them, float64 `[3, channel]`.
        begin: the first channel.
        end: the channel behind the last.
    """
    count, channels = len(x) * real, slice(begin, end)
    centre, sums = np.zeros(x.shape[1], x.dtype), np.empty((2, x.shape[1]))
    _add_up_differences(x, x, centre, real, sums, begin, end)
    centre[channels] = sums[0, channels] / max(count, 1)
    _add_up_differences(x, x, centre, real, sums, begin, end)
    offset = sums[0, channels] / max(count, 1)  # of the mean, which was rounded
    found[0, channels] = count
    found[1, channels] = centre[channels] + offset
    found[2, channels] = np.maximum(sums[1, channels] - offset * sums[0, channels], 0)


@compiled
def normalise(x: Array, factors: Array, out: Array, begin: int, end: int) -> None:
    """Writes `(x - mean) * scale + bias` of channels `[begin, end)`.

    Args:
        x: `[place, channel, example]`.
        factors: mean, scale and bias, of its type, `[3, channel]`.
        out: receives the result.
        begin: the first channel.
        end: the channel behind the last.
    """
    n_places, _, batch = x.shape
    width = max(1, _LANES // batch)
    lanes = np.empty((3, width, batch), x.dtype)
    for first in range(begin, end, width):
        n = min(width, end - first)
        _spread(factors, first, n, lanes, batch)
        mean, scale, bias = lanes[0, :n].reshape(-1), lanes[1, :n].reshape(-1), lanes[2, :n].reshape(-1)
        for place in range(n_places):
            row, result = x[place, first : first + n].reshape(-1), out[place, first : first + n].reshape(-1)
            for i in range(len(mean)):
                result[i] = fma(row[i] - mean[i], scale[i], bias[i])


@compiled
def write_gradient(x: Array, grad: Array, factors: Array, real: int, out: Array, accumulate: bool) -> None:
    """Writes or adds `scale * grad + slope * (x - mean) + term`.

    Examples that are not real have a gradient of zero, no slope and no term.

    Args:
        x: `[place, channel, example]`.
        grad: likewise.
        factors: mean, scale, slope and term, of their type, `[4, channel]`.
        real: the examples that count, the first ones.
        out: receives the result.
        accumulate: whether to add to what is in `out`.
    """
    n_places, channels, batch = x.shape
    width = max(1, _LANES // batch)
    lanes = np.empty((4, width, batch), x.dtype)
    for first in range(0, channels, width):
        n = min(width, channels - first)
        _spread(factors, first, n, lanes, real)
        mean, scale = lanes[0, :n].reshape(-1), lanes[1, :n].reshape(-1)
        slope, term = lanes[2, :n].reshape(-1), lanes[3, :n].reshape(-1)
        for place in range(n_places):
            row, result = x[place, first : first + n].reshape(-1), out[place, first : first + n].reshape(-1)
            grads = grad[place, first : first + n].reshape(-1)
            if accumulate:
                for i in range(len(mean)):
                    result[i] += fma(scale[i], grads[i], fma(slope[i], row[i] - mean[i], term[i]))
            else:
                for i in range(len(mean)):
                    result[i] = fma(scale[i], grads[i], fma(slope[i], row[i] - mean[i], term[i]))


@register_jitable
def _spread(factors: Array, first: int, n: int, lanes: Array, real: int) -> None:
    """Writes each factor of `n` channels into the lanes of the real examples; zero into the others."""
    for k in range(len(factors)):
        for channel in range(n):
            lanes[k, channel, :real] = factors[k, first + channel]
            lanes[k, channel, real:] = 0
