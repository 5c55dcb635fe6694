"""The arithmetic that stands for a network: least squares over few numbers, and SGD with momentum.

Every example couples all machines, as a network's does. A machine holds numbers of its own, and a few that
all machines share, as machines share the weights of a convolution: these are two parameters, of which an
optimizer may need the norms. All results have the same bits each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from partita.engine.protocol.kept_vector import Kept

T = TypeVar("T")
Vector: TypeAlias = tuple[float, ...]

STATE: Final = ("parameters", "momentum")
"""The vectors of the state of every part; a driver may keep more, see `state_of`."""


def momentum_of(vector: str) -> str:
    """Returns the name of the momentum of a vector that an optimizer updates."""
    return "momentum" if vector == "parameters" else f"state.{vector}_momentum"


def state_of(driver: Any) -> tuple[str, ...]:
    """Returns the vectors that make up the state of a part under a driver."""
    kept: Mapping[str, Kept] = getattr(driver, "kept_vectors", {})
    return (*STATE, *kept, *(momentum_of(name) for name, one in kept.items() if one.optimizer is not None))


def start_of(driver: Any, parameters: Vector) -> tuple[Vector, ...]:
    """Returns the first numbers of these vectors."""
    kept: Mapping[str, Kept] = getattr(driver, "kept_vectors", {})
    zeros = (0.0,) * len(parameters)
    copies = {"parameters", *(name for name, one in kept.items() if one.start == "parameters")}
    return tuple(parameters if name in copies else zeros for name in state_of(driver))


def scratch_of(driver: Any) -> tuple[str, ...]:
    """Returns the vectors that hold a number for each parameter, and are not of the state."""
    return ("gradient", "sum", *getattr(driver, "scratch_vectors", ()))


RATE: Final = 0.125
DECAY: Final = 0.5


class Regression:
    """A function of the numbers of all machines.

    Attributes:
        own: how many numbers each machine has for itself; `shared` more follow in its vectors.
        start: the first parameters, by machine.
        has_momentum: whether updates have one.
    """

    has_momentum = True

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

    def norms(self, replicas: int) -> int:
        """The size of "norms": sums of squares by replica, machine, parameter, and value or gradient."""
        return replicas * len(self.own) * 4

    def measure(
        self, vectors: dict[str, list[float]], spans: Iterable[tuple[int, int]], *, replica: int, machine: int
    ) -> None:
        """Writes sums of squares of these ranges to a part's place in "norms", and zeros to all others."""
        norms = [0.0] * len(vectors["norms"])
        first = 4 * (replica * len(self.own) + machine)
        for start, stop in spans:
            for i in range(start, stop):
                place = first + 2 * (i >= self.own[machine])
                norms[place] += vectors["parameters"][i] ** 2
                norms[place + 1] += vectors["gradient"][i] ** 2
        vectors["norms"][:] = norms

    def update(
        self,
        vectors: dict[str, list[float]],
        start: int,
        stop: int,
        *,
        machine: int,
        normed: bool,
        scale: float,
        to: str = "parameters",
        by: str = "gradient",
    ) -> None:
        """Updates a range of a vector and its momentum by the same range of another one.

        `normed`: the gradient of each parameter is scaled by its norms, which are in "norms". `scale`: factor
        of the learning rate.
        """
        parameters, momentum, gradient = vectors[to], vectors[momentum_of(to)], vectors[by]
        sums = [math.fsum(vectors["norms"][n::4]) for n in range(4)] if normed else [0.0] * 4
        factors = [math.sqrt((1 + sums[n]) / (1 + sums[n + 1])) for n in (0, 2)]
        for i in range(start, stop):
            change = factors[i >= self.own[machine]] * gradient[i]
            if self.has_momentum:
                change = momentum[i] = DECAY * momentum[i] + change
            parameters[i] -= RATE * scale * change

    def overflows(self, step: int, scale: float) -> bool:
        """Returns whether gradients of a step are not finite with a scale of its loss."""
        return scale > 2.0 ** Random(f"{self.start} {step}").randint(10, 16)

    def scaled(
        self, gradients: Sequence[Sequence[float]], step: int, scale: float, *, is_hit: bool
    ) -> list[list[float]]:
        """Returns gradients times a scale. Where it is too high one machine has a number that is not finite,
        in a replica that `is_hit`.
        """
        found = [[scale * number for number in part] for part in gradients]
        if is_hit and self.overflows(step, scale):
            machines = [machine for machine, n in enumerate(self.own) if n]
            found[machines[step % len(machines)]][0] = math.inf
        return found

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
