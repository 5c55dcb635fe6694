"""Machines and the links between them: what a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Machine:
    """One machine of a replica.

    Args:
        name: as plans print it.
        threads: kernel threads.
        flops_per_s: rate of its matrix products. The default is a guess for a server's core of the 2020s.
        bytes_per_s: rate at which arithmetic on whole arrays reads and writes memory.
        memory_bytes: what a part may take; None for no limit.
    """

    name: str
    threads: int = 1
    flops_per_s: float = 80e9
    bytes_per_s: float = 10e9
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.threads < 1 or self.flops_per_s <= 0 or self.bytes_per_s <= 0:
            raise ValueError(
                f"machine '{self.name}' has {self.threads} threads at {self.flops_per_s} flop/s and "
                f"{self.bytes_per_s} bytes/s; each must be more than zero"
            )


@dataclass(frozen=True)
class Link:
    """A message between two machines takes `latency_s + bytes / bytes_per_s`. The defaults are guesses."""

    latency_s: float = 100e-6
    bytes_per_s: float = 2e9


@dataclass(frozen=True)
class Cluster:
    """The machines over which one replica is cut, and the link between any two of them."""

    machines: tuple[Machine, ...]
    link: Link = field(default=Link())

    def __post_init__(self) -> None:
        if not self.machines:
            raise ValueError("a cluster needs at least one machine")

    @classmethod
    def local(cls, machines: int = 1, *, threads: int = 1) -> Cluster:
        """So many processes on this machine, each with so many kernel threads."""
        if machines < 1:
            raise ValueError(f"{machines} machines cannot play a network; ask for at least 1")
        return cls(tuple(Machine(f"local{m}", threads=threads) for m in range(machines)))

    def __len__(self) -> int:
        return len(self.machines)

    def __str__(self) -> str:
        return f"{len(self)} machines ({', '.join(f'{m.name}: {m.threads} threads' for m in self.machines)})"
