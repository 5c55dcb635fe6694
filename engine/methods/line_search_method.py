"""A method that chooses a direction and searches along it: all but the direction.

The loop is here: evaluations, trials, tolerances, what happens when nothing is lower, and what is told. It
must not know how a direction comes about.

An iteration whose first trial is accepted is one request. It combines the direction and goes to the trial;
after the evaluation it makes the move, the change of the gradient, and what the next direction needs, as if
the trial were accepted: most are. Another trial of the search writes over all of that. What the point and the
gradient were before the search is kept by a change of names, so neither is copied.

With sampled batches a trial evaluates the next batch at once, and only the examples that both batches share
tell whether the loss fell: their loss is tilted so that its slope is the whole batch's. So one evaluation
makes an iteration, and a step that satisfies the curvature condition has a pair with `s'y > 0` over shared
examples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from partita.engine.methods.line_search import LineSearch, Verdict
from partita.engine.methods.method import Method
from partita.engine.methods.objective import GRADIENT, Objective, Value
from partita.engine.methods.toward import Directions, Toward
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

DIRECTION: Final = "d"
"""The vector along which a line search goes."""

_BEFORE: Final = "{}_before"
"""The name of a vector as it was where the search began."""


@dataclass(frozen=True, kw_only=True)
class LineSearchMethod(Method):
    """A subclass writes `directions`; the line search is strong Wolfe, by More and Thuente.

    Args:
        gtol: done when no number in the gradient is larger.
        ftol: done when an iteration lowers the loss by no more than this part of it (of 1, where the loss is
            below 1). Not looked at with sampled batches, whose losses are of different examples.
        max_iterations: never more than these.
        c1: a step must lower the loss by this part of what the slope promises.
        c2: and the slope must fall to this part.
        max_evaluations: of one line search.

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
    """What PyTorch and SciPy call the settings."""

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
    def directions(self) -> Directions:
        """Yields one `Toward` after the other, and is sent what its `then` gives at the accepted point. What
        else it needs to know it may ask in requests between them.

        Begun anew when nothing along a direction is lower: then the first one should be `-g`.
        """

    def steps(self, objective: Objective) -> Steps:
        """See `Method.steps`."""
        return (yield from _Descent(self, objective).steps())


@dataclass(frozen=True, slots=True)
class _Found:
    value: Value
    step: float
    slope: float
    verdict: Verdict
    answer: Scalars


