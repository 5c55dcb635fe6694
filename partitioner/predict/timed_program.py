"""A program as numbers: what the virtual clock must know of it; made once, played often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Program
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.predict.cost import MessageCost

COMPUTE: Final = 0
SEND: Final = 1
RECV: Final = 2


class InstructionCosts(Protocol):
    """What the virtual clock asks of costs."""

    def compute_s(self, instruction: Instruction, machine: int) -> float:
        """Seconds for which a machine's kernel threads are busy with it."""

    def message(self, n_bytes: int, source: int, destination: int) -> MessageCost:
        """Seconds of a message from one machine to another."""

    def step_s(self, machine: int) -> float:
        """Seconds that a step costs a machine before its first instruction."""

    def interrupts(self, machine: int) -> bool:
        """Whether its messenger takes its time from the kernel threads, because there is no other core."""

    def both_ways(self, source: int, destination: int) -> bool:
        """Whether messages between two machines may go both ways at once."""


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """One machine's program; every list has an entry for each instruction.

    Args:
        program: whose numbers these are.
        kinds: `COMPUTE`, `SEND` or `RECV`.
        seconds: of the kernel threads, or of the messenger.
        missing: how many instructions it waits for.
        followers: which wait for it.
        wires, latencies: of a SEND, how long the link is busy, and what is added on its way; else zero.
        one_way: the SENDs whose link goes one way at a time.
        step_s: before the first instruction.
        interrupts: whether the messenger takes its time from the kernel threads.
    """

    program: Program
    kinds: list[int]
    seconds: list[float]
    missing: list[int]
    followers: list[list[int]]
    wires: list[float]
    latencies: list[float]
    one_way: set[int] = field(default_factory=set)
    step_s: float = 0.0
    interrupts: bool = False


def timed_program(program: Program, costs: InstructionCosts, sizes: Sizes) -> TimedProgram:
    """The numbers of a program."""
    instructions, machine = program.instructions, program.machine
    n = len(instructions)
    track = TimedProgram(
        program,
        [COMPUTE] * n,
        [0.0] * n,
        [0] * n,
        [[] for _ in instructions],
        [0.0] * n,
        [0.0] * n,
        step_s=costs.step_s(machine),
        interrupts=costs.interrupts(machine),
    )
    for k, instruction in enumerate(instructions):
        track.missing[k] = len(instruction.after)
        for before in instruction.after:
            track.followers[before].append(k)
        if instruction.op in COMPUTES:
            track.seconds[k] = costs.compute_s(instruction, machine)
            continue
        assert instruction.peer is not None, f"{instruction} names no peer"
        n_bytes = sizes.n_bytes(instruction.target)
        if instruction.op is Op.SEND:
            cost = costs.message(n_bytes, machine, instruction.peer)
            track.kinds[k], track.seconds[k] = SEND, cost.send_s
            track.wires[k], track.latencies[k] = cost.wire_s, cost.latency_s
            if not costs.both_ways(machine, instruction.peer):
                track.one_way.add(k)
        else:
            cost = costs.message(n_bytes, instruction.peer, machine)
            track.kinds[k], track.seconds[k] = RECV, cost.receive_s
    return track


def matching_receives_of(tracks: Sequence[TimedProgram], firsts: Sequence[int]) -> dict[int, int]:
    """For each SEND the RECV that takes its message, by their numbers through all tracks.

    A message is known by its sender, its receiver, and what the sender calls its buffer.
    """
    receives: dict[tuple[int, int, Buffer], int] = {}
    sends: dict[int, tuple[int, int, Buffer]] = {}
    for m, track in enumerate(tracks):
        for n, kind in enumerate(track.kinds):
            if kind == COMPUTE:
                continue
            instruction = track.program.instructions[n]
            peer = instruction.peer
            assert peer is not None
            buffer = instruction.target.buffer.sent
            if kind == SEND:
                sends[firsts[m] + n] = m, peer, buffer
            else:
                receives[peer, m, buffer] = firsts[m] + n
    return {send: receives[key] for send, key in sends.items() if key in receives}
