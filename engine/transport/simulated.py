"""A network that exists only as a schedule: which messages arrive, when, and how often.

The faults are drawn from the caller's seeded generator, in the order of the calls, so that a seed is a whole
history. It must not know what messages say, and it holds no clock: the caller's virtual time comes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How bad a network is: probabilities for each message, and times in seconds.

    Attributes:
        delay_s: every message takes between a tenth of this and this.
        slow: probability of taking up to `slow_s` instead.
        slow_s: the longest delay.
        drop: probability of being lost.
        repeat: probability of arriving a second time, up to `slow_s` later.
        in_order: whether one connection keeps its order (two never do), as TCP does.
    """

    delay_s: float = 0.01
    slow: float = 0.0
    slow_s: float = 2.0
    drop: float = 0.0
    repeat: float = 0.0
    in_order: bool = True


class SimulatedNetwork:
    """Links between named hosts, each with its faults; a split cuts some of them, one way or both."""

    def __init__(self, random: Random, faults: NetworkFaults) -> None:
        self._draw = random.random
        self._faults = faults
        self._cuts: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], float] = {}

    def cut(self, source: str, target: str, *, until: float) -> None:
        """Nothing from `source` reaches `target` before this time."""
        self._cuts[source, target] = max(until, self._cuts.get((source, target), 0.0))

    def heal(self) -> None:
        """From now on every message arrives once, in order and soon."""
        self._faults = NetworkFaults()
        self._cuts.clear()

    def arrivals(self, source: str, target: str, now: float) -> tuple[float, ...]:
        """The times at which a message sent now arrives: none when it is lost, two when it is repeated."""
        faults, draw, link = self._faults, self._draw, (source, target)
        if self._cuts and self._cuts.get(link, 0.0) > now:
            return ()
        if faults.drop and draw() < faults.drop:
            return ()
        if faults.slow and draw() < faults.slow:
            arrival = now + draw() * faults.slow_s
        else:
            arrival = now + (0.1 + 0.9 * draw()) * faults.delay_s
        if faults.in_order:
            arrival = max(arrival, self._last.get(link, 0.0))
            self._last[link] = arrival
        if faults.repeat and draw() < faults.repeat:
            return (arrival, arrival + draw() * faults.slow_s)
        return (arrival,)
