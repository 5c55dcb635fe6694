"""The hands of a part in a session: each request brings a batch, and the part plays one step over it.

For predictions, evaluations, tests and measurements. There are no shards; parameters come from the session.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import storage
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.actions import Program as Replica
from partita.engine.protocol.events import Received, Span
from partita.engine.protocol.leased_work import HasSteps
from partita.engine.protocol.names import COORDINATOR, part_name
from partita.engine.protocol.part import Part
from partita.engine.protocol.requested_work import RequestDone, RequestedWork, RunRequest
from partita.engine.protocol.session_messages import Load, Loaded, Ping, Play, Played, Pong
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import MessageFeed
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.engine.runtime.part_body import Arrays, PartBody
from partita.engine.runtime.player import PlayedStep, Player
from partita.engine.runtime.runner import PlayerRunner
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.trace import Recorder
from partita.engine.transport.payload import Payload
from partita.partitioner.ir.buffer import Buffer, parse_buffer
from partita.partitioner.ir.program import Op, Operand, Program
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class SessionTask:
    """One machine's part of a plan.

    Args:
        plan, machine, replica, replicas: identify the part.
        program: the `replica` of the driver.
        train: whether a step has a backward pass.
        optimizer: updates the parameters after each gradient; None leaves them alone.
        overlap: minibatches in a step, see `StepKind`.
        at_rest: see `StepKind`.
    """

    plan: Plan
    machine: int
    program: Callable[[HasSteps], Replica]
    train: bool = False
    optimizer: Optimizer | None = None
    overlap: int = 1
    replica: int = 0
    replicas: int = 1
    at_rest: bool = False

    def role(self, host: HostContext) -> tuple[Part, PartBody]:
        """See the protocol `HostTask`."""
        names = (part_name(self.replica, machine) for machine in range(len(self.plan.cluster)))
        work, others = RequestedWork(), (name for name in names if name != host.name)
        return Part(self.program, work, needed=others), SessionBody(host, SessionRunner(self, host))

    def part(self) -> SessionPart:
        """Allocates the part's arrays and compiles its computations."""
        return SessionPart(self)

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return self.plan.cluster.machines[self.machine].threads

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        machines = len(self.plan.cluster)
        return self.replica * machines + self.machine, self.replicas * machines

    @property
    def keeps_gradient(self) -> bool:
        """Returns whether a step writes the whole gradient; an optimizer without norms takes it in blocks."""
        return self.train and (self.optimizer is None or self.optimizer.needs_norms)

    @property
    def keep(self) -> tuple[Buffer, ...] | None:
        """The buffers that can be collected after a step; None: all. With an optimizer, some share memory."""
        return self.plan.kept if self.train and self.optimizer is not None else None

    @property
    def instructions(self) -> Program:
        """The program of a step."""
        if not self.train:
            return self.plan.forward_programs[self.machine]
        norms = self.optimizer is not None and self.optimizer.needs_norms
        gradients: Literal["blocks", "whole"] = "whole" if self.keeps_gradient else "blocks"
        kind = StepKind(gradients=gradients, norms=norms, overlap=self.overlap, at_rest=self.at_rest)
        return self.plan.programs_for(kind)[self.machine]

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the instructions that a step of each phase plays; (): each step plays all."""
        return ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The rows of inputs that `Play` brings, in their order."""
        return tuple(operand for phase in self.inputs_by_phase for operand in phase)

    @property
    def inputs_by_phase(self) -> tuple[tuple[Operand, ...], ...]:
        """The same, for each phase."""
        found = self.instructions.instructions
        phases = self.phases or (range(len(found)),)
        return tuple(tuple(found[n].target for n in phase if found[n].op is Op.FEED) for phase in phases)


class PartStep(NamedTuple):
    """Results of a part's step. `collected`: requested arrays and the table of a trace, as one payload."""

    played: Played
    collected: Payload | None


