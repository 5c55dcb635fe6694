"""Records some steps of a part for those who watch the run: which ones the coordinator says, in its
questions.

A step whose number is a multiple of `every` is recorded, so all parts of a replica record the same ones.
Between two such steps it costs one comparison for each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from partita.engine.protocol.watch_messages import RecordedStep
from partita.engine.runtime.lanes import LaneFolder
from partita.engine.runtime.trace import Recorder
from partita.partitioner.ir.program import Program

LEAST_S: Final = 0.2
"""Seconds between two recorded steps at least: `every` comes late where steps suddenly become faster."""


class StepSampler:
    """The recorded steps of one part. `newest` is for any thread, all others for the one that runs its steps.

    Attributes:
        every: steps whose number is a multiple of it are recorded; 0: none.
        steps: the number of steps that have ended.
    """

    def __init__(self, program: Program, recorder: Recorder) -> None:
        """A sampler that records nothing yet; `recorder` is the player's."""
        self.every = 0
        self.steps = 0
        self._program: Final = program
        self._recorder: Final = recorder
        self._folder: LaneFolder | None = None
        self._number = self._step = 0
        self._over_s: float | None = None  # the end of the step before
        self._between_s: float | None = None
        self._newest: RecordedStep | None = None
        self._rests_until_s = float("-inf")

    def begins(self, number: int, step: int) -> None:
        """Notes that a step begins: its number on all parts, and within the replica."""
        if not self.every or number % self.every or time.perf_counter() < self._rests_until_s:
            return
        self._recorder.on = True
        self._number, self._step = number, step
        self._between_s = None if self._over_s is None else time.perf_counter() - self._over_s

    def ended(self) -> None:
        """Notes the end of a step, and folds it if it was recorded."""
        self.steps += 1
        if self._recorder.on:
            self._recorder.on = False
            self._fold()
        self._over_s = time.perf_counter() if self.every else None

    def dropped(self) -> None:
        """Notes that the step under way was dropped."""
        self._recorder.on = False

    def newest(self) -> RecordedStep | None:
        """Returns the newest recorded step, once."""
        newest, self._newest = self._newest, None
        return newest

    def plays(self, run: Callable[[int], None], positions: Sequence[int], step: int) -> None:
        """Plays a step of a program without messages by its calls, in this thread.

        Args:
            run: carries out an instruction.
            positions: of the instructions, in their order.
            step: its number.
        """
        self.begins(step, step)
        recorder, clock = self._recorder, time.perf_counter
        if not recorder.on:
            for position in positions:
                run(position)
        else:
            recorder.begin(step, clock())
            for position in positions:
                started = clock()
                run(position)
                recorder.played(position, started, clock())
            recorder.end(clock())
        self.ended()

    def _fold(self) -> None:
        before = time.thread_time()
        if self._folder is None:
            self._folder = LaneFolder(self._program)
        table = self._recorder.table()
        arrived, started, stopped = table[:3, :-1]
        began_s, over_s = float(table[1, -1]), float(table[2, -1])
        lane = self._folder.fold(
            started, stopped, arrived, began_s=began_s, over_s=over_s, between_s=self._between_s
        )
        cost_s = time.thread_time() - before
        self._rests_until_s = time.perf_counter() + LEAST_S
        self._newest = RecordedStep(self._number, self._step, began_s, over_s, cost_s, lane)
