"""A run of a batch method in virtual time: its evaluations are divided among replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from examples.reproduce.two_functions import EXAMPLES, Problem
from examples.reproduce.virtual.hosts import Hosts
from partita.engine.methods import Objective
from partita.engine.parameters import Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.commands import POINT, Evaluate, Portions
from partita.engine.protocol.events import Span
from partita.engine.protocol.journaled_plan import JournaledPlan


class BatchWorld:
    """A run of a batch method: an evaluation of all pictures is divided among replicas by minibatches.

    A replica takes the next minibatch when it has done its last; with backups, idle replicas do those again
    that others still have, and the first result counts.
    """

    def __init__(self, driver: Any, problem: Problem, hosts: Hosts, *, seed: int = 0) -> None:
        self.now, self.n_bytes = 0.0, 0.0
        self._driver, self._problem, self._hosts = driver, problem, hosts
        self._draw = np.random.default_rng([seed, 1])
        self._store = VectorStore(problem.start(seed))
        self._points = [(0.0, self._store.read(Span(POINT, 0, self._store.size)).copy())]
        self._worker = self._evaluations()

    @property
    def point(self) -> Vector:
        """The last point that was evaluated in full by now."""
        return [point for at, point in self._points if at <= self.now or at == 0.0][-1]

    def play(self, until_s: float) -> None:
        """Plays evaluations until a time, or until the method has ended."""
        while self._points[-1][0] <= until_s and next(self._worker, None) is not None:
            pass
        self.now = until_s

    def finish(self) -> None:
        """Does nothing: the last point is that of the work."""

    def _evaluations(self) -> Iterator[int]:
        steps = JournaledPlan(self._driver.method.steps(Objective(Portions(1, 1))))
        at = 0.0
        while isinstance(steps.asks, tuple):
            scalars: list[float] = []
            for operation in steps.asks:
                if not isinstance(operation, Evaluate):
                    scalars += self._store.execute(operation)
                    continue
                x = self._store.vector(POINT).copy()
                for segment in operation.segments:
                    at += self._seconds(at)
                    self._store.target(segment.vector)[...] = self._problem.gradient(x)
                    scalars += (self._problem.loss(x), 0.0)
                self._points.append((at, x))
                yield len(self._points)
            steps.advance(tuple(scalars))

    def _seconds(self, at: float) -> float:
        """Draws the time of an evaluation that begins at a time."""
        hosts, replicas = self._hosts, self._driver.replicas
        free = [at + hosts.pass_s] * replicas
        for rank, (_, back) in hosts.dead.items():
            if hosts.is_dead(rank, at):
                free[rank] = back
        ends: list[float] = []
        portions = EXAMPLES // self._problem.batch
        for _ in range(portions):
            rank = int(np.argmin(free))
            free[rank] += hosts.minibatch_s(rank, self._draw)
            ends.append(free[rank])
        last = max(ends)
        if self._driver.backups:
            last = min(last, min(free) + hosts.step_s) if len(ends) > 1 else last
        self.n_bytes += 2 * replicas * hosts.n_bytes
        return last + hosts.pass_s - at
