"""The draw of a seed under any driver: how many hosts, how bad a network, and which faults.

Each seed draws its own rates, and some of them are zero: a fault that is always there hides what happens
without it. The module must not know the protocol's machines; `world` plays the draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from partita.engine.protocol.names import Topology
from partita.engine.transport.simulated import NetworkFaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The part of a draw that schedules of all drivers have. Times in seconds of virtual time.

    Attributes:
        topology: the hosts.
        write_s: the longest that writing a shard's file takes.
        disk_fails: the rate of files that cannot be written, until the end of the chaos.
        checkpoint_every_s: between two checkpoint rounds; None: only the last one.
        network: its faults, until the end of the chaos.
        chaos_s: when everything heals.
        faults: the number of crashes, freezes and splits until then.
        can_kill: whether the coordinator reaches old processes; else they live on as zombies.
        sees_exits: whether the coordinator is notified when a process ends; else only silence shows it.
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
    faults: int
    can_kill: bool
    sees_exits: bool
    stall_s: float
    raising: tuple[str, int] | None
    stop_at: float | None

    def is_full(self, random: Random, now: float) -> bool:
        """Draws whether the disk is full for a file that is written now."""
        return bool(self.disk_fails) and now < self.chaos_s and random.random() < self.disk_fails


def draw_environment(random: Random, topology: Topology) -> Environment:
    """The environment of a seed for these hosts; a fifth has no faults of hosts."""
    raising = None
    if random.random() < 0.15:
        part = random.choice(topology.parts(random.randrange(topology.replicas)))
        raising = (part, random.choice((1, 2, 3, 3, 4)))
    return Environment(
        topology=topology,
        write_s=random.choice((0.01, 0.5)),
        checkpoint_every_s=random.choice((None, 0.3, 0.6, 1.0, 3.0)),
        network=_draw_network(random),
        chaos_s=random.uniform(2.0, 8.0),
        faults=random.choice((0, 1, 2, 3, 5)),
        can_kill=random.random() < 0.3,
        sees_exits=random.random() < 0.7,
        stall_s=15.0 if random.random() < 0.1 else 1e6,
        raising=raising,
        stop_at=random.uniform(0.1, 6.0) if random.random() < 0.05 else None,
        disk_fails=random.choice((0.0, 0.0, 0.0, 0.3)),
    )


def _draw_network(random: Random) -> NetworkFaults:
    return NetworkFaults(
        delay_s=random.choice((0.002, 0.02, 0.2)),
        slow=_fault_rate(random, 0.1),
        slow_s=random.choice((0.5, 2.0, 5.0)),
        drop=_fault_rate(random, 0.3),
        repeat=_fault_rate(random, 0.3),
        in_order=random.random() < 0.5,
    )


def small_count(random: Random) -> int:
    """Draws 1 to 3, mostly 1: small schedules, so that many are played."""
    return random.choice((1, 1, 1, 1, 2, 2, 3))


def _fault_rate(random: Random, worst: float) -> float:
    """Draws zero in half of the seeds, and rather a small than a large rate in the others."""
    return 0.0 if random.random() < 0.5 else worst * random.random() ** 2
