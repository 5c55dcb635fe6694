"""The real computation of the race: gradients and accuracies of a small network, at any point.

A point is all parameters as one flat float32 vector, in the order of the layers. Plans of one machine run in
the calling thread, by the same kernels that hosts run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from partita.engine import Session
from partita.engine.parameters import Vector, initialise
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

EXAMPLES, HELD_OUT = 1440, 357
"""Training and held-out pictures among the 1,797 of scikit-learn."""
Indices = npt.NDArray[np.integer[Any]]


def network(hidden: int = 32, layers: int = 2) -> Network:
    """Builds a small version of the paper's speech network: sigmoid layers below a softmax."""
    net = Network("digits")
    states = net.input("image", shape=64)
    for n in range(1, layers + 1):
        states = Dense(hidden, activation="sigmoid", name=f"hidden{n}")(states)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(states), net.target("digit"))
    return net


class Found(NamedTuple):
    """Mean gradient and mean loss of a minibatch, and its number of correct pictures."""

    gradient: Vector
    loss: float
    correct: int


class Digits:
    """Sessions of the network. Use it as a context manager, in one thread.

    Attributes:
        batch: pictures in a minibatch, and in a portion.
        size: number of parameters.
    """

    def __init__(self, *, batch: int = 10) -> None:
        """Compiles the plans, and shuffles the pictures once."""
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        images, labels = (digits.data[order] / 16.0).astype(np.float32), digits.target[order]
        self._data = {"image": images[HELD_OUT:], "digit": labels[HELD_OUT:]}
        self._held_out = {"image": images[:HELD_OUT], "digit": labels[:HELD_OUT]}
        self.batch, graph = batch, network().graph()
        self._specs = graph.parameters
        self.size = graph.n_parameters
        one, start = Cluster.local(machines=1), initialise(self._specs.values(), 0)
        plans = [partition(graph, one, batch=size) for size in (batch, EXAMPLES, HELD_OUT)]
        self._learner, *self._evaluators = [
            Session(plan, start, train=not n, hosts="inline") for n, plan in enumerate(plans)
        ]

    def start(self, seed: int) -> Vector:
        """A point to start from."""
        return self._joined(initialise(self._specs.values(), seed))

    def gradient(self, point: Vector, examples: Indices) -> Found:
        """The gradient of a minibatch of these pictures."""
        self._learner.load(self._named(point))
        batch = {name: array[examples] for name, array in self._data.items()}
        step = self._learner.step(batch, collect=("gradient",))
        return Found(self._joined(step.vectors["gradient"]), step.loss, step.correct)

    def accuracy(self, point: Vector, *, held_out: bool) -> float:
        """Share of correct pictures at a point, of the held-out pictures or of the training pictures."""
        evaluator, data = self._evaluators[held_out], (self._data, self._held_out)[held_out]
        evaluator.load(self._named(point))
        return evaluator.step(data).correct / len(data["digit"])

    def close(self) -> None:
        """Closes the sessions."""
        for session in (*reversed(self._evaluators), self._learner):
            session.close()

    def _named(self, point: Vector) -> dict[str, Vector]:
        named, position = {}, 0
        for name, spec in self._specs.items():
            size = int(np.prod(spec.shape))
            named[name] = point[position : position + size].reshape(spec.shape)
            position += size
        return named

    def _joined(self, named: Mapping[str, Vector]) -> Vector:
        return np.concatenate([named[name].ravel() for name in self._specs])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
