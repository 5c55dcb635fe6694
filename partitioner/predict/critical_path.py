"""The critical path of a simulated step in words: its computations, messages and waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.layers.text import counted
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import COMPUTES
from partita.partitioner.predict.simulated_step import Bar, Flight, SimulatedStep
from partita.partitioner.text import readable_seconds

LONGEST = 3
"""Number of waits that are listed."""
MACHINES = 2
"""Number of machines whose computing time is listed."""


@dataclass(frozen=True, order=True)
class Wait:
    """Time in which a machine has nothing to compute until a message comes.

    Args:
        seconds: time since its kernel threads were last busy.
        machine: the machine that waits.
        source: the machine that sends.
        buffer: the buffer that the message carries.
    """

    seconds: float
    machine: int
    source: int
    buffer: Buffer

    def __str__(self) -> str:
        return (
            f"machine {self.machine} waits {readable_seconds(self.seconds)} for {self.buffer.description} "
            f"from machine {self.source}"
        )


def waits(simulated_step: SimulatedStep) -> tuple[Wait, ...]:
    """Lists the waits on the critical path, the longest first."""
    return tuple(
        sorted(_waits(simulated_step), key=lambda wait: (-wait.seconds, wait.machine, str(wait.buffer)))
    )


def _waits(simulated_step: SimulatedStep) -> Iterator[Wait]:
    """Finds, for each message on the path, the time in which its receiver's threads were idle before it."""
    path = simulated_step.critical_path
    ends: dict[int, list[float]] = {}
    for bar in simulated_step.bars:
        if simulated_step.instruction(bar).op in COMPUTES:
            ends.setdefault(bar.machine, []).append(bar.stop_s)
    for n, link in enumerate(path):
        if isinstance(link, Flight):
            after = next((later for later in path[n + 1 :] if _computes(simulated_step, later)), None)
            begun = simulated_step.step_s if after is None else after.start_s
            before = max((end for end in ends.get(link.destination, ()) if end <= begun), default=0.0)
            if begun > before:
                buffer = simulated_step.programs[link.source].instructions[link.send].target.buffer
                yield Wait(begun - before, link.destination, link.source, buffer)


def _computes(simulated_step: SimulatedStep, link: Bar | Flight) -> bool:
    return isinstance(link, Bar) and simulated_step.instruction(link).op in COMPUTES


def critical_path(simulated_step: SimulatedStep) -> str:
    """Describes the chain that ends last, in a few lines."""
    kernels: dict[int, float] = {}
    messages, flights = 0.0, 0
    for link in simulated_step.critical_path:
        took = link.stop_s - link.start_s
        if isinstance(link, Bar) and simulated_step.instruction(link).op in COMPUTES:
            kernels[link.machine] = kernels.get(link.machine, 0.0) + took
        else:
            messages += took
            flights += isinstance(link, Flight)
    busiest = sorted(kernels.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"machine {m} computes {readable_seconds(took)}" for m, took in busiest[:MACHINES]]
    if len(busiest) > MACHINES:
        others = sum(took for _, took in busiest[MACHINES:])
        parts.append(f"{len(busiest) - MACHINES} more {readable_seconds(others)}")
    if flights:
        take = "takes" if flights == 1 else "take"
        parts.append(f"{counted(flights, 'message')} {take} {readable_seconds(messages)}")
    lines = [f"critical path: {', '.join(parts)}"]
    lines += [f"  {wait}" for wait in waits(simulated_step)[:LONGEST]]
    return "\n".join(lines)
