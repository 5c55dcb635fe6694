"""Open files: a run needs some for each host, and strangers may take others until they are refused."""

from __future__ import annotations

import os
import resource
from typing import Final

MOST: Final = 1 << 16
"""Limit that is requested at most, whatever the system allows."""

_OWN: Final = 24  # of a mailbox, the files of a run, and what is open for a moment
_EACH: Final = 6  # two connections, their sockets' signals, the way to a host of this machine, its process


class TooFewDescriptors(OSError):
    """The system allows this process fewer open files than a run needs."""


def raise_limit() -> int:
    """Raises the soft limit of open files as far as the hard one allows, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MOST if soft == resource.RLIM_INFINITY else soft


def reserve(hosts: int) -> None:
    """Raises the limit, and checks that it suffices for a number of hosts.

    Raises:
        TooFewDescriptors: it does not.
    """
    allowed = raise_limit()
    needed = len(os.listdir("/proc/self/fd")) + _OWN + _EACH * hosts
    if allowed < needed:
        raise TooFewDescriptors(
            f"this process may open {allowed} files, and a run of {hosts} host{'s' * (hosts != 1)} needs "
            f"about {needed}; allow more with `ulimit -n {max(needed, 1024)}`, or use fewer replicas, "
            "machines and shards"
        )
