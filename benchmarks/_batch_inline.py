"""A problem's function, computed by its network in the calling thread, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks._batch_problems import Problem
from benchmarks._recipe import Array
from partita.engine import Session
from partita.partitioner import Cluster, partition


class Played:
    """Called with all parameters, one after another, it gives what is to be minimised, and its gradient."""

    def __init__(self, problem: Problem, session: Session) -> None:
        self._problem, self._session = problem, session
        self._shapes = {p.name: p.shape for p in problem.graph.parameters.values()}
        self._batch: dict[str, Array] | None = dict(problem.data)

    def __call__(self, point: Array) -> tuple[float, Array]:
        self._session.load(self._by_name(point))
        step = self._session.step(self._batch, collect=("gradient",))
        self._batch = None
        gradient = np.concatenate([array.ravel() for array in step.vectors["gradient"].values()])
        l2 = self._problem.l2
        return step.loss + 0.5 * l2 * float(point @ point), gradient + l2 * point

    def _by_name(self, point: Array) -> dict[str, Array]:
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(point, ends[:-1])
        return {
            name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }


@contextmanager
def played(problem: Problem) -> Iterator[Played]:
    """The function, while a session is open."""
    plan = partition(problem.network, Cluster.local(), batch=problem.examples, precision="float64")
    with Session(plan, 0, train=True, hosts="inline") as session:
        yield Played(problem, session)
