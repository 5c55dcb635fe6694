"""Norms of parameters and gradients over all machines: each tells the others the squares of its own.

All add up what they were told in the same order, and come to the same factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partita.engine.kernels.kernel import Array, Call
from partita.engine.runtime.fused_update import Updates


def squares_of(
    learnt: Sequence[tuple[int, Sequence[Array]]], out: Array, sum_of_squares: Callable[[Array], Any]
) -> Call:
    """Adds up the squares of a machine's parameters and of their gradients.

    Args:
        learnt: for each parameter of which the machine owns something, its number in the network, its values
            `[n]` and its gradient `[n]`.
        out: `[parameters of the network, 2]` in float64; what others own stays zero.
        sum_of_squares: of an array, on the device where it lies.
    """

    def call() -> None:
        for number, arrays in learnt:
            for k, array in enumerate(arrays):
                out[number, k] = sum_of_squares(array)

    return call


def factors_of(names: Sequence[str], told: Array, updates: Updates) -> Callable[[], Mapping[str, float]]:
    """Adds up what every machine told, in the order of the machines: the same factors everywhere, to the bit.

    Args:
        names: of the network's parameters.
        told: `[machines, parameters of the network, 2]` in float64.
        updates: what the driver makes of norms.
    """

    def factors() -> Mapping[str, float]:
        values, gradients = told.sum(axis=0).T.tolist()
        return updates.factors(dict(zip(names, zip(values, gradients, strict=True), strict=True)))

    return factors
