"""Clusters: the machines of one replica, and the links between them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.layers.checks import check_whole
from partita.layers.text import counted
from partita.partitioner.cluster.cluster_file import read_parts, write_parts
from partita.partitioner.cluster.link import SHARED_MEMORY, Between, Link, MessageTimes, check_link
from partita.partitioner.cluster.machine import Machine

__all__ = ["SHARED_MEMORY", "Between", "Cluster", "Link", "Machine", "MessageTimes"]


@dataclass(frozen=True)
class Cluster:
    """The machines over which one replica is cut, and the link between any two of them.

    Args:
        machines: machines with different names.
        link: link between hosts that have none in `between`; None: there is none.
        between: links between hosts or kinds of machines; a link of hosts takes precedence over one of kinds,
            and one that leads one way over one that leads both.
        memory: link between machines of one host.

    Raises:
        ValueError: there are no machines, two have one name, an argument has another type, or two hosts have
            no link.
    """

    machines: tuple[Machine, ...]
    link: Link | None = field(default=Link())
    between: tuple[Between, ...] = ()
    memory: Link = field(default=SHARED_MEMORY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "machines", _machines_of(self.machines))
        if self.link is not None:
            check_link(self.link)
        check_link(self.memory)
        object.__setattr__(self, "between", tuple(self.between))
        known = {name for machine in self.machines for name in (machine.site, machine.kind) if name}
        for found in self.between:
            if not isinstance(found, Between):
                raise ValueError(
                    f"a link of a cluster is {found!r}; write for example Between('a', 'b', Link())"
                )
            for name in (found.one, found.other):
                if name not in known:
                    raise ValueError(
                        f"a link leads to '{name}', but no machine has this host or kind; there are "
                        f"{', '.join(sorted(known))}"
                    )
        if self.link is None:
            self._check_links()

    @classmethod
    def local(cls, machines: int = 1, *, threads: int = 1) -> Cluster:
        """Returns a cluster of processes on this machine, each with this number of kernel threads.

        Raises:
            ValueError: a number is not a whole number of at least 1.
        """
        n_machines = check_whole(machines, "the number of machines is")
        return cls(tuple(Machine(f"local{m}", threads=threads, host="local") for m in range(n_machines)))

    @classmethod
    def read(cls, path: str | Path) -> Cluster:
        """Reads a TOML file; `docs/calibration.md` describes its tables and keys.

        Raises:
            ValueError: the file has a mistake; the message is one sentence.
            OSError: it cannot be read.
        """
        try:
            return cls(**read_parts(Path(path)))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}; correct it") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def write(self, path: str | Path) -> Path:
        """Writes a TOML file that `read` reads, and files for kernel times and choices of products beside it.

        Raises:
            OSError: it cannot be written.
        """
        write_parts(Path(path), self.machines, self.link, self.between, self.memory)
        return Path(path)

    def link_between(self, source: int, destination: int) -> Link:
        """Returns the link from one machine to another, by their numbers."""
        one, other = self.machines[source], self.machines[destination]
        found = self._link(one, other)
        assert found is not None, f"{one.name} and {other.name} have no link"
        return found

    @property
    def hosts(self) -> tuple[str, ...]:
        """Name of each machine's host; a machine that names none is its own host."""
        return tuple(machine.site for machine in self.machines)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Every link that a message between two machines may take, once."""
        first = {(machine.site, machine.kind): machine for machine in self.machines}
        apart = list({one.site: one for one in first.values()}.values())[:2]
        ends = list(first.values()) if self.between else apart
        found = [self._link(a, b) for a in ends for b in ends if a.site != b.site]
        if len(set(self.hosts)) < len(self):
            found.append(self.memory)
        return tuple({id(link): link for link in found if link is not None}.values())

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """For each machine, the first that equals it in all but name, host, worker and memory."""
        first: dict[tuple[Machine, int], int] = {}
        anywhere: dict[str, Any] = {"name": "any", "host": "", "worker": "", "memory_bytes": None}
        return tuple(
            first.setdefault((replace(machine, **anywhere), id(machine.times)), m)
            for m, machine in enumerate(self.machines)
        )

    def _link(self, one: Machine, other: Machine) -> Link | None:
        if one.site == other.site:
            return self.memory
        if not self.between:
            return self.link
        pairs = (
            (one.site, other.site),
            (one.kind, other.kind),
            (one.site, other.kind),
            (one.kind, other.site),
        )
        return next((self._between[pair] for pair in pairs if pair in self._between), self.link)

    @cached_property
    def _between(self) -> dict[tuple[str, str], Link]:
        both = [b for b in self.between if not b.one_way]
        found = {ends: b.link for b in both for ends in ((b.one, b.other), (b.other, b.one))}
        return found | {(b.one, b.other): b.link for b in self.between if b.one_way}

    def _check_links(self) -> None:
        first = {(machine.site, machine.kind): machine for machine in self.machines}
        for one in first.values():
            for other in first.values():
                if self._link(one, other) is None:
                    raise ValueError(
                        f"there is no link between '{one.site}' and '{other.site}'; give one between these "
                        "two, or one for all that have no other"
                    )

    def __len__(self) -> int:
        return len(self.machines)

    def __str__(self) -> str:
        threads = (f"{m.place}: {counted(m.threads, 'thread')}" for m in self.machines)
        return f"{counted(len(self), 'machine')} ({', '.join(threads)})"


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
