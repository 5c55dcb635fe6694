"""What a person sees of a run: a live line in a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from partita.engine.drivers.progress import Meter, Show
from partita.engine.protocol.orders import Progress

LINE_EVERY_S = 2.0


class Display:
    """Shows a run. Use it as a context manager."""

    def __init__(self, meter: Meter, show: Show = "auto", *, stream: TextIO | None = None) -> None:
        """`stream` is standard error if not given."""
        self._meter = meter
        self._console = Console(file=stream or sys.stderr)
        live = show == "live" or (show == "auto" and self._console.is_terminal)
        self._quiet = show == "nothing"
        self._last: float | None = (
            None  # when the last line was drawn; the first waits from the first report on
        )
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[moment]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Bar(*columns, console=self._console) if live and not self._quiet else None
        self._task = (
            None if self._bar is None else self._bar.add_task("training", total=meter.total_steps, moment="")
        )

    def update(self, progress: Progress) -> None:
        """A part has reported."""
        self._meter.add(progress)
        every = 0.5 if self._bar is not None else LINE_EVERY_S
        now = time.monotonic()
        if self._last is None:
            self._last = now
        elif now - self._last >= every:
            self._draw()

    def say(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _draw(self) -> None:
        moment = self._meter.moment()
        if moment is None:
            return
        self._last = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=moment.step, moment=str(moment))
        else:
            self.say(f"step {moment.step}/{self._meter.total_steps}  {moment}")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()
        if self._bar is not None:
            self._bar.stop()
