"""Timed programs: everything that the virtual clock needs of a program, made once and simulated often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import COMPUTES, Op, Program
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.predict.cost import Costs

COMPUTE: Final = 0
SEND: Final = 1
RECV: Final = 2


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """The times of one machine's program; every list has an entry for each instruction.

    Args:
        program: the program.
        kinds: `COMPUTE`, `SEND` or `RECV`.
        seconds: time on the kernel threads or the communication thread.
        missing: number of predecessors.
        followers: positions that wait for it.
        wires, latencies: of a SEND, time of the link and latency; else zero.
        one_way: SENDs whose link goes one way at a time.
        step_s: time before the first instruction.
        interrupts: whether the communication thread takes its time from the kernel threads.
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


def timed_program(program: Program, costs: Costs, sizes: Sizes) -> TimedProgram:
    """Prices the instructions of a program."""
    instructions, machine = program.instructions, program.machine
    n = len(instructions)
    timed = TimedProgram(
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
        timed.missing[k] = len(instruction.after)
        for before in instruction.after:
            timed.followers[before].append(k)
        if instruction.op in COMPUTES:
            timed.seconds[k] = costs.compute_s(instruction, machine)
            continue
        assert instruction.peer is not None, f"{instruction} names no peer"
        n_bytes = sizes.n_bytes(instruction.target)
        if instruction.op is Op.SEND:
            cost = costs.message(n_bytes, machine, instruction.peer)
            timed.kinds[k], timed.seconds[k] = SEND, cost.send_s
            timed.wires[k], timed.latencies[k] = cost.wire_s, cost.latency_s
            if not costs.both_ways(machine, instruction.peer):
                timed.one_way.add(k)
        else:
            cost = costs.message(n_bytes, instruction.peer, machine)
            timed.kinds[k], timed.seconds[k] = RECV, cost.receive_s
    return timed


def matching_receives_of(programs: Sequence[TimedProgram], firsts: Sequence[int]) -> dict[int, int]:
    """Finds the matching RECV of each SEND, by numbers that count through all programs.

    A message is known by its sender, its receiver, and its buffer.
    """
    receives: dict[tuple[int, int, Buffer], int] = {}
    sends: dict[int, tuple[int, int, Buffer]] = {}
    for m, timed in enumerate(programs):
        for n, kind in enumerate(timed.kinds):
            if kind == COMPUTE:
                continue
            instruction = timed.program.instructions[n]
            peer = instruction.peer
            assert peer is not None
            buffer = instruction.target.buffer.sent
            if kind == SEND:
                sends[firsts[m] + n] = m, peer, buffer
            else:
                receives[peer, m, buffer] = firsts[m] + n
    return {send: receives[key] for send, key in sends.items() if key in receives}
