"""The arithmetic that stands for a network: least squares over few numbers, and SGD with momentum.

Every example couples all machines, as a network's does. A machine holds numbers of its own, and a few that
all machines share, as machines share the weights of a convolution. All results have the same bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
Vector: TypeAlias = tuple[float, ...]

STATE: Final = ("parameters", "momentum")
"""The vectors that make up the state of a part."""

RATE: Final = 0.125
DECAY: Final = 0.5


class Regression:
    """A function of the numbers of all machines.

    Attributes:
        own: how many numbers each machine has for itself; `shared` more follow in its vectors.
        start: the first parameters, by machine.
    """

    def __init__(self, random: Random, own: tuple[int, ...], shared: int, examples: int) -> None:
        self.own, self.shared = own, shared
        size = sum(own) + shared
        whole = [random.uniform(-1.0, 1.0) for _ in range(size)]
        self.start: tuple[Vector, ...] = tuple(tuple(part) for part in self._cut(whole))
        self._examples = [
            ([random.uniform(-1.0, 1.0) for _ in range(size)], random.uniform(-1.0, 1.0))
            for _ in range(examples)
        ]
        self._known: dict[tuple[tuple[Vector, ...], int, int, int], list[list[float]]] = {}

    @property
    def places(self) -> list[list[int]]:
        """By machine, the place of each of its numbers among those of all machines."""
        return self._cut(range(sum(self.own) + self.shared))

    def _cut(self, whole: Sequence[T]) -> list[list[T]]:
        """The vectors of the machines, each with the shared numbers at its end."""
        shared, start, parts = list(whole[sum(self.own) :]), 0, []
        for size in self.own:
            parts.append([*whole[start : start + size], *shared])
            start += size
        return parts

    def gradient(
        self, parameters: Sequence[Sequence[float]], first: int, stop: int, joined: int
    ) -> list[list[float]]:
        """The sum of the gradients of examples `[first, stop)`, divided by the size of the joined batch.

        Each machine has an equal share of the gradient of the shared numbers.
        """
        key = (tuple(map(tuple, parameters)), first, stop, joined)
        if key not in self._known:
            self._known[key] = self._compute(parameters, first, stop, joined)
        return [list(part) for part in self._known[key]]

    def _compute(
        self, parameters: Sequence[Sequence[float]], first: int, stop: int, joined: int
    ) -> list[list[float]]:
        x = [number for part, n in zip(parameters, self.own, strict=True) for number in part[:n]]
        x += parameters[0][self.own[0] :]
        gradient = [0.0] * len(x)
        for features, target in self._examples[first:stop]:
            slope = (sum(map(float.__mul__, features, x)) - target) / joined
            gradient = [held + slope * feature for held, feature in zip(gradient, features, strict=True)]
        n = sum(self.own)
        gradient[n:] = [number / len(self.own) for number in gradient[n:]]
        return self._cut(gradient)


def update(vectors: dict[str, list[float]], start: int, stop: int) -> None:
    """Updates a range of the parameters and their momentum by the same range of the gradient."""
    parameters, momentum, gradient = vectors["parameters"], vectors["momentum"], vectors["gradient"]
    for i in range(start, stop):
        momentum[i] = DECAY * momentum[i] + gradient[i]
        parameters[i] -= RATE * momentum[i]
