"""Faults: what is killed or frozen next, drawn by a seed, and carried out.

A frozen process goes on after a time that is drawn, below or above the silence after which a host is dead.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import psutil

from tests.storm.pairs import Pairs
from tests.storm.processes import name_of

FREEZES_S: Final = (0.3, 1.0, 2.5, 5.0, 7.0)
WEIGHTS: Final = {
    "part": 4, "shard": 5, "backup": 3, "coordinator": 2, "template": 1, "pool": 1, "worker": 1, "several": 2,
}  # fmt: skip
"""How often each role is drawn, among those that are there."""

FROZEN_SHARE: Final = 0.35
HOSTS: Final = ("part", "shard", "backup")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        at: when, in seconds of `time.monotonic`.
        role: of the victim.
        name: of the victim.
        frozen_s: seconds for which it is frozen; None: it is killed.
        life: of the run's own process.
    """

    at: float
    role: str
    name: str
    frozen_s: float | None
    life: int

    def __str__(self) -> str:
        done = "killed" if self.frozen_s is None else f"frozen for {self.frozen_s:g} s"
        return f"{self.at:.2f} life {self.life}: {self.name} {done}"


def role_of(name: str) -> str:
    """The role in a host's name: "part 0.1" is a part."""
    return name.split()[0]


class Victims:
    """Draws faults and carries them out.

    Attributes:
        faults: all of them, in order.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.faults: list[Fault] = []
        self._role = ""  # that was drawn, and is not there yet
        self._frozen: dict[int, tuple[float, psutil.Process]] = {}

    def draw(
        self,
        roles: Sequence[str],
        there: Mapping[str, list[tuple[str, psutil.Process]]],
        pairs: Pairs | None = None,
    ) -> list[tuple[str, psutil.Process]]:
        """Draws victims: one, or several hosts at once. A role that is drawn is waited for until it is there:
        else the processes that come first after a fault would be struck again and again.

        Args:
            roles: of the run.
            there: the processes of each role.
            pairs: the shards and backups of which one may be struck; None: any may.
        """
        random = self._random
        if not self._role:
            self._role = random.choices(roles, [WEIGHTS[one] for one in roles])[0]
        hosts = [one for role in HOSTS for one in there.get(role, ())]
        found = hosts if self._role == "several" else there.get(self._role, [])
        found = random.sample(found, len(found))
        if pairs is not None:
            struck = pairs.among(name for name, _ in found)
            found = [one for one in found if one[0] in struck]
        if len(found) <= (self._role == "several"):
            return []
        many = random.randint(2, len(found)) if self._role == "several" else 1
        self._role = ""
        return found[:many]

    def strike(self, victims: list[tuple[str, psutil.Process]], life: int) -> list[Fault]:
        """Kills or freezes victims, all in the same way; returns the faults that came about."""
        is_frozen = self._random.random() < FROZEN_SHARE
        seconds = self._random.choice(FREEZES_S) if is_frozen else None
        found = []
        for name, process in victims:
            if process.pid in self._frozen and seconds is not None:
                continue
            try:
                process.send_signal(signal.SIGKILL if seconds is None else signal.SIGSTOP)
            except psutil.Error:
                continue
            fault = Fault(time.monotonic(), role_of(name), name, seconds, life)
            found.append(fault)
            if seconds is not None:
                self._frozen[process.pid] = fault.at + seconds, process
        self.faults += found
        return found

    def thaw(self, *, everything: bool = False) -> None:
        """Lets go on what was frozen long enough."""
        for pid, (until, process) in [*self._frozen.items()]:
            if everything or time.monotonic() >= until:
                del self._frozen[pid]
                if name_of(process):
                    _go_on(process)

    @property
    def holds(self) -> bool:
        """Whether something is frozen."""
        return bool(self._frozen)


def _go_on(process: psutil.Process) -> None:
    try:
        if process.is_running():  # it is this one, and none that got its number
            os.kill(process.pid, signal.SIGCONT)
    except (psutil.Error, ProcessLookupError):
        return
