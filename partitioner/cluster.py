"""Machines and the links between them: what a plan is made for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real

from partita.layers.checks import check_whole


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} cannot name a machine; write for example Machine('a')")


def _check_device(device: object, machine: str) -> None:
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda:(0|[1-9]\d*)", device):
        raise ValueError(
            f"machine '{machine}': the device is {device!r}; write 'cpu', or for example 'cuda:0'"
        )


def _check_number(value: object, what: str, *, may_be_zero: bool = False) -> None:
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not may_be_zero):
        least = "at least" if may_be_zero else "more than"
        raise ValueError(f"{what} {value!r}; write a finite number of {least} zero")


@dataclass(frozen=True)
class Machine:
    """One machine of a replica.

    Args:
        name: as plans print it.
        threads: kernel threads.
        flops_per_s: rate of its matrix products. The default is a guess for a server's core of the 2020s.
        bytes_per_s: rate at which arithmetic on whole arrays reads and writes memory.
        memory_bytes: what a part may take; None for no limit.
        device: where its kernels run: "cpu", or a GPU as "cuda:0".
        host: machines of the same host share memory; "" is a host of its own.

    Raises:
        ValueError: one of them is not such a number, or not more than zero, or there is no such device.
    """

    name: str
    threads: int = 1
    flops_per_s: float = 80e9
    bytes_per_s: float = 10e9
    memory_bytes: int | None = None
    device: str = "cpu"
    host: str = ""

    def __post_init__(self) -> None:
        _check_name(self.name)
        found = f"machine '{self.name}': the number of"
        object.__setattr__(self, "threads", check_whole(self.threads, f"{found} threads is"))
        _check_number(self.flops_per_s, f"{found} flop/s is")
        _check_number(self.bytes_per_s, f"{found} bytes/s is")
        if self.memory_bytes is not None:
            object.__setattr__(self, "memory_bytes", check_whole(self.memory_bytes, f"{found} bytes is"))
        _check_device(self.device, self.name)

    @property
    def place(self) -> str:
        """The name, and the device where that is no CPU: `a (cuda:0)`."""
        return self.name if self.device == "cpu" else f"{self.name} ({self.device})"


@dataclass(frozen=True)
class Link:
    """A message between two machines takes `latency_s + bytes / bytes_per_s`. The defaults are guesses.

    Raises:
        ValueError: the latency is less than zero, or the rate not more.
    """

    latency_s: float = 100e-6
    bytes_per_s: float = 2e9

    def __post_init__(self) -> None:
        _check_number(self.latency_s, "the latency of a link is", may_be_zero=True)
        _check_number(self.bytes_per_s, "the bytes/s of a link are")


@dataclass(frozen=True)
class Cluster:
    """The machines over which one replica is cut, and the link between any two of them.

    Raises:
        ValueError: there are none, or these are no machines of different names, or no link.
    """

    machines: tuple[Machine, ...]
    link: Link = field(default=Link())

    def __post_init__(self) -> None:
        object.__setattr__(self, "machines", _machines_of(self.machines))
        _check_link(self.link)

    @classmethod
    def local(cls, machines: int = 1, *, threads: int = 1) -> Cluster:
        """So many processes on this machine, each with so many kernel threads.

        Raises:
            ValueError: one of them is not a whole number of at least 1.
        """
        n_machines = check_whole(machines, "the number of machines is")
        return cls(tuple(Machine(f"local{m}", threads=threads) for m in range(n_machines)))

    @property
    def hosts(self) -> tuple[str, ...]:
        """For each machine the name of its host; one that names none has its own."""
        return tuple(machine.host or f"host of {machine.name}" for machine in self.machines)

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """For each machine the first one that is like it, in all but its name, its host and its memory."""
        first: dict[Machine, int] = {}
        return tuple(
            first.setdefault(replace(machine, name="any", host="", memory_bytes=None), m)
            for m, machine in enumerate(self.machines)
        )

    def link_between(self, source: int, destination: int) -> Link:
        """How messages of one machine reach another."""
        return self.link

    def __len__(self) -> int:
        return len(self.machines)

    def __str__(self) -> str:
        return f"{len(self)} machines ({', '.join(f'{m.place}: {m.threads} threads' for m in self.machines)})"


def _machines_of(given: object) -> tuple[Machine, ...]:
    listed = given if isinstance(given, list | tuple) else ()
    machines = [machine for machine in listed if isinstance(machine, Machine)]
    if not isinstance(given, list | tuple) or len(machines) < len(given):
        raise ValueError(
            f"the machines of a cluster are {given!r}; write a tuple, for example "
            f"Cluster((Machine('a'), Machine('b')))"
        )
    if not machines:
        raise ValueError("a cluster needs at least one machine")
    names = [machine.name for machine in machines]
    if len(set(names)) < len(names):
        raise ValueError(f"the machines of a cluster are named {', '.join(names)}; give each its own name")
    return tuple(machines)


def _check_link(link: object) -> None:
    if not isinstance(link, Link):
        raise ValueError(f"the link of a cluster is {link!r}; write for example Link(latency_s=1e-4)")
