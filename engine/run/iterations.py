"""Progress of a batch method: the coordinator's report after each iteration."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TypeAlias

from partita.engine.protocol.coordinator_effects import CoordinatorEffect, IterationDone
from partita.engine.run.progress import Meter


@dataclass(frozen=True)
class Iteration:
    """A batch method after an iteration.

    Args:
        seconds: since the run began.
        iteration: number of iterations done.
        loss: value of the function, with the term of `l2`.
        gradient_norm: the largest absolute value in its gradient.
        step: step of the line search, as a multiple of the direction.
        evaluations: of the function and its gradient, since the method began.
        redone: portions that were assigned more than once, since this run began.
        busy: replicas that had a share in the last evaluation.
        replicas: number of replicas.
        note: exceptional events, in a few words; "" for none.
    """

    seconds: float
    iteration: int
    loss: float
    gradient_norm: float
    step: float
    evaluations: int
    redone: int
    busy: int
    replicas: int
    note: str = ""

    @property
    def done(self) -> int:
        """Iterations done, for the display."""
        return self.iteration

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.6g}  gradient {self.gradient_norm:.1e}  step {self.step:.3g}  "
            f"evaluations {self.evaluations}  redone {self.redone}  busy {self.busy}/{self.replicas}"
        )


@dataclass
class Iterations:
    """Gathers the iterations of a run.

    Args:
        total: the method's limit of iterations; None where it has none.
        history: all iterations.
    """

    total: int | None = None
    history: list[Iteration] = field(default_factory=list)
    title: str = "minimising"
    unit: str = "iteration"

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._looked_at = 0

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def add(self, effect: CoordinatorEffect) -> None:
        """Adds an iteration to the history."""
        assert isinstance(effect, IterationDone), effect
        now = effect.iterated
        self.history.append(
            Iteration(
                self.seconds,
                now.iteration,
                now.loss,
                now.gradient_norm,
                now.step,
                now.evaluations,
                effect.redone,
                effect.busy,
                effect.replicas,
                now.note,
            )
        )

    def latest(self) -> Iteration | None:
        """Returns the last iteration, once."""
        if self._looked_at == len(self.history):
            return None
        self._looked_at = len(self.history)
        return self.history[-1]


Gauge: TypeAlias = Meter | Iterations
"""Adds up the reports of a run, and shows them by `title`, `unit`, `total` and `latest()`."""
