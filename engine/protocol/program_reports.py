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


class ProgramReports:
    """Sums over steps that are done and not reported, and over those that may be computed again."""

    def __init__(self) -> None:
        self._every = 1  # steps
        self._sent_at = float("-inf")
        self._open: list[StepDone] = []
        self._examples, self._loss, self._correct = 0, 0.0, 0
        self._sums: tuple[float, ...] = ()
        self._read: tuple[float, ...] = ()

    def begin(self, now: float) -> None:
        """Notes that the part begins to work."""
        self._sent_at = now

    def add(self, done: StepDone) -> None:
        """Adds the sums of a step, which count when it is settled."""
        self._open.append(done)

    def drop(self) -> None:
        """Drops the steps that are not settled: they are computed again."""
        self._open.clear()

    def settle(self, step: int, now: float) -> bool:
        """Counts all steps so far; returns whether a report is due after the first `step` ones."""
        for one in self._open:
            self._examples += one.examples
            self._loss += one.loss
            self._correct += one.correct
            self._sums = added(self._sums, one.sums)
            self._read = added(self._read, one.read)
        self._open.clear()
        passed_s = now - self._sent_at
        if step % self._every and passed_s < LATEST_REPORT_S:
            return False
        if passed_s < REPORT_EVERY_S / 2:
            self._every *= 2
        elif passed_s > 2 * REPORT_EVERY_S and self._every > 1:
            self._every //= 2
        return True

    def send(
        self, step: int, now: float, staleness: float = 0.0, pushes: int = 0, held: int = 0
    ) -> list[Send]:
        """Returns the report of everything that is settled; for the numbers see `Report`."""
        self._sent_at = now
        report = Report(
            step, self._examples, self._loss, self._correct, staleness, pushes, held, self._sums, self._read
        )
        self._examples, self._loss, self._correct, self._sums, self._read = 0, 0.0, 0, (), ()
        return [Send(COORDINATOR, report)]


def added(sums: tuple[float, ...], more: tuple[float, ...]) -> tuple[float, ...]:
    """Adds two rows of sums, either of which may be empty."""
    return (
        tuple(one + other for one, other in zip(sums, more, strict=True)) if sums and more else sums or more
    )
