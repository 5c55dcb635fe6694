"""Metrics of a run: one stream of records, whatever the driver, and what is made of it.

Hosts and coordinators report their progress. A record is some steps of a whole replica, or an iteration of a
batch method. Each part of a replica reports its share, so a step counts when all of its parts have reported
it. Loss and accuracy are those before the update of the step.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from partita.engine.data.times import ReadSums
from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.protocol.names import part_indices
from partita.engine.runtime.reported_sums import ReportedSums


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
            which a gradient is late where minibatches overlap; NaN before the first push, and where replicas
            push nothing.
        metrics: likewise: the mean of each loss, without its weight, where there are several; and `metrics`.
    """

    seconds: float
    step: int
    examples: int
    loss: float
    accuracy: float
    examples_per_s: float
    staleness: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Steps done, for the display."""
        return self.step

    def __str__(self) -> str:
        accuracy = "" if math.isnan(self.accuracy) else f"accuracy {self.accuracy:.3f}  "
        staleness = "" if math.isnan(self.staleness) else f"  staleness {self.staleness:.2f}"
        more = "".join(f"{name} {figure:.4g}  " for name, figure in self.metrics.items())
        return f"loss {self.loss:.4f}  {accuracy}{more}{self.examples_per_s:,.0f} examples/s{staleness}"


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
        metrics: the mean of each loss where there are several, and `metrics`: of the last evaluation;
            "data_wait" since the iteration before, see `Record`.
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
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Iterations done, for the display."""
        return self.iteration

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.6g}  gradient {self.gradient_norm:.1e}  step {self.step:.3g}  "
            f"evaluations {self.evaluations}  redone {self.redone}  busy {self.busy}/{self.replicas}"
            f"{''.join(f'  {name} {figure:.4g}' for name, figure in self.metrics.items())}"
        )


@dataclass(frozen=True)
class Record:
    """An entry of the stream: steps of a replica, or an iteration.

    Args:
        seconds: since the run began.
        replica: the replica; None for a batch method, which has all of them.
        step: steps of the replica, or iterations, done.
        examples: examples of these steps; 0 for an iteration.
        metrics: numbers by name: means over the examples ("loss", "accuracy", each loss where there are
            several), `metrics`, "data_wait" (the share of the time in which computing waited for data that is
            read ahead), means over all pushes so far ("staleness"), and the present values of a
            method ("loss", "gradient_norm").
        note: exceptional events, in a few words; "" for none.
    """

    seconds: float
    replica: int | None
    step: int
    examples: int
    metrics: Mapping[str, float]
    note: str = ""


Sums: TypeAlias = defaultdict[str, float]
"""Sums by name: "examples", and over them "loss", "correct" and further ones by their numbers."""

OnRecord: TypeAlias = Callable[[Record], object]
"""Called with each record, in the thread of the run."""


class _Replica:
    """Reports of a replica's parts, until all parts have reported a step."""

    def __init__(self, machines: int) -> None:
        self._machines = machines
        self._steps: dict[str, int] = {}  # by part
        self._waiting: dict[str, dict[int, Sums]] = {}  # by part, by step; further sums by their numbers

    @property
    def step(self) -> int:
        """Steps done: those of the slowest of the parts that have reported."""
        return min(self._steps.values())

    def add(self, progress: Progress) -> Sums:
        """Adds a report; returns the sums of all steps that every part has now reported."""
        self._steps[progress.source] = progress.step
        sums = Sums(float, progress.sums)
        sums["examples"] += progress.examples
        sums.update((str(n), one) for n, one in enumerate(progress.further))
        sums.update(zip(ReadSums._fields, progress.read, strict=False))
        self._waiting.setdefault(progress.source, {})[progress.step] = sums
        whole = Sums(float)
        if len(self._waiting) < self._machines:
            return whole
        reached = max(set.intersection(*map(set, self._waiting.values())), default=-1)
        for waiting in self._waiting.values():
            for step in [step for step in waiting if step <= reached]:
                _add(whole, waiting.pop(step))
        return whole


def _add(sums: Sums, more: Mapping[str, float]) -> None:
    for name, number in more.items():
        sums[name] += number