class _Descent:
    """One run of a method."""

    def __init__(self, method: LineSearchMethod, objective: Objective) -> None:
        self._method: Final = method
        self._objective: Final = objective
        self._batch = 0
        self._evaluations = 0
        self._last: _Found | None = None
        self._there: Final = _BEFORE.format(POINT)
        self._tail: Final = _BEFORE.format(objective.tail)
        self._n_scalars: Final = objective.n_scalars()

    def steps(self) -> Steps:
        """The loop."""
        method, done, note = self._method, 0, ""
        now = yield from self._evaluated()
        if not now.finite:
            return _no_start(now)
        if now.largest <= method.gtol:
            return _flat(now)
        directions, fresh = method.directions(), True
        while done < method.max_iterations:
            toward = yield from self._aim(directions, begun=not fresh)
            if toward is None:
                return Outcome(
                    "stopped", f"After {counted(done, 'iteration')} the method knows no further direction."
                )
            found = yield from self._along(toward, now)
            if found is None:
                now = yield from self._back(now)
                if fresh:
                    return _stuck(done, now)
                directions, fresh, note = method.directions(), True, "begun anew"
                continue
            before, now, fresh, done = now, found.value, False, done + 1
            yield self._iterated(done, found, note or toward.note)
            if outcome := self._judged(before, found):
                return outcome
            note = ""
        return Outcome("stopped", f"Stopped after {counted(done, 'iteration')}, as max_iterations says.")

    def _aim(self, directions: Directions, *, begun: bool) -> Generator[Request, Scalars, Toward | None]:
        answer = self._last.answer if self._last else ()
        try:
            wish = directions.send(answer) if begun else next(directions)
            while not isinstance(wish, Toward):
                wish = directions.send((yield wish))
        except StopIteration:
            return None
        return wish

    def _along(self, toward: Toward, now: Value) -> Generator[Request, Scalars, _Found | None]:
        """Searches; None when nothing is lower."""
        opening = self._opening(toward)
        known: Scalars = ()
        step = self._first_step(toward)
        if step is None:
            known = yield opening
            step = self._first_step(toward, known)
            if step is None or not known[0] < 0:
                return None
            opening = ()
        told = known + (yield (*opening, *self._trial(toward, step)))
        slope, tilt, told = told[0], told[0] - told[1], told[3:]
        if not slope < 0:
            return None
        method = self._method
        search = LineSearch(now.tail, slope, step, c1=method.c1, c2=method.c2, most=method.max_evaluations)
        value = self._value(told)
        while (verdict := search.tell(value.head + step * tilt, told[self._n_scalars] + tilt)) is None:
            step = search.step
            told = yield self._trial(toward, step)
            value = self._value(told)
        if search.best is None:
            return None
        if search.best.step != step:
            step = search.best.step
            told = yield self._trial(toward, step)
            value = self._value(told)
        self._batch = self._next_batch
        self._last = _Found(value, step, slope, verdict, told[self._n_scalars + 1 :])
        return self._last

    def _opening(self, toward: Toward) -> Request:
        """The direction and its slopes; the point and the gradient are then those before the search."""
        tail = self._objective.tail
        return (
            Combine(DIRECTION, toward.terms),
            Dots((DIRECTION,), (GRADIENT, tail, DIRECTION)),
            Swap(POINT, self._there),
            Swap(tail, self._tail),
        )

    def _first_step(self, toward: Toward, slopes: Scalars = ()) -> float | None:
        """None: the slope must be asked for, or, where it is known, it is no good."""
        slope = slopes[0] if slopes else toward.slope
        if toward.step is not None and (slope is None or slope < 0):
            return toward.step
        if slope is None or not slope < 0:
            return None
        step = math.inf
        if self._last:
            step = self._last.step * (self._last.slope / slope)
        elif slopes:
            step = 1 / math.sqrt(slopes[2])
        return step if 0 < step < math.inf else None

    def _trial(self, toward: Toward, step: float) -> Request:
        """To a point, and all that is wanted if it is accepted. A sampled batch is left with the first."""
        self._evaluations += 1
        head = self._objective.head
        return (
            Combine(POINT, ((1.0, self._there), (step, DIRECTION))),
            *self._objective.evaluation(self._next_batch),
            Dots((DIRECTION,), (head,)),
            Combine(toward.move, ((1.0, POINT), (-1.0, self._there))),
            Combine(toward.change, ((1.0, head), (-1.0, self._tail))),
            *toward.then,
        )

    def _back(self, now: Value) -> Generator[Request, Scalars, Value]:
        """To where the search began. A sampled batch's gradient is gone: the next one is evaluated there."""
        back = Swap(POINT, self._there)
        if not self._objective.sampled:
            yield (back, Swap(GRADIENT, self._tail))
            return now
        self._batch = self._next_batch
        return (yield from self._evaluated(back))

    def _evaluated(self, *first: Operation) -> Generator[Request, Scalars, Value]:
        self._evaluations += 1
        scalars = yield (*first, *self._objective.evaluation(self._batch))
        return self._objective.value(self._batch, scalars)

    def _value(self, told: Scalars) -> Value:
        """A trial's. Where a part is not finite, nothing that decides is."""
        value = self._objective.value(self._next_batch, told[: self._n_scalars])
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

    def _judged(self, before: Value, found: _Found) -> Outcome | None:
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
