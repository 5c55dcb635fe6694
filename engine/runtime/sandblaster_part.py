"""A part under Sandblaster: it computes loss and gradient of assigned portions, at the points that shards
send.

One thread sends and receives, others compute, and one fetches the examples of the next portion. Points are
replaced only between two assignments; a gradient is in flight while the next one accumulates. The thread that
ends an assignment begins the next one, and its messages are sent meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from partita.engine.protocol.commands import Portions
from partita.engine.protocol.events import Received, Replaced, Send, Tick
from partita.engine.protocol.messages import Assignment, ContributionAck, Credit, Heartbeat, Point, Tensor
from partita.engine.protocol.sandblaster_client import (
    AssignmentDone,
    RunAssignment,
    SandblasterClient,
    SandblasterEvent,
)
from partita.engine.protocol.shard_client import Started
from partita.engine.runtime.assignments import AssignmentRunner, MultiPartRunner, SinglePartRunner
from partita.engine.runtime.part_role import PartRole, PartTask
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
    """

    shuffled: bool

    @property
    def program(self) -> Program:
        """The instructions of a portion."""
        return self.plan.programs_for(StepKind())[self.machine]

    def role(self, host: HostContext) -> SandblasterPartRole:
        """See the protocol `HostTask`."""
        return SandblasterPartRole(self, host)


class SandblasterPartRole(PartRole[GradientSum]):
    """Runs the assignments of its client."""

    def __init__(self, task: SandblasterPartTask, host: HostContext) -> None:
        order = PortionOrder(Portions(task.examples, task.plan.batch), seed=task.seed, shuffled=task.shuffled)
        self._feed = PortionFeed({name: file.open() for name, file in task.data.items()}, order)
        program = task.program
        super().__init__(task, host, program, feed=self._feed, updates=GradientSum)
        spans = task.shard_spans
        self._alone = not task.other_parts
        self._client = SandblasterClient(
            shards=spans, alone=self._alone, item_bytes=self._vectors.parameters.itemsize
        )
        self._lock = threading.Lock()  # the client's: a kernel thread ends assignments
        self._unsent: SimpleQueue[Send] = SimpleQueue()  # left to the thread of the mailbox
        self._runner = self._start_runner(program)
        self._needed = {*task.other_parts, *(shard for shard, _, _ in spans)}
        # Messages from before all peers were known; a repeat takes the place of the first.
        self._early: dict[tuple[str, type, int], Received] = {}
        self._peers: dict[str, int] | None = None

    def _start_runner(self, program: Program) -> AssignmentRunner:
        computations = self._computations
        if any(instruction.op not in COMPUTES for instruction in program.instructions):
            player = self._start_player()
            return MultiPartRunner(player, computations, prepare=self._prepare, finish=self._finish_here)
        return SinglePartRunner(
            computations,
            prepare=self._prepare,
            finish=self._finish,
            is_over=lambda evaluation: self._alone and self._client.is_over(evaluation),
            wake=self._host.wake,
        )

    # Messages and time

    def receive(self, event: Received, now: float) -> None:
        """Gives messages of other parts to the player, and all others to the client."""
        match event.message:
            case Tensor() | Credit():
                self._runner.receive(event)
            case Assignment() | Point() | ContributionAck() as message:
                if self._peers is None:
                    self._early[event.sender, type(message), getattr(message, "sequence", 0)] = event
                else:
                    self._handle(event, now)
            case Heartbeat():
                return
            case _:
                kind = type(event.message).__name__
                self._host.refuse(event.sender, f"a {kind}, which is not for a part under Sandblaster")

    def peers_changed(self, revision: int, peers: Mapping[str, int], now: float) -> None:
        """Starts the client when all peers are there, and repeats requests to those that were replaced."""
        if self._peers is not None:
            for name in sorted(self._needed):
                if peers.get(name, 0) > self._peers.get(name, 0):
                    self._handle(Replaced(name, peers[name]), now)
            self._peers = dict(peers)
        elif self._needed <= set(peers):
            self._peers = dict(peers)
            self._handle(Started(), now)
            for event in self._early.values():
                self._handle(event, now)
            self._early.clear()

    def tick(self, now: float) -> None:
        """Repeats what was not answered."""
        self._check_computations(now)
        if self._peers is not None:
            self._handle(Tick(), now)
            self._report_waits(*self._waits(), now)

    def _waits(self) -> tuple[object, Sequence[tuple[str, str]]]:
        """The place of the part in its work, and (host, what) that it gets no further without."""
        with self._lock:
            shards = self._client.waits_for
        return (None, [(shard, "an answer") for shard in shards]) if shards else self._runner.stuck_on

    def poll(self, now: float) -> None:
        """Sends what a kernel thread has left to be sent, and plays on."""
        while not self._unsent.empty():
            self._carry_out(self._unsent.get())
        self._runner.poll()
        self._refuse_all(self._runner.refused())

    # Assignments

    def _prepare(self, assignment: RunAssignment, n: int) -> None:
        """Chooses portion number n of an assignment, and has the one after it fetched."""
        self._updates.begin(first=n == 0)
        self._feed.choose(assignment.first + n)
        following = self._client.following
        if n + 1 < assignment.count:
            self._feed.ahead(assignment.first + n + 1)
        elif following is not None:
            self._feed.ahead(following.first)

    def _handle(self, event: SandblasterEvent, now: float) -> None:
        """Gives the client an event, carries out its effects, and sends last."""
        sends, _ = self._act(event, now)
        for effect in sends:
            self._carry_out(effect)

    def _finish(self, done: AssignmentDone) -> None:
        """Ends an assignment on the kernel thread, which sends only if it has no other assignment to run."""
        sends, goes_on = self._act(done, time.monotonic())
        for effect in sends:
            if goes_on:
                self._unsent.put(effect)
            else:
                self._carry_out(effect)
        if goes_on:
            self._host.wake()

    def _finish_here(self, done: AssignmentDone) -> None:
        """Ends an assignment on the thread of the mailbox."""
        self._handle(done, time.monotonic())

    def _act(self, event: SandblasterEvent, now: float) -> tuple[list[Send], bool]:
        """Carries out all effects but messages; returns these, and whether the next assignment has begun."""
        sends: list[Send] = []
        goes_on = False
        with self._lock:
            for effect in self._client.receive(event, now):
                if isinstance(effect, Send):
                    sends.append(effect)
                elif isinstance(effect, RunAssignment):
                    goes_on = True
                    self._runner.begin(effect)
                else:
                    self._carry_out(effect)
        return sends, goes_on

    def close(self) -> None:
        """Ends the kernel threads, then the one that fetches examples."""
        self._runner.close()
        self._feed.close()
