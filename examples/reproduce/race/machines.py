"""Assumed times: steps of the paper's speech network on machines of its day, and bytes on links.

The machines are those of `examples/reproduce/figure3.py`. A fleet divides them into replicas of some machines
each and shards of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from examples.reproduce.figure3 import Assumed, plan_of, speech
from partita.partitioner import Plan

SIZES = (1, 2, 4, 8, 16)
"""Possible numbers of machines of a replica."""
DRAWS = 8
"""Steps simulated for each size of a replica, each with its own draw of the machines' speeds."""


@dataclass(frozen=True)
class Times:
    """Assumptions about the large network that the small one represents.

    Args:
        machines: machines and links of 2011 and 2012.
        frames: frames of speech that one picture of a digit represents.
        pictures: pictures in a minibatch.
    """

    machines: Assumed = field(default_factory=Assumed)
    frames: int = 100
    pictures: int = 10

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of the large network's parameters."""
        return 4 * speech().graph().n_parameters

    def steps(self, size: int) -> tuple[float, ...]:
        """Seconds of `DRAWS` steps of a replica of `size` machines, whose speeds vary from step to step."""
        if size not in self._steps:
            clusters = [self.machines.cluster(size, seed=seed) for seed in range(DRAWS)]
            plan = self._plan(size)
            self._steps[size] = tuple(plan.on(cluster).predicted_step_s for cluster in clusters)
        return self._steps[size]

    def best_size(self, most: int) -> int:
        """The size of a replica, at most `most`, with the shortest predicted step (without variance)."""
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
        """Seconds in which a machine reads or writes `n_bytes` of memory."""
        return n_bytes / self.machines.memory_bytes_per_s


@dataclass(frozen=True)
class Fleet:
    """Machines divided into replicas and shards.

    Args:
        size: machines of each replica.
        replicas, shards: their numbers; 0 shards only for a single replica.
    """

    size: int
    replicas: int
    shards: int

    @property
    def machines(self) -> int:
        """Number of all machines."""
        return self.size * self.replicas + self.shards

    @property
    def groups(self) -> int:
        """Number of simulated shards: each stands for a group of shards, with the links of the whole
        group."""
        return min(self.shards, 2)

    def __str__(self) -> str:
        """Text such as `5 x 8 + 10`."""
        return f"{self.replicas} x {self.size}" + (f" + {self.shards}" if self.shards else "")


def shards_of(machines: int) -> int:
    """Number of machines that hold the parameters: a quarter of all."""
    return max(1, machines // 4)
