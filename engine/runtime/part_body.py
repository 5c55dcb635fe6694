"""The body of a part, whatever its driver: a runner of its steps, and its arrays.

Messages, effects and files are this thread's; the runner's threads compute. Parameters are replaced only
between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from typing_extensions import override

from partita.engine.protocol.assigned_work import RunAssignment
from partita.engine.protocol.events import Send, Span
from partita.engine.protocol.leased_work import RunUnit
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.part_validation import RestartValidation, RunValidation, is_of_validation
from partita.engine.protocol.program_effects import Deliver, RestartSteps, RunStep, StuckOn
from partita.engine.protocol.requested_work import RunRequest
from partita.engine.protocol.watch_messages import Watch
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import Feed
from partita.engine.runtime.measured_host import Observed
from partita.engine.runtime.metrics import examples_counted
from partita.engine.runtime.runner import Runner
from partita.engine.runtime.step_runner import StepRunner
from partita.engine.runtime.task import Body, HostContext
from partita.engine.runtime.validation import ValidationRunner, start_player
from partita.engine.runtime.watchdog import Watchdog
from partita.engine.transport.payload import PayloadLike


class Arrays:
    """The arrays of a part beside those of a step; these are the methods of one without any."""

    def carry_out(self, effect: Any) -> Any:
        """Carries out an effect of links or exchanges, see `Body.carry_out`."""
        raise AssertionError(effect)

    def payload(self, span: Span) -> PayloadLike:
        """Returns the numbers of a range."""
        raise AssertionError(span)

    def finished(self) -> Iterable[Any]:
        """Returns results of other threads since the last call, as events."""
        return ()

    def close(self) -> None:
        """Waits for files that are being written, and closes all of them."""


class PartBody(Body):
    """The hands of a part.

    Attributes:
        arrays: beside those of a step.
    """

    def __init__(
        self,
        host: HostContext,
        runner: Runner,
        arrays: Arrays,
        feed: Feed,
        *,
        watchdog: Watchdog,
        timeout_s: float,
        validation: ValidationRunner | None = None,
    ) -> None:
        """Takes over what computes and what is exchanged.

        Args:
            host: the context of the host.
            runner: of the steps.
            arrays: beside those of a step.
            feed: of the steps' examples.
            watchdog: of the runner's computations.
            timeout_s: seconds that one computation may take.
            validation: evaluates the validation data, where the run has any.
        """
        self._validation = validation
        self._host, self._runner, self.arrays, self._feed = host, runner, arrays, feed
        self._watchdog, self._timeout_s = watchdog, timeout_s

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        match effect:
            case RunStep() | RunUnit() | RunAssignment() | RunRequest():
                self._runner.begin(effect)
            case Deliver(event=event):
                of_validation = self._validation is not None and is_of_validation(event)
                (self._validation if of_validation else self._runner).receive(event)  # type: ignore[union-attr]
            case RunValidation() | RestartValidation():
                assert self._validation is not None, effect
                self._validation.carry_out(effect)
            case LookForWaits():
                step, waits = self._runner.stuck_on
                return StuckOn(step, waits + self._host.files.waits(now))
            case RestartSteps(first=first):
                self._runner.restart(first)
            case _:
                return self.arrays.carry_out(effect)
        return None

    @override
    def payload(self, send: Send) -> PayloadLike:
        assert send.payload is not None, send
        return self.arrays.payload(send.payload)

    @override
    def poll(self, now: float) -> Iterator[Any]:
        yield from self._runner.poll(now)
        refused = self._runner.refused()
        if self._validation is not None:
            yield from self._validation.poll(now)
            refused += self._validation.refused()
        for one in refused:
            self._host.refuse(one.sender, one.reason)
        yield from self.arrays.finished()

    @override
    def observed(self, watch: Watch) -> Observed:
        sampler = self._runner.sampler
        if sampler is None:
            return Observed()
        sampler.every = watch.step_every
        return Observed(sampler.steps, sampler.newest())

    @override
    def tick(self, now: float) -> None:
        self._runner.tick(now)
        self._watchdog.check(now, self._timeout_s)
        if self._validation is not None:
            self._validation.watchdog.check(now, self._timeout_s)

    @override
    def close(self) -> None:
        self._runner.close()
        if self._validation is not None:
            self._validation.close()
        self.arrays.close()
        self._feed.close()


def step_body(
    host: HostContext,
    computations: Computations,
    arrays: Arrays,
    feed: Feed,
    *,
    prepare: Callable[[Any], None],
    finish: Callable[[], bool],
    replica: int,
    timeout_s: float,
    validation: ValidationRunner | None = None,
) -> PartBody:
    """Makes the body of a part that computes steps.

    Args:
        host: the context of the host.
        computations: of a step.
        arrays: beside those of a step.
        feed: of the steps' examples.
        prepare: called before each step.
        finish: called after each step; returns whether its gradient is finite.
        replica: of the part.
        timeout_s: seconds that one computation may take.
        validation: evaluates the validation data, where the run has any.
    """
    plan, machine = computations.buffers.plan, computations.buffers.machine
    lanes = plan.cluster.machines[machine].threads
    runner = StepRunner(
        start_player(host, computations, replica=replica, lanes=lanes),
        computations,
        prepare=prepare,
        finish=finish,
        counted=lambda: examples_counted(plan, machine, feed.count),
        replica=replica,
        times=lambda: feed.times,
    )
    return PartBody(
        host,
        runner,
        arrays,
        feed,
        watchdog=computations.watchdog,
        timeout_s=timeout_s,
        validation=validation,
    )
