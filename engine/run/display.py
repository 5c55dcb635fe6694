"""The display of a run: a live line in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from partita.engine.protocol.coordinator_effects import Progress
from partita.engine.run.metrics import Metrics
from partita.engine.run.notebook import NotebookLine

LINE_EVERY_S = 2.0

BAR_FROM = 110
"""Columns of a terminal from which a bar stands before the percentage."""


class Display:
    """Shows a run, the metrics of one trainer after another. Use it as a context manager."""

    def __init__(self, show: str = "auto", *, stream: TextIO | None = None) -> None:
        """`show` is as in `train`; `stream` is standard error if not given."""
        in_notebook = stream is None and show in ("auto", "live")
        self._line = NotebookLine.here() if in_notebook else None
        usual = sys.stdout if self._line else sys.stderr
        self._console = Console(file=stream or usual, force_jupyter=False)
        live = show == "live" or (show == "auto" and self._console.is_terminal)
        self._quiet = show == "nothing"
        self._metrics: Metrics | None = None
        self._last: float | None = None  # when the last line was drawn, or the first report came
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            TaskProgressColumn(),
            TextColumn("{task.fields[latest]}", markup=False),
            TimeRemainingColumn(),
        ]
        if self._console.width >= BAR_FROM:
            columns.insert(1, BarColumn(bar_width=20))
        self._bar = Bar(*columns, console=self._console) if live and not (self._quiet or self._line) else None
        self._task: TaskID | None = None
        self._phase: TaskID | None = None
        self._last_phase, self._last_phase_at = "", float("-inf")  # the last line of a phase
        self._validation, self._validated_at = "", float("-inf")  # the last one that is not shown

    def phase(self, text: str) -> None:
        """Shows a phase before metrics have news; as lines, at most one in `LINE_EVERY_S`."""
        now = time.monotonic()
        if self._line is not None:
            self._line.update(text)
        elif self._bar is not None:
            if self._phase is None:
                self._phase = self._bar.add_task("", total=None, latest="")
            self._bar.update(self._phase, description=text)
        elif text != self._last_phase and now - self._last_phase_at >= LINE_EVERY_S:
            self._last_phase, self._last_phase_at = text, now
            self.print_line(text)

    def _end_phase(self) -> None:
        self._last_phase, self._last_phase_at = "", float("-inf")
        if self._bar is not None and self._phase is not None:
            self._bar.remove_task(self._phase)
            self._phase = None

    def follow(self, metrics: Metrics) -> None:
        """Shows other metrics from now on; those before are drawn a last time."""
        self.draw()
        self._metrics, self._last = metrics, None
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(metrics.title, total=metrics.total, latest="", visible=False)

    def update(self, progress: Progress) -> None:
        """Adds a report to the metrics, which ends the phases before it."""
        assert self._metrics is not None
        self._end_phase()
        self._metrics.add(progress)
        every = LINE_EVERY_S if self._bar is None and self._line is None else 0.5
        now = time.monotonic()
        if self._last is None:
            self._last = now
        elif now - self._last >= every:
            self.draw()

    def validated(self, done: int, text: str) -> None:
        """Shows the figures of a validation: at most a line in `LINE_EVERY_S`, and the last one."""
        assert self._metrics is not None
        self._validation = f"{self._metrics.unit} {done}: validation {text}"
        now = time.monotonic()
        if now - self._validated_at >= LINE_EVERY_S:
            self._validated_at = now
            self._print_validation()

    def _print_validation(self) -> None:
        if self._validation:
            self.print_line(self._validation)
            self._validation = ""

    def print_line(self, text: str) -> None:
        """Prints a line that stays."""
        if not self._quiet:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def draw(self) -> None:
        """Shows the progress of the run now."""
        latest = None if self._metrics is None else self._metrics.latest()
        if self._metrics is None or latest is None:
            return
        self._last = time.monotonic()
        if self._bar is not None and self._task is not None:
            fitting = self._fitting(str(latest))
            self._bar.update(self._task, completed=latest.done, latest=fitting, visible=True)
            return
        total = "" if self._metrics.total is None else f"/{self._metrics.total}"
        text = f"{self._metrics.unit} {latest.done}{total}  {latest}"
        if self._line is None:
            self.print_line(text)
        else:
            self._line.update(text)

    def _fitting(self, latest: str) -> str:
        """The first figures that fit a line beside the percentage and the remaining time."""
        assert self._metrics is not None
        others = len(self._metrics.title) + len(" 100% ") + len(" 0:00:00")
        room = self._console.width - others - (21 if self._console.width >= BAR_FROM else 0)
        while len(latest) > room and "  " in latest:
            latest = latest.rpartition("  ")[0]
        return latest

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_phase()
        self.draw()
        self._print_validation()
        if self._bar is not None:
            self._bar.stop()
