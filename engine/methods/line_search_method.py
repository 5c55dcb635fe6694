"""Methods with a line search: everything but the choice of the direction.

The loop evaluates, searches, checks tolerances and reports iterations; it does not know how a direction is
computed.

An iteration whose first trial is accepted is one request: it combines the direction, moves to the trial and
evaluates; then it computes the move, the change of the gradient and the products for the next direction as if
the trial were accepted, as most are. A further trial overwrites all of that. Point and gradient before the
search are preserved by swapping names, so neither is copied.

With sampled batches a trial evaluates the next batch, and the decrease of the loss is measured on the
examples that both batches share: their loss is tilted so that its slope is the whole batch's. So an iteration
needs one evaluation, and a step that satisfies the curvature condition has a pair with `s'y > 0` over shared
examples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from typing_extensions import override

from partita.engine.methods.line_search import LineSearch, Verdict
from partita.engine.methods.method import Direction, DirectionGenerator, Method
from partita.engine.methods.objective import GRADIENT, Objective, Value
from partita.engine.protocol.commands import (
    POINT,
    Combine,
    Dots,
    Iterated,
    Operation,
    Outcome,
    Request,
    Scalars,
    Steps,
    Swap,
)
from partita.layers.text import counted

DIRECTION: Final = "d"  # vector of the search direction
_BEFORE: Final = "{}_before"  # name of a vector as it was at the start of the search


@dataclass(frozen=True, kw_only=True)
class LineSearchMethod(Method):
    """A method whose subclass writes `directions`; the line search is strong Wolfe, by More and Thuente.

    Args:
        gtol: converged when no absolute value in the gradient is larger.
        ftol: converged when an iteration lowers the loss by no more than this part of it (of 1, where the
            loss is below 1). Ignored with sampled batches, whose losses are of different examples.
        max_iterations: limit of iterations.
        c1: sufficient decrease: a step must lower the loss by this part of what the slope predicts.
        c2: curvature condition: the slope must fall to this part.
        max_evaluations: limit of one line search.

    Raises:
        ValueError: a tolerance below 0, a number of iterations or evaluations below 1, or constants that are
            not `0 < c1 < c2 < 1`.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "tolerance_grad": ("gtol",),
        "tolerance_change": ("ftol",),
        "maxiter": ("max_iterations",),
        "max_iter": ("max_iterations",),
        "iterations": ("max_iterations",),
        "max_eval": ("max_evaluations",),
        "maxls": ("max_evaluations",),
        "history_size": ("history",),
        "m": ("history",),
        "maxcor": ("history",),
        "lr": "a line search finds the length of each step; leave it out",
        "learning_rate": "a line search finds the length of each step; leave it out",
        "line_search_fn": "the line search is strong Wolfe; leave it out",
    }
    """Names of the settings in PyTorch and SciPy."""

    gtol: float = 1e-5
    ftol: float = 2.2e-9
    max_iterations: int = 1000
    c1: float = 1e-3
    c2: float = 0.9
    max_evaluations: int = 20

    def __post_init__(self) -> None:
        for name in ("gtol", "ftol"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; a tolerance must not be below 0")
        for name in ("max_iterations", "max_evaluations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allow at least 1")
        if not 0 < self.c1 < self.c2 < 1:
            raise ValueError(f"c1 is {self.c1} and c2 is {self.c2}; they must be 0 < c1 < c2 < 1")

    @abstractmethod
    def directions(self) -> DirectionGenerator:
        """Yields directions, and receives the scalars of their `then` at the accepted point. May also yield
        requests between them.

        Restarted when no point along a direction is lower; so the first one should be `-g`.
        """

    @override
    def steps(self, objective: Objective) -> Steps:
        return (yield from _Descent(self, objective).steps())


@dataclass(frozen=True, slots=True)
class _Found:
    value: Value
    step: float
    slope: float
    verdict: Verdict
    answer: Scalars


class _Descent:
    """State of one run of a method."""

    def __init__(self, method: LineSearchMethod, objective: Objective) -> None:
        self._method: Final = method
        self._objective: Final = objective
        self._batch = 0
        self._evaluations = 0
        self._last: _Found | None = None
        self._start: Final = _BEFORE.format(POINT)
        self._tail: Final = _BEFORE.format(objective.tail)
        self._n_scalars: Final = objective.n_scalars()

    def steps(self) -> Steps:
        method, done, note = self._method, 0, ""
        now = yield from self._evaluate()
        if not now.finite:
            return _no_start(now)
        if now.largest <= method.gtol:
            return _flat(now)
        directions, fresh = method.directions(), True
        while done < method.max_iterations:
            direction = yield from self._next_direction(directions, begun=not fresh)
            if direction is None:
                return Outcome(
                    "stopped", f"After {counted(done, 'iteration')} the method knows no further direction."
                )
            found = yield from self._search(direction, now)
            if found is None:
                now = yield from self._revert(now)
                if fresh:
                    return _stuck(done, now)
                directions, fresh, note = method.directions(), True, "begun anew"
                continue
            before, now, fresh, done = now, found.value, False, done + 1
            yield self._iterated(done, found, note or direction.note)
            if outcome := self._outcome(before, found):
                return outcome
            note = ""
        return Outcome("stopped", f"Stopped after {counted(done, 'iteration')}, as max_iterations says.")

    def _next_direction(
        self, directions: DirectionGenerator, *, begun: bool
    ) -> Generator[Request, Scalars, Direction | None]:
        answer = self._last.answer if self._last else ()
        try:
            wish = directions.send(answer) if begun else next(directions)
            while not isinstance(wish, Direction):
                wish = directions.send((yield wish))
        except StopIteration:
            return None
        return wish

    def _search(self, direction: Direction, now: Value) -> Generator[Request, Scalars, _Found | None]:
        """Runs one line search; None if no point is lower."""
        opening = self._opening(direction)
        known: Scalars = ()
        step = self._first_step(direction)
        if step is None:
            known = yield opening
            step = self._first_step(direction, known)
            if step is None or not known[0] < 0:
                return None
            opening = ()
        scalars = known + (yield (*opening, *self._trial(direction, step)))
        slope, tilt, scalars = scalars[0], scalars[0] - scalars[1], scalars[3:]
        if not slope < 0:
            return None
        method = self._method
        search = LineSearch(
            now.tail, slope, step, c1=method.c1, c2=method.c2, max_trials=method.max_evaluations
        )
        value = self._value(scalars)
        while (verdict := search.observe(value.head + step * tilt, scalars[self._n_scalars] + tilt)) is None:
            step = search.step
            scalars = yield self._trial(direction, step)
            value = self._value(scalars)
        if search.best is None:
            return None
        if search.best.step != step:
            step = search.best.step
            scalars = yield self._trial(direction, step)
            value = self._value(scalars)
        self._batch = self._next_batch
        self._last = _Found(value, step, slope, verdict, scalars[self._n_scalars + 1 :])
        return self._last

    def _opening(self, direction: Direction) -> Request:
        """Returns operations for the direction and its slopes, which also preserve point and gradient."""
        tail = self._objective.tail
        return (
            Combine(DIRECTION, direction.terms),
            Dots((DIRECTION,), (GRADIENT, tail, DIRECTION)),
            Swap(POINT, self._start),
            Swap(tail, self._tail),
        )

    def _first_step(self, direction: Direction, slopes: Scalars = ()) -> float | None:
        """Returns None if the slope must be requested first, or is not below 0."""
        slope = slopes[0] if slopes else direction.slope
        if direction.step is not None and (slope is None or slope < 0):
            return direction.step
        if slope is None or not slope < 0:
            return None
        step = math.inf
        if self._last:
            step = self._last.step * (self._last.slope / slope)
        elif slopes:
            step = 1 / math.sqrt(slopes[2])
        return step if 0 < step < math.inf else None

    def _trial(self, direction: Direction, step: float) -> Request:
        """Returns operations for a trial point, and for what follows if it is accepted."""
        self._evaluations += 1
        head = self._objective.head
        return (
            Combine(POINT, ((1.0, self._start), (step, DIRECTION))),
            *self._objective.evaluation(self._next_batch),
            Dots((DIRECTION,), (head,)),
            Combine(direction.move, ((1.0, POINT), (-1.0, self._start))),
            Combine(direction.change, ((1.0, head), (-1.0, self._tail))),
            *direction.then,
        )

    def _revert(self, now: Value) -> Generator[Request, Scalars, Value]:
        """Returns to the start of the search, and evaluates the next sampled batch there."""
        back = Swap(POINT, self._start)
        if not self._objective.sampled:
            yield (back, Swap(GRADIENT, self._tail))
            return now
        self._batch = self._next_batch
        return (yield from self._evaluate(back))

    def _evaluate(self, *first: Operation) -> Generator[Request, Scalars, Value]:
        self._evaluations += 1
        scalars = yield (*first, *self._objective.evaluation(self._batch))
        return self._objective.value(self._batch, scalars)

    def _value(self, scalars: Scalars) -> Value:
        """Reads a trial's value; its `head`, which decides, is NaN if any part is not finite."""
        value = self._objective.value(self._next_batch, scalars[: self._n_scalars])
        return value if value.finite else replace(value, head=math.nan)

    @property
    def _next_batch(self) -> int:
        return self._batch + self._objective.sampled

    def _iterated(self, done: int, found: _Found, note: str) -> Iterated:
        notes = [note] if note else []
        if found.verdict == "short":
            notes.append("the slope is still steep")
        value = found.value
        return Iterated(done, value.loss, value.largest, found.step, self._evaluations, ", ".join(notes))

    def _outcome(self, before: Value, found: _Found) -> Outcome | None:
        now = found.value
        if now.largest <= self._method.gtol:
            return _flat(now)
        if found.verdict == "unbounded":
            where = f"at {found.step:.3g} times the direction"
            reason = f"The loss still falls {where} and seems to have no minimum; an l2 above 0 gives it one."
            return Outcome("stopped", reason)
        fall = before.loss - now.loss
        if self._objective.sampled or fall > self._method.ftol * max(abs(before.loss), abs(now.loss), 1.0):
            return None
        reason = f"The last iteration lowered the loss by {fall:.3g}, which is within ftol."
        return Outcome("converged", reason)


def _no_start(now: Value) -> Outcome:
    reason = f"The loss at the start is {now.loss}, or its gradient is not finite; begin from another point."
    return Outcome("failed", reason)


def _flat(now: Value) -> Outcome:
    reason = f"No number in the gradient is above {now.largest:.3g}, which is within gtol."
    return Outcome("converged", reason)


def _stuck(done: int, now: Value) -> Outcome:
    reason = (
        f"Along the gradient, whose largest number is {now.largest:.3g}, nothing is lower than a loss of "
        f"{now.loss:.9g}: either rounding hides the fall, and a larger gtol or ftol ends before this, or the "
        f"gradient is not the loss's."
    )
    return Outcome("stopped" if done else "failed", reason)
