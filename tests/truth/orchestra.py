"""Plays a plan in one thread with real machines, buffers and kernels, in an order drawn from a seed.

Messages arrive late and out of order between peers, and computations end in any order: whatever the
interleaving, the results must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.layout import gather, scatter
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.messages import Message
from partita.engine.protocol.part import (
    BeginStep,
    Completed,
    Compute,
    Kind,
    PartEffect,
    PartMachine,
    Place,
    StepOver,
    Transmit,
    Work,
)
from partita.engine.runtime.buffers import Buffers, Vectors, layout_of
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import GivenFeed, node_major
from partita.engine.transport.payload import Payload
from partita.layers import Graph
from partita.layers.layer import Given
from partita.partitioner import Op, Plan, Program, StepKind
from partita.partitioner.program import COMPUTES, Instruction

Array = npt.NDArray[Any]


@dataclass
class Result:
    """What a step came to: by layer or buffer, by parameter, and on the wire."""

    states: dict[str, Array] = field(default_factory=dict)
    errors: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    loss: float = 0.0
    sent: list[tuple[str, Any, int, int, int]] = field(default_factory=list)


def draw_batch(graph: Graph, batch: int, seed: int) -> dict[str, Array]:
    """Random inputs and targets."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for grid in (*graph.inputs, *graph.targets):
        assert isinstance(grid.layer, Given)
        classes = grid.layer.classes
        found[grid.name] = (
            rng.normal(size=(batch, *grid.shape)) if classes is None else rng.integers(0, classes, (batch, 1))
        )
    return found


class Player:
    """One machine of the orchestra."""

    def __init__(self, plan: Plan, machine: int, program: Program, parameters: Mapping[str, Array]) -> None:
        self.plan, self.index, self.program = plan, machine, program
        self.buffers = Buffers(plan, machine, program)
        self.vectors = Vectors(plan, machine)
        layout = layout_of(plan, shards=1)
        self.vectors.parameters[:] = gather(layout.machines[machine], parameters, plan.precision)
        feed = GivenFeed()
        feed.real = plan.batch
        self.computations = Computations(
            plan, machine, program, buffers=self.buffers, vectors=self.vectors, feed=feed
        )
        self.machine = PartMachine([work(i, self.buffers) for i in program.instructions], lanes=3)

    def feed(self, batch: Mapping[str, Array]) -> None:
        for instruction in self.program.instructions:
            if instruction.op is Op.FEED:
                operand = instruction.target
                for rows, out in zip(
                    operand.rows, self.buffers[operand.buffer].of(operand.rows), strict=True
                ):
                    out[...] = node_major(batch[operand.buffer], rows, out.shape)


def work(instruction: Instruction, buffers: Buffers) -> Work:
    """What the machine must know of an instruction; hosts are called by their machine's number."""
    if instruction.op in COMPUTES:
        return Work(Kind.COMPUTE, instruction.after)
    kind = Kind.SEND if instruction.op is Op.SEND else Kind.RECEIVE
    operand = instruction.target
    n_bytes = sum(run.nbytes for run in buffers[operand.buffer].of(operand.rows))
    buffer = operand.buffer.partition("@")[0]
    return Work(kind, instruction.after, str(instruction.peer), buffer, operand.rows, n_bytes)


class Orchestra:
    """All machines of a plan, and everything that may happen next."""

    def __init__(self, plan: Plan, parameters: Mapping[str, Array], *, seed: int, train: bool = True) -> None:
        whole = StepKind(gradients="whole")
        programs = plan.programs_for(whole) if train else plan.upward_programs
        self.plan = plan
        self.players = [Player(plan, m, program, parameters) for m, program in enumerate(programs)]
        self.random = random.Random(seed)
        self.pending: list[tuple[Any, ...]] = []
        self.result = Result()
        self.over: list[int] = []

    def step(self, batch: Mapping[str, Array], *, number: int = 0) -> Result:
        """Plays one step to its end."""
        self.result = Result()
        self.over = []
        for player in self.players:
            player.computations.metrics.clear()
        for player in self.players:
            player.feed(batch)
        for m in self.random.sample(range(len(self.players)), len(self.players)):
            self._tell(m, BeginStep(number))
        while self.pending:
            self._happen(*self.pending.pop(self.random.randrange(len(self.pending))))
        assert sorted(self.over) == list(range(len(self.players))), "a machine never came to its end"
        return self._collected()

    def _happen(self, kind: str, m: int, *what: Any) -> None:
        if kind == "compute":
            self.players[m].computations.run(what[0])
            self._tell(m, Completed(what[0]))
        elif kind == "send":
            self._send(m, *what)
        else:
            self._tell(m, what[0])

    def _send(self, m: int, effect: Transmit) -> None:
        player = self.players[m]
        operand = player.program.instructions[effect.position].target
        runs = player.buffers[operand.buffer].of(operand.rows)
        data = b"".join(np.ascontiguousarray(run).tobytes() for run in runs)
        self.result.sent.append((effect.message.buffer, effect.message.rows, m, int(effect.to), len(data)))
        self._post(m, int(effect.to), effect.message, Payload([memoryview(data)]))
        self._tell(m, Completed(effect.position))

    def _post(self, m: int, to: int, message: Message, payload: Payload | None) -> None:
        self.pending.append(("message", to, Received(str(m), 0, message, payload)))

    def _tell(self, m: int, event: Any) -> None:
        effects: list[PartEffect] = self.players[m].machine.receive(event, 0.0)
        self.players[m].machine.validate()
        for effect in effects:
            match effect:
                case Compute(position=position):
                    self.pending.append(("compute", m, position))
                case Transmit():
                    self.pending.append(("send", m, effect))
                case Place(position=position, payload=payload):
                    operand = self.players[m].program.instructions[position].target
                    assert isinstance(payload, Payload)
                    payload.copy_into(*self.players[m].buffers[operand.buffer].of(operand.rows))
                case StepOver():
                    self.over.append(m)
                case Send(to=to, message=message):
                    self._post(m, int(to), message, None)
                case _:
                    raise AssertionError(effect)

    def _collected(self) -> Result:
        result, graph, dtype = self.result, self.plan.graph, self.plan.precision
        result.gradients = {p.name: np.zeros(p.shape, dtype) for p in graph.parameters.values()}
        layout = layout_of(self.plan, shards=1)
        for player in self.players:
            scatter(layout.machines[player.index], player.vectors.gradient, result.gradients)
            result.loss += player.computations.metrics.loss
            for grid in graph.computed:
                rows = self.plan.ownership.rows(grid.name, player.index)
                if rows is None:
                    continue
                self._collect(result.states, grid.name, rows, player.buffers, grid.shape)
                edges = self.plan.ownership.edges(grid.name)
                if edges and edges[0].name in player.buffers.windows:
                    self._collect(result.errors, edges[0].name, rows, player.buffers, grid.shape)
        return result

    def _collect(
        self,
        into: dict[str, Array],
        name: str,
        rows: tuple[int, int],
        buffers: Buffers,
        shape: tuple[int, ...],
    ) -> None:
        whole = into.setdefault(name, np.full((*shape, self.plan.batch), np.nan))
        whole[rows[0] : rows[1]] = buffers[name].of((rows,))[0]
