"""Elastic runs on a virtual clock: with how many replicas one begins, and deaths after which one leaves."""

from __future__ import annotations

from random import Random

from typing_extensions import override

from partita.engine.drivers.driver import Driver
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import CoordinatorEffect
from partita.engine.protocol.host_registry import HostRecord


class _Leaving(Coordinator):
    """A coordinator of an elastic run, from which a replica leaves at its first death if others remain."""

    @override
    def _died(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        replica = self.registry.replica_of(host)
        if replica is None or self._is_dispensable(host) or self.n_staying <= self.least:
            return super()._died(host, reason, now)
        return self._leave(replica, f"{host.name}: {reason}", now)


def draw_least(seed: int, driver: Driver | None, replicas: int) -> int | None:
    """Draws the least replicas of a run, beside all else that a seed draws. None: it needs all of them."""
    least = driver.least if driver else Random(-1 - seed).choice((None, None, None, 1, 2))
    return least if least is not None and least < replicas else None


def leaving(kind: type[Coordinator], least: int | None) -> type[Coordinator]:
    """Returns the kind of coordinator that plays a run with so many replicas at least."""
    return kind if least is None else type("Leaving", (_Leaving, kind), {})
