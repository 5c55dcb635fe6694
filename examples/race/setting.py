"""What all runs of a race share, and what all of them can do: be looked at while time passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from examples.race.clock import Clock, Ways
from examples.race.digits import Digits
from examples.race.machines import Fleet, Times
from partita.engine.parameters import Vector
from partita.engine.protocol.names import shard_name

Look: TypeAlias = Callable[[float, Vector], bool]
"""Is shown the time and the point; says whether it has seen enough."""


@dataclass(frozen=True)
class Setting:
    """What is computed, and how long that takes."""

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
        """Of a shard over one of its vectors."""
        return self.times.passing_s(self.times.n_bytes / fleet.shards)


class Run(ABC):
    """A method at work on a fleet, on a clock of its own."""

    clock: Clock

    @property
    @abstractmethod
    def point(self) -> Vector:
        """Where it is, as an array of its own; the same one again says that nothing has changed."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """Everybody is there."""

    def play(self, look: Look, *, every_s: float, until_s: float) -> None:
        """Until `look` has seen enough, or time is up."""

        def looks() -> None:
            self.clock.over = look(self.clock.now, self.point) or self.over

        self.begin()
        self.clock.every(every_s, looks)
        self.clock.run(until_s)
