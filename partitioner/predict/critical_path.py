"""The critical path of a simulated step in words: its computations, messages and waits."""

from __future__ import annotations

from collections.abc import Iterator

from partita.layers.text import counted
from partita.partitioner.predict.timeline import Bar, Flight, Timeline, Wait
from partita.partitioner.text import readable_seconds

LONGEST = 3
"""Number of waits that are listed."""
MACHINES = 2
"""Number of machines whose computing time is listed."""


def _waits(step: Timeline) -> Iterator[Wait]:
    """Finds, for each message on the path, the time in which its receiver's threads were idle before it."""
    path, ends = (
        step.critical_path,
        [[bar.stop_s for bar in part if step.computes(bar)] for part in step.parts],
    )
    for n, link in enumerate(path):
        if isinstance(link, Flight):
            computed = (bar for bar in path[n + 1 :] if isinstance(bar, Bar) and step.computes(bar))
            after = next(computed, None)
            begun = step.step_s if after is None else after.start_s
            before = max((end for end in ends[link.destination] if end <= begun), default=0.0)
            if begun > before:
                yield Wait(link.destination, before, begun, link.source, step.operand(link).buffer)


def critical_path(step: Timeline) -> str:
    """Describes the chain that ends last, in a few lines."""
    kernels: dict[int, float] = {}
    messages, flights = 0.0, 0
    for link in step.critical_path:
        took = link.stop_s - link.start_s
        if isinstance(link, Bar) and step.computes(link):
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
    longest = sorted(_waits(step), key=lambda wait: (-wait.seconds, wait.machine, str(wait.buffer)))
    lines += [f"  {wait}" for wait in longest[:LONGEST]]
    return "\n".join(lines)
