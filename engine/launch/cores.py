"""Assigns cores to parts, where the parts of a network fill the machine.

Otherwise the scheduler runs a communication thread where another part's kernels compute, and moves kernels
away from their caches. Measured on two cores, two parts took 2 to 4% longer than if each kept to its core.
Where cores are left over, communication threads had better use those: then nothing is done here.

At a worker of a pool, hosts of several runs come and go. There each part has cores of its own while it lives,
and may use those that no part has (`shares`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

Host = TypeVar("Host", bound=Hashable)

_TOPOLOGY: Final = Path("/sys/devices/system/cpu")


def keep_to_own_cores(rank: int, ranks: int, threads: int) -> frozenset[int] | None:
    """Restricts the calling thread, and threads that it starts from now on, to cores of its part.

    Args:
        rank: index of the part on this machine.
        ranks: number of parts that compute at the same time on this machine.
        threads: kernel threads of each.

    Returns:
        The processors of the part; None where it may use all, because parts do not fill the machine, or the
        system has no affinities.
    """
    if ranks < 2 or not hasattr(os, "sched_setaffinity"):
        return None
    found = own_cores(physical_cores(os.sched_getaffinity(0)), rank, ranks, threads)
    if found is not None:
        os.sched_setaffinity(0, found)
    return found


def own_cores(cores: Sequence[frozenset[int]], rank: int, ranks: int, threads: int) -> frozenset[int] | None:
    """Returns the processors of a part, if parts of so many threads fill all cores."""
    if ranks * threads != len(cores):
        return None
    return frozenset().union(*cores[rank * threads : (rank + 1) * threads])


def shares(
    cores: Sequence[frozenset[int]],
    wanted: Mapping[Host, int],
    before: Mapping[Host, frozenset[int]],
    taken: Collection[frozenset[int]] = (),
) -> dict[Host, frozenset[int]]:
    """Gives each host cores of its own, as long as there are any; a host keeps those that it has.

    Args:
        cores: processors of each core of the machine.
        wanted: number of cores of each host, in the order in which the hosts came.
        before: processors of those that have cores already.
        taken: cores that others use.

    Returns:
        The processors of each host that has cores of its own; no two have a processor in common. A host for
        which too few are left has none.
    """
    found = {host: before[host] for host in wanted if host in before}
    for host, count in wanted.items():
        used = frozenset().union(*found.values(), *taken)
        free = [core for core in cores if not core & used]
        if host not in found and 0 < count <= len(free):
            found[host] = frozenset().union(*free[:count])
    return found


def physical_cores(processors: set[int], topology: Path = _TOPOLOGY) -> list[frozenset[int]]:
    """Groups the allowed processors by core, in order of their numbers.

    A processor whose topology the system does not give is a core.
    """
    files = ((n, topology / f"cpu{n}" / "topology" / "thread_siblings_list") for n in processors)
    return sorted({_siblings(file, n) & processors for n, file in files}, key=min)


def _siblings(file: Path, processor: int) -> frozenset[int]:
    """Parses a file like `0-1,8`."""
    try:
        ranges = [part.partition("-") for part in file.read_text(encoding="ascii").strip().split(",")]
        found = (range(int(low), int(high or low) + 1) for low, _, high in ranges)
        return frozenset(n for some in found for n in some) | {processor}
    except (OSError, ValueError):
        return frozenset({processor})
