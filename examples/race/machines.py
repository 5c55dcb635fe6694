"""How long things take: steps of the paper's speech network on machines of its time, and bytes on links.

The machines are those of `examples/figure3.py`. They are shared out as a fleet: replicas of so many machines
each, and shards of the parameters on the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from examples.figure3 import Assumed, plan_of, speech
from partita.partitioner import Plan

SIZES = (1, 2, 4, 8, 16)
"""Machines that a replica may have."""
DRAWS = 8
"""Steps that are played for each size of a replica, on machines as fast as they are in one step."""


@dataclass(frozen=True)
class Times:
    """What is assumed of the large network that the small one stands for.

    Args:
        machines: and links, of 2011 and 2012.
        frames: of speech that a picture of a digit stands for.
        pictures: in a minibatch.
    """

    machines: Assumed = field(default_factory=Assumed)
    frames: int = 100
    pictures: int = 10

    @cached_property
    def n_bytes(self) -> int:
        """Of its parameters."""
        return 4 * speech().graph().n_parameters

    def steps(self, size: int) -> tuple[float, ...]:
        """Seconds of some steps of a replica of so many machines, which vary in speed from step to step."""
        if size not in self._steps:
            clusters = [self.machines.cluster(size, seed=seed) for seed in range(DRAWS)]
            plan = self._plan(size)
            self._steps[size] = tuple(plan.on(cluster).predicted_step_s for cluster in clusters)
        return self._steps[size]

    def best_size(self, most: int) -> int:
        """Of at most so many machines, those on which a step of a replica takes least, but for variance."""
        return min((n for n in SIZES if n <= most), key=lambda n: self._plan(n).predicted_step_s)

    def _plan(self, size: int) -> Plan:
        if size not in self._plans:
            assumed = replace(self.machines, batch=self.frames * self.pictures)
            self._plans[size] = plan_of(speech(), size, assumed)
        return self._plans[size]

    @cached_property
    def _steps(self) -> dict[int, tuple[float, ...]]:
        return {}

    @cached_property
    def _plans(self) -> dict[int, Plan]:
        return {}

    def passing_s(self, n_bytes: float) -> float:
        """Of a machine that reads or writes so many bytes of its memory."""
        return n_bytes / self.machines.memory_bytes_per_s


@dataclass(frozen=True)
class Fleet:
    """Machines with their duties.

    Args:
        size: machines of a replica.
        replicas, shards: how many; no shards only for a replica alone.
    """

    size: int
    replicas: int
    shards: int

    @property
    def machines(self) -> int:
        """All of them."""
        return self.size * self.replicas + self.shards

    @property
    def groups(self) -> int:
        """In so many groups shards are played: those of a group act as one, with the links of all of them."""
        return min(self.shards, 2)

    def __str__(self) -> str:
        """For example `5 x 8 + 10`."""
        return f"{self.replicas} x {self.size}" + (f" + {self.shards}" if self.shards else "")


def shards_of(machines: int) -> int:
    """A quarter of all machines hold the parameters."""
    return max(1, machines // 4)
