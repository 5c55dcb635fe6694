"""`LaunchRequest`: the run for which a launcher is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from partita.engine.files.catalogue import Catalogue
from partita.engine.launch.launcher import Launcher
from partita.engine.protocol.names import Topology
from partita.engine.transport.encryption import ENCRYPTED, Encryption
from partita.partitioner.plan import Plan

Log: TypeAlias = Callable[[str], object]
"""Shows a line. From any thread."""


@dataclass(frozen=True)
class LaunchRequest:
    """A run that needs hosts.

    Args:
        plan: of one replica.
        topology: the hosts.
        title: of the run, for messages.
        log: shows a line.
        files: that hosts on other machines read and write; None: they need none.
        encryption: of all hosts, see `ZmqMailbox`.
        folder: of this machine, whose lock the run holds, and which a process that goes on with the run
            will have; None where there is none.
    """

    plan: Plan
    topology: Topology
    title: str
    log: Log
    files: Catalogue | None = None
    encryption: Encryption = ENCRYPTED
    folder: Path | None = None


Launching: TypeAlias = Callable[[LaunchRequest], Launcher]
"""Makes the launcher of a run, and raises what that launcher raises."""

Opening: TypeAlias = AbstractContextManager[Launching]
"""The time in which runs can be launched: machines are started at its begin, and ended at its end."""
