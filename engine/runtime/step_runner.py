"""Runs the steps of a part by its player, one at a time, each as soon as its receivers keep up.

A step whose numbers are not finite ends the run: its gradient goes to nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol.events import Received, Refuse
from partita.engine.protocol.program_effects import StepDone
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.player import PlayedStep, Player
from partita.engine.runtime.runner import Runner
from partita.engine.runtime.task import CannotGoOn

OTHERS_FIRST_S: Final = 2.0
"""The time for a machine that sent a nonfinite array to report where that began."""


class NotFinite(CannotGoOn):
    """A number has become NaN or infinite. The shards, or the last checkpoint, hold the steps before."""


class StepRunner(Runner):
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
    ) -> None:
        """Takes over the player, which has not begun.

        Args:
            player: of the part's program.
            computations: those of the player.
            prepare: called before each step.
            finish: called after each step; returns whether its gradient is finite.
            counted: the examples of the step that the part reports.
            replica: of the part, for error messages.
        """
        self._player, self._computations = player, computations
        self._prepare, self._finish, self._counted, self._replica = prepare, finish, counted, replica
        self._next: Any = None  # ordered, not begun
        self._step: Any = None  # under way
        self._raises: tuple[NotFinite, float] | None = None

    @override
    def begin(self, step: Any) -> None:
        self._next = step
        self._begin()

    def _begin(self) -> None:
        step = self._next
        if step is None or self._step is not None or not self._player.may_begin():
            return
        self._next, self._step = None, step
        self._computations.metrics.clear()
        self._prepare(step)
        self._player.begin(step.number)

    @override
    def restart(self, first: int) -> None:
        self._next = self._step = None
        self._player.start(first)

    @override
    def receive(self, event: Received) -> None:
        self._player.receive(event)

    @property
    @override
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        return self._player.stuck_on

    @override
    def refused(self) -> list[Refuse]:
        return self._player.refused()

    @override
    def poll(self, now: float) -> Iterator[StepDone]:
        for over in self._player.poll():
            if (done := self._ended(over, now)) is not None:
                yield done
        self._begin()

    def _ended(self, over: PlayedStep, now: float) -> StepDone | None:
        step, computations = self._step, self._computations
        if step is None or over.step != step.number:
            return None  # dropped
        finite = self._finish()  # asked whatever else is wrong: it starts anew
        bad = computations.watch.suspect is not None or bool(computations.not_finite)
        if not finite or bad or not math.isfinite(computations.metrics.loss):
            self._fail(step.step, now)
            return None
        self._step = None
        return StepDone(over.step, self._counted(), computations.metrics.loss, computations.metrics.correct)

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

    @override
    def close(self) -> None:
        self._player.close()
