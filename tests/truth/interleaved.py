"""Plays a plan in one thread with real machines, buffers and kernels, in an order drawn from a seed.

Messages arrive late and out of order between peers, and computations end in any order: whatever the
interleaving, the results must be the same.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine import Optimizer
from partita.engine.numerics import master, stored, upcast_array
from partita.engine.parameters import gather, initialise, scatter
from partita.engine.protocol import InstructionScheduler, Message
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.instruction_scheduler import (
    BeginStep,
    Completed,
    Compute,
    Kind,
    Place,
    ScheduledInstruction,
    SchedulerEffect,
    StepOver,
    Transmit,
)
from partita.engine.protocol.program_reports import added
from partita.engine.runtime.buffers import Buffers, Vectors, layout_of
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import MessageFeed, node_major
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.engine.runtime.metric import Metric
from partita.engine.transport import Payload
from partita.layers import BatchNorm, BoxSet, Graph
from partita.layers.layer import Placeholder
from partita.partitioner import Cluster, Instruction, Op, Plan, Program, StepKind, partition
from partita.partitioner.ir.buffer import Buffer, activations
from partita.partitioner.ir.program import COMPUTES
from tests.networks import is_rounded
from tests.partitioner.symbolic_host import beside_each_other

Array = npt.NDArray[Any]


@dataclass
class Result:
    """Results of a step: by layer or buffer, by parameter, and on the wire."""

    states: dict[str, Array] = field(default_factory=dict)
    errors: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)
    loss: float = 0.0
    correct: int = 0
    sums: tuple[float, ...] = ()
    sent: list[tuple[str, Any, int, int, int]] = field(default_factory=list)


def draw_batch(graph: Graph, batch: int, seed: int) -> dict[str, Array]:
    """Random inputs and targets."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for grid in (*graph.inputs, *graph.targets):
        assert isinstance(grid.layer, Placeholder)
        classes = grid.layer.classes
        found[grid.name] = (
            rng.normal(size=(batch, *grid.shape))
            if classes is None
            else rng.integers(0, classes, (batch, *grid.shape))
        )
    return found


class Player:
    """One machine of the replica."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        parameters: Mapping[str, Array],
        *,
        optimizer: Optimizer | None,
        keep: Collection[Buffer] | None,
        metrics: Sequence[Metric] = (),
    ) -> None:
        machine = program.machine
        self.plan, self.index, self.program = plan, machine, program
        self.vectors = Vectors(plan, machine)
        self.buffers = Buffers(plan, machine, program, self.vectors, keep=keep)
        if keep is not None:
            self._fill_with_nonsense(keep)
        self.layout = layout_of(plan, shards=1).machines[machine]
        self.vectors.parameters[:] = gather(self.layout, parameters, self.vectors.parameters.dtype)
        self.vectors.changed()
        overlap = program.kind.overlap
        self.updates = (
            None if optimizer is None else LocalOptimizer(optimizer, self.vectors, per_step=overlap)
        )
        self.given = MessageFeed()
        self.given.count = plan.batch * overlap
        self.computations = Computations(self.buffers, self.given, self.updates, metrics=metrics)
        self.machine = InstructionScheduler([work(i, self.buffers) for i in program.instructions], lanes=3)

    def _fill_with_nonsense(self, keep: Collection[Buffer]) -> None:
        """Fills buffers that share their memory with others with arbitrary numbers."""
        beside = beside_each_other(self.plan.windows(self.program, keep=keep))
        for name, others in beside.items():
            if others:
                self.buffers[name].array.view(np.uint8)[...] = 0xFF  # of floating-point numbers, a NaN

    def feed(self, batch: Mapping[str, Array]) -> None:
        for instruction in self.program.instructions:
            if instruction.op is Op.FEED:
                operand = instruction.target
                for box, place in zip(
                    operand.rows, self.buffers[operand.buffer].arriving(operand.rows), strict=True
                ):
                    name, first = operand.buffer.layer, (operand.buffer.micro_batch or 0) * place.shape[-1]
                    takes_turns = self.program.kind.overlap > 1
                    out = self.given.beside(name, box, place, first=first) if takes_turns else place
                    examples = batch[name][first : first + place.shape[-1]]
                    out[...] = stored(node_major(examples, box, out.shape), out.dtype)


def work(instruction: Instruction, buffers: Buffers) -> ScheduledInstruction:
    """Work of an instruction for its machine; hosts are named by their machine's number."""
    if instruction.op in COMPUTES:
        return ScheduledInstruction(Kind.COMPUTE, instruction.after)
    kind = Kind.SEND if instruction.op is Op.SEND else Kind.RECEIVE
    operand = instruction.target
    n_bytes = sum(run.nbytes for run in buffers[operand.buffer].of(operand.rows))
    buffer = str(operand.buffer.sent)
    return ScheduledInstruction(kind, instruction.after, str(instruction.peer), buffer, operand.rows, n_bytes)


