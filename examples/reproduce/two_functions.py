"""A small network on scikit-learn's digits as two NumPy functions of parameters and a minibatch.

`outputs` and `gradients` are all that `DistBelief` needs of a user, and what runs in virtual time compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from partita.engine.parameters import Vector

EXAMPLES, HELD_OUT, HIDDEN = 1440, 357, 32
Arrays = Mapping[str, npt.NDArray[Any]]


def first_parameters(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Returns the parameters of a layer of `HIDDEN` nodes and of ten scores."""
    draw = np.random.default_rng(seed)
    first, second = draw.normal(size=(64, HIDDEN)) / 8, draw.normal(size=(HIDDEN, 10)) / HIDDEN**0.5
    found = {"first": first, "bias": np.zeros(HIDDEN), "second": second, "scores": np.zeros(10)}
    return {name: values.astype(np.float32) for name, values in found.items()}


def outputs(parameters: Arrays, batch: Arrays) -> npt.NDArray[Any]:
    """Returns the probabilities of the digits, `[example, 10]`."""
    hidden = np.maximum(batch["image"] @ parameters["first"] + parameters["bias"], 0)
    scores = hidden @ parameters["second"] + parameters["scores"]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)  # type: ignore[no-any-return]


def gradients(parameters: Arrays, batch: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Returns the gradients of the mean cross-entropy over a minibatch.

    Where it has probabilities "taught", there is a second cross-entropy, from them, times the "weight".
    """
    hidden = np.maximum(batch["image"] @ parameters["first"] + parameters["bias"], 0)
    found = outputs(parameters, batch)
    error = found.copy()
    error[np.arange(len(error)), batch["digit"]] -= 1
    if "taught" in batch:
        error += batch["weight"] * (found - batch["taught"])
    error /= len(error)
    back = (error @ parameters["second"].T) * (hidden > 0)
    return {
        "first": batch["image"].T @ back,
        "bias": back.sum(0),
        "second": hidden.T @ error,
        "scores": error.sum(0),
    }


def pictures() -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Returns the training pictures and the held-out ones, in an order that is always the same."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    held_out = {"image": images[:HELD_OUT], "digit": labels[:HELD_OUT]}
    return {"image": images[HELD_OUT:], "digit": labels[HELD_OUT:]}, held_out


class Problem:
    """The two functions at points that are flat vectors.

    Attributes:
        batch: pictures in a minibatch.
        shapes: of the parameters, by name, in the order in which they lie.
    """

    def __init__(self, *, batch: int = 20) -> None:
        self.batch = batch
        self._data, self._held_out = pictures()
        self.shapes = {name: values.shape for name, values in first_parameters().items()}

    def start(self, seed: int) -> Vector:
        """Returns a point to start from."""
        return np.concatenate([values.ravel() for values in first_parameters(seed).values()])

    def gradient(
        self, point: Vector, examples: Any = slice(None), *, taught: Any = None, weight: float = 0.0
    ) -> Vector:
        """Returns the mean gradient over some pictures; with probabilities that are `taught`, see
        `gradients`.
        """
        batch = {name: values[examples] for name, values in self._data.items()}
        if taught is not None:
            batch |= {"taught": taught, "weight": np.asarray(weight, point.dtype)}
        found = gradients(self._named(point), batch)
        return np.concatenate([found[name].ravel() for name in self.shapes])

    def predictions(self, point: Vector, examples: Any) -> Vector:
        """Returns the probabilities of the digits on some training pictures, `[example, 10]`."""
        return outputs(self._named(point), {"image": self._data["image"][examples]})

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The digits on the training pictures."""
        return self._data["digit"]

    def loss(self, point: Vector) -> float:
        """Returns the mean cross-entropy over the training pictures."""
        found = outputs(self._named(point), self._data)
        return float(-np.log(found[np.arange(len(found)), self._data["digit"]] + 1e-30).mean())

    def accuracy(self, point: Vector) -> float:
        """Returns the share of held-out pictures that are right."""
        found = outputs(self._named(point), self._held_out).argmax(1)
        return float((found == self._held_out["digit"]).mean())

    def _named(self, point: Vector) -> dict[str, Vector]:
        named, position = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            named[name] = point[position : position + size].reshape(shape)
            position += size
        return named
