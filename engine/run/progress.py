"""Progress of a run: the reports of the parts, added up.

Loss and accuracy are those of the minibatches since the last look, before their update. Each part of a
replica reports its share, so a step counts when all of its parts have reported it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from partita.engine.protocol.coordinator_effects import CoordinatorEffect, Progress
from partita.engine.protocol.names import part_indices

Show: TypeAlias = Literal["auto", "live", "lines", "nothing"]


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training.

    Args:
        seconds: since the run began.
        step: steps of all replicas.
        examples: examples seen so far.
        loss: mean over the examples since the entry before.
        accuracy: likewise; NaN for losses without classes.
        examples_per_s: since the entry before.
        staleness: mean over all pushes so far: pushes that others had applied in between, plus updates by
            which a gradient is late where minibatches overlap.
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
        """Steps done, for the display."""
        return self.step

    def __str__(self) -> str:
        accuracy = "" if math.isnan(self.accuracy) else f"accuracy {self.accuracy:.3f}  "
        return (
            f"loss {self.loss:.4f}  {accuracy}{self.examples_per_s:,.0f} examples/s  "
            f"staleness {self.staleness:.2f}"
        )


Sums: TypeAlias = tuple[int, float, int]
"""Number of examples, sum of their losses, and number of those that are right."""


class _Replica:
    """Reports of a replica's parts, until all parts have reported a step."""

    def __init__(self, machines: int) -> None:
        self._machines = machines
        self._waiting: dict[str, dict[int, Sums]] = {}  # by part, by step

    def add(self, progress: Progress) -> Sums:
        """Adds a report; returns the sums of all steps that every part has now reported."""
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
        steps_per_replica: steps of each replica in all.
        done: steps of each replica before this run.
        machines: machines of each replica.
        classifiers: losses with classes; accuracy is their mean.
        history: all entries so far.
    """

    steps_per_replica: int
    done: tuple[int, ...]
    machines: int = 1
    classifiers: int = 1
    history: list[TrainingProgress] = field(default_factory=list)
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
        """Adds a report. Speed counts from the first report, when the hosts had started."""
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
        """A part reports all pushes of its process; a smaller number comes from a new process."""
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
        """Steps done by all replicas; each replica has done those of the slowest of its parts."""
        found = dict(enumerate(self.done))
        slowest: dict[int, int] = {}
        for name, step in self._steps.items():
            indices = part_indices(name)
            if indices is not None:
                slowest[indices[0]] = min(step, slowest.get(indices[0], step))
        return sum({**found, **slowest}.values())

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def latest(self) -> TrainingProgress | None:
        """Returns the progress since the last call and adds it to the history; None without new examples."""
        now = time.monotonic()
        examples, loss, correct = self._since
        if not examples:
            return None
        counted = (self._pushes_before, *self._pushes.values())
        pushes, stale = (sum(counts) for counts in zip(*counted, strict=True))
        found = TrainingProgress(
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
