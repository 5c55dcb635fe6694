"""One replica in virtual time: what a driver's program knows of it, its vectors and its steps.

The attributes are those of `Member`, which a program may ask for. Which events there are is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from examples.reproduce.two_functions import EXAMPLES, Problem
from partita.engine.drivers import Driver
from partita.engine.parameters import Vector
from partita.engine.parameters.compression import Encoder
from partita.engine.parameters.optimizers import Optimizer, UpdateContext


class Replica:
    """A replica at its driver's program.

    Attributes:
        step: the step under way, or the next one.
        is_complete: whether the work is over.
        vectors: parameters, gradient, and those of the driver.
        states: the parameters after each step, until they are taken.
        exchanges: those with other replicas in which its program has come to take part.
        encoder: writes its messages, where they are compressed.
    """

    machine, view, examples = 0, 1, EXAMPLES
    is_last = anew = False
    points = 0

    def __init__(self, driver: Driver, rank: int, *, start: Vector, batch: int, seed: int) -> None:
        self.rank, self.replica, self.replicas = rank, rank, driver.replicas
        self.members = tuple(range(driver.replicas))
        self.batch, self.seed, self.share = batch, seed, 1.0 / driver.replicas
        self.step, self.is_complete, self.exchanges = 0, False, 0
        self.vectors: dict[str, Vector] = {"parameters": start.copy()}
        for name, kept in driver.kept_vectors.items():
            self.vectors[name] = start.copy() if kept.start == "parameters" else np.zeros_like(start)
        self.states = {0: start}
        self._taught: tuple[float, Any] = 0.0, 0.0  # the shares of teachers so far, and their predictions
        self.encoder: Encoder | None = None
        self.program = driver.replica(self)
        self._driver, self._is_inside = driver, False
        self._states: dict[str, dict[str, Vector]] = {}
        self._updates: dict[str, int] = {}

    def steps(self) -> Iterator[int]:
        """Yields the numbers of its steps, until the work is over."""
        return self._steps_to(None)

    def rounds(self, every: int | None) -> Iterator[Iterator[int]]:
        """Yields the steps of one round after another; where the work is over, what is left of one."""
        while True:
            yield self._steps_to(None if every is None else (self.step // every + 1) * every)
            if self.is_complete:
                return

    def _steps_to(self, stop: int | None) -> Iterator[int]:
        while not self.is_complete and self.step != stop:
            self._is_inside = True
            yield self.step
            self.step, self._is_inside = self.step + 1, False

    def is_safe(self) -> None:
        """Keeps the parameters as those after the step."""
        done = self.step + self._is_inside
        self.states[done] = self.vectors["parameters"].copy()
        if self.encoder is not None:
            self.encoder.commit(self.step)

    def complete(self) -> None:
        """Ends the work: the program begins anew, with what it does then."""
        self.is_complete, self._is_inside, self.exchanges = True, False, 0
        self.program = self._driver.replica(self)

    def share_among(self, ranks: Sequence[int]) -> float:
        """Returns this replica's part of the examples that some ranks have in a step."""
        return 1.0 / len(ranks)

    def passed(self, problem: Problem, examples: Any, *, teaches: float, distil: float) -> Vector | None:
        """Returns the gradient of a pass over some pictures; None for one of a teacher, whose predictions are
        kept with this share.
        """
        point = self.vectors["parameters"]
        if teaches:
            share, before = self._taught
            self._taught = share + teaches, before + teaches * problem.predictions(point, examples)
            return None
        (share, taught), self._taught = self._taught, (0.0, 0.0)
        assert not distil or abs(share - 1.0) < 1e-9, share
        return problem.gradient(point, examples, taught=taught if distil else None, weight=distil)

    def combine(self, into: str, terms: dict[str, float]) -> None:
        """Replaces a vector by a linear combination."""
        parameters = self.vectors["parameters"]
        found = np.zeros_like(parameters)
        for name, factor in terms.items():
            found += parameters.dtype.type(factor) * self.vectors[name]
        self.vectors[into] = found

    def products(self, pairs: tuple[tuple[str, str], ...]) -> Vector:
        """Returns inner products of vectors, `[pair]`."""
        return np.array([float(self.vectors[x].astype(float) @ self.vectors[y]) for x, y in pairs])

    def update(
        self, optimizer: Optimizer, gradient: Vector, *, to: str = "parameters", keep: bool = True
    ) -> None:
        """Updates a vector by an optimizer, with a state of its own, which changes only to `keep` it."""
        state = self._states.setdefault(to, dict(optimizer.state(gradient.size, gradient.dtype)))
        used = state if keep else {name: vector.copy() for name, vector in state.items()}
        updates = self._updates.get(to, 0)
        optimizer.bind(self.vectors[to], np.ascontiguousarray(gradient), used)(UpdateContext(updates))
        self._updates[to] = updates + keep
