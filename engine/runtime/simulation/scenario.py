"""What one seed stands for: a topology, how fast things are, and which faults happen and how often.

Each seed draws its own rates, and some of them are zero: a fault that is always there hides what happens
without it. It must not know the machines; `world` plays it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from partita.engine.protocol.names import Topology
from partita.engine.transport.simulated import NetworkFaults

NUMBERS_OF_A_MACHINE = 4
"""Parameters of each machine: enough to be cut over shards, few enough to be summed at every event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One schedule's draw. Times in seconds of virtual time.

    Attributes:
        topology: the hosts.
        steps: that each replica has to do; `done` of them by replica are from a resumed run.
        fetch_every: steps between two fetches of a part.
        push_every: steps between two pushes of a part.
        step_s: what a step of a part takes, at most; the slowest part takes `straggler` times as long.
        checkpoint_every_s: between two checkpoint rounds; None: only the last one.
        write_s: what writing a shard's file takes, at most.
        network: its faults, until the end of the chaos.
        chaos_s: when everything heals.
        accidents: how many crashes, freezes and splits happen until then.
        can_kill: whether the coordinator reaches old processes; else they live on as zombies.
        sees_exits: whether it is told that a process has ended; else it knows by silence alone.
        stall_s: after how long without a step a replica is restarted. Seldom short: it would hide what hangs.
        raising: a part that raises, and how many times.
        stop_at: when the user presses Ctrl-C; None: never.
    """

    topology: Topology
    steps: int
    done: tuple[int, ...]
    fetch_every: int
    push_every: int
    step_s: float
    straggler: float
    checkpoint_every_s: float | None
    write_s: float
    network: NetworkFaults
    chaos_s: float
    accidents: int
    can_kill: bool
    sees_exits: bool
    stall_s: float
    raising: tuple[str, int] | None
    stop_at: float | None


def draw(random: Random) -> Scenario:
    """The scenario of a seed: most are small, so that many are played, and a third has no accidents."""
    topology = Topology(_few(random), _few(random), _few(random))
    steps = random.randint(1, 10)
    resumes = random.random() < 0.1
    faults = NetworkFaults(
        delay_s=random.choice((0.002, 0.02, 0.2)),
        slow=_rate(random, 0.1),
        slow_s=random.choice((0.5, 2.0, 5.0)),
        drop=_rate(random, 0.3),
        repeat=_rate(random, 0.3),
        in_order=random.random() < 0.5,
    )
    accidents = random.choice((0, 1, 2, 3, 5))
    raising = None
    if random.random() < 0.15:
        part = random.choice(topology.parts(random.randrange(topology.replicas)))
        raising = (part, random.choice((1, 2, 3, 3, 4)))
    return Scenario(
        topology=topology,
        steps=steps,
        done=tuple(random.randint(0, steps) if resumes else 0 for _ in range(topology.replicas)),
        fetch_every=random.choice((1, 1, 2, 3)),
        push_every=random.choice((1, 1, 2, 3)),
        step_s=random.choice((0.2, 0.6, 1.2)),
        straggler=random.choice((1.0, 1.0, 1.0, 4.0)),
        checkpoint_every_s=random.choice((None, 0.3, 0.6, 1.0, 3.0)),
        write_s=random.choice((0.01, 0.5)),
        network=faults,
        chaos_s=random.uniform(2.0, 8.0),
        accidents=accidents,
        can_kill=random.random() < 0.3,
        sees_exits=random.random() < 0.7,
        stall_s=15.0 if random.random() < 0.1 else 1e6,
        raising=raising,
        stop_at=random.uniform(0.1, 6.0) if random.random() < 0.05 else None,
    )


def _few(random: Random) -> int:
    return random.choice((1, 1, 1, 1, 2, 2, 3))


def _rate(random: Random, worst: float) -> float:
    """A rate of a fault: zero in half of the seeds, and rather small than large in the others."""
    return 0.0 if random.random() < 0.5 else worst * random.random() ** 2
