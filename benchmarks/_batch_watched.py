"""Our batch methods on a problem, by `train` over processes, and the times that a clock beside the method
measures.

A method runs in the process that called `train`, so a method around it knows when an evaluation was asked for
and when its answer came. Nothing before the first answer is counted: processes start until then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from benchmarks._batch_problems import Problem
from benchmarks._recipe import Array
from partita.engine import Method, Objective, Outcome, Sandblaster, train
from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Iterated,
    Request,
    Scalars,
    Segment,
    Steps,
    dot,
    evaluation_in,
)
from partita.partitioner import Cluster, Plan, partition


@dataclass
class Watched(Method):
    """A method that records its times.

    Args:
        method: what it does.
        until: it ends with an iteration whose loss is as small.
        begun: called with the first answer; then all hosts are there.
        done: called with its end.

    Attributes:
        asked, answered: seconds at which evaluations were asked for and answered.
        ended: seconds at which it ended.
        iterated: iterations, and the seconds at which each was over.
        outcome: how it ended.
    """

    method: Method
    until: float = field(default=-math.inf, repr=False)
    begun: Callable[[], None] = field(default=lambda: None, repr=False)
    done: Callable[[], None] = field(default=lambda: None, repr=False)
    asked: list[float] = field(default_factory=list, repr=False)
    answered: list[float] = field(default_factory=list, repr=False)
    ended: float = field(default=0.0, repr=False)
    iterated: list[tuple[Iterated, float]] = field(default_factory=list, repr=False)
    outcome: Outcome | None = field(default=None, repr=False)

    def steps(self, objective: Objective) -> Steps:
        """Yields the requests of the method, and records their times."""
        inner = self.method.steps(objective)
        try:
            item = next(inner)
            while True:
                if isinstance(item, Iterated):
                    self.iterated.append((item, time.perf_counter()))
                    if item.loss <= self.until:
                        inner.close()
                        return Outcome("stopped", "the loss is as small as was asked for")
                    item = inner.send((yield item))
                else:
                    item = inner.send((yield from self._asked(item)))
        except StopIteration as end:
            self.outcome = end.value
            return self.outcome
        finally:
            self.ended = time.perf_counter()
            self.done()

    def _asked(self, request: Request) -> Generator[Request, Scalars, Scalars]:
        evaluates = evaluation_in(request) is not None
        if evaluates:
            self.asked.append(time.perf_counter())
        found: Scalars = yield request
        if evaluates:
            self.answered.append(time.perf_counter())
            if len(self.answered) == 1:
                self.begun()
        return found


@dataclass(frozen=True)
class SamePoint(Method):
    """Evaluates at one point again and again, and changes nothing: what an evaluation costs.

    Args:
        evaluations: of all examples.
        products: requests of one dot product each, after these.
    """

    evaluations: int
    products: int = 0

    def steps(self, objective: Objective) -> Steps:
        """One request for each evaluation."""
        portions = objective.portions
        for n in range(self.evaluations):
            loss, _ = yield (Evaluate((Segment("gradient", 0, portions.per_epoch),)),)
            yield Iterated(n + 1, loss / portions.examples, 0.0, 0.0, n + 1)
        for _ in range(self.products):
            yield (dot(POINT, POINT),)
        return Outcome("stopped", "all is done")


@dataclass(frozen=True)
class Ours:
    """The times of a run.

    Args:
        start_s: from the call of `train` to the first answer: processes, data, connections.
        method: the watched method.
    """

    start_s: float
    method: Watched

    @property
    def seconds(self) -> float:
        """Time from the end of the first evaluation to that of the last iteration (seconds)."""
        return self.method.iterated[-1][1] - self.method.answered[0]

    @property
    def evaluation_s(self) -> list[float]:
        """Seconds of each evaluation, from the request to the answer."""
        return [b - a for a, b in zip(self.method.asked, self.method.answered, strict=True)]

    @property
    def evaluations_per_s(self) -> float:
        """Rate of evaluations after the first, with everything that is done between them."""
        answered = self.method.answered
        return (len(answered) - 1) / (answered[-1] - answered[0])


def plan_of(problem: Problem, portion: int, *, precision: str = "float32", machines: int = 1) -> Plan:
    """One replica, of one thread on each machine."""
    return partition(problem.graph, Cluster.local(machines), batch=portion, precision=precision)


def data_of(problem: Problem, precision: str = "float32") -> dict[str, Array]:
    """The data of a problem, in the form that `train` takes."""
    return {
        name: array if array.dtype.kind == "i" else array.astype(precision)
        for name, array in problem.data.items()
    }


def play(problem: Problem, plan: Plan, method: Watched, **settings: object) -> Ours:
    """A run from the initial parameters of seed 0.

    Args:
        problem: what is minimised.
        plan: a replica.
        method: what is done; used once.
        settings: of `Sandblaster`.
    """
    driver = Sandblaster(method=method, l2=problem.l2, **settings)
    called = time.perf_counter()
    train(plan, data_of(problem, plan.precision), driver=driver, show="nothing")
    return Ours(method.answered[0] - called, method)
