"""Courses of any driver in virtual time: its accuracy by time, and the bytes that it sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from examples.reproduce.two_functions import Problem
from examples.reproduce.virtual import BatchWorld, Hosts, World
from partita.engine.drivers import Driver
from partita.engine.parameters.snapshot import NotFinite


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
    world.finish()
    found.n_bytes = world.n_bytes
    return found
