"""A part in a session: it plays a step when it is told to, over the batch that comes with the order.

For predictions, evaluations, tests and measurements. There are no shards; parameters come from the session.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.rules import Rule
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Credit, Heartbeat, Load, Play, Played, Ready, Tensor
from partita.engine.protocol.names import COORDINATOR, part_name
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import GivenFeed
from partita.engine.runtime.player import Over, Player
from partita.engine.runtime.task import Link, Role
from partita.engine.runtime.updates import LocalRule
from partita.engine.transport.counters import Count
from partita.engine.transport.payload import Payload
from partita.partitioner.plan import Plan
from partita.partitioner.program import Op, Operand, Program


@dataclass(frozen=True)
class SessionTask:
    """Plays one machine's part of a plan.

    Args:
        plan, machine: whose part.
        train: play whole steps, down as well as up.
        rule: what follows each gradient on the spot; None leaves the parameters alone.
    """

    plan: Plan
    machine: int
    train: bool
    rule: Rule | None = None

    def role(self, link: Link) -> SessionRole:
        """See `Task`."""
        return SessionRole(self, link)

    @property
    def threads(self) -> int:
        """See `Task`."""
        return self.plan.cluster.machines[self.machine].threads

    @property
    def program(self) -> Program:
        """What the machine plays."""
        programs = self.plan.programs if self.train else self.plan.upward_programs
        return programs[self.machine]

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """What the machine is fed, in the order in which `Play` brings it."""
        return tuple(i.target for i in self.program.instructions if i.op is Op.FEED)


class SessionRole(Role):
    """Plays one step for each `Play`."""

    def __init__(self, task: SessionTask, link: Link) -> None:
        plan, machine, program = task.plan, task.machine, task.program
        self._link, self._plan, self._machine = link, plan, machine
        self._inputs = task.inputs
        self._buffers = Buffers(plan, machine, program)
        self._vectors = Vectors(plan, machine)
        self._feed = GivenFeed()
        update = None if task.rule is None else LocalRule(task.rule, self._vectors)
        self._computations = Computations(
            plan,
            machine,
            program,
            buffers=self._buffers,
            vectors=self._vectors,
            feed=self._feed,
            update=update,
        )
        self._player = Player(
            program,
            self._computations,
            self._buffers,
            host_of=lambda other: part_name(0, other),
            wake=link.wake,
            lanes=task.threads,
        )
        self._player.start(0)
        self._orders: list[tuple[Play, Payload | None]] = []
        self._playing: Play | None = None
        self._began = 0.0
        self._sent = Count()

    def receive(self, event: Received, now: float) -> None:
        """Tensors and credit go to the player; orders wait for their turn."""
        match event.message:
            case Tensor() | Credit():
                self._player.receive(event)
            case Play() as play if event.sender == COORDINATOR:
                assert event.payload is None or isinstance(event.payload, Payload)
                self._orders.append((play, event.payload))
            case Load() if event.sender == COORDINATOR and isinstance(event.payload, Payload):
                event.payload.copy_into(self._vectors.parameters)
                self._link.send(COORDINATOR, Ready(), None)
            case Heartbeat():
                return
            case _:
                raise ValueError(
                    f"'{event.sender}' sent a {type(event.message).__name__} to a part in a session"
                )

    def wakened(self, now: float) -> None:
        """Answers what is over and begins what may begin."""
        for over in self._player.flush(self._link.send):
            self._answer(over)
        if self._playing is None and self._orders and self._player.may_begin():
            self._begin(*self._orders.pop(0))
            for over in self._player.flush(self._link.send):
                self._answer(over)

    def _begin(self, play: Play, payload: Payload | None) -> None:
        if payload is not None:  # without one, the last batch is played again
            targets = [
                run for operand in self._inputs for run in self._buffers[operand.buffer].of(operand.rows)
            ]
            payload.copy_into(*targets)
        self._playing = play
        self._feed.real = play.examples
        self._computations.metrics.clear()
        self._sent = self._link.counters.sent_of("Tensor")
        self._began = time.perf_counter()
        self._player.begin(play.step)

    def _answer(self, over: Over) -> None:
        play, self._playing = self._playing, None
        assert play is not None and play.step == over.step, f"step {over.step} was not asked for"
        took = time.perf_counter() - self._began
        metrics = self._computations.metrics
        sent = self._link.counters.sent_of("Tensor")
        answer = Played(
            over.step,
            metrics.loss,
            metrics.correct,
            took,
            over.busy_s,
            sent.messages - self._sent.messages,
            sent.payload_bytes - self._sent.payload_bytes,
        )
        found = [self._collected(name) for name in play.collect]
        self._link.send(COORDINATOR, answer, [array for array in found if array is not None])

    def _collected(self, name: str) -> Array | None:
        """A machine's own rows of a buffer (`h1`, or `h1<h2` for errors), "gradient" or "parameters"."""
        if name in ("gradient", "parameters"):
            vector: Vector = getattr(self._vectors, name)
            return vector
        rows = self._plan.ownership.rows(name.partition("<")[0], self._machine)
        if rows is None or name not in self._buffers.windows:
            return None
        return np.ascontiguousarray(self._buffers[name].of((rows,))[0])

    def close(self) -> None:
        """Ends the kernel threads."""
        self._player.close()
