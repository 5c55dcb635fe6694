"""Courses of any driver in virtual time: its accuracy by time, and the bytes that it sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, inf
from typing import Any

import numpy as np

from examples.reproduce.two_functions import EXAMPLES, Problem
from examples.reproduce.virtual import Hosts, World
from partita.engine.drivers import Driver
from partita.engine.methods import Objective
from partita.engine.parameters import Vector
from partita.engine.parameters.snapshot import NotFinite
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.commands import POINT, Evaluate, Portions
from partita.engine.protocol.events import Span
from partita.engine.protocol.journaled_plan import JournaledPlan


@dataclass
class Course:
    """The accuracy of a run over time.

    Args:
        points: (virtual seconds, share of held-out pictures that are right).
        n_bytes: sent in all.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    n_bytes: float = 0.0

    def reached_s(self, target: float) -> float:
        """Returns the time from which on three looks in a row have had an accuracy; infinity: never."""
        for n in range(len(self.points) - 2):
            if all(found >= target for _, found in self.points[n : n + 3]):
                return self.points[n][0]
        return inf


def course(
    driver: Driver, problem: Problem, hosts: Hosts, *, seed: int, target: float, until_s: float
) -> Course:
    """Plays a run until it has had an accuracy three times in a row, or the time is over."""
    found, world = Course(), (BatchWorld if driver.evaluates else World)(driver, problem, hosts, seed=seed)
    every_s = 5 * hosts.step_s
    for n in range(1, int(until_s / every_s) + 1):
        try:
            world.play(n * every_s)
        except NotFinite:
            break  # the learning rate is too high
        found.points.append((n * every_s, problem.accuracy(world.point)))
        if found.reached_s(target) < inf:
            break
    found.n_bytes = world.n_bytes
    return found


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
        for rank, (gone, back) in hosts.dead.items():
            if gone <= at < back:
                free[rank] = back
        ends: list[float] = []
        portions = EXAMPLES // self._problem.batch
        for _ in range(portions):
            rank = int(np.argmin(free))
            drawn = exp(hosts.spread * self._draw.normal() - hosts.spread**2 / 2)
            free[rank] += hosts.step_s * drawn * hosts.slow.get(rank, 1.0)
            ends.append(free[rank])
        last = max(ends)
        if self._driver.backups:
            last = min(last, min(free) + hosts.step_s) if len(ends) > 1 else last
        self.n_bytes += 2 * replicas * hosts.n_bytes
        return last + hosts.pass_s - at
