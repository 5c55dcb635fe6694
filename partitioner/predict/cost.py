"""What the instructions and messages of one network cost on one cluster.

A kernel takes what was measured of it on a machine, or of kernels like it (`kernel_times`); where nothing was
measured, what its operations and bytes take at the machine's rates. The runtime adds an overhead for every
instruction and message. A cost knows neither when something runs nor what runs beside it: that is the
simulator's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from partita.layers.box import BoxSet
from partita.layers.graph import Graph, Grid
from partita.layers.layer import Placeholder
from partita.partitioner.assign.piece import Piece
from partita.partitioner.cluster.cluster import Cluster, Machine
from partita.partitioner.cluster.work import Work
from partita.partitioner.ir.program import Instruction, Op, Operand
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.lower.piece_program import PiecePrograms
from partita.partitioner.predict.work import work_of

Key: TypeAlias = tuple[object, ...]

WARM_BYTES: Final = 1 << 20
COLD_BYTES: Final = 32 << 20
"""Parameters and states of a machine: with fewer than the first, the runtime finds its own code and objects
in a cache as it left them; with more than the second, it does not. Guesses for the servers of the 2020s."""


@dataclass(frozen=True, slots=True)
class MessageCost:
    """What a message costs, in seconds, one after another.

    Args:
        send_s: the messenger of the sender is busy.
        wire_s: the link is busy: the way out of the sender's host, and the way into the receiver's.
        latency_s: nobody is busy.
        receive_s: the messenger of the receiver is busy.
    """

    send_s: float
    wire_s: float
    latency_s: float
    receive_s: float

    @property
    def total_s(self) -> float:
        """From when it may be sent until it may be used, if nothing else is going on."""
        return self.send_s + self.wire_s + self.latency_s + self.receive_s


class Costs:
    """Costs of one network on one cluster. Immutable but for what it remembers."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        *,
        batch: int,
        precision: str = "float32",
        micro_batches: int = 1,
        feeds: bool = True,
    ) -> None:
        """Takes the network and the cluster.

        Args:
            graph: the network.
            cluster: its machines.
            batch: examples in a minibatch.
            precision: of states and errors.
            micro_batches: into how many a minibatch falls.
            feeds: whether examples are taken from data, as in training. In a session they come with the
                order to play, before a step begins.
        """
        self.graph, self.cluster = graph, cluster
        self.sizes = Sizes(graph, batch, precision, micro_batches)
        self._examples, self._feeds = batch // micro_batches, feeds
        self._alike = _numbered(cluster.machines)
        self._by_place = {grid.name for grid in graph.computed if _has_uneven_rows(grid)}
        self._kernel_s: dict[Key, float] = {}
        self._layer_s: dict[Key, float] = {}
        self.pieces = PiecePrograms(graph)

    def compute_s(self, instruction: Instruction, machine: int) -> float:
        """How long a machine's kernel threads are busy with an instruction."""
        key = (*self._key(instruction), self._alike[machine])
        found = self._kernel_s.get(key)
        if found is None:
            found = self._kernel_s[key] = self._computed(instruction, self.cluster.machines[machine])
        return found

    def step_s(self, machine: int) -> float:
        """What a step costs a machine besides: to be told to begin, and to tell that it is over."""
        return self.cluster.machines[machine].step_s + 3 * self._cold_s(machine)

    def interrupts(self, machine: int) -> bool:
        """Whether its messenger takes its time from the kernel threads, because there is no other core."""
        found = self.cluster.machines[machine]
        return found.cores is None or found.cores <= found.threads

    def both_ways(self, source: int, destination: int) -> bool:
        """Whether messages between two machines may go both ways at once."""
        return self.cluster.link_between(source, destination).both_ways

    def message(self, n_bytes: int, source: int, destination: int) -> MessageCost:
        """What a message of so many bytes costs from one machine to another."""
        link = self.cluster.link_between(source, destination)
        return MessageCost(
            link.send_s + n_bytes / link.send_bytes_per_s + self._cold_s(source),
            n_bytes / link.bytes_per_s,
            link.latency_s,
            link.receive_s + n_bytes / link.receive_bytes_per_s + 2 * self._cold_s(destination),
        )

    def layer_s(self, layer: str, rows: BoxSet, machine: int, *, train: bool) -> float:
        """How long a machine is busy in a step with these rows of a layer, if it hears all that they hear.

        Every micro-batch goes up and down; what is learnt, is learnt once.

        Args:
            layer: a computed one.
            rows: of it.
            machine: whose.
            train: with errors and learning.
        """
        key = (layer, rows, self._alike[machine], train)
        found = self._layer_s.get(key)
        if found is None:
            instructions = self.pieces.by_rows(self.graph[layer], rows, train=train)
            found = self._layer_s[key] = sum(
                self.compute_s(i, machine) * (1 if i.op is Op.FUSED_UPDATE else self.sizes.micro_batches)
                for i in instructions
            )
        return found

    def inputs_s(self, piece: Piece, pieces: Sequence[Piece], *, train: bool) -> float:
        """The same of a piece of a layer that is cut by its inputs: its sums, all sums of its rows, and back.

        Args:
            piece: whose machine is asked for.
            pieces: all of the layer.
            train: with errors and learning.
        """
        sums = self.pieces.partial_sums(piece, pieces)
        took = sum(count * self.compute_s(each, piece.machine) for count, each in sums)
        return took * self.sizes.micro_batches + sum(
            self.compute_s(i, piece.machine) * (1 if i.op is Op.FUSED_UPDATE else self.sizes.micro_batches)
            for i in self.pieces.by_inputs(piece, pieces, train=train)
        )

    @property
    def calibrated(self) -> bool:
        """Whether of every kernel of every layer, on each machine, some size was measured."""
        machines = {alike: m for m, alike in enumerate(self._alike)}
        return all(self._knows(self.cluster.machines[m]) for m in machines.values())

    def work(self, instruction: Instruction, machine: int) -> Work:
        """What the kernel of an instruction has to do on a machine."""
        at = self.cluster.machines[machine]
        return self._work(instruction, at)

    def _knows(self, machine: Machine) -> bool:
        times = machine.times
        return times is not None and all(
            times.knows(self._work(instruction, machine))
            for grid in self.graph.computed
            for instruction in self.pieces.by_rows(grid, grid.rows, train=bool(self.graph.losses))
        )

    def _work(self, instruction: Instruction, machine: Machine) -> Work:
        return work_of(
            instruction,
            self.sizes,
            examples=self._examples,
            threads=machine.threads,
            device=machine.device.partition(":")[0],
        )

    def _computed(self, instruction: Instruction, machine: Machine) -> float:
        overhead_s = machine.instruction_s + machine.cold_s * self._coldness
        if instruction.op is Op.FEED and not self._feeds:
            return overhead_s
        work = self._work(instruction, machine)
        if machine.times is None:
            took = work.seconds(machine.flops_per_s, machine.bytes_per_s)
        else:
            took = machine.times.seconds(work)
        return took / machine.speed + overhead_s

    def _cold_s(self, machine: int) -> float:
        return self.cluster.machines[machine].cold_s * self._coldness

    @cached_property
    def _coldness(self) -> float:
        """From 0, where all that a machine's step touches stays in a cache, to 1."""
        parameters = (
            sum(parameter.size for parameter in self.graph.parameters.values()) * self.sizes.master_bytes
        )
        states = sum(grid.n_nodes for grid in self.graph.computed) * self._examples * self.sizes.master_bytes
        share = (parameters + states) / len(self.cluster)
        return min(max(math.log2(share / WARM_BYTES) / math.log2(COLD_BYTES / WARM_BYTES), 0.0), 1.0)

    def _key(self, instruction: Instruction) -> Key:
        """What its work follows from."""
        target, sources = instruction.target, instruction.sources
        counts = tuple(_count(operand) for operand in (target, *sources))
        place = target.rows if self._by_place and target.buffer.layer in self._by_place else None
        return (
            instruction.op,
            target.buffer,
            instruction.accumulate,
            counts,
            sources and sources[0].buffer,
            sources if instruction.op is Op.SQUARES else None,
            place,
        )


def _count(operand: Operand) -> tuple[int, bool]:
    """How many rows, or places of a picture."""
    return operand.rows.size, bool(operand.rows) and len(operand.rows[0]) > 1


def _numbered(machines: tuple[Machine, ...]) -> tuple[int, ...]:
    """For each machine a number, the same for those on which everything costs the same."""
    known: dict[Key, int] = {}
    found = []
    for m in machines:
        key = (
            m.threads,
            m.flops_per_s,
            m.bytes_per_s,
            m.device,
            m.speed,
            m.instruction_s,
            m.cold_s,
            id(m.times),
        )
        found.append(known.setdefault(key, len(known)))
    return tuple(found)


def _has_uneven_rows(grid: Grid) -> bool:
    return not isinstance(grid.layer, Placeholder) and any(p.row_starts is not None for p in grid.parameters)
