"""Joins the shares of machines to sampled steps, on the clock of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.watch_messages import RecordedStep
from partita.engine.watch.records import Lane, SampledStep

LATE_S: Final = 2.5
"""Seconds after which a step is complete without the machines that have not reported it."""


@dataclass(slots=True)
class _Open:
    """A step of which not all machines have reported their share."""

    since_s: float
    shares: dict[int, tuple[RecordedStep, Offset]] = field(default_factory=dict)


class SampledSteps:
    """Steps of which shares have come, by replica and number."""

    def __init__(self, machines: int) -> None:
        """Has no step yet; `machines` are those of a replica."""
        self._machines: Final = machines
        self._open: dict[tuple[int, int], _Open] = {}

    def add(self, replica: int, recorded: RecordedStep, clock: Offset, at_s: float) -> None:
        """Adds the share of one machine, at `at_s` (seconds of the run)."""
        found = self._open.setdefault((replica, recorded.number), _Open(at_s))
        found.shares[recorded.lane.machine] = recorded, clock

    def complete(self, at_s: float) -> list[SampledStep]:
        """Returns the steps that are complete at `at_s`, once each."""
        done = [
            key
            for key, found in self._open.items()
            if len(found.shares) == self._machines or at_s - found.since_s >= LATE_S
        ]
        return [_joined(replica, self._open.pop((replica, n)), at_s) for replica, n in done]

    def drop(self, replica: int) -> None:
        """Drops the open steps of a replica, whose processes number their steps anew."""
        self._open = {key: found for key, found in self._open.items() if key[0] != replica}


def _joined(replica: int, found: _Open, at_s: float) -> SampledStep:
    shares = [found.shares[machine] for machine in sorted(found.shares)]
    began = min(recorded.began_s + clock.offset_s for recorded, clock in shares)
    over = max(recorded.over_s + clock.offset_s for recorded, clock in shares)
    return SampledStep(
        at_s=at_s,
        replica=replica,
        step=shares[0][0].step,
        step_s=over - began,
        lanes=tuple(_placed(recorded, clock, began, over) for recorded, clock in shares),
        cost_s=sum(recorded.cost_s for recorded, _ in shares),
    )


def _placed(recorded: RecordedStep, clock: Offset, began: float, over: float) -> Lane:
    """Moves a machine's share to its place in the step; before and after it the machine is idle."""
    lane = recorded.lane
    before_s = recorded.began_s + clock.offset_s - began
    after_s = over - (recorded.over_s + clock.offset_s)
    intervals = tuple(
        msgspec.structs.replace(one, start_s=one.start_s + before_s, stop_s=one.stop_s + before_s)
        for one in lane.intervals
    )
    return msgspec.structs.replace(
        lane,
        idle_s=lane.idle_s + max(before_s, 0.0) + max(after_s, 0.0),
        uncertainty_s=clock.uncertainty_s,
        intervals=intervals,
    )
