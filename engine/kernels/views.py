"""Views of node-major arrays, of NumPy or torch. Nothing here copies."""

from __future__ import annotations

import math

from partita.engine.kernels.kernel import Array


def columns(array: Array) -> Array:
    """`[nodes, example]` of `[rows, other node axes ..., example]`, both C-contiguous."""
    assert array.flags.c_contiguous, (
        f"an array of shape {array.shape} and strides {array.strides} is not contiguous"
    )
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def by_places(array: Array) -> Array:
    """`[place, feature, example]` of `[rows, other axes ..., feature, example]`, both C-contiguous."""
    return array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])


def flat(array: Array) -> Array:
    """All numbers of a C-contiguous array, in their order."""
    assert array.flags.c_contiguous, f"an array of strides {array.strides} is not contiguous"
    return array.reshape(-1)


def rows_of(array: Array, rows: tuple[int, int], window: tuple[int, int]) -> Array:
    """The rows `[start, stop)` of a layer, from the array that holds its rows `window`."""
    assert window[0] <= rows[0] <= rows[1] <= window[1], f"rows {rows} lie outside the window {window}"
    return array[rows[0] - window[0] : rows[1] - window[0]]
