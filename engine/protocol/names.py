"""What the hosts of a run are called, and who belongs to whom. Machines know hosts by name alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

COORDINATOR: Final = "coordinator"

_PART: Final = re.compile(r"part (\d+)\.(\d+)", flags=re.ASCII)
_SHARD: Final = re.compile(r"shard (\d+)", flags=re.ASCII)


def part_name(replica: int, machine: int) -> str:
    """The name of the host that plays this machine's part of this replica."""
    return f"part {replica}.{machine}"


def shard_name(shard: int) -> str:
    """The name of the host that holds this shard of the parameters."""
    return f"shard {shard}"


@lru_cache(maxsize=4096)
def part_indices(name: str) -> tuple[int, int] | None:
    """(replica, machine) of "part R.M"; None for any other host."""
    match = _PART.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def machine_of(name: str) -> int:
    """M of "part R.M"; -1, which no machine has, for any other host."""
    indices = part_indices(name)
    return -1 if indices is None else indices[1]


@lru_cache(maxsize=4096)
def shard_index(name: str) -> int | None:
    """K of "shard K"; None for any other host."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Topology:
    """How many hosts of each kind a run has: `replicas` of `machines` parts each, and `shards`."""

    replicas: int
    machines: int
    shards: int

    def __post_init__(self) -> None:
        if min(self.replicas, self.machines, self.shards) < 1:
            raise ValueError(f"{self}: a run needs at least one of each; give 1 or more")

    def parts(self, replica: int) -> tuple[str, ...]:
        """The hosts of this replica, by machine."""
        return tuple(part_name(replica, machine) for machine in range(self.machines))

    @property
    def n_hosts(self) -> int:
        """How many hosts there are in all."""
        return self.replicas * self.machines + self.shards

    @property
    def shard_names(self) -> tuple[str, ...]:
        """The hosts that hold parameters, by shard."""
        return tuple(shard_name(shard) for shard in range(self.shards))
