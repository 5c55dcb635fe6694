"""The setting that all runs of a race share, and the base class of a run, which is observed over time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from examples.reproduce.race.clock import Clock, Ways
from examples.reproduce.race.digits import Digits
from examples.reproduce.race.machines import Fleet, Times
from partita.engine.parameters import Vector
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.names import shard_name

NEVER_SILENT: Final = HeartbeatPolicy(1e9, 2e9, 3e9)
"""Heartbeats of hosts that do not fail (seconds)."""

Look: TypeAlias = Callable[[float, Vector], bool]
"""Receives the time and the point; returns whether to stop the run."""


@dataclass(frozen=True)
class Setting:
    """The network that is computed, and the assumed times."""

    digits: Digits
    times: Times

    def clock(self, seed: int, now: float) -> Clock:
        """A clock at `now`, for vectors of these networks."""
        scaled = self.times.n_bytes / self.digits.size
        latency_s = self.times.machines.latency_s
        return Clock(seed, latency_s=latency_s, bytes_of_a_number=scaled, now=now)

    def spans(self, fleet: Fleet) -> tuple[tuple[str, int, int], ...]:
        """(name, start, stop) of each group of shards."""
        cuts = [n * self.digits.size // max(fleet.groups, 1) for n in range(fleet.groups + 1)]
        return tuple((shard_name(n), cuts[n], cuts[n + 1]) for n in range(fleet.groups))

    def ways_of_replica(self, fleet: Fleet) -> Ways:
        """The links of one replica."""
        return Ways(fleet.size, max(fleet.groups, 1), self.times.machines.link_bytes_per_s)

    def ways_of_group(self, fleet: Fleet) -> Ways:
        """The links of one group of shards."""
        return Ways(fleet.shards / fleet.groups, 1, self.times.machines.link_bytes_per_s)

    def pass_s(self, fleet: Fleet) -> float:
        """Seconds in which a shard reads or writes one of its vectors."""
        return self.times.passing_s(self.times.n_bytes / fleet.shards)


class Run(ABC):
    """One method on one fleet, with its own clock."""

    clock: Clock

    @property
    @abstractmethod
    def point(self) -> Vector:
        """The current parameters, in an array of their own; the same array again while nothing has
        changed."""

    @property
    def over(self) -> bool:
        """Whether the method has ended by itself."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """Starts the run: all hosts are connected."""

    def play(self, look: Look, *, every_s: float, until_s: float) -> None:
        """Plays until `look` returns True, or the time is `until_s`."""

        def looks() -> None:
            self.clock.over = look(self.clock.now, self.point) or self.over

        self.begin()
        self.clock.every(every_s, looks)
        self.clock.run(until_s)
