"""The methods in the race: their choices, how they choose, and how their times are measured.

A method chooses its learning rate and its fleet in trials on the training pictures, with seeds that are used
for nothing else. The result is then measured on the held-out pictures, with other seeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Final

from typing_extensions import override

from examples.reproduce.race.downpour import Downpour
from examples.reproduce.race.machines import SIZES, Fleet, Times, shards_of
from examples.reproduce.race.sandblaster import Sandblaster
from examples.reproduce.race.setting import Run, Setting
from partita.engine import LBFGS, SGD, Optimizer
from partita.engine.parameters import Vector

IN_A_ROW: Final = 3
"""Consecutive evaluations that must reach an accuracy; the time of the first one counts."""
PATIENCE_S: Final = 3600.0
"""Simulated seconds after which a run counts as never reaching the target."""


@dataclass(frozen=True)
class Start:
    """The parameters, the time and the seed with which a run begins."""

    point: Vector
    now: float
    seed: int


@dataclass(frozen=True)
class Choice:
    """A fleet, and the learning rate of an optimizer (1 for a method without one)."""

    fleet: Fleet
    rate: float

    def __str__(self) -> str:
        return f"{self.fleet} at {self.rate:g}"


@dataclass(frozen=True)
class Method(ABC):
    """A training method.

    Args:
        name: for tables and pictures.
        rates: learning rates to choose from.
    """

    name: str
    rates: tuple[float, ...] = (1.0,)

    @abstractmethod
    def fleets(self, machines: int, times: Times) -> Sequence[Fleet]:
        """Fleets to choose from; none where there are too few machines. Machines left over stay idle."""

    @abstractmethod
    def run(self, setting: Setting, choice: Choice, start: Start) -> Run:
        """Makes a run, without starting it."""

    def trial_s(self, contest: Contest, choice: Choice, start: Start, *, until_s: float) -> float:
        """Seconds of a trial of this choice: until it reaches the target on the training pictures."""
        return contest.course(self, choice, start, until_s=until_s, held_out=False).reached_s


@dataclass(frozen=True)
class PlainSGD(Method):
    """One replica of the fastest size, without shards."""

    @override
    def fleets(self, machines: int, times: Times) -> Sequence[Fleet]:
        return [Fleet(times.best_size(machines), 1, 0)]

    @override
    def run(self, setting: Setting, choice: Choice, start: Start) -> Downpour:
        return Downpour(setting, choice.fleet, SGD(choice.rate), start.point, start.now, start.seed)


@dataclass(frozen=True)
class DownpourSGD(Method):
    """Replicas on all machines that are no shards, each of the size that is fastest for one alone.

    Args:
        optimizer: of shards and replicas.
        most: largest number of replicas; with more, some would have no minibatch in an epoch.
    """

    optimizer: type[Optimizer] = SGD
    most: int = 144

    @override
    def fleets(self, machines: int, times: Times) -> Sequence[Fleet]:
        shards = shards_of(machines)
        if shards == machines:
            return []
        size = times.best_size(machines - shards)
        return [Fleet(size, min(self.most, (machines - shards) // size), shards)]

    @override
    def run(self, setting: Setting, choice: Choice, start: Start) -> Downpour:
        return Downpour(
            setting, choice.fleet, self.optimizer(choice.rate), start.point, start.now, start.seed
        )


@dataclass(frozen=True)
class SandblasterLBFGS(Method):
    """Replicas of any size.

    Args:
        most: largest number of replicas; more would not find two work units each in an evaluation.
    """

    most: int = 48

    @override
    def fleets(self, machines: int, times: Times) -> Sequence[Fleet]:
        shards = shards_of(machines)
        sizes = [size for size in SIZES if size <= machines - shards]
        return [Fleet(size, min(self.most, (machines - shards) // size), shards) for size in sizes]

    @override
    def run(self, setting: Setting, choice: Choice, start: Start) -> Sandblaster:
        return Sandblaster(setting, choice.fleet, LBFGS(history=10), start.point, start.now, start.seed)

    def trial_s(self, contest: Contest, choice: Choice, start: Start, *, until_s: float) -> float:
        """See `Method`. All fleets visit the same points, so two iterations show which is fastest."""
        method = LBFGS(max_iterations=2)
        run = Sandblaster(contest.setting, choice.fleet, method, start.point, start.now, start.seed)
        run.play(lambda now, point: False, every_s=contest.every_s, until_s=until_s)
        return run.advances[-1][0] if run.over else inf


@dataclass
class Course:
    """The accuracy of a run over time.

    Args:
        setting: the setting of the race.
        target: the accuracy that ends the run; None: none does.
        held_out: whether accuracy is measured on the held-out pictures.
    """

    setting: Setting
    target: float | None
    held_out: bool
    points: list[tuple[float, float]] = field(default_factory=list)
    _seen: Vector | None = None

    def look(self, now: float, point: Vector) -> bool:
        """Measures the accuracy at a point, unless it is the previous one; whether the run is over."""
        if point is self._seen:
            accuracy = self.points[-1][1]
        else:
            accuracy = self.setting.digits.accuracy(point, held_out=self.held_out)
        self._seen = point
        self.points.append((now, accuracy))
        return self.reached_s < inf

    @property
    def reached_s(self) -> float:
        """Time at which the target was reached; infinity: not yet."""
        last = self.points[-IN_A_ROW:]
        there = self.target is not None and all(accuracy >= self.target for _, accuracy in last)
        return last[0][0] if there and len(last) == IN_A_ROW else inf


@dataclass(frozen=True)
class Contest:
    """Measures the times of runs.

    Args:
        setting: the setting of the race.
        target: the accuracy to reach.
        every_s: seconds between two evaluations.
    """

    setting: Setting
    target: float
    every_s: float = 2.0

    def course(
        self,
        method: Method,
        choice: Choice,
        start: Start,
        *,
        until_s: float = PATIENCE_S,
        to_target: bool = True,
        held_out: bool = True,
    ) -> Course:
        """Plays a run and records its accuracy."""
        course = Course(self.setting, self.target if to_target else None, held_out)
        method.run(self.setting, choice, start).play(course.look, every_s=self.every_s, until_s=until_s)
        return course

    def chosen(self, method: Method, machines: int, start: Start, first: float) -> Choice | None:
        """The fastest choice in trials; rates are tried from `first` outwards, so that bad ones end early."""
        best, best_s = None, PATIENCE_S
        for choice in self._choices(method, machines, first):
            until_s = best_s + IN_A_ROW * self.every_s  # so late it may still turn out to be faster
            took = method.trial_s(self, choice, start, until_s=until_s)
            if took < best_s:
                best, best_s = choice, took
        return best

    def _choices(self, method: Method, machines: int, first: float) -> Iterator[Choice]:
        rates = sorted(method.rates, key=lambda rate: (abs(log(rate / first)), rate))
        for fleet in reversed(method.fleets(machines, self.setting.times)):
            for rate in rates:
                yield Choice(fleet, rate)
