"""Costs of the instructions and messages of one network on one cluster.

A kernel takes the time that was measured for it or for similar ones on a machine (`kernel_times`), else that
of its operations and bytes at the machine's rates. The runtime adds an overhead for every instruction and
message. Overlap and waiting are the simulator's.
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
"""Parameters and activations of a machine: below the first, the runtime's own code and objects stay in a
cache between steps; above the second, they do not. Guesses for servers of the 2020s."""


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Costs of a message, in seconds, one after another.

    Args:
        send_s: time of the sender's communication thread.
        wire_s: time of the link: the way out of the sender's host, and the way into the receiver's.
        latency_s: time in which no resource is busy.
        receive_s: time of the receiver's communication thread.
    """

    send_s: float
    wire_s: float
    latency_s: float
    receive_s: float

    @property
    def total_s(self) -> float:
        """Time until a message may be used, if nothing else is going on."""
        return self.send_s + self.wire_s + self.latency_s + self.receive_s


class Costs:
    """Costs of one network on one cluster. Immutable but for its memory of known costs."""

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
            cluster: the machines.
            batch: examples in a minibatch.
            precision: precision of activations and gradients.
            micro_batches: number of micro-batches in a minibatch.
            feeds: whether inputs are filled within the step, as in training; in a session they come before
                it.
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
        """Seconds for which an instruction occupies a machine's kernel threads."""
        key = (*self._key(instruction), self._alike[machine])
        found = self._kernel_s.get(key)
        if found is None:
            found = self._kernel_s[key] = self._computed(instruction, self.cluster.machines[machine])
        return found

    def step_s(self, machine: int) -> float:
        """Seconds that a step adds on a machine: to be started, and to report its end."""
        return self.cluster.machines[machine].step_s + 3 * self._cold_s(machine)

    def interrupts(self, machine: int) -> bool:
        """Returns whether the communication thread takes its time from the kernel threads, for lack of a
        core.
        """
        found = self.cluster.machines[machine]
        return found.cores is None or found.cores <= found.threads

    def both_ways(self, source: int, destination: int) -> bool:
        """Returns whether messages between two machines may go both ways at once."""
        return self.cluster.link_between(source, destination).both_ways

    def message(self, n_bytes: int, source: int, destination: int) -> MessageCost:
        """Prices a message of so many bytes from one machine to another."""
        link = self.cluster.link_between(source, destination)
        send_s, link_s, receive_s = link.times(n_bytes)
        return MessageCost(
            send_s + self._cold_s(source),
            link_s,
            link.latency_s,
            receive_s + 2 * self._cold_s(destination),
        )

    @cached_property
    def least_message(self) -> MessageCost | None:
        """Bounds each time of any message between any two machines from below; None: there is no link."""
        cold = min(machine.cold_s for machine in self.cluster.machines) * self._coldness
        times = [(*link.times(1), link.latency_s) for link in self.cluster.links]
        if not times:
            return None
        sends, wires, receives, latencies = zip(*times, strict=True)
        return MessageCost(min(sends) + cold, min(wires), min(latencies), min(receives) + 2 * cold)

    @cached_property
    def least_message_s(self) -> float:
        """Bounds the time from below until a message between any two machines may be used."""
        cold = min(machine.cold_s for machine in self.cluster.machines) * self._coldness
        return (
            min((sum(link.times(1)) + link.latency_s for link in self.cluster.links), default=0.0) + 3 * cold
        )

    def layer_s(self, layer: str, rows: BoxSet, machine: int, *, train: bool) -> float:
        """Seconds of these rows of a layer in a step, if all inputs are there.

        Every micro-batch has a forward and a backward pass; the update is made once.

        Args:
            layer: a computed layer.
            rows: some of its rows.
            machine: the machine that computes them.
            train: whether the step trains.
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
        """Seconds of a piece of a layer that is cut by its inputs: partial sums, their total, and the
        backward pass.

        Args:
            piece: the piece that is priced.
            pieces: all pieces of the layer.
            train: whether the step trains.
        """
        sums = self.pieces.partial_sums(piece, pieces)
        took = sum(count * self.compute_s(each, piece.machine) for count, each in sums)
        return took * self.sizes.micro_batches + sum(
            self.compute_s(i, piece.machine) * (1 if i.op is Op.FUSED_UPDATE else self.sizes.micro_batches)
            for i in self.pieces.by_inputs(piece, pieces, train=train)
        )

    @property
    def calibrated(self) -> bool:
        """Returns whether some size of every kernel of every layer was measured on each machine."""
        machines = {alike: m for m, alike in enumerate(self._alike)}
        return all(self._knows(self.cluster.machines[m]) for m in machines.values())

    def work(self, instruction: Instruction, machine: int) -> Work:
        """The work of an instruction's kernel on a machine."""
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
        """Share from 0, where all data of a machine's step stay in a cache, to 1."""
        parameters = (
            sum(parameter.size for parameter in self.graph.parameters.values()) * self.sizes.master_bytes
        )
        states = sum(grid.n_nodes for grid in self.graph.computed) * self._examples * self.sizes.master_bytes
        share = (parameters + states) / len(self.cluster)
        return min(max(math.log2(share / WARM_BYTES) / math.log2(COLD_BYTES / WARM_BYTES), 0.0), 1.0)

    def _key(self, instruction: Instruction) -> Key:
        """Everything that determines the work of an instruction."""
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
    """Number of rows, or of places of a picture."""
    return operand.rows.size, bool(operand.rows) and len(operand.rows[0]) > 1


def _numbered(machines: tuple[Machine, ...]) -> tuple[int, ...]:
    """Numbers machines; those on which everything costs the same have the same number."""
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