class SessionPart(Arrays):
    """One machine's arrays and computations, without a player.

    Attributes:
        computations: the calls of a step.
        recorder: of the times of a step's instructions.
        inputs: for each phase, the arrays for the rows of `SessionTask.inputs_by_phase`.
    """

    def __init__(self, task: SessionTask) -> None:
        plan, machine, program = task.plan, task.machine, task.instructions
        self._overlaps, self._train = task.overlap > 1, task.train
        self._plan, self._machine = plan, machine
        self._vectors = Vectors(plan, machine, gradient=task.keeps_gradient)
        self._buffers = Buffers(plan, machine, program, self._vectors, keep=task.keep)
        self._feed = MessageFeed()
        self._updates = (
            None
            if task.optimizer is None
            else LocalOptimizer(task.optimizer, self._vectors, per_step=task.overlap)
        )
        self.computations = Computations(self._buffers, self._feed, self._updates)
        self.recorder = Recorder(program, partial(part_name, task.replica))
        self.inputs = [
            [array for operand in phase for array in self._places_of(operand)]
            for phase in task.inputs_by_phase
        ]

    def _places_of(self, operand: Operand) -> Iterator[Array]:
        """The arrays for rows of an input: those that are read, or others if micro-batches share them."""
        for box, place in zip(
            operand.rows, self._buffers[operand.buffer].arriving(operand.rows), strict=True
        ):
            if self._overlaps:
                first = (operand.buffer.micro_batch or 0) * place.shape[-1]
                yield self._feed.beside(operand.buffer.layer, box, place, first=first)
            else:
                yield place

    def load(self, fill: Callable[[Vector], object]) -> None:
        """Replaces the machine's parameters by the numbers that `fill` writes."""
        fill(self._vectors.arriving())
        self._vectors.changed()

    def arrange(self, play: Play) -> None:
        """Moves what earlier steps have left, before the inputs of a step are placed."""

    def begin(self, play: Play) -> None:
        """Begins a step, whose inputs are in place."""
        self._play = play
        self._feed.count, self.recorder.on = play.examples, play.trace
        self._feed.visit = play.visit if self._train else play.step  # samples of a later batch are others
        self.computations.metrics.clear()
        if self._updates is not None:
            self._updates.advance()
        self._began = time.perf_counter()

    def end(self, *, busy_s: float | None = None, messages: int = 0, n_bytes: int = 0) -> Played:
        """Ends the step, and returns the answer; its `payload` are the collected arrays.

        Args:
            busy_s: seconds in kernels; those of the whole step if not given.
            messages: sent to other parts.
            n_bytes: of the tensors in them.
        """
        self.computations.finish()
        took_s = time.perf_counter() - self._began
        metrics, busy_s = self.computations.metrics, took_s if busy_s is None else busy_s
        step = self._play.step
        return Played(
            step, metrics.loss, metrics.correct, took_s, busy_s, messages, n_bytes, sums=metrics.sums
        )

    def payload(self, span: Span) -> list[Array]:
        """Returns what is to be collected of the last step, and the table of its trace."""
        found = [self._collected(name) for name in self._play.collect]
        if self._play.trace:
            found.append(self.recorder.table())
        return [array for array in found if array is not None]

    def _collected(self, name: str) -> Array | None:
        """The machine's own rows of a buffer (`h1`, or `h1<h2`: a gradient), "gradient" or "parameters"."""
        if name in ("gradient", "parameters"):
            return self._vectors.device.given(getattr(self._vectors, name))
        buffer = parse_buffer(name)
        rows = self._plan.ownership.rows(buffer.layer, self._machine)
        if not rows:
            return None
        portions = self._buffers.collected(buffer, rows)
        if portions:
            return np.concatenate(portions, axis=-1)
        sizes = self._plan.sizes  # no gradient returns here along this edge
        return np.zeros((*sizes.shape(buffer, rows.hull)[:-1], sizes.batch), storage(sizes.row(buffer)[1]))


class SessionBody(PartBody):
    """The hands of a part in a session, whose steps may take any time."""

    def __init__(self, host: HostContext, runner: SessionRunner) -> None:
        part = runner.part
        watchdog = part.computations.watchdog
        super().__init__(host, runner, part, MessageFeed(), watchdog=watchdog, timeout_s=math.inf)


class SessionRunner(PlayerRunner):
    """A player's steps, one for each request. Parameters and questions for the clock are handled at once."""

    def __init__(
        self,
        task: SessionTask,
        host: HostContext,
        *,
        first_step: int = 0,
        after_each: Callable[[], None] | None = None,
    ) -> None:
        """Builds the part.

        Args:
            task: the part's.
            host: the context of the host.
            first_step: number of its first step.
            after_each: called after each computation, as a part of it.
        """
        self._host, self.part = host, task.part()
        player = Player(
            self.part.computations,
            host_of=partial(part_name, task.replica),
            send=host.send,
            wake=host.wake,
            lanes=task.threads,
            recorder=self.part.recorder,
            after_each=after_each,
            phases=task.phases,
        )
        super().__init__(player)
        player.start(first_step)

    @override
    def phase_of(self, step: RunRequest) -> int:
        return step.play.phase

    @override
    def prepare(self, step: RunRequest) -> None:
        self.part.arrange(step.play)
        if isinstance(step.payload, Payload):  # without one, the last batch is played again
            step.payload.copy_into(*self.part.inputs[step.play.phase])
            step.payload.release()
        self._sent = self._host.counters.sent_of("Tensor")
        self.part.begin(step.play)

    @override
    def ended(self, over: PlayedStep, now: float) -> RequestDone:
        sent, before = self._host.counters.sent_of("Tensor"), self._sent
        messages, n_bytes = sent.messages - before.messages, sent.payload_bytes - before.payload_bytes
        answer = self.part.end(busy_s=over.busy_s, messages=messages, n_bytes=n_bytes)
        return RequestDone(over.step, answer=answer)

    @override
    def receive(self, event: Received) -> None:
        match event.message:
            case Load() if isinstance(event.payload, Payload):
                self.part.load(event.payload.copy_into)
                event.payload.release()
                self._host.send(COORDINATOR, Loaded(), None)
            case Ping(sent_s=sent_s):
                received_s = time.perf_counter()
                self._host.send(COORDINATOR, Pong(sent_s, received_s, time.perf_counter()), None)
            case _:
                super().receive(event)
