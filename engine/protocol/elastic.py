"""Elastic runs: replicas join when they are ready, and one that dies too often leaves until the next wave.

A run that needs all of its replicas fails where an elastic one goes on with those that are left, as long as
they are enough (`RunSettings.least`). A replica that has left is started again later, each time later than
before, until it gets further. This module must not know what a replica's work is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from partita.engine.protocol.coordinator_effects import (
    CoordinatorEffect,
    EndHosts,
    Restart,
    RunSettings,
    Warn,
)
from partita.engine.protocol.host_lifecycle import HostLifecycle, Phase
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.seats import replicas_text


class ElasticLifecycle(HostLifecycle):
    """The hosts of a run whose replicas may leave and join."""

    def __init__(self, registry: HostRegistry, settings: RunSettings) -> None:
        super().__init__(registry, settings)
        self._away: Final[dict[int, ReplicaRecord]] = {}
        self._announced = 0  # the view that was reported last

    @property
    def is_elastic(self) -> bool:
        """Returns whether the run goes on without some of its replicas."""
        return self._settings.least is not None

    @abstractmethod
    def relaunch(self, hosts: Sequence[HostRecord], reason: str, now: float) -> Restart:
        """Starts the next processes of these hosts."""

    def _has_left(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        """Gives the work of a replica that has left to others."""
        return []

    def _died(self, host: HostRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Lets a replica that has come back leave at once, if others are enough; else deaths are counted."""
        replica = self.registry.replica_of(host)
        on_trial = replica is not None and replica.left > 0 and self.n_staying > self.least
        if replica is None or not on_trial or not self.is_elastic or self._is_dispensable(host):
            return super()._died(host, reason, now)
        return self._leave(replica, f"{host.name}: {reason}", now)

    def _give_up(self, host: HostRecord, why: str, now: float) -> list[CoordinatorEffect]:
        replica = self.registry.replica_of(host)
        if replica is None or not self.is_elastic or self.n_staying <= self.least:
            return super()._give_up(host, why, now)
        return self._leave(replica, why, now)

    @property
    def n_staying(self) -> int:
        """Replicas that are at work or starting."""
        return self._n_replicas - len(self._away)

    def _leave(self, replica: ReplicaRecord, why: str, now: float) -> list[CoordinatorEffect]:
        timeouts = self.timeouts
        wait_s = min(timeouts.wave_s * 2.0**replica.left, timeouts.longest_wave_s)
        replica.left, replica.returns_at = replica.left + 1, now + wait_s
        self._away[replica.index] = replica
        for part in replica.parts:
            self._end_host(part, HostState.AWAY, now)
        staying = (r.index for r in self.registry.replicas if r.index not in self._away)
        text = f"{why}; replica {replica.index} leaves the run, which goes on with {replicas_text(staying)}"
        return [
            Warn(f"{text}; it is tried again in {wait_s:g} s"),
            EndHosts(tuple(part.name for part in replica.parts)),
            *self.directories.remove(replica.parts, now),
            *self._has_left(replica, now),
        ]

    def _watch_seats(self, now: float) -> list[CoordinatorEffect]:
        """Starts replicas again whose time has come, and reports the view after it has changed."""
        if self.phase is not Phase.RUNNING or not self.is_elastic:
            return []
        effects: list[CoordinatorEffect] = []
        if self._announced != self.seats.number:
            self._announced = self.seats.number
            effects.append(Warn(self.seats.text + self._starting_text()))
        due = [replica for replica in self._away.values() if now >= replica.returns_at]
        if due:
            effects += self._return(due, now)
        return effects

    def _return(self, replicas: Sequence[ReplicaRecord], now: float) -> list[CoordinatorEffect]:
        """Starts replicas again; one that dies once more without getting any further leaves at once."""
        parts = [part for replica in replicas for part in replica.parts]
        for replica in replicas:
            del self._away[replica.index]
        for part in parts:
            part.deaths = 0
        verb = "is" if len(replicas) == 1 else "are"
        text = f"{replicas_text(r.index for r in replicas)} {verb} started again, to join the run"
        return [Warn(text), self.relaunch(parts, "the next wave", now)]

    def _starting_text(self) -> str:
        """Returns whom the run does not wait for, of the replicas that are starting."""
        starting = {h.replica for h in self.registry.starting.values() if h.replica is not None}
        if not starting:
            return ""
        joins = "joins when it is ready" if len(starting) == 1 else "join when they are ready"
        return f"; {replicas_text(sorted(starting))} {joins}"

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        for replica in self.registry.replicas:
            assert replica.is_away == (replica.index in self._away), replica
        assert not self._away or self.n_staying >= self.least, self._away
