"""Strong Wolfe line search on scalars: the loss and its slope at each requested step.

Source: More and Thuente 1994, "Line search algorithms with guaranteed sufficient decrease": the trial values
of section 4, the auxiliary function of section 2, and the interval that must shrink of section 3.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple, TypeAlias

Verdict: TypeAlias = Literal["found", "short", "unbounded", "nothing"]
"""`found`: the last step satisfies both conditions. `short`: `best` is lower, but its slope is still steep.
`unbounded`: the loss falls up to the longest step. `nothing`: no step is low enough."""

_SHRINKS: Final = 0.66  # an interval is halved if two trials leave more than this part of its length
_NARROW: Final = 1e-3  # the search ends in an interval this narrow, relative to its end
_BACK: Final = 0.1  # after a trial that is not finite, the next is at this part of the way from the best one
_FAR: Final = 1e10  # longest step, in first trials
_ROUNDING: Final = 2.0**-52


class Trial(NamedTuple):
    """The loss and its slope at a step along the direction."""

    step: float
    loss: float
    slope: float

    def tilted(self, by: float) -> Trial:
        """Returns the trial for the loss less `by * step`."""
        return Trial(self.step, self.loss - by * self.step, self.slope - by)


class LineSearch:
    """Finds a step where the loss is below `loss + c1 * step * slope` and the slope at most `c2` of `slope`.

    `loss` and `slope` (below 0) are those at step 0; `0 < c1 < c2 < 1`; at least one trial. `step` is the
    next step to try, `best` the lowest trial with sufficient decrease so far; None if there is none.
    """

    def __init__(
        self, loss: float, slope: float, step: float, *, c1: float, c2: float, max_trials: int
    ) -> None:
        self.step = step
        self.best: Trial | None = None
        self._start: Final = Trial(0.0, loss, slope)
        self._c2: Final = c2
        self._sufficient_slope: Final = c1 * slope
        self._max_trials: Final = max_trials
        self._longest: Final = _FAR * step
        self._tried = 0
        self._low = self._start
        self._far: Trial | None = None
        self._limit = math.inf  # no numbers from there on
        self._first_stage = True
        self._widths = (math.inf, math.inf)
        self._bounds = (0.0, 5 * step)

    def observe(self, loss: float, slope: float) -> Verdict | None:
        """Processes loss and slope at `step`. Returns None if there is a new `step` to try."""
        self._tried += 1
        trial = Trial(self.step, loss, slope)
        if not (math.isfinite(loss) and math.isfinite(slope)):
            return self._turn_back()
        enough = loss <= self._start.loss + self._sufficient_slope * trial.step
        if enough and (self.best is None or loss < self.best.loss):
            self.best = trial
        if enough and abs(slope) <= self._c2 * -self._start.slope:
            self.best = trial
            return "found"
        if enough and slope < 0 and trial.step >= self._longest:
            return "unbounded"
        if enough and slope >= 0:
            self._first_stage = False
        self._next(trial, auxiliary=self._first_stage and not enough and loss <= self._low.loss)
        return self._over()

    def _turn_back(self) -> Verdict | None:
        step = self._low.step + _BACK * (self.step - self._low.step)
        if self.step > self._low.step:
            self._limit, self._far = self.step, None
            self._look_beyond(step)
        self.step = step
        return self._over()

    def _next(self, trial: Trial, *, auxiliary: bool) -> None:
        """Updates the step, and the interval that contains a good one."""
        tilt = self._sufficient_slope if auxiliary else 0.0
        low, far, new = self._low.tilted(tilt), self._far and self._far.tilted(tilt), trial.tilted(tilt)
        step = _trial_value(low, far, new, self._bounds)
        if new.loss > low.loss:
            self._far = trial
        else:
            if new.slope * low.slope < 0:
                self._far = self._low
            self._low = trial
        self.step = self._inside(step, self._far) if self._far else self._beyond(step)

    def _inside(self, step: float, far: Trial) -> float:
        low = self._low.step
        width = abs(far.step - low)
        if width >= _SHRINKS * self._widths[0]:
            step = low + (far.step - low) / 2
        self._widths = (self._widths[1], width)
        self._bounds = (min(low, far.step), max(low, far.step))
        return min(max(step, self._bounds[0]), self._bounds[1])

    def _beyond(self, step: float) -> float:
        """Extrapolates, but not as far as a trial that was not finite."""
        reach = min(self._longest, self._low.step + (self._limit - self._low.step) / 2)
        step = min(max(step, self._bounds[0]), self._bounds[1], reach)
        self._look_beyond(step)
        return step

    def _look_beyond(self, step: float) -> None:
        ahead = step - self._low.step
        self._bounds = (step + 1.1 * ahead, step + 4 * ahead)

    def _over(self) -> Verdict | None:
        """Returns a verdict if another trial is pointless."""
        if self._tried < self._max_trials and not self._hopeless():
            return None
        return "short" if self.best else "nothing"

    def _hopeless(self) -> bool:
        if self.step * -self._start.slope <= _ROUNDING * abs(self._start.loss):
            return True  # the loss cannot show a fall as small as this
        if self._far is None:
            return self._limit < math.inf and self._limit - self._low.step <= _NARROW * self._limit
        inner, outer = sorted((self._low.step, self._far.step))
        return outer - inner <= _NARROW * outer or not inner < self.step < outer


def _trial_value(low: Trial, far: Trial | None, new: Trial, bounds: tuple[float, float]) -> float:
    """Interpolates the minimum: section 4's four cases."""
    if new.loss > low.loss:  # 1: higher; the minimum is between
        cubic, quadratic = _cubic(low, new), _quadratic(low, new)
        near = abs(cubic - low.step) < abs(quadratic - low.step)
        return cubic if near else cubic + (quadratic - cubic) / 2
    if new.slope * low.slope < 0:  # 2: lower, and it rises there; between again
        cubic, secant = _cubic(low, new), _secant(low, new)
        return cubic if abs(cubic - new.step) >= abs(secant - new.step) else secant
    if abs(new.slope) < abs(low.slope):  # 3: lower, and less steep; farther on
        return _farther(low, far, new, bounds)
    if far is not None:  # 4: lower, and no less steep
        return _cubic(far, new)
    return bounds[1] if new.step > low.step else bounds[0]


