"""Functions of a vector of parameters as networks: each node computes a residual, a loss adds up the squares.

The functions of nodes stand at module level, so that other processes can import them.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from benchmarks._recipe import Array
from partita.layers import HalfSquaredError, Network, OneToOne, Patch, node, per_node

STEEP: Final = math.sqrt(200.0)
"""A residual is squared and halved, and the valley's square counts a hundred times."""

SLOPE: Final = math.sqrt(2.0)


@node(OneToOne(), shift=per_node("zeros"))
def moved(incoming, shift):  # type: ignore[no-untyped-def]
    """A place that the parameters move: it begins where the input says."""
    return incoming[0] + shift


@moved.downward
def moved_errors(incoming, shift, state, error):  # type: ignore[no-untyped-def]
    return incoming * 0 + error, error


@node(Patch(2))
def valley(incoming):  # type: ignore[no-untyped-def]
    """Distance of the second coordinate from the parabola over the first."""
    return STEEP * (incoming[1] - incoming[0] * incoming[0])


@valley.downward
def valley_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    errors = 0.0 * incoming
    errors[0] = -2.0 * STEEP * error * incoming[0]
    errors[1] = STEEP * error
    return (errors,)


@node(Patch(2))
def slope(incoming):  # type: ignore[no-untyped-def]
    """Distance of the first coordinate from 1."""
    return SLOPE * (1.0 - incoming[0])


@slope.downward
def slope_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    errors = 0.0 * incoming
    errors[0] = -SLOPE * error
    return (errors,)


@node(OneToOne(), factor=per_node("ones"))
def scaled(incoming, factor):  # type: ignore[no-untyped-def]
    """A parameter times its input."""
    return factor * incoming[0]


@scaled.downward
def scaled_errors(incoming, factor, state, error):  # type: ignore[no-untyped-def]
    return 0.0 * incoming + factor * error, error * incoming[0]


def rosenbrock(n: int) -> Network:
    """The function of n coordinates: `sum_i 100 (x[i+1] - x[i]^2)^2 + (1 - x[i])^2`.

    Source: Rosenbrock 1960, chained as in `scipy.optimize.rosen`.
    """
    net = Network(f"rosenbrock-{n}")
    place = moved(name="place")(net.input("start", shape=(n, 1)))
    steep, slight = valley(name="valley")(place), slope(name="slope")(place)
    zero = net.target("zero")
    net.loss = (HalfSquaredError()(steep, zero), HalfSquaredError()(slight, zero))
    return net


def rosenbrock_data(n: int, examples: int) -> dict[str, Array]:
    """The usual start (-1.2, 1, -1.2, 1, ...), so many times: then their mean is the function too."""
    start = np.where(np.arange(n) % 2 == 0, -1.2, 1.0)[:, None]
    return {"start": np.stack([start] * examples), "zero": np.zeros((examples, n - 1, 1))}


def quadratic(n: int) -> Network:
    """`sum_i (s[i] x[i] - t[i])^2 / 2`, where s and t are data."""
    net = Network(f"quadratic-{n}")
    state = scaled(name="state")(net.input("scale", shape=(n,)))
    net.loss = HalfSquaredError()(state, net.target("goal"))
    return net


def quadratic_data(n: int, examples: int, *, condition: float) -> dict[str, Array]:
    """Scales from 1 to the root of the condition number, evenly by their logarithm; a goal for each."""
    scale = condition ** (0.5 * np.arange(n) / (n - 1))
    goal = np.cos(np.arange(n))
    return {"scale": np.stack([scale] * examples), "goal": np.stack([goal] * examples)}
