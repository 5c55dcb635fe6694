"""A part under Sandblaster: it computes the loss and the gradient of portions, turn after turn, at the points
that shards tell it.

One thread talks, others compute, and one brings the examples of the next portion. Points change hands only
between two turns; a gradient is on its way while the next one accumulates. Whoever ends a turn begins the
next one, and what there is to say about it is said beside that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from partita.engine.parameters.vector import Vector
from partita.engine.protocol.commands import Portions
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.messages import Assignment, ContributionAck, Credit, Heartbeat, Point, Tensor
from partita.engine.protocol.names import COORDINATOR, part_name, shard_name
from partita.engine.protocol.sandblaster_client import (
    AssignmentDone,
    RunAssignment,
    SandblasterClient,
    SandblasterEffect,
    SandblasterEvent,
)
from partita.engine.protocol.shard_client import Install, Stage, Started, SwapBuffers
from partita.engine.protocol.stall_detector import StallDetector
from partita.engine.runtime.assignments import AssignmentRunner, MultiPartRunner, SinglePartRunner
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.player import Player
from partita.engine.runtime.portion_feed import PortionFeed, PortionOrder
from partita.engine.runtime.replica_task import ReplicaTask
from partita.engine.runtime.task import HostContext, Role
from partita.engine.runtime.updates import GradientSum
from partita.engine.transport.payload import Payload
from partita.partitioner.ir.program import COMPUTES, Program
from partita.partitioner.ir.step_kind import StepKind


@dataclass(frozen=True)
class SandblasterPartTask(ReplicaTask):
    """One machine's part of one replica, under Sandblaster. A portion has `plan.batch` examples.

    Args:
        plan, machine, replica, replicas, data, examples, seed, shards: see `ReplicaTask`.
        shuffled: whether examples come in a new order each epoch, or else as they lie.
    """

    shuffled: bool

    @property
    def program(self) -> Program:
        """What is played for a portion."""
        return self.plan.programs_for(StepKind())[self.machine]

    def role(self, link: HostContext) -> SandblasterPartRole:
        """See `HostTask`."""
        return SandblasterPartRole(self, link)


class SandblasterPartRole(Role):
    """Plays the turns that its client says."""

    def __init__(self, task: SandblasterPartTask, link: HostContext) -> None:
        plan, machine = task.plan, task.machine
        self._task, self._link = task, link
        order = PortionOrder(Portions(task.examples, plan.batch), seed=task.seed, shuffled=task.shuffled)
        self._feed = PortionFeed({name: file.open() for name, file in task.data.items()}, order)
        program = task.program
        self._vectors = Vectors(plan, machine, gradient=program.kind.gradients == "whole")
        self._sum = GradientSum(self._vectors)
        overlaps = task.layout.shards_of(machine)
        self._client = SandblasterClient(
            shards=tuple((shard_name(o.shard), o.machine_start, o.machine_stop) for o in overlaps),
            alone=len(plan.cluster) == 1,
            item_bytes=self._vectors.parameters.itemsize,
        )
        buffers = Buffers(plan, machine, program, self._vectors, keep=plan.kept)
        self._computations = computations = Computations(
            plan,
            machine,
            program,
            buffers=buffers,
            vectors=self._vectors,
            feed=self._feed,
            updates=self._sum,
        )
        self._lock = threading.Lock()  # the client's: a kernel thread tells it that a turn is over
        self._unsaid: SimpleQueue[SandblasterEffect] = SimpleQueue()  # by the thread of the mailbox
        self._assignments = self._turns_of(program, computations, buffers)
        self._wanted = {shard_name(o.shard) for o in overlaps}
        self._wanted |= {part_name(task.replica, m) for m in range(len(plan.cluster)) if m != machine}
        self._staged: dict[int, Payload] = {}
        self._stuck = StallDetector()
        # Before everybody was known to whom this one speaks; a repeat takes the place of the first.
        self._early: dict[tuple[str, type, int], Received] = {}
        self._known: dict[str, int] | None = None

    def _turns_of(self, program: Program, computations: Computations, buffers: Buffers) -> AssignmentRunner:
        if all(instruction.op in COMPUTES for instruction in program.instructions):
            return SinglePartRunner(
                computations,
                prepare=self._prepare,
                finish=self._finish,
                is_over=self._is_over,
                wake=self._link.wake,
            )
        player = Player(
            program,
            computations,
            buffers,
            host_of=lambda other: part_name(self._task.replica, other),
            send=self._link.send,
            wake=self._link.wake,
            lanes=self._task.threads,
        )
        return MultiPartRunner(player, computations, prepare=self._prepare, finish=self._finish_here)

    def _is_over(self, evaluation: int) -> bool:
        return len(self._task.plan.cluster) == 1 and self._client.is_over(evaluation)

    # What it hears

    def receive(self, event: Received, now: float) -> None:
        """Messages of other parts go to the player, all others to the client."""
        match event.message:
            case Tensor() | Credit():
                self._assignments.receive(event)
            case Assignment() | Point() | ContributionAck():
                if self._known is None:
                    self._early[event.sender, type(event.message), getattr(event.message, "sequence", 0)] = (
                        event
                    )
                else:
                    self._tell(event, now)
            case Heartbeat():
                return
            case _:
                kind = type(event.message).__name__
                self._link.refuse(event.sender, f"a {kind}, which is not for a part under Sandblaster")

    def peers_changed(self, revision: int, peers: Mapping[str, int], now: float) -> None:
        """Shards that were started again are asked again; the first time all are there, the client starts."""
        if self._known is not None:
            for name in sorted(self._wanted):
                if peers.get(name, 0) > self._known.get(name, 0):
                    self._tell(Replaced(name, peers[name]), now)
        if self._known is None and self._wanted <= set(peers):
            self._known = dict(peers)
            self._tell(Started(), now)
            for event in self._early.values():
                self._tell(event, now)
            self._early.clear()
        elif self._known is not None:
            self._known = dict(peers)

    def tick(self, now: float) -> None:
        """What was not answered is asked again."""
        self._computations.check_underway(now, self._task.instruction_timeout_s)
        if self._known is not None:
            self._tell(Tick(), now)
            for waits in self._stuck.look(*self._waits(), now):
                self._link.send(COORDINATOR, waits, None)

    def _waits(self) -> tuple[object, list[tuple[str, str]]]:
        """Where the part is, and what it gets no further without."""
        with self._lock:
            shards = self._client.waits_for
        if shards:
            return None, [(shard, "an answer") for shard in shards]
        step, missing = self._assignments.stuck_on
        return step, list(missing)

    def poll(self, now: float) -> None:
        """Says what a kernel thread has left to be said, and plays on."""
        while not self._unsaid.empty():
            self._say(self._unsaid.get())
        self._assignments.poll()
        for refused in self._assignments.refused():
            self._link.refuse(refused.sender, refused.reason)

    # What it does

    def _prepare(self, assignment: RunAssignment, n: int) -> None:
        """Chooses portion number n of a turn, and has the one after it brought."""
        self._sum.begin(first=n == 0)
        self._feed.choose(assignment.first + n)
        following = self._client.following
        if n + 1 < assignment.count:
            self._feed.ahead(assignment.first + n + 1)
        elif following is not None:
            self._feed.ahead(following.first)

    def _tell(self, event: SandblasterEvent, now: float) -> None:
        for effect in self._done(event, now):
            self._say(effect)

    def _finish(self, over: AssignmentDone) -> None:
        """By the kernel thread that has played a turn: it speaks of it only if it has no other to play."""
        effects = self._done(over, time.monotonic())
        if not any(isinstance(effect, RunAssignment) for effect in effects):
            for effect in effects:
                self._say(effect)
            return
        for effect in effects:
            self._unsaid.put(effect)
        self._link.wake()

    def _finish_here(self, over: AssignmentDone) -> None:
        """By the thread of the mailbox."""
        self._tell(over, time.monotonic())

    def _done(self, event: SandblasterEvent, now: float) -> list[SandblasterEffect]:
        """Does all that follows but to send, so that the next turn has begun by then."""
        with self._lock:
            effects = self._client.receive(event, now)
            for effect in effects:
                self._carry_out(effect)
            return effects

    def _carry_out(self, effect: SandblasterEffect) -> None:
        match effect:
            case Stage(span=span, payload=payload):
                assert isinstance(payload, Payload)
                if span.start in self._staged:
                    self._staged[span.start].release()
                self._staged[span.start] = payload
            case Install(span=span):
                own = slice(span.start, span.stop)
                payload = self._staged.pop(span.start)
                payload.copy_into(self._vectors.arriving(own))
                payload.release()
                self._vectors.changed(own)
            case SwapBuffers():
                self._sum.swap_buffers()
            case RunAssignment():
                self._assignments.begin(effect)
            case Refuse(sender=sender, reason=reason):
                self._link.refuse(sender, reason)

    def _say(self, effect: SandblasterEffect) -> None:
        if isinstance(effect, Send):
            numbers = None if effect.payload is None else self._numbers(effect.payload)
            self._link.send(effect.to, effect.message, numbers)

    def _numbers(self, span: Span) -> Vector:
        assert span.vector == "in_flight", span
        return self._vectors.device.given(self._sum.in_flight[span.start : span.stop])

    def close(self) -> None:
        """Ends the kernel threads, then the one that brings examples."""
        self._assignments.close()
        self._feed.close()
