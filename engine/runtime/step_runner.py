"""Runs the steps of a training by the part's player.

A step whose numbers are not finite ends the run: its gradient goes to nobody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Final

from typing_extensions import override

from partita.engine.data.times import FeedTimes, ReadClock
from partita.engine.protocol.program_effects import StepDone
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.player import PlayedStep, Player
from partita.engine.runtime.runner import PlayerRunner
from partita.engine.runtime.task import CannotGoOn

OTHERS_FIRST_S: Final = 2.0
"""The time for a machine that sent a nonfinite array to report where that began."""


class NotFinite(CannotGoOn):
    """A number has become NaN or infinite. The shards, or the last checkpoint, hold the steps before."""


class StepRunner(PlayerRunner):
    """A player's steps, as they are ordered."""

    def __init__(
        self,
        player: Player,
        computations: Computations,
        *,
        prepare: Callable[[Any], None],
        finish: Callable[[], bool],
        counted: Callable[[], int],
        replica: int,
        times: Callable[[], FeedTimes | None] = lambda: None,
    ) -> None:
        """Takes over the player, which has not begun.

        Args:
            player: of the part's program.
            computations: those of the player.
            prepare: called before each step.
            finish: called after each step; returns whether its gradient is finite.
            counted: the examples of the step that the part reports.
            replica: of the part, for error messages.
            times: returns what reading the data took so far; None where nothing is read.
        """
        super().__init__(player)
        self._computations = computations
        self._prepare, self._finish, self._counted, self._replica = prepare, finish, counted, replica
        self._reading = ReadClock(times)
        self._raises: tuple[NotFinite, float] | None = None

    @override
    def prepare(self, step: Any) -> None:
        self._computations.metrics.clear()
        self._reading.begin(time.monotonic())
        self._prepare(step)

    @override
    def ended(self, over: PlayedStep, now: float) -> StepDone | None:
        step, computations = self._step, self._computations
        if step is None or over.step != step.number:
            return None  # dropped
        finite = self._finish()  # asked whatever else is wrong: it starts anew
        bad = computations.watch.suspect is not None or bool(computations.not_finite)
        if not finite or bad or not math.isfinite(computations.metrics.loss):
            self._fail(step.step, now)
            return None
        metrics = computations.metrics
        counted, read = self._counted(), self._reading.since_last(now)
        return StepDone(over.step, counted, metrics.loss, metrics.correct, metrics.sums, read)

    def _fail(self, step: int, now: float) -> None:
        """Raises `NotFinite`; later if the array came from a machine that may raise an earlier cause."""
        reason, received = self._computations.watch.describe(step=step, replica=self._replica)
        error = NotFinite(reason)
        if not received:
            raise error
        self._raises = error, now + OTHERS_FIRST_S

    @override
    def tick(self, now: float) -> None:
        if self._raises is not None and now >= self._raises[1]:
            raise self._raises[0]
