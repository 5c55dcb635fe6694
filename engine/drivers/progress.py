"""What a person sees of a run: a live line in a terminal, plain lines where there is none.

Loss and accuracy are those of the minibatches since the last line, before their update.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from partita.engine.protocol.names import part_indices
from partita.engine.protocol.orders import Progress

Show = Literal["auto", "live", "lines", "nothing"]
LINE_EVERY_S = 2.0


@dataclass(frozen=True)
class Moment:
    """A run at one moment.

    Args:
        seconds: since it began.
        step: the steps of all replicas.
        examples: seen so far.
        loss, accuracy: means over the examples since the moment before; NaN if there were none.
        examples_per_s: since the moment before.
        staleness: mean, over all pushes so far, of the pushes that others had applied in between.
    """

    seconds: float
    step: int
    examples: int
    loss: float
    accuracy: float
    examples_per_s: float
    staleness: float

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.4f}  accuracy {self.accuracy:.3f}  {self.examples_per_s:,.0f} examples/s  "
            f"staleness {self.staleness:.2f}"
        )


@dataclass
class Meter:
    """Adds up what the parts report."""

    steps_per_replica: int
    batch: int
    done: tuple[int, ...]
    history: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._steps: dict[str, int] = {}
        self._pushes: dict[str, tuple[int, int]] = {}
        self._examples = 0
        self._since: tuple[int, float, int] = (0, 0.0, 0)

    def add(self, progress: Progress) -> None:
        """Takes in a report."""
        self._steps[progress.name] = progress.step
        self._pushes[progress.name] = (progress.pushes, progress.staleness)
        examples, loss, correct = self._since
        self._since = (examples + progress.examples, loss + progress.loss, correct + progress.correct)
        self._examples += progress.examples

    @property
    def total_steps(self) -> int:
        """Of all replicas."""
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

    def moment(self) -> Moment:
        """Where the run is now, and what came since the last call."""
        now = time.monotonic()
        examples, loss, correct = self._since
        pushes = sum(count for count, _ in self._pushes.values())
        stale = sum(staleness for _, staleness in self._pushes.values())
        found = Moment(
            now - self._began,
            self.steps,
            self._examples,
            loss / examples if examples else float("nan"),
            correct / examples if examples else float("nan"),
            examples / max(now - self._last, 1e-9),
            stale / pushes if pushes else 0.0,
        )
        self._last, self._since = now, (0, 0.0, 0)
        if examples:
            self.history.append(found)
        return found


class Display:
    """Shows a run. Use it as a context manager."""

    def __init__(self, meter: Meter, show: Show = "auto", *, stream: TextIO | None = None) -> None:
        """`stream` is standard error if not given."""
        self._meter = meter
        self._console = Console(file=stream or sys.stderr)
        live = show == "live" or (show == "auto" and self._console.is_terminal)
        self._quiet = show == "nothing"
        self._last = time.monotonic()
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[moment]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Bar(*columns, console=self._console) if live and not self._quiet else None
        self._task = None if self._bar is None else self._bar.add_task("training", total=meter.total_steps, moment="")

    def update(self, progress: Progress) -> None:
        """A part has reported."""
        self._meter.add(progress)
        every = 0.5 if self._bar is not None else LINE_EVERY_S
        if time.monotonic() - self._last >= every:
            self._last = time.monotonic()
            self._draw(self._meter.moment())

    def say(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _draw(self, moment: Moment) -> None:
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
        self._draw(self._meter.moment())
        if self._bar is not None:
            self._bar.stop()
