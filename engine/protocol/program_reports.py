"""Reports of a part to the coordinator: about five a second, at steps that are multiples of a power of two.

So all parts of a replica report at steps at which the others report, and their sums can be put together.
"""

from __future__ import annotations

from typing import Final

from partita.engine.protocol.events import Send
from partita.engine.protocol.messages import Report
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.program_effects import StepDone

REPORT_EVERY_S: Final = 0.2
LATEST_REPORT_S: Final = 2.0


class ReportSpacing:
    """Decides at which steps a part reports."""

    def __init__(self) -> None:
        self._every = 1  # steps

    def is_due(self, step: int, passed_s: float) -> bool:
        """Returns whether to report after so many steps, `passed_s` after the last report."""
        return step % self._every == 0 or passed_s >= LATEST_REPORT_S

    def space(self, passed_s: float) -> None:
        """Chooses the next steps by the time between the last two reports."""
        if passed_s < REPORT_EVERY_S / 2:
            self._every *= 2
        elif passed_s > 2 * REPORT_EVERY_S and self._every > 1:
            self._every //= 2


class ProgramReports:
    """Sums over steps that are done and not reported, and over those that are not done."""

    def __init__(self) -> None:
        self._spacing = ReportSpacing()
        self._sent_at = float("-inf")
        self._open: list[StepDone] = []  # computed since the last safe point
        self._examples, self._loss, self._correct = 0, 0.0, 0

    def begin(self, now: float) -> None:
        """Notes that the part begins to work."""
        self._sent_at = now

    def add(self, done: StepDone) -> None:
        """Adds the sums of a step that counts from the next safe point on."""
        self._open.append(done)

    def drop(self) -> None:
        """Drops what was computed since the last safe point: it is computed again."""
        self._open.clear()

    def done(self, step: int, now: float) -> list[Send]:
        """Returns the report after so many steps, if one is due."""
        for one in self._open:
            self._examples += one.examples
            self._loss += one.loss
            self._correct += one.correct
        self._open.clear()
        passed_s = now - self._sent_at
        if not self._spacing.is_due(step, passed_s):
            return []
        self._spacing.space(passed_s)
        return self.rest(step, now)

    def rest(self, step: int, now: float) -> list[Send]:
        """Returns the report of everything that is done."""
        self._sent_at = now
        report = Report(step, self._examples, self._loss, self._correct, 0.0, 0)
        self._examples, self._loss, self._correct = 0, 0.0, 0
        return [Send(COORDINATOR, report)]
