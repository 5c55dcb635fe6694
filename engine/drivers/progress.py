"""How a run gets on: what the parts report, added up.

Loss and accuracy are those of the minibatches since the moment before, before their update. The parts of a
replica have each a share of them, so a step counts when all of its parts have reported it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Progress
from partita.engine.protocol.names import part_indices

Show: TypeAlias = Literal["auto", "live", "lines", "nothing"]


class Reading(Protocol):
    """A run at one moment; as text it is what a line says of it."""

    @property
    def done(self) -> int:
        """How far it is, in the gauge's unit."""


class Gauge(Protocol):
    """How far a run is, as it is shown.

    Attributes:
        title: of the work, in a word.
        unit: in which it is counted, in a word.
    """

    title: str
    unit: str

    @property
    def total(self) -> int | None:
        """How much there is to do, at most; None where nobody knows."""

    def add(self, effect: CoordinatorEffect) -> None:
        """Takes in what the coordinator says."""

    def moment(self) -> Reading | None:
        """Where the run is now; None where there is nothing new since the last call."""


@dataclass(frozen=True)
class Moment:
    """A run at one moment.

    Args:
        seconds: since it began.
        step: the steps of all replicas.
        examples: seen so far.
        loss: the mean over the examples since the moment before.
        accuracy: likewise; NaN where nothing is right or wrong.
        examples_per_s: since the moment before.
        staleness: mean, over all pushes so far, of the pushes that others had applied in between, and of the
            updates by which a gradient is late where minibatches overlap.
    """

    seconds: float
    step: int
    examples: int
    loss: float
    accuracy: float
    examples_per_s: float
    staleness: float

    @property
    def done(self) -> int:
        """See `Reading`."""
        return self.step

    def __str__(self) -> str:
        accuracy = "" if math.isnan(self.accuracy) else f"accuracy {self.accuracy:.3f}  "
        return (
            f"loss {self.loss:.4f}  {accuracy}{self.examples_per_s:,.0f} examples/s  "
            f"staleness {self.staleness:.2f}"
        )


Sums: TypeAlias = tuple[int, float, int]
"""Examples, their losses, and how many of them are right."""


class _Replica:
    """What the parts of a replica have reported, until it is whole."""

    def __init__(self, machines: int) -> None:
        self._machines = machines
        self._waiting: dict[str, dict[int, Sums]] = {}  # by part, by step

    def add(self, progress: Progress) -> Sums:
        """What is whole by this report: the sums of all parts up to a step at which each has reported."""
        sums = progress.examples, progress.loss, progress.correct
        self._waiting.setdefault(progress.name, {})[progress.step] = sums
        whole: Sums = 0, 0.0, 0
        if len(self._waiting) < self._machines:
            return whole
        reached = max(set.intersection(*map(set, self._waiting.values())), default=-1)
        for waiting in self._waiting.values():
            for step in [step for step in waiting if step <= reached]:
                whole = _added(whole, waiting.pop(step))
        return whole


def _added(a: Sums, b: Sums) -> Sums:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@dataclass
class Meter:
    """Adds up what the parts report.

    Args:
        steps_per_replica: in all.
        done: by each replica, before this run.
        machines: of each replica.
        classifiers: losses by which an example is right or wrong; accuracy is their mean.
        history: every moment that was looked at.
    """

    steps_per_replica: int
    done: tuple[int, ...]
    machines: int = 1
    classifiers: int = 1
    history: list[Moment] = field(default_factory=list)
    title: str = "training"
    unit: str = "step"

    def __post_init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._steps: dict[str, int] = {}
        self._pushes: dict[str, tuple[int, float]] = {}  # (pushes, staleness) of each part's process
        self._pushes_before = (0, 0.0)  # of processes that were replaced
        self._examples = 0
        self._replicas: dict[int, _Replica] = {}
        self._since: Sums = (0, 0.0, 0)

    def add(self, progress: CoordinatorEffect) -> None:
        """Takes in a report. Speed counts from the first one, when the hosts had started."""
        assert isinstance(progress, Progress), progress
        if not self._steps:
            self._last = time.monotonic()
        self._steps[progress.name] = progress.step
        self._count_pushes(progress)
        replica, _ = part_indices(progress.name) or (0, 0)
        whole = self._replicas.setdefault(replica, _Replica(self.machines)).add(progress)
        self._since = _added(self._since, whole)
        self._examples += whole[0]

    def _count_pushes(self, progress: Progress) -> None:
        """A part reports all pushes of its process; fewer than before come from another process."""
        pushes, staleness = self._pushes.get(progress.name, (0, 0.0))
        if progress.pushes < pushes:
            before = self._pushes_before
            self._pushes_before = (before[0] + pushes, before[1] + staleness)
        self._pushes[progress.name] = (progress.pushes, progress.staleness)

    @property
    def total(self) -> int:
        """Steps of all replicas."""
        return self.steps_per_replica * len(self.done)

    @property
    def steps(self) -> int:
        """Done by all replicas: each has come as far as the slowest of its parts."""
        found = dict(enumerate(self.done))
        slowest: dict[int, int] = {}
        for name, step in self._steps.items():
            indices = part_indices(name)
            if indices is not None:
                slowest[indices[0]] = min(step, slowest.get(indices[0], step))
        return sum({**found, **slowest}.values())

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    def moment(self) -> Moment | None:
        """Where the run is now, and what came since the last call; None while no example came."""
        now = time.monotonic()
        examples, loss, correct = self._since
        if not examples:
            return None
        counted = (self._pushes_before, *self._pushes.values())
        pushes, stale = (sum(counts) for counts in zip(*counted, strict=True))
        found = Moment(
            now - self._began,
            self.steps,
            self._examples,
            loss / examples,
            correct / (examples * self.classifiers) if self.classifiers else float("nan"),
            examples / max(now - self._last, 1e-9),
            stale / pushes if pushes else 0.0,
        )
        self._last, self._since = now, (0, 0.0, 0)
        self.history.append(found)
        return found
