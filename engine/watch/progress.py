"""Gathers the metrics of a run for its stream: one record of progress about once a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partita.engine.protocol.coordinator_effects import Progress as Reported
from partita.engine.protocol.names import part_indices
from partita.engine.watch.records import Progress, ReplicaProgress

_SHOWN: Final = ("loss", "staleness")
"""Figures that have a field of their own in a record."""


@dataclass(slots=True)
class _Replica:
    """Sums over the steps of a replica."""

    step: int = 0
    examples: int = 0
    new_examples: int = 0
    loss: float = 0.0  # summed over the new examples
    counted: dict[str, tuple[float, float]] = field(default_factory=dict)  # by part: pushes, staleness
    pushes: float = 0.0
    new_pushes: float = 0.0
    new_staleness: float = 0.0


class ProgressGatherer:
    """Sums what replicas have done since the last record. Times are seconds of the run."""

    def __init__(self, *, steps: int | None, done: Sequence[int], steps_per_epoch: int | None) -> None:
        """Has gathered nothing; `done` are earlier steps of each replica, for the others see `RunBegan`."""
        self._steps, self._done, self._per_epoch = steps, tuple(done), steps_per_epoch
        self._replicas: dict[int, _Replica] = {}
        self._new: set[int] = set()
        self._sums: dict[str, float] = {}
        self._new_examples = self._examples = 0
        self._staleness: float | None = None
        self._since_s: float | None = None
        self._first: tuple[float, int] | None = None  # the first record: when, and how far

    def count(self, reported: Reported) -> None:
        """Counts the pushes that a part reports; a smaller number comes from a new process."""
        indices = part_indices(reported.source)
        if indices is None or "pushes" not in reported.counters:
            return
        replica = self._replicas.setdefault(indices[0], _Replica())
        pushes, staleness = reported.counters["pushes"], reported.counters.get("staleness", 0.0)
        before = replica.counted.get(reported.source, (0.0, 0.0))
        if pushes < before[0]:
            before = 0.0, 0.0
        replica.counted[reported.source] = pushes, staleness
        replica.pushes += pushes - before[0]
        replica.new_pushes += pushes - before[0]
        replica.new_staleness += staleness - before[1]

    def add(self, index: int, step: int, examples: int, metrics: Mapping[str, float], at_s: float) -> None:
        """Adds steps of a replica: its step by now, and the means of the metrics over these examples."""
        if self._since_s is None:
            self._since_s = at_s
        replica = self._replicas.setdefault(index, _Replica())
        replica.step = step
        replica.examples += examples
        replica.new_examples += examples
        replica.loss += metrics.get("loss", 0.0) * examples
        self._new.add(index)
        self._new_examples += examples
        self._examples += examples
        for name, value in metrics.items():
            if name == "staleness":
                self._staleness = _known(value)
            elif not math.isnan(value):
                self._sums[name] = self._sums.get(name, 0.0) + value * examples

    def iteration(self, step: int, metrics: Mapping[str, float], note: str, at_s: float) -> Progress:
        """Returns the record of an iteration of a batch method."""
        others = {name: _known(value) for name, value in metrics.items() if name not in _SHOWN}
        return Progress(
            at_s=at_s, step=step, loss=_known(metrics.get("loss", math.nan)), metrics=others, note=note
        )

    def record(self, at_s: float) -> Progress | None:
        """Returns what was gathered since the last record; None where that is nothing."""
        if not self._new_examples or self._since_s is None:
            return None
        past_s = max(at_s - self._since_s, 1e-9)
        done = self.steps
        means = {name: total / self._new_examples for name, total in self._sums.items()}
        found = Progress(
            at_s=at_s,
            step=done,
            epoch=done / self._per_epoch if self._per_epoch else None,
            examples=self._examples,
            examples_per_s=self._new_examples / past_s,
            loss=means.get("loss"),
            staleness=self._staleness,
            metrics={name: mean for name, mean in means.items() if name not in _SHOWN},
            replicas=tuple(self._row(index, past_s) for index in sorted(self._new)),
            remaining_s=self._remaining(done, at_s),
        )
        self._begin_next(at_s)
        return found

    @property
    def steps(self) -> int:
        """Steps of all replicas, with those before this run."""
        reported = {index: one.step for index, one in self._replicas.items() if one.examples}
        return sum({**dict(enumerate(self._done)), **reported}.values())

    @property
    def examples(self) -> int:
        """Examples of this run."""
        return self._examples

    def _row(self, index: int, past_s: float) -> ReplicaProgress:
        one = self._replicas[index]
        return ReplicaProgress(
            replica=index,
            step=one.step,
            examples=one.examples,
            examples_per_s=one.new_examples / past_s,
            loss=one.loss / one.new_examples if one.new_examples else None,
            pushes=int(one.pushes) if one.counted else None,
            staleness=one.new_staleness / one.new_pushes if one.new_pushes else None,
        )

    def _remaining(self, done: int, at_s: float) -> float | None:
        """Estimates the seconds to the end from the mean pace since the first record."""
        if self._first is None:
            self._first = at_s, done
        (first_s, first), total = self._first, self._steps
        if total is None or done <= first:
            return None
        return max(total - done, 0) * (at_s - first_s) / (done - first)

    def _begin_next(self, at_s: float) -> None:
        self._since_s, self._new_examples = at_s, 0
        self._new.clear()
        self._sums.clear()
        for one in self._replicas.values():
            one.new_examples, one.loss, one.new_pushes, one.new_staleness = 0, 0.0, 0.0, 0.0


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
