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
from typing import Final, TypeAlias

import psutil

from tests.storm.moments import Moment, Moments
from tests.storm.processes import name_of

Named: TypeAlias = tuple[str, psutil.Process]

FREEZES_S: Final = (0.3, 1.0, 2.5, 5.0, 7.0)
WEIGHTS: Final = {
    "part": 4, "shard": 5, "backup": 3, "coordinator": 3, "template": 1, "pool": 1, "worker": 1, "several": 2,
    "two": 3,
}  # fmt: skip
"""How often each role is drawn, among those that are there; "several" are hosts that are struck in the same
way, "two" are processes of different roles, each struck in its own.
"""

MOMENTS: Final[Mapping[Moment, int]] = {"any": 6, "start": 2, "checkpoint": 2, "copy": 2}
"""How often each moment is drawn. The end of a run is waited for beside them."""

EARLY_S: Final = 1.0
"""So long before a fault is due its moment is waited for."""

PATIENCE_S: Final = 3.0
"""After so long another role is drawn."""

FROZEN_SHARE: Final = 0.35
HOSTS: Final = ("part", "shard", "backup")
MANY: Final = ("several", "two")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        at: when, in seconds of `time.monotonic`.
        role: of the victim.
        name: of the victim.
        frozen_s: seconds for which it is frozen; None: it is killed.
        life: of the run's own process.
        moment: what the run was doing.
    """

    at: float
    role: str
    name: str
    frozen_s: float | None
    life: int
    moment: Moment = "any"

    def __str__(self) -> str:
        done = "killed" if self.frozen_s is None else f"frozen for {self.frozen_s:g} s"
        when = "" if self.moment == "any" else f" ({self.moment})"
        return f"{self.at:.2f} life {self.life}: {self.name} {done}{when}"


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
        self._role = ""  # that was drawn, and is not there yet; likewise the moment
        self._moment: Moment = "any"
        self._until = 0.0
        self._frozen: dict[int, tuple[float, psutil.Process]] = {}

    def draw(
        self,
        roles: Sequence[str],
        there: Mapping[str, list[Named]],
        moments: Moments,
        *,
        waits: bool = False,
        ends: bool = False,
    ) -> list[Named]:
        """Draws victims. A role that is drawn is waited for until it is there: else the processes that come
        first after a fault would be struck again and again.

        Args:
            roles: of the run.
            there: the processes of each role.
            moments: of the run.
            waits: the fault is not due yet, unless its moment has come.
            ends: the run ends, which does not come again: it is struck now.
        """
        random, now = self._random, time.monotonic()
        if not self._role or ends or now > self._until:
            self._role = random.choices(roles, [WEIGHTS[one] for one in roles])[0]
            self._moment = random.choices([*MOMENTS], [*MOMENTS.values()])[0]
            self._until = now + PATIENCE_S
        self._moment = "end" if ends else self._moment
        is_now = moments.now(self._moment)
        if waits and (self._moment == "any" or not is_now):
            return []
        self._moment = self._moment if is_now else "any"
        found, many = self._fitting(there, moments), self._role in MANY
        if len(found) <= many:
            return []
        wanted = 1 if not many else random.randint(2, len(found)) if self._role == "several" else 2
        return found[:wanted]

    def _fitting(self, there: Mapping[str, list[Named]], moments: Moments) -> list[Named]:
        """Returns the processes that may be struck together as what was drawn, in an order that is drawn."""
        random = self._random
        match self._role:
            case "several":
                found = [one for role in HOSTS for one in there.get(role, ())]
            case "two":
                found = [random.choice(there[role]) for role in sorted(there) if there[role]]
            case role:
                found = there.get(role, [])
        found = random.sample(found, len(found))
        may = moments.among(name for name, _ in found)
        of_moment = [one for one in found if one[0] in may and moments.fits(one[0], self._moment)]
        if self._role == "two" and of_moment:  # the other one is of any moment
            return [of_moment[0], *(one for one in found if one[0] in may and one is not of_moment[0])]
        return of_moment

    def strike(self, victims: list[Named], life: int) -> list[Fault]:
        """Kills or freezes victims; returns the faults that came about."""
        kind, found = self._kind(), []
        for name, process in victims:
            fault = self._strike(name, process, kind, life)
            found += [fault] if fault is not None else []
            kind = self._kind() if self._role == "two" else kind
        if victims:
            self._role = ""
        self.faults += found
        return found

    def _kind(self) -> float | None:
        """Seconds to freeze for; None: kill."""
        return self._random.choice(FREEZES_S) if self._random.random() < FROZEN_SHARE else None

    def _strike(self, name: str, process: psutil.Process, seconds: float | None, life: int) -> Fault | None:
        if process.pid in self._frozen and seconds is not None:
            return None
        try:
            process.send_signal(signal.SIGKILL if seconds is None else signal.SIGSTOP)
        except psutil.Error:
            return None
        fault = Fault(time.monotonic(), role_of(name), name, seconds, life, self._moment)
        if seconds is not None:
            self._frozen[process.pid] = fault.at + seconds, process
        return fault

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
