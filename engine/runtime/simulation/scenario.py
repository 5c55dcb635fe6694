"""What a seed stands for under any driver: how many hosts, how bad a network, and what happens to them.

Each seed draws its own rates, and some of them are zero: a fault that is always there hides what happens
without it. What a driver adds stands in its folder. It must not know the machines; `world` plays it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from partita.engine.protocol.names import Topology
from partita.engine.transport.simulated import NetworkFaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every schedule draws. Times in seconds of virtual time.

    Attributes:
        topology: the hosts.
        write_s: what writing a shard's file takes, at most.
        disk_fails: how often a file cannot be written, until the end of the chaos.
        checkpoint_every_s: between two checkpoint rounds; None: only the last one.
        network: its faults, until the end of the chaos.
        chaos_s: when everything heals.
        accidents: how many crashes, freezes and splits happen until then.
        can_kill: whether the coordinator reaches old processes; else they live on as zombies.
        sees_exits: whether it is told that a process has ended; else it knows by silence alone.
        stall_s: after how long without progress a replica is restarted. Seldom short: it would hide what
            hangs.
        raising: a part that raises, and how many times.
        stop_at: when the user presses Ctrl-C; None: never.
    """

    topology: Topology
    write_s: float
    disk_fails: float
    checkpoint_every_s: float | None
    network: NetworkFaults
    chaos_s: float
    accidents: int
    can_kill: bool
    sees_exits: bool
    stall_s: float
    raising: tuple[str, int] | None
    stop_at: float | None

    def is_full(self, random: Random, now: float) -> bool:
        """Whether a file that is written now cannot be."""
        return bool(self.disk_fails) and now < self.chaos_s and random.random() < self.disk_fails


def draw_surroundings(random: Random, topology: Topology) -> Surroundings:
    """Those of a seed, for these hosts; a fifth has no accidents."""
    raising = None
    if random.random() < 0.15:
        part = random.choice(topology.parts(random.randrange(topology.replicas)))
        raising = (part, random.choice((1, 2, 3, 3, 4)))
    return Surroundings(
        topology=topology,
        write_s=random.choice((0.01, 0.5)),
        checkpoint_every_s=random.choice((None, 0.3, 0.6, 1.0, 3.0)),
        network=_draw_faults(random),
        chaos_s=random.uniform(2.0, 8.0),
        accidents=random.choice((0, 1, 2, 3, 5)),
        can_kill=random.random() < 0.3,
        sees_exits=random.random() < 0.7,
        stall_s=15.0 if random.random() < 0.1 else 1e6,
        raising=raising,
        stop_at=random.uniform(0.1, 6.0) if random.random() < 0.05 else None,
        disk_fails=random.choice((0.0, 0.0, 0.0, 0.3)),
    )


def _draw_faults(random: Random) -> NetworkFaults:
    return NetworkFaults(
        delay_s=random.choice((0.002, 0.02, 0.2)),
        slow=_rate(random, 0.1),
        slow_s=random.choice((0.5, 2.0, 5.0)),
        drop=_rate(random, 0.3),
        repeat=_rate(random, 0.3),
        in_order=random.random() < 0.5,
    )


def few(random: Random) -> int:
    """1 to 3, mostly 1: small schedules, so that many are played."""
    return random.choice((1, 1, 1, 1, 2, 2, 3))


def _rate(random: Random, worst: float) -> float:
    """A rate of a fault: zero in half of the seeds, and rather small than large in the others."""
    return 0.0 if random.random() < 0.5 else worst * random.random() ** 2
