"""A part under a program driver: the body of the program's machine.

It computes steps, adds and copies what other replicas send, updates parameters, and writes files. What is
done when is decided by `partita.engine.protocol.joined_work`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol.events import Persist, Send, Span
from partita.engine.protocol.exchange import AddChunk, CopyChunk
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.names import part_name
from partita.engine.protocol.part import LookForWaits, Part
from partita.engine.protocol.program_effects import (
    Applied,
    ApplyUpdate,
    CopyVector,
    Deliver,
    MeasureNorms,
    RestartSteps,
    RunStep,
    StateReceived,
    StepDone,
    StuckOn,
)
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.metrics import examples_counted
from partita.engine.runtime.player import PlayedStep, Player
from partita.engine.runtime.program_task import PartSettings
from partita.engine.runtime.program_vectors import PARAMETERS, ProgramVectors
from partita.engine.runtime.state_files import StateFiles
from partita.engine.runtime.task import Body, CannotGoOn, HostContext
from partita.engine.transport.payload import Payload, PayloadLike

OTHERS_FIRST_S: Final = 2.0
"""The time for a machine that sent a nonfinite array to report where that began."""


class NotFinite(CannotGoOn):
    """A number has become NaN or infinite. The last checkpoint is of the steps before."""


@dataclass(frozen=True, kw_only=True)
class ProgramPartTask(PartSettings):
    """A part of a program driver."""

    def role(self, host: HostContext) -> tuple[Part, Body]:
        """See the protocol `HostTask`."""
        body = ProgramPart(self, host)
        work = JoinedWork(body.seat, self.batches)
        return Part(self.program, work, version=body.seat.step), body


class ProgramPart(Body):
    """The arrays, threads and files of a part.

    Attributes:
        seat: what the machine of the part must know.
    """

    def __init__(self, task: PartSettings, host: HostContext) -> None:
        """Allocates all arrays, prepares all computations, and loads the first parameters."""
        plan, machine = task.plan, task.machine
        self._task, self._feed = task, task.feed()
        vectors = Vectors(plan, machine)
        buffers = Buffers(plan, machine, task.instructions, vectors, keep=plan.kept)
        self._computations = Computations(buffers, self._feed)
        slots = task.layout.machines[machine]
        self._arrays = ProgramVectors(
            vectors, task.optimizer, slots, norms=task.norms, pool=self._computations.pool
        )
        loaded = task.load(self._arrays)
        self._updates_before = loaded.updates - loaded.step  # in earlier runs
        self._arrays.prepare(0, self._arrays.size)
        self._files = StateFiles(task.checkpoints(), host, run=task.run)
        self._player = Player(
            self._computations,
            host_of=partial(part_name, task.replica),
            send=host.send,
            wake=host.wake,
            lanes=task.threads,
        )
        self._next: RunStep | None = None  # ordered, not begun
        self._step: RunStep | None = None  # under way
        # The ranges of the last update. What was loaded is whole: before one, one replica writes all of it.
        writes = not task.sharded or task.replica == 0
        self._own: tuple[Span, ...] = (Span(PARAMETERS, 0, self._arrays.size),) * writes
        self._raises: tuple[NotFinite, float] | None = None
        self._counted_of = partial(examples_counted, plan, machine)

        self.seat = task.seat(
            host.incarnation, size=self._arrays.size, state=self._arrays.names, step=loaded.step
        )

    @property
    def arrays(self) -> ProgramVectors:
        """The vectors of the part."""
        return self._arrays

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        match effect:
            case AddChunk(span=span, payload=payload, divisor=divisor):
                assert isinstance(payload, Payload)
                self._arrays.add(span, payload, divisor=divisor)
            case CopyChunk(span=span, payload=payload):
                assert isinstance(payload, Payload)
                self._arrays.replace(span, payload)
            case CopyVector(source=source, target=target):
                self._arrays.copy(source, target)
            case Deliver(event=event):
                self._player.receive(event)
            case RunStep():
                self._next = effect
                self._begin()
            case MeasureNorms(spans=spans):
                self._arrays.measure(spans, replica=self._task.replica, machine=self._task.machine)
            case ApplyUpdate():
                return self._apply(effect)
            case RestartSteps(first=first):
                self._next = self._step = None
                self._player.start(first)
            case LookForWaits():
                return self._stuck_on()
            case Persist():
                self._persist(effect)
            case StateReceived():
                pass  # the vectors were replaced where they lie
            case _:
                raise AssertionError(effect)
        return None

    @override
    def payload(self, send: Send) -> PayloadLike:
        assert send.payload is not None
        return self._arrays.of(send.payload)

    @override
    def poll(self, now: float) -> Iterator[Any]:
        for over in self._player.poll():
            if (done := self._ended(over, now)) is not None:
                yield done
        yield from self._player.refused()
        yield from self._files.finished()
        self._begin()

    @override
    def tick(self, now: float) -> None:
        """Raises what has waited for other machines, or `NeverEnds`."""
        if self._raises is not None and now >= self._raises[1]:
            raise self._raises[0]
        self._computations.watchdog.check(now, self._task.instruction_timeout_s)

    @override
    def close(self) -> None:
        self._player.close()
        self._files.close()

    # Steps.

    def _begin(self) -> None:
        """Begins the step that was ordered, as soon as it may begin."""
        step = self._next
        if step is None or self._step is not None or not self._player.may_begin():
            return
        self._next, self._step = None, step
        self._computations.metrics.clear()
        self._feed.choose(step.position, rank=step.rank, replicas=step.replicas, alone=step.alone)
        self._player.begin(step.number)

    def _ended(self, over: PlayedStep, now: float) -> StepDone | None:
        step = self._step
        if step is None or over.step != step.number:
            return None  # dropped
        if not self._is_finite(step, now):
            return None
        self._step = None
        self._arrays.computed()
        metrics = self._computations.metrics
        examples = self._counted_of(self._feed.count)
        return StepDone(step.number, examples, metrics.loss, metrics.correct)

    def _is_finite(self, step: RunStep, now: float) -> bool:
        """Checks the loss of a step, before its gradient is sent to anybody.

        An array from another machine may have an earlier cause there: that machine is given the time to
        raise first.

        Raises:
            NotFinite: an array of this machine is the first that is not finite.
        """
        computations = self._computations
        if math.isfinite(computations.metrics.loss) and computations.watch.suspect is None:
            return True
        reason, received = computations.watch.describe(step=step.step, replica=self._task.replica)
        error = NotFinite(reason)
        if not received:
            raise error
        self._raises = error, now + OTHERS_FIRST_S
        return False

    def _stuck_on(self) -> StuckOn:
        """The messages of other parts that the step lacks while nothing is computed."""
        step, missing = self._player.stuck_on
        return StuckOn(step, missing if self._step is not None else ())

    def _apply(self, effect: ApplyUpdate) -> Applied:
        self._own = effect.spans
        updates = effect.updates + self._updates_before
        if not self._arrays.update(effect.spans, updates=updates):
            raise NotFinite(
                f"the gradient of all replicas is not finite in step {effect.updates}; lower the learning "
                "rate, clip the gradients, or look at the data of this step"
            )
        return Applied()

    # Files.

    def _persist(self, order: Persist) -> None:
        """Writes the parameters that this part updates, with their state, as they are now."""
        order = replace(order, updates=order.updates + self._updates_before, finite=True)
        self._files.start(order, self._arrays.slots(self._own), self._arrays.snapshot(self._own))
