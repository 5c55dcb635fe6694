"""The body of a part under Sandblaster: it computes loss and gradient of portions, at the points of shards.

One thread sends and receives, others compute, and one fetches the examples of the next portion. Points are
replaced only between two assignments; a gradient is in flight while the next one accumulates. The thread that
ends an assignment begins the next one, and its messages are sent meanwhile: so two threads give the machine
events, one at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol.actions import Program as Replica
from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.events import Refuse, Send
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.part import LookForWaits, Part
from partita.engine.protocol.point_links import PointLinks
from partita.engine.protocol.program_effects import Deliver, StepDone, StuckOn
from partita.engine.runtime.assignments import AssignmentRunner, MultiPartRunner, SinglePartRunner
from partita.engine.runtime.part_body import PartBody, PartTask
from partita.engine.runtime.portion_feed import PortionFeed, PortionOrder
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.updates import GradientSum
from partita.partitioner.ir.program import COMPUTES, Program
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True)
class SandblasterPartTask(PartTask):
    """One machine's part of one replica, under Sandblaster. A portion has `plan.batch` examples.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards: see `PartTask`.
        shuffled: whether examples come in a new order each epoch, or else as they lie.
        program: the `replica` of the driver.
    """

    shuffled: bool
    program: Callable[[HasSteps], Replica]

    @property
    def instructions(self) -> Program:
        """The instructions of a portion."""
        return self.plan.programs_for(StepKind())[self.machine]

    def role(self, host: HostContext) -> tuple[RoleMachine, SandblasterBody]:
        """See the protocol `HostTask`."""
        body = SandblasterBody(self, host)
        return body.machine, body


class _SharedMachine(RoleMachine):
    """The machine of the part, for two threads.

    An effect is carried out before another thread gives the next event; only messages may leave later.
    """

    def __init__(self, machine: Part, body: SandblasterBody) -> None:
        self._machine, self._body = machine, body
        self._lock = threading.Lock()

    def receive(self, event: Any, now: float) -> list[Any]:
        return self.act(event, now)[0]

    def act(self, event: Any, now: float) -> tuple[list[Any], bool]:
        """Carries out all effects but messages; returns these, and whether the next assignment has begun."""
        left: list[Any] = []
        goes_on = False
        with self._lock:
            for effect in self._machine.receive(event, now):
                if isinstance(effect, Send | Refuse | LookForWaits):
                    left.append(effect)
                    continue
                goes_on |= isinstance(effect, RunAssignment)
                self._body.act(effect, now)
        return left, goes_on


class SandblasterBody(PartBody[GradientSum]):
    """The arrays and threads of a part, which run the assignments of its machine."""

    def __init__(self, task: SandblasterPartTask, host: HostContext) -> None:
        order = PortionOrder(Portions(task.examples, task.plan.batch), seed=task.seed, shuffled=task.shuffled)
        self._feed = PortionFeed({name: file.open() for name, file in task.data.items()}, order)
        program = task.instructions
        super().__init__(task, host, program, feed=self._feed, updates=GradientSum)
        self._alone = not task.other_parts
        links = PointLinks(shards=task.shard_spans, item_bytes=self.item_bytes)
        self._work = AssignedWork(links, alone=self._alone)
        needed = (*task.other_parts, *links.shards)
        machine = Part(task.program, self._work, needed=needed, watched=links.shards)
        self.machine: Final = _SharedMachine(machine, self)
        self._unsent: SimpleQueue[Send] = SimpleQueue()  # left to the thread of the mailbox
        self._runner = self._start_runner(program)

    def _start_runner(self, program: Program) -> AssignmentRunner:
        computations = self._computations
        if any(instruction.op not in COMPUTES for instruction in program.instructions):
            return MultiPartRunner(self._start_player(), computations, prepare=self._prepare)
        return SinglePartRunner(
            computations,
            prepare=self._prepare,
            finish=self._finish,
            is_over=lambda evaluation: self._alone and self._work.is_over(evaluation),
            wake=self._host.wake,
        )

    def act(self, effect: Any, now: float) -> None:
        """Carries out an effect that no message may overtake, on either thread."""
        match effect:
            case RunAssignment():
                self._runner.begin(effect)
            case Deliver(event=event):
                self._runner.receive(event)
            case _:
                super().carry_out(effect, now)

    @override
    def carry_out(self, effect: Any, now: float) -> StuckOn:
        assert isinstance(effect, LookForWaits), effect
        return StuckOn(*self._runner.stuck_on)

    @override
    def poll(self, now: float) -> Iterable[Any]:
        """Sends what a kernel thread has left to be sent, and plays on."""
        while not self._unsent.empty():
            self._send(self._unsent.get())
        done = self._runner.poll()
        self._refuse_all(self._runner.refused())
        return done

    # Assignments

    def _prepare(self, assignment: RunAssignment, n: int) -> None:
        """Chooses portion number n of an assignment, and has the one after it fetched."""
        self._updates.begin(first=n == 0)
        self._feed.choose(assignment.first + n)
        following = self._work.following
        if n + 1 < assignment.count:
            self._feed.ahead(assignment.first + n + 1)
        elif following is not None:
            self._feed.ahead(following.first)

    def _finish(self, done: StepDone) -> None:
        """Ends an assignment on the kernel thread, which sends only if it has no other assignment to run."""
        sends, goes_on = self.machine.act(done, time.monotonic())
        for effect in sends:
            if goes_on:
                self._unsent.put(effect)
            else:
                self._send(effect)
        if goes_on:
            self._host.wake()

    def _send(self, effect: Send) -> None:
        self._host.send(effect.to, effect.message, None if effect.payload is None else self.payload(effect))

    @override
    def close(self) -> None:
        """Ends the kernel threads, then the one that fetches examples."""
        self._runner.close()
        self._feed.close()
