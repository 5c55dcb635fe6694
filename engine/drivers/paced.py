"""A driver's coordinator program with stops in it: for validations, for callbacks, and at a limit of steps.

The work that the program yields is cut where a stop is due, which changes no step: a stop lies between two of
them. A program that yields requests stops behind an iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from partita.engine.protocol.actions import Checkpoint, Decision, Plan, Validate, Work
from partita.engine.protocol.commands import Iterated, Outcome
from partita.engine.protocol.coordinator import Schedule
from partita.engine.protocol.views import JoinedBatches, Outline


@dataclass(frozen=True)
class Pacing:
    """When a run stops, and where it ends.

    Args:
        minibatches: of the validation data; 0: none.
        asks: whether the callbacks are asked at the end of each epoch, or iteration, without validation data.
        every: steps of all replicas, or iterations, from one validation to the next; None: an epoch, or one
            iteration.
        every_s: seconds from one validation to the next, in the place of `every`.
        most: steps of all replicas, or iterations, at which the run ends; None: no limit.
    """

    minibatches: int = 0
    asks: bool = False
    every: int | None = None
    every_s: float | None = None
    most: int | None = None

    @property
    def stops(self) -> bool:
        """Returns whether there is anything to stop for."""
        return self.asks or self.minibatches > 0 or self.most is not None

    def around(self, schedule: Schedule, *, works: bool, replicas: int) -> Schedule:
        """Returns a program that stops when that is due.

        Args:
            schedule: the driver's program.
            works: whether it yields `Work`, and no requests.
            replicas: that do each step together.
        """
        if not self.stops:
            return schedule
        if not works:
            return lambda run: _Iterations(self).run(schedule(run))
        return lambda run: _Steps(self, run, replicas).run(schedule(run))


class _Steps:
    """The stops of a program that yields `Work`. Positions are examples, from the first epoch on."""

    def __init__(self, pacing: Pacing, run: Outline, replicas: int) -> None:
        self._pacing, self._run, self._replicas = pacing, run, replicas
        self._batches = JoinedBatches(run.examples, run.batch)
        self._position = 0
        most = pacing.most
        self._most = None if most is None else self._at(most)
        self._validated_at = 0.0  # seconds
        self._piece = 1  # steps until the clock is looked at again

    def _at(self, steps: int) -> int:
        """The position after so many steps of all replicas."""
        return self._batches.position(0, -(-steps // self._replicas), self._replicas)

    def run(self, program: Plan) -> Plan:
        """Yields the program's actions, with stops between them."""
        result: Any = None
        while True:
            try:
                action = program.send(result)
            except StopIteration as ended:
                return ended.value
            if isinstance(action, Work):
                result = None
                if (yield from self._work(action)):
                    program.close()
                    return None
            else:
                result = yield action

    def _work(self, action: Work) -> Generator[Any, Any, bool]:
        """Yields the work in pieces. Returns whether the run ends behind it."""
        until = self._position + (action.examples or 0) + (action.epochs or 0) * self._run.examples
        while self._position < until:
            stop, validates, ends_epoch = self._next(until)
            yield Work(examples=stop - self._position)
            self._position = stop
            is_last = self._most is not None and stop >= self._most
            if (yield from self._stop(validates=validates or is_last, ends_epoch=ends_epoch)) or is_last:
                return True
        return False

    def _next(self, until: int) -> tuple[int, bool, bool]:
        """The position of the next stop, whether a validation is due there, and whether an epoch ends."""
        pacing, examples = self._pacing, self._run.examples
        epoch = (self._position // examples + 1) * examples
        stops = {until, *([] if self._most is None else [self._most])}
        if pacing.asks or (pacing.minibatches and pacing.every is None and pacing.every_s is None):
            stops.add(epoch)
        due = self._due()
        stop = min(one for one in (*stops, *due) if one > self._position)
        by_epoch = pacing.every is None and pacing.every_s is None
        return stop, stop in due if not by_epoch else stop == epoch, stop == epoch

    def _due(self) -> set[int]:
        pacing, batches = self._pacing, self._batches
        if not pacing.minibatches or (pacing.every is None and pacing.every_s is None):
            return set()
        if pacing.every_s is not None:
            return {batches.position(self._position, self._piece, self._replicas)}
        every = pacing.every or 1
        before = batches.steps(0, self._position, self._replicas) * self._replicas
        return {
            next(
                at
                for n in itertools.count(before // every + 1)
                if (at := self._at(n * every)) > self._position
            )
        }

    def _stop(self, *, validates: bool, ends_epoch: bool) -> Generator[Any, Decision, bool]:
        """Stops for the callbacks, where that is due. Returns whether the run is to end."""
        pacing = self._pacing
        if pacing.every_s is not None and validates:
            looked: Decision = yield Validate(self._position)
            passed_s = looked.seconds - self._validated_at
            if looked.stop:
                return True
            self._piece = self._piece * 2 if passed_s < pacing.every_s / 2 else max(self._piece // 2, 1)
            if passed_s < pacing.every_s:
                return False
            self._validated_at = looked.seconds
        if not (validates and pacing.minibatches) and not (ends_epoch and pacing.asks):
            return False
        decision: Decision = yield Validate(self._position, pacing.minibatches if validates else 0)
        if decision.checkpoint and not decision.stop:
            yield Checkpoint()
        return bool(decision.stop)


class _Iterations:
    """The stops of a program that yields requests."""

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        self._validated_at, self._validated_s = 0, 0.0

    def run(self, program: Plan) -> Plan:
        """Yields the program's requests, and stops behind iterations."""
        result: Any = None
        while True:
            try:
                yielded = program.send(result)
            except StopIteration as ended:
                return ended.value
            result = yield yielded
            if not isinstance(yielded, Iterated):
                continue
            most = self._pacing.most
            is_last = most is not None and yielded.iteration >= most
            stop = yield from self._stop(yielded.iteration, is_last=is_last)
            if stop or is_last:
                program.close()
                return Outcome("stopped", stop or f"max_steps={most} is reached")

    def _stop(self, iteration: int, *, is_last: bool) -> Generator[Any, Decision, str]:
        """Stops for the callbacks, where that is due. Returns why the run ends here; "": it goes on."""
        pacing, minibatches = self._pacing, 0
        if pacing.minibatches and pacing.every_s is not None:
            looked: Decision = yield Validate(iteration)
            if looked.stop:
                return looked.stop
            if looked.seconds - self._validated_s >= pacing.every_s or is_last:
                minibatches, self._validated_s = pacing.minibatches, looked.seconds
        elif iteration - self._validated_at >= (pacing.every or 1) or is_last:
            minibatches, self._validated_at = pacing.minibatches, iteration
        if not minibatches and not pacing.asks:
            return ""
        decision: Decision = yield Validate(iteration, minibatches)
        return decision.stop