def _farther(low: Trial, far: Trial | None, new: Trial, bounds: tuple[float, float]) -> float:
    """Extrapolates by the cubic where its minimum is beyond the new trial, else by the secant."""
    end = bounds[1] if new.step > low.step else bounds[0]
    cubic, secant = _cubic(low, new, beyond=end), _secant(low, new)
    nearer = abs(cubic - new.step) < abs(secant - new.step)
    if far is None:
        return secant if nearer else cubic
    most = new.step + 0.66 * (far.step - new.step)
    step = cubic if nearer else secant
    return min(most, step) if new.step > low.step else max(most, step)


def _cubic(a: Trial, b: Trial, *, beyond: float | None = None) -> float:
    """Minimum of the cubic through both; `beyond`, where given, unless the minimum is farther than `b`."""
    ahead = b.step - a.step
    mean = 3 * (a.loss - b.loss) / ahead + a.slope + b.slope
    size = max(abs(mean), abs(a.slope), abs(b.slope))
    if size == 0:
        return b.step - ahead / 2
    root = size * math.sqrt(max(0.0, (mean / size) ** 2 - (a.slope / size) * (b.slope / size)))
    part = (root - b.slope + mean) if ahead < 0 else (root + b.slope - mean)
    whole = (2 * root + a.slope - b.slope) if ahead < 0 else (2 * root + b.slope - a.slope)
    if beyond is not None and (root == 0 or whole == 0 or part / whole >= 0):
        return beyond
    return b.step - ahead * part / whole if whole else b.step - ahead / 2


def _quadratic(a: Trial, b: Trial) -> float:
    """Minimum of the parabola with both losses and the slope at `a`."""
    ahead = b.step - a.step
    return a.step + a.slope / ((a.loss - b.loss) / ahead + a.slope) / 2 * ahead


def _secant(a: Trial, b: Trial) -> float:
    """Zero of the linear interpolation of both slopes."""
    return b.step + b.slope / (b.slope - a.slope) * (a.step - b.step)
