"""Functions to be minimised, as `x -> (value, gradient)` in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import rosen, rosen_der
from sklearn import datasets

Array = npt.NDArray[Any]
Function = Callable[[Array], tuple[float, Array]]


def rosenbrock(x: Array) -> tuple[float, Array]:
    return float(rosen(x)), rosen_der(x)


def quadratic(n: int, condition: float) -> tuple[Function, Array, Array]:
    """Function, start and minimum; eigenvalues from 1 to `condition`, in no direction of an axis."""
    rng = np.random.default_rng(n)
    turn, _ = np.linalg.qr(rng.normal(size=(n, n)))
    matrix = turn * np.geomspace(1, condition, n) @ turn.T
    right = rng.normal(size=n)
    return (
        lambda x: (float(0.5 * x @ matrix @ x - right @ x), matrix @ x - right),
        np.zeros(n),
        np.linalg.solve(matrix, right),
    )


@cache
def examples(name: str) -> tuple[Array, Array]:
    """`[example, input]`, standardised, and one-hot `[example, class]`."""
    inputs, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    inputs = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-9)
    return inputs, np.eye(labels.max() + 1)[labels]


class Logistic:
    """Multinomial logistic regression, by examples: weights `[class, input]`, then a bias for each class."""

    def __init__(self, inputs: Array, targets: Array) -> None:
        self.inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
        self.targets = targets
        self.start = np.zeros(self.inputs.shape[1] * targets.shape[1])

    def sums(self, x: Array, start: int = 0, stop: int | None = None) -> tuple[float, Array]:
        """The sum of the losses of examples `[start, stop)`, and of their gradients."""
        inputs, targets = self.inputs[start:stop], self.targets[start:stop]
        losses, errors = _cross_entropy(inputs @ x.reshape(targets.shape[1], -1).T, targets)
        return float(losses.sum()), (errors.T @ inputs).ravel()

    def mean(self, l2: float) -> Function:
        def function(x: Array) -> tuple[float, Array]:
            loss, gradient = self.sums(x)
            n = len(self.inputs)
            return loss / n + l2 / 2 * float(x @ x), gradient / n + l2 * x

        return function


def network(name: str, hidden: int, l2: float) -> tuple[Function, Array]:
    """Function and start of a two-layer network with tanh."""
    inputs, targets = examples(name)
    shapes = ((hidden, inputs.shape[1]), (hidden,), (targets.shape[1], hidden), (targets.shape[1],))
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def function(x: Array) -> tuple[float, Array]:
        first, first_bias, second, second_bias = (
            piece.reshape(shape) for piece, shape in zip(np.split(x, cuts[:-1]), shapes, strict=True)
        )
        states = np.tanh(inputs @ first.T + first_bias)
        losses, errors = _cross_entropy(states @ second.T + second_bias, targets)
        errors /= len(inputs)
        below = errors @ second * (1 - states**2)
        pieces = (below.T @ inputs, below.sum(axis=0), errors.T @ states, errors.sum(axis=0))
        gradient = np.concatenate([piece.ravel() for piece in pieces]) + l2 * x
        return float(losses.mean()) + l2 / 2 * float(x @ x), gradient

    return function, np.random.default_rng(0).normal(size=cuts[-1]) * 0.3


def _cross_entropy(scores: Array, targets: Array) -> tuple[Array, Array]:
    """`[example]` losses, and errors `[example, class]`."""
    scores = scores - scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    sums = powers.sum(axis=1, keepdims=True)
    return np.log(sums[:, 0]) - (scores * targets).sum(axis=1), powers / sums - targets
