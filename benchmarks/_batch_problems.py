"""Problems for batch methods: scikit-learn's shipped sets under one layer or two, and functions as networks.

What is minimised is the mean loss of all examples and `l2 / 2` times the squares of all parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from sklearn import datasets

from benchmarks._batch_nodes import quadratic, quadratic_data, rosenbrock, rosenbrock_data
from benchmarks._recipe import Array
from partita.layers import Dense, Graph, HalfSquaredError, Network, SoftmaxCrossEntropy


@dataclass(frozen=True)
class Problem:
    """A function to minimise.

    Args:
        network: a network with its loss.
        data: an array in float64 (or labels) for each input and target.
        l2: weight of the squares of the parameters.
    """

    network: Network
    data: Mapping[str, Array]
    l2: float = 0.0

    @property
    def graph(self) -> Graph:
        """The graph of the network."""
        return self.network.graph()

    @property
    def examples(self) -> int:
        """Number of examples in the data."""
        return len(next(iter(self.data.values())))


SHIFTS: Final = tuple(itertools.product(range(-2, 3), repeat=2))
"""Shifts, in pixels, of the pictures of the larger set of digits: 25 of each, 44,925 in all."""


def digits(*, shifts: tuple[tuple[int, int], ...] = ((0, 0),)) -> tuple[Array, Array]:
    """1,797 pictures of 8 x 8 points as rows from 0 to 1, each moved by every shift, and their labels."""
    found = datasets.load_digits()
    pictures = found.images / 16.0
    moved = [_moved(pictures, down, right) for down, right in shifts]
    rows = np.stack(moved, axis=1).reshape(-1, 64)
    return rows, np.repeat(found.target, len(shifts)).astype(np.int64)


def _moved(pictures: Array, down: int, right: int) -> Array:
    """Pictures moved by a shift; pixels that come in are 0."""
    wide = np.pad(pictures, ((0, 0), (2, 2), (2, 2)))
    found: Array = wide[:, 2 - down : 10 - down, 2 - right : 10 - right]
    return found


def shipped(name: str) -> tuple[Array, Array]:
    """One of scikit-learn's other sets: every column with mean 0 and deviation 1, and what is asked for."""
    found = getattr(datasets, f"load_{name}")()
    target = found.target.reshape(len(found.data), -1)
    if name in REGRESSIONS:
        return _standardised(found.data), _standardised(target)
    return _standardised(found.data), target.astype(np.int64).ravel()


def _standardised(columns: Array) -> Array:
    found: Array = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return found


REGRESSIONS: Final = ("diabetes", "linnerud")
"""Data sets with real-valued targets; the targets of the others are classes."""


def learning(
    rows: Callable[[], tuple[Array, Array]], name: str, *, l2: float, hidden: tuple[int, ...] = ()
) -> Problem:
    """Scores of the classes, or the numbers, by a linear layer over layers of tanh.

    Args:
        rows: gives inputs and targets.
        name: of the network.
        l2: see `Problem`.
        hidden: nodes of each layer of tanh; none makes the problem convex.
    """
    inputs, targets = rows()
    labels = targets.dtype == np.int64
    net = Network(name)
    states = net.input("row", shape=inputs.shape[1:])
    for n, nodes in enumerate(hidden):
        states = Dense(nodes, activation="tanh", name=f"hidden{n}")(states)
    outputs = int(targets.max()) + 1 if labels else targets.shape[1]
    states = Dense(outputs, name="scores")(states)
    net.loss = (SoftmaxCrossEntropy() if labels else HalfSquaredError())(states, net.target("asked"))
    return Problem(net, {"row": inputs, "asked": targets}, l2)


def _rosenbrock(n: int, examples: int = 4) -> Problem:
    return Problem(rosenbrock(n), rosenbrock_data(n, examples))


def _quadratic(n: int, condition: float, examples: int = 4) -> Problem:
    return Problem(quadratic(n), quadratic_data(n, examples, condition=condition))


def _of_shipped(name: str) -> dict[str, Callable[[], Problem]]:
    rows = partial(shipped, name)
    return {
        name: partial(learning, rows, name, l2=1e-3),
        f"{name}, two layers": partial(learning, rows, f"{name}-2", l2=1e-2, hidden=(16,)),
    }


PROBLEMS: Final[Mapping[str, Callable[[], Problem]]] = {
    "digits": partial(learning, digits, "digits", l2=1e-3),
    "digits, two layers": partial(learning, digits, "digits-2", l2=1e-3, hidden=(32,)),
    **_of_shipped("iris"),
    **_of_shipped("wine"),
    **_of_shipped("breast_cancer"),
    **_of_shipped("diabetes"),
    **_of_shipped("linnerud"),
    "rosenbrock 2": partial(_rosenbrock, 2),
    "rosenbrock 100": partial(_rosenbrock, 100),
    "quadratic": partial(_quadratic, 100, 1e4),
    "large digits, two layers": partial(
        learning, partial(digits, shifts=SHIFTS), "digits-512", l2=1e-4, hidden=(512,)
    ),
}
"""The problems, by name."""
