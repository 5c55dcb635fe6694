"""The base of all loggers: the events of a run as lines of figures, no more often than is wanted."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from partita.engine.run.callbacks.callback import Callback, Control
from partita.engine.run.metrics import Record
from partita.engine.run.run import Run
from partita.layers.checks import check_number


@dataclass(frozen=True)
class Line:
    """Figures of a run at one moment.

    Args:
        kind: "training", "validation" or "epoch".
        step: steps done by all replicas, or iterations.
        epoch: epochs done.
        seconds: since the run began.
        figures: finite numbers by name.
    """

    kind: str
    step: int
    epoch: float
    seconds: float
    figures: Mapping[str, float]


@dataclass(kw_only=True)
class Logger(Callback):
    """Writes lines of figures.

    Args:
        every_s: seconds of training from one line to the next, which has the means over the examples
            between; 0 writes each report. Validations and epochs are always written.
    """

    every_s: float = 1.0
    _sums: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    _examples: int = field(default=0, init=False, repr=False)
    _last: float = field(default=-math.inf, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number(self.every_s, f"{type(self).__name__}'s every_s is", zero=True)

    @override
    def on_start(self, control: Control) -> None:
        self.open(control)

    @override
    def on_record(self, record: Record, control: Control) -> None:
        weight = max(record.examples, 1)
        if record.replica is None:  # of a batch method: present values
            self._sums, self._examples = {}, 0
        for name, value in record.metrics.items():
            if math.isfinite(value):
                self._sums[name] = self._sums.get(name, 0.0) + value * weight
        self._examples += weight
        if time.monotonic() - self._last >= self.every_s:
            self._write_training(control)

    def _write_training(self, control: Control) -> None:
        if self._examples:
            means = {name: total / self._examples for name, total in self._sums.items()}
            self._sums, self._examples, self._last = {}, 0, time.monotonic()
            self._write("training", means, control)

    @override
    def on_validation(self, record: Record, control: Control) -> None:
        self._write_training(control)
        self._write("validation", record.metrics, control)

    def _write(self, kind: str, figures: Mapping[str, float], control: Control) -> None:
        finite = {name: figure for name, figure in figures.items() if math.isfinite(figure)}
        self.write(Line(kind, control.steps, control.epoch, control.seconds, finite))

    @override
    def on_end(self, run: Run | None, control: Control) -> None:
        try:
            self._write_training(control)
        finally:
            self.close()

    def open(self, control: Control) -> None:
        """Opens what is written to."""

    @abstractmethod
    def write(self, line: Line) -> None:
        """Writes the figures of one moment."""

    def close(self) -> None:
        """Closes what is written to."""
