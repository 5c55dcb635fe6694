"""What one seed stands for under Downpour: surroundings, steps, and how often parts fetch and push."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from partita.engine.protocol.names import Topology
from partita.engine.runtime.simulation.scenario import Surroundings, draw_surroundings, few

NUMBERS_OF_A_MACHINE: Final = 4
"""Parameters of each machine: enough to be cut over shards, few enough to be summed at every event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule's draw. Times in seconds of virtual time.

    Attributes:
        around: what it shares with every schedule.
        steps: that each replica has to do; `done` of them by replica are from a resumed run.
        fetch_every: steps between two fetches of a part.
        push_every: steps between two pushes of a part.
        step_s: what a step of a part takes, at most; the slowest part takes `straggler` times as long.
        apply_s: what an update of a shard takes, at most.
    """

    around: Surroundings
    steps: int
    done: tuple[int, ...]
    fetch_every: int
    push_every: int
    step_s: float
    straggler: float
    apply_s: float


def draw(random: Random) -> Scenario:
    """The scenario of a seed; one in ten resumes an earlier run."""
    topology = Topology(few(random), few(random), few(random))
    around = draw_surroundings(random, topology)
    steps, resumes = random.randint(1, 10), random.random() < 0.1
    return Scenario(
        around=around,
        steps=steps,
        done=tuple(random.randint(0, steps) if resumes else 0 for _ in range(topology.replicas)),
        fetch_every=random.choice((1, 1, 2, 3)),
        push_every=random.choice((1, 1, 2, 3)),
        step_s=random.choice((0.2, 0.6, 1.2)),
        straggler=random.choice((1.0, 1.0, 1.0, 4.0)),
        apply_s=random.choice((0.0, 0.0, 0.0, 0.1, 1.5)),
    )
