"""A whole race: a common start, the choice of each method, and the time that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median

from examples.reproduce.race.contest import (
    PATIENCE_S,
    Choice,
    Contest,
    DownpourSGD,
    Method,
    PlainSGD,
    SandblasterLBFGS,
    Start,
)
from examples.reproduce.race.digits import EXAMPLES
from examples.reproduce.race.machines import SIZES
from partita.engine import Adagrad

SMOOTHED = 4
"""Evaluations whose mean is one point of a curve, because the accuracy of SGD fluctuates."""

SGD_ALONE = PlainSGD("SGD", (0.3, 1.0, 3.0))
DOWNPOUR = DownpourSGD("Downpour", (0.1, 0.2, 0.5, 1.0))
ADAGRAD = DownpourSGD("Downpour, Adagrad", (0.02, 0.05, 0.1), optimizer=Adagrad)
SANDBLASTER = SandblasterLBFGS("Sandblaster L-BFGS")
METHODS: tuple[Method, ...] = (SGD_ALONE, DOWNPOUR, ADAGRAD, SANDBLASTER)


@dataclass(frozen=True)
class Measured:
    """A cell of the table: the choice of a method on some machines, and the median of its seconds."""

    method: Method
    machines: int
    choice: Choice
    seconds: float

    def __str__(self) -> str:
        time = f"{self.seconds:,.0f} s" if isfinite(self.seconds) else "never"
        return f"{time} ({self.choice if len(self.method.rates) > 1 else self.choice.fleet})"


class Race:
    """A race, computed step by step as results are asked for."""

    def __init__(self, contest: Contest, *, seed: int, measured: int) -> None:
        """Chooses the learning rate of plain SGD, and trains the warm start: one epoch on one replica."""
        self.contest, self._digits = contest, contest.setting.digits
        seeds = range(seed, seed + 1 + measured)
        first = Start(self._digits.start(seed), 0.0, seed)
        alone = contest.chosen(SGD_ALONE, SIZES[-1], first, 1.0)
        if alone is None:
            raise SystemExit(f"plain SGD never reaches {contest.target:.0%}; ask for less with --target")
        self.alone = alone
        self.cold = [Start(self._digits.start(n), 0.0, n) for n in seeds]
        self.warm = [self._warmed(start) for start in self.cold]
        self._rates: dict[Method, float] = {}
        self._times: dict[tuple[Method, Choice], float] = {}

    def __str__(self) -> str:
        warm_s = median(start.now for start in self.warm[1:])
        return f"the first {warm_s:.0f} s are a warm start by SGD at {self.alone.rate:g}"

    def _warmed(self, start: Start) -> Start:
        run = SGD_ALONE.run(self.contest.setting, self.alone, start)
        ends = [start]
        steps = EXAMPLES // self._digits.batch

        def look(now: float, point: object) -> bool:
            ends[0] = Start(run.point.copy(), now, start.seed)
            return run.parts[0].steps >= steps

        run.play(look, every_s=self.contest.every_s, until_s=PATIENCE_S)
        return ends[0]

    def choice(self, method: Method, machines: int) -> Choice | None:
        """The choice of a method, in trials from the first start.

        The first trial has half the learning rate that the method chose on fewer machines: a rate that is too
            high
        fails, and its trial ends early only once another choice was faster.
        """
        if method is SGD_ALONE:
            (fleet,) = method.fleets(machines, self.contest.setting.times)
            return Choice(fleet, self.alone.rate)
        first = self._rates.get(method, 2 * method.rates[-1]) / 2
        chosen = self.contest.chosen(method, machines, self.warm[0], first)
        if chosen is not None:
            self._rates[method] = chosen.rate
        return chosen

    def starts(self, method: Method) -> Sequence[Start]:
        """The starts of the measured runs of a method."""
        return (self.cold if method is SGD_ALONE else self.warm)[1:]

    def measured(self, method: Method, machines: int) -> Measured | None:
        """The result of a method; None if it cannot use so many machines, or fails with every choice."""
        choice = self.choice(method, machines)
        if choice is None:
            return None
        if (method, choice) not in self._times:
            courses = [self.contest.course(method, choice, start) for start in self.starts(method)]
            self._times[method, choice] = median(course.reached_s for course in courses)
        return Measured(method, machines, choice, self._times[method, choice])

    def course(self, found: Measured, until_s: float) -> list[tuple[float, float]]:
        """Accuracy over time in the first measured run: means over `SMOOTHED` evaluations."""
        start = self.starts(found.method)[0]
        course = self.contest.course(found.method, found.choice, start, until_s=until_s, to_target=False)
        seen = course.points
        ended = [(until_s, seen[-1][1])] if until_s - seen[-1][0] > self.contest.every_s else []
        blocks = [seen[n : n + SMOOTHED] for n in range(0, len(seen), SMOOTHED)]
        return [(block[0][0], fmean(accuracy for _, accuracy in block)) for block in blocks] + ended
