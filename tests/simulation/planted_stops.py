"""Faults of stops and of changes of the learning rate under Downpour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.engine.protocol import LeasedMode, ParameterLinks
from tests.simulation.outcomes import Planted


class PushesStepsOfTwoRatesAtOnce(ParameterLinks):
    def _in_the_way(self, unit: int, scale: float) -> Iterator[Any]:
        return (link for link in super()._in_the_way(unit, scale) if unit in link.has)


class SendsNoNewRate(LeasedMode):
    def set_scale(self, scale: float, now: float) -> Any:
        return []


STOP_FAULTS = [
    Planted(PushesStepsOfTwoRatesAtOnce, "L1 I14", 300, at=124),
    Planted(SendsNoNewRate, "L1", 100, at=5),
]
"""Found as those of shards and parts."""
