"""The names of a run's hosts. State machines know hosts by name alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

COORDINATOR: Final = "coordinator"

FILES: Final = "files"
"""The host in the coordinator's process that serves files to hosts on other machines."""

_PART: Final = re.compile(r"part (\d+)\.(\d+)", flags=re.ASCII)
_SHARD: Final = re.compile(r"shard (\d+)", flags=re.ASCII)
_BACKUP: Final = re.compile(r"backup (\d+)", flags=re.ASCII)
_STREAM: Final = re.compile(r"(.+) fragment (\d+)", flags=re.ASCII)


def part_name(replica: int, machine: int) -> str:
    """Returns the name of the host that runs this machine's part of this replica."""
    return f"part {replica}.{machine}"


def shard_name(shard: int) -> str:
    """Returns the name of the host of this shard of the parameters."""
    return f"shard {shard}"


def backup_name(shard: int) -> str:
    """Returns the name of the host of this shard's second copy."""
    return f"backup {shard}"


@lru_cache(maxsize=4096)
def part_indices(name: str) -> tuple[int, int] | None:
    """Returns (replica, machine) of "part R.M"; None for any other host."""
    match = _PART.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def machine_of(name: str) -> int:
    """Returns M of "part R.M"; -1, which no machine has, for any other host."""
    indices = part_indices(name)
    return -1 if indices is None else indices[1]


@lru_cache(maxsize=4096)
def shard_index(name: str) -> int | None:
    """Returns K of "shard K"; None for any other host."""
    match = _SHARD.fullmatch(name)
    return int(match[1]) if match else None


@lru_cache(maxsize=4096)
def backup_index(name: str) -> int | None:
    """Returns K of "backup K"; None for any other host."""
    match = _BACKUP.fullmatch(name)
    return int(match[1]) if match else None


def other_copy(name: str) -> str:
    """Returns the backup of a shard, and the shard of a backup; "" for any other host."""
    shard, backup = shard_index(name), backup_index(name)
    if shard is not None:
        return backup_name(shard)
    return "" if backup is None else shard_name(backup)


def stream_name(host: str, fragment: int) -> str:
    """Returns the name of a stream: the pushes and values of one fragment that a part and a shard exchange.

    Each of them names it by the other one; that of the first fragment has just that name.
    """
    return f"{host} fragment {fragment}" if fragment else host


@lru_cache(maxsize=4096)
def host_and_fragment(stream: str) -> tuple[str, int]:
    """Returns the host and the fragment of a stream."""
    match = _STREAM.fullmatch(stream)
    return (match[1], int(match[2])) if match else (stream, 0)


@dataclass(frozen=True, slots=True)
class Topology:
    """The numbers of hosts of a run: `replicas` of `machines` parts each, and `shards`, which may be 0.

    With `replicated`, each shard has a backup.
    """

    replicas: int
    machines: int
    shards: int
    replicated: bool = False

    def __post_init__(self) -> None:
        if min(self.replicas, self.machines) < 1 or self.shards < 0:
            raise ValueError(f"{self}: a run needs at least one replica of one machine; give 1 or more")

    @property
    def collective(self) -> bool:
        """Returns whether replicas exchange with one another, because there are no shards between them."""
        return not self.shards

    def parts(self, replica: int) -> tuple[str, ...]:
        """Returns the hosts of this replica, by machine."""
        return tuple(part_name(replica, machine) for machine in range(self.machines))

    @property
    def n_hosts(self) -> int:
        """The number of all hosts."""
        return self.replicas * self.machines + self.shards * (1 + self.replicated)

    @property
    def shard_names(self) -> tuple[str, ...]:
        """The hosts of the shards, in order."""
        return tuple(shard_name(shard) for shard in range(self.shards))

    @property
    def backup_names(self) -> tuple[str, ...]:
        """The hosts of the backups, in the order of their shards; none where shards have none."""
        return tuple(backup_name(shard) for shard in range(self.shards if self.replicated else 0))
