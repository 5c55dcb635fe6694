"""Runs the portions of an assignment: alone in one go, or together with the other parts.

A program without messages waits for nobody, so one kernel thread makes all its calls, portion after portion
and assignment after assignment: no other thread has to wake before it goes on. Otherwise each portion is a
step of the player.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Final

import numpy as np
from typing_extensions import override

from partita.engine.data.times import FeedTimes, ReadClock
from partita.engine.protocol.assigned_work import RunAssignment
from partita.engine.protocol.events import Received, Refuse
from partita.engine.protocol.program_effects import StepDone
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.player import Player
from partita.engine.runtime.recorded_steps import StepSampler
from partita.engine.runtime.runner import Runner
from partita.engine.runtime.trace import Recorder

Prepare = Callable[[RunAssignment, int], None]
"""Prepares portion number n of an assignment."""
Finish = Callable[[StepDone], None]
"""Handles the end of an assignment, and may begin the next one."""


class SinglePartRunner(Runner):
    """One thread that makes all calls of an assignment in their order."""

    def __init__(
        self,
        computations: Computations,
        *,
        prepare: Prepare,
        is_over: Callable[[int], bool],
        wake: Callable[[], None],
        times: Callable[[], FeedTimes | None] = lambda: None,
    ) -> None:
        """Prepares all calls; `start` starts the thread.

        Args:
            computations: of a program without messages.
            prepare: called by the thread before each portion.
            is_over: whether nobody needs an evaluation any more: its assignment is then cut short.
            wake: makes the mailbox's owner call `poll` soon.
            times: returns what reading the data took so far; None where nothing is read.
        """
        program = computations.buffers.program
        self._computations, self._prepare = computations, prepare
        self._is_over, self._wake, self._reading = is_over, wake, ReadClock(times)
        self._sampler: Final = StepSampler(program, Recorder(program, str))
        self._played = 0  # portions
        self._positions: Final = [n for n, call in enumerate(computations.calls) if call is not None]
        self._assignments: SimpleQueue[RunAssignment | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._refused: list[Refuse] = []
        self._thread = threading.Thread(target=self._work, name="kernel 0", daemon=True)

    def start(self, finish: Finish) -> None:
        """Starts the thread, which calls `finish` after each assignment."""
        self._finish = finish
        self._thread.start()

    @override
    def begin(self, step: RunAssignment) -> None:
        self._assignments.put(step)

    @override
    def poll(self, now: float) -> tuple[StepDone, ...]:
        if self._error is not None:
            raise self._error
        return ()

    @property
    @override
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        return 0, ()  # it waits for nobody

    @property
    @override
    def sampler(self) -> StepSampler:
        return self._sampler

    @override
    def receive(self, event: Received) -> None:
        self._refused.append(Refuse(event.sender, "this part's program has no messages"))

    @override
    def refused(self) -> list[Refuse]:
        refused, self._refused = self._refused, []
        return refused

    @override
    def close(self) -> None:
        self._is_over = lambda evaluation: True
        self._assignments.put(None)
        self._thread.join()
        self._computations.close()

    def _work(self) -> None:
        with np.errstate(all="ignore"):  # numbers that are not finite are reported like any other
            while (assignment := self._assignments.get()) is not None:
                try:
                    self._finish(self._run(assignment))
                except BaseException as error:  # noqa: BLE001 - raised again by poll, on the host's thread
                    self._error = error
                    self._wake()

    def _run(self, assignment: RunAssignment) -> StepDone:
        run = self._computations.run
        _begin(self._computations, self._reading)
        for n in range(assignment.count):
            if self._is_over(assignment.evaluation):
                break
            self._prepare(assignment, n)
            self._computations.watch.begin()
            self._sampler.plays(run, self._positions, self._played)
            self._played += 1
        return _finished(assignment, self._computations, self._reading)


class MultiPartRunner(Runner):
    """A player's steps, one for each portion, numbered through all assignments: every part plays all."""

    def __init__(
        self,
        player: Player,
        computations: Computations,
        *,
        prepare: Prepare,
        times: Callable[[], FeedTimes | None] = lambda: None,
    ) -> None:
        """Takes over the player, which has not begun.

        Args:
            player: of a program that exchanges messages.
            computations: those of the player.
            prepare: called before each portion.
            times: returns what reading the data took so far; None where nothing is read.
        """
        self._player, self._computations, self._prepare = player, computations, prepare
        self._player.start(0)
        self._reading: Final = ReadClock(times)
        self._assignment: RunAssignment | None = None
        self._step = self._done = 0
        self._playing = False

    @override
    def begin(self, step: RunAssignment) -> None:
        assert self._assignment is None, f"{step} begins inside {self._assignment}"
        self._assignment, self._done = step, 0
        _begin(self._computations, self._reading)
        self._begin_portion()

    @property
    @override
    def sampler(self) -> StepSampler | None:
        return self._player.sampler

    @override
    def receive(self, event: Received) -> None:
        self._player.receive(event)

    @property
    @override
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        # Between two portions nothing of another part is missing.
        return self._player.stuck_on if self._playing else (self._step, ())

    @override
    def refused(self) -> list[Refuse]:
        return self._player.refused()

    @override
    def poll(self, now: float) -> Iterator[StepDone]:
        for over in self._player.poll():
            assert over.step == self._step, (over, self._step)
            self._playing = False
            if self.sampler is not None:
                self.sampler.ended()
            self._step += 1
            self._done += 1
        assignment = self._assignment
        if assignment is None or self._playing:
            return
        if self._done < assignment.count:
            self._begin_portion()
            return
        self._assignment = None
        yield _finished(assignment, self._computations, self._reading)

    def _begin_portion(self) -> None:
        if self._assignment is not None and self._player.may_begin():
            self._prepare(self._assignment, self._done)
            self._playing = True
            if self.sampler is not None:
                self.sampler.begins(self._step, self._step)
            self._player.begin(self._step)

    @override
    def close(self) -> None:
        self._player.close()


def _begin(computations: Computations, reading: ReadClock) -> None:
    """Begins the sums of an assignment."""
    computations.metrics.clear()
    reading.begin(time.monotonic())


def _finished(assignment: RunAssignment, computations: Computations, reading: ReadClock) -> StepDone:
    """Ends an assignment, and returns its sums."""
    computations.finish()
    metrics = computations.metrics
    return StepDone(
        assignment.number,
        loss=metrics.loss,
        correct=metrics.correct,
        sums=metrics.sums,
        read=reading.since_last(time.monotonic()),
    )