class Metrics:
    """Makes records of reports, and shows them by `title`, `unit`, `total` and `latest()`.

    Attributes:
        unit: "step", or "iteration" for a batch method.
        title: words for what is done.
        total: the last step of all replicas, or the last iteration; None where it is not known.
        read: how long was waited for data.
        history: entries so far: one for each look at the steps, or for each iteration.
    """

    def __init__(
        self,
        total: int | None,
        *,
        unit: str = "step",
        done: Sequence[int] = (),
        machines: int = 1,
        reported: ReportedSums | None = None,
        on_record: OnRecord | None = None,
    ) -> None:
        """Time counts from here.

        Args:
            total: see above.
            unit: see above.
            done: steps of each replica before this run.
            machines: machines of each replica.
            reported: what parts report; accuracy is the mean over all labels. If not given, a label for each
                example.
            on_record: receives each record.
        """
        self.total: Final = total
        self.unit: Final = unit
        self.title: Final = "minimising" if unit == "iteration" else "training"
        self.history: list[TrainingProgress | Iteration] = []
        self._done: Final = tuple(done)
        self._machines: Final = machines
        self._reported: Final = reported
        self._on_record: Final = on_record
        self._began = self._last = time.monotonic()
        self._counters: dict[str, Mapping[str, float]] = {}  # of each present process
        self._counted_before = Sums(float)  # by processes that were replaced
        self._replicas: dict[int, _Replica] = {}
        self._since = Sums(float)  # since the last look
        self._epoch = Sums(float)  # since the last epoch
        self._examples = 0
        self.read = ReadSums()
        self._looked_at = 0
        self._last_values: Mapping[str, float] = {}  # of the last iteration

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def steps(self) -> int:
        """Steps done by all replicas."""
        reported = {index: replica.step for index, replica in self._replicas.items()}
        return sum({**dict(enumerate(self._done)), **reported}.values())

    @property
    def done_now(self) -> int:
        """Steps of all replicas, or iterations, done."""
        return self.history[-1].done if self.unit == "iteration" and self.history else self.steps

    def add(self, progress: Progress) -> None:
        """Adds a report. Speed counts from the first report, when the hosts had started."""
        if self.unit == "iteration":
            self._add_iteration(progress)
            return
        if not self._replicas:
            self._last = time.monotonic()
        self._count(progress)
        self._add_steps(progress, (part_indices(progress.source) or (0, 0))[0])

    def _add_iteration(self, progress: Progress) -> None:
        record = Record(self.seconds, None, progress.step, 0, progress.values, progress.note)
        figures = self._reported.figures(progress.further) if self._reported and progress.further else {}
        read = ReadSums().plus(progress.read)
        self.read = self.read.plus(progress.read)
        if read.passed_s:
            figures = {**figures, "data_wait": read.share}
        self.history.append(replace(_iteration(record), metrics=figures))
        self._last_values = {**progress.values, **figures}
        self._publish(replace(record, metrics=self._last_values))

    def _add_steps(self, progress: Progress, index: int) -> None:
        replica = self._replicas.setdefault(index, _Replica(self._machines))
        sums = replica.add(progress)
        examples = int(sums["examples"])
        self._examples += examples
        self.read = self.read.plus(tuple(sums[name] for name in ReadSums._fields))
        _add(self._since, sums)
        _add(self._epoch, sums)
        if examples and self._on_record is not None:
            self._publish(Record(self.seconds, index, replica.step, examples, self._means(sums)))

    def _publish(self, record: Record) -> None:
        if self._on_record is not None:
            self._on_record(record)

    def _count(self, progress: Progress) -> None:
        """Adds counters. A part reports those of its process; a smaller number comes from a new process."""
        known = self._counters.get(progress.source, {})
        if progress.counters.get("pushes", 0) < known.get("pushes", 0):
            _add(self._counted_before, known)
        self._counters[progress.source] = progress.counters

    def _means(self, sums: Sums) -> dict[str, float]:
        counted = self._counted_before.copy()
        for counters in self._counters.values():
            _add(counted, counters)
        examples, answers = sums["examples"], sums["examples"]
        more: dict[str, float] = {}
        if self._reported is not None:
            further = [sums[str(n)] for n in range(len(self._reported))]
            answers = self._reported.answers(further, examples)
            more = self._reported.figures(further)
        if sums["passed_s"]:
            more["data_wait"] = sums["waited_s"] / sums["passed_s"]
        return {
            "loss": sums["loss"] / examples,
            "accuracy": sums["correct"] / answers if answers else math.nan,
            "staleness": counted["staleness"] / counted["pushes"] if counted["pushes"] else math.nan,
            **more,
        }

    def of_epoch(self) -> dict[str, float]:
        """Returns the means over the examples since the last call; of a batch method, the last iteration."""
        if self.unit == "iteration":
            return dict(self._last_values)
        means = self._means(self._epoch) if self._epoch["examples"] else {}
        self._epoch = Sums(float)
        return means

    def latest(self) -> TrainingProgress | Iteration | None:
        """Returns the progress since the last call; None where there is none.

        For steps, it is added to the history.
        """
        if self.unit == "iteration":
            new, self._looked_at = self.history[self._looked_at :], len(self.history)
            return new[-1] if new else None
        if not self._since["examples"]:
            return None
        now, means = time.monotonic(), self._means(self._since)
        found = TrainingProgress(
            now - self._began,
            self.steps,
            self._examples,
            means["loss"],
            means["accuracy"],
            self._since["examples"] / max(now - self._last, 1e-9),
            means.pop("staleness"),
            {name: mean for name, mean in means.items() if name not in ("loss", "accuracy")},
        )
        self._last, self._since = now, Sums(float)
        self.history.append(found)
        return found


def _iteration(record: Record) -> Iteration:
    """Makes an entry of the history of a record of a batch method."""
    values = dict(record.metrics)
    whole = {name: int(values.pop(name, 0)) for name in ("evaluations", "redone", "busy", "replicas")}
    return Iteration(record.seconds, record.step, **values, **whole, note=record.note)  # type: ignore[arg-type]