class InterleavedReplica:
    """All machines of a plan, and everything that may happen next."""

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, Array],
        *,
        seed: int,
        kind: StepKind = StepKind(gradients="whole"),  # noqa: B008 - frozen
        optimizer: Optimizer | None = None,
        keep: Collection[Buffer] | None = None,
        metrics: Sequence[Metric] = (),
    ) -> None:
        """Steps of this kind; windows lie apart, unless `keep` says which must outlast a step."""
        programs = plan.programs_for(kind)
        self.plan, self.keep = plan, keep
        self.players = [
            Player(plan, program, parameters, optimizer=optimizer, keep=keep, metrics=metrics)
            for program in programs
        ]
        self.random = random.Random(seed)
        self.pending: list[tuple[Any, ...]] = []
        self.result = Result()
        self.over: list[int] = []

    def step(self, batch: Mapping[str, Array], *, number: int = 0, examples: int | None = None) -> Result:
        """Plays one step to its end. `examples`: how many of the batch are real, from now on."""
        self.result = Result()
        self.over = []
        for player in self.players:
            player.computations.metrics.clear()
            player.computations.watch.begin()
            if examples is not None:
                player.given.count = examples
            if player.updates is not None:
                player.updates.advance()
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
        effects: list[SchedulerEffect] = self.players[m].machine.receive(event, 0.0)
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
                    window = self.players[m].buffers[operand.buffer]
                    payload.copy_into(*window.arriving(operand.rows))
                    window.upload(operand.rows)
                    self.players[m].computations.watch.done(position)
                case StepOver():
                    self.over.append(m)
                case Send(to=to, message=message):
                    self._post(m, int(to), message, None)
                case _:
                    raise AssertionError(effect)

    def _collected(self) -> Result:
        result, graph, owned = self.result, self.plan.graph, self.plan.ownership
        for vectors in (result.gradients, result.parameters):
            dtype = master(self.plan.precision)
            vectors.update({p.name: np.zeros(p.shape, dtype) for p in graph.parameters.values()})
        for player in self.players:
            scatter(player.layout, player.vectors.gradient, result.gradients)
            scatter(player.layout, player.vectors.parameters, result.parameters)
            result.loss += player.computations.metrics.loss
            result.correct += player.computations.metrics.correct
            result.sums = added(result.sums, player.computations.metrics.sums)
            for grid in graph.computed:
                rows = owned.rows(grid.name, player.index)
                edges = owned.edges(grid.name)
                sharded = bool(rows) and owned.loss_shards(grid.name)
                for box in rows if sharded else owned.primary_rows(grid.name, player.index):
                    self._collect(
                        result.states, activations(grid.name), BoxSet((box,)), player.buffers, grid.shape
                    )
                if rows and edges:
                    self._collect(result.errors, edges[0].buffer, rows, player.buffers, grid.shape)
        self._check_replicas()
        return result

    def _check_replicas(self) -> None:
        """Several machines that have the same rows have the same states, to the bit unless torch's functions
        computed some: their bits depend on a number's place in an array.
        """
        graph, rounding = self.plan.graph, 1e-12 if self.plan.precision == "float64" else 1e-5
        tolerance = rounding if any(map(is_rounded, graph.grids)) else 0.0
        for player in self.players:
            for name, whole in self.result.states.items():
                rows = self.plan.ownership.rows(name, player.index)
                if rows and name not in self.plan.graph.losses:
                    portions = player.buffers.collected(activations(name), rows)
                    own = np.concatenate([upcast_array(portion) for portion in portions], axis=-1)
                    expected, message = whole[rows.hull.slices], f"replicas of {name}"
                    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
                    np.testing.assert_allclose(own, expected, rtol=0, atol=tolerance * scale, err_msg=message)

    def _collect(
        self,
        into: dict[str, Array],
        buffer: Buffer,
        rows: BoxSet,
        buffers: Buffers,
        shape: tuple[int, ...],
    ) -> None:
        """Puts a machine's rows into place; what several machines have of errors or of a loss adds up."""
        portions = buffers.collected(buffer, rows)
        if not portions or (self.keep is not None and buffer not in self.keep):
            return
        if self.players[0].program.kind.overlap > 1:
            return  # others have taken their place
        own = np.concatenate([upcast_array(portion) for portion in portions], axis=-1)
        whole = into.setdefault(str(buffer), np.zeros((*shape, self.plan.batch), own.dtype))
        whole[rows.hull.slices] += own


def whole(plan: Plan) -> Plan:
    """The same network on one machine."""
    return partition(plan.graph, Cluster.local(), batch=plan.batch, precision=plan.precision)


def on_one_machine(plan: Plan) -> Plan:
    """The whole network; in as many micro-batches where statistics are those of a micro-batch."""
    normalised = any(isinstance(grid.layer, BatchNorm) for grid in plan.graph.grids)
    return whole(plan).with_micro_batches(plan.micro_batches) if normalised else whole(plan)


def play(plan: Plan, *, seed: int) -> Result:
    """One step on a batch and parameters that the network determines."""
    parameters = initialise(plan.graph.parameters.values(), 7, dtype=plan.precision)
    return InterleavedReplica(plan, parameters, seed=seed).step(draw_batch(plan.graph, plan.batch, 11))


def play_with(plan: Plan, parameters: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> Result:
    """One step in one thread."""
    return InterleavedReplica(plan, parameters, seed=1).step(batch)
