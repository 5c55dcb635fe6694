"""Simulated network: when and how often each message arrives.

Faults are drawn from the caller's seeded generator in the order of the calls, so a seed determines a whole
trace. This module does not know messages, and has no clock: the caller passes its virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """Faults of a network: probabilities for each message, and times in seconds.

    Attributes:
        delay_s: the delay of a message is between a tenth of this and this.
        slow: probability of a delay up to `slow_s` instead.
        slow_s: longest delay.
        drop: probability of being lost.
        repeat: probability of a second arrival, up to `slow_s` later.
        in_order: whether each connection preserves order, as TCP does.
    """

    delay_s: float = 0.01
    slow: float = 0.0
    slow_s: float = 2.0
    drop: float = 0.0
    repeat: float = 0.0
    in_order: bool = True


class SimulatedNetwork:
    """Connections between named hosts, with faults; each direction can be cut."""

    def __init__(self, random: Random, faults: NetworkFaults) -> None:
        self._draw = random.random
        self._faults = faults
        self._cuts: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], float] = {}

    def cut(self, source: str, target: str, *, until: float) -> None:
        """Drops all messages from `source` to `target` before this time."""
        self._cuts[source, target] = max(until, self._cuts.get((source, target), 0.0))

    def heal(self) -> None:
        """Removes all faults and cuts."""
        self._faults = NetworkFaults()
        self._cuts.clear()

    def arrivals(self, source: str, target: str, now: float) -> tuple[float, ...]:
        """Returns the arrival times of a message sent now: none if it is lost, two if it is repeated."""
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
