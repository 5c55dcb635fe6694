"""A batch method in one process, on any function: to try a method, or to use one without machines.

The vectors are in the store that a shard has, so a method sums here as it does on shards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.methods.lbfgs import LBFGS
from partita.engine.methods.method import Method
from partita.engine.methods.objective import Objective
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore
from partita.engine.protocol.commands import (
    POINT,
    Evaluate,
    Iterated,
    Outcome,
    Portions,
    Request,
    Scalars,
    Segment,
    Steps,
)
from partita.engine.protocol.journaled_plan import JournaledPlan

Summed: TypeAlias = tuple[float, float, Vector]
"""Sum of the losses of a segment's examples, number of those that are right, and `[n]` the sum of their
gradients, divided by the size of a portion.
"""


@dataclass(frozen=True, slots=True)
class Minimum:
    """Result of a method.

    Args:
        x: `[n]`, the point.
        loss: value of the function there.
        outcome: how the method ended, and why.
        iterations: results of each iteration.
        evaluations: number of calls of the function.
    """

    x: Vector
    loss: float
    outcome: Outcome
    iterations: tuple[Iterated, ...]
    evaluations: int


def minimise(
    function: Callable[[Vector], tuple[float, npt.ArrayLike]],
    start: npt.ArrayLike,
    method: Method | None = None,
    *,
    l2: float = 0.0,
) -> Minimum:
    """Minimises a function of a vector.

    Args:
        function: `x` `[n]` -> (value, gradient `[n]`). It must return the same for the same `x`, and gets a
            vector of its own.
        start: `[n]`; float32 stays so, anything else becomes float64.
        method: None is `LBFGS()`.
        l2: `l2 / 2 * |x|^2` is added to the function.

    Raises:
        ValueError: the start is not a vector, the gradient is not of its size, or the method makes an
            impossible request.
    """
    vector = np.asarray(start)
    store = VectorStore(vector if vector.dtype == np.float32 else vector.astype(np.float64))
    last, evaluations = np.nan, 0

    def evaluate(x: Vector, segment: Segment) -> Summed:
        nonlocal last, evaluations
        value, gradient = function(x)
        last, evaluations = float(value), evaluations + 1
        return last, 0.0, np.asarray(gradient, x.dtype)

    steps = (LBFGS() if method is None else method).steps(Objective(Portions(1, 1), l2=l2))
    outcome, iterations = play(steps, store, evaluate)
    x = store.snapshot().values
    loss = iterations[-1].loss if iterations else last + l2 / 2 * float(np.square(x, dtype=np.float64).sum())
    return Minimum(x, loss, outcome, iterations, evaluations)


def play(
    steps: Steps, store: VectorStore, evaluate: Callable[[Vector, Segment], Summed]
) -> tuple[Outcome, tuple[Iterated, ...]]:
    """Plays a method to its end; returns its outcome and its iterations.

    Args:
        steps: the method at work.
        store: its vectors; `x` is the start and, afterwards, the result.
        evaluate: (`x`, a segment) -> sums over its examples.
    """
    method = JournaledPlan(steps)
    iterations: list[Iterated] = []
    while isinstance(method.asks, tuple):
        iterations += method.advance(_answered(method.asks, store, evaluate))
    assert method.outcome is not None
    return method.outcome, tuple(iterations)


def _answered(request: Request, store: VectorStore, evaluate: Callable[[Vector, Segment], Summed]) -> Scalars:
    scalars: list[float] = []
    for operation in request:
        if not isinstance(operation, Evaluate):
            scalars += store.execute(operation)
            continue
        x = store.vector(POINT).copy()
        for segment in operation.segments:
            loss, right, gradient = evaluate(x, segment)
            if gradient.shape != x.shape:
                raise ValueError(
                    f"the gradient is {gradient.shape} and x is {x.shape}; return one number for each of x"
                )
            store.target(segment.vector)[...] = gradient
            scalars += (loss, right)
    return tuple(scalars)
