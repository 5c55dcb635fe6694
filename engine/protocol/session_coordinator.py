"""The coordinator of a session: the parts of one replica, each of which answers orders within a time limit.

Hosts start as in any run, and their versions, permissions and heartbeats are checked in the same way. The
user's calls are the work: each is an action, and its result are the answers of the parts. No host is started
again: with the first one that fails, dies or does not answer, the session ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partita.engine.protocol import messages as m
from partita.engine.protocol.coordinator_effects import AbortRun, CoordinatorEffect, EndRun, RunSettings
from partita.engine.protocol.events import Send, Span
from partita.engine.protocol.failure import bounded
from partita.engine.protocol.host_lifecycle import HostLifecycle, Phase
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState, ReplicaRecord
from partita.engine.protocol.names import Topology


@dataclass(frozen=True, slots=True)
class Ask:
    """Event: send orders to hosts, and wait for an answer of each. One at a time.

    Args:
        orders: the message for each host, by name.
        answer: type of the answers.
        doing: work of a host that has not answered, for the error.
        has_payload: whether the interpreter has a payload for each order.
    """

    orders: Mapping[str, m.Message]
    answer: type[m.Message]
    doing: str
    has_payload: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """Effect: the message just received is the answer of this host; take its payload."""

    name: str
    message: m.Message


@dataclass(frozen=True, slots=True)
class Compiling:
    """Effect: display that hosts have compiled functions for an order."""

    functions: int


class SessionCoordinator(HostLifecycle):
    """Supervises the hosts of one session."""

    def __init__(self, machines: int, settings: RunSettings) -> None:
        """Creates a session that has not started; `Opened` starts it, and `StopRequested` ends it.

        Args:
            machines: number of the parts.
            settings: `timeouts.start_s` limits the start of a host and every answer (seconds).
        """
        topology = Topology(1, machines, 0)
        registry = HostRegistry.of(topology, stall_s=math.inf, incarnations={})
        super().__init__(registry, settings)
        self._asked: Ask | None = None
        self._missing: set[str] = set()
        self._alive_at = -math.inf  # last sign of life of those that are asked
        self._compiled: dict[str, int] = {}  # functions, for orders
        self._lost = AbortRun("the session is over; open another one", host="")

    @property
    def is_begun(self) -> bool:
        """Whether all hosts are ready and know one another."""
        hosts = self.registry.hosts.values()
        return self.phase is Phase.RUNNING and all(host.informed == host.sent > 0 for host in hosts)

    @property
    def is_answered(self) -> bool:
        """Whether every host that was asked has answered."""
        return not self._missing

    def receive(self, event: Any, now: float) -> list[Any]:
        """See `HostLifecycle`; an order after the session's end is answered by the reason of that end."""
        over = self.phase is Phase.OVER and isinstance(event, Ask)
        return [self._lost] if over else super().receive(event, now)

    def _stop_requested(self, now: float) -> list[Any]:
        return self._stop_all()

    def _own_event(self, ask: Ask, now: float) -> list[CoordinatorEffect]:
        self._asked, self._missing, self._alive_at = ask, set(ask.orders), now
        payload = Span("order", 0, 0) if ask.has_payload else None
        return [Send(name, order, payload) for name, order in ask.orders.items()]

    def _handle(self, host: HostRecord, message: object, now: float) -> list[Any]:
        if isinstance(message, m.SetUpProgress) and host.state is HostState.READY:
            self._alive_at, self._compiled[host.name] = now, message.compiled
            return [Compiling(sum(self._compiled.values()))]
        return super()._handle(host, message, now)

    def _ready(self, host: HostRecord, now: float) -> list[Any]:
        return [*super()._ready(host, now), self._starting]

    def _work_message(self, host: HostRecord, message: object, now: float) -> list[Any]:
        answers = self._asked is not None and isinstance(message, self._asked.answer)
        if not answers or host.name not in self._missing:
            return []
        self._missing.remove(host.name)
        return [Answered(host.name, message)]  # type: ignore[arg-type]

    # Failures.

    def fail(self, reason: str, traceback: str = "", *, hosts: str = "") -> list[Any]:
        """Stops all hosts; `hosts` are those that have failed."""
        self._lost = AbortRun(reason, traceback, host=hosts)
        return [*self._stop_all(), self._lost]

    def _died(self, host: HostRecord, reason: str, now: float) -> list[Any]:
        return self.fail(reason, hosts=host.name)

    def _failed(self, host: HostRecord, failed: m.Failed, now: float) -> list[Any]:
        failed = bounded(failed)
        return self.fail(failed.reason, failed.traceback, hosts=host.name)

    def _tick(self, now: float) -> list[Any]:
        effects: list[Any] = self._watch_membership(now)
        effects += self._watch_starts(now) if self.phase is not Phase.OVER else []
        if self.phase is not Phase.OVER:
            effects += self.directories.repeat(now, self.timeouts.retry_s)
        return effects

    def _watch_starts(self, now: float) -> list[Any]:
        """Reports the hosts' start, and looks for hosts that neither start nor answer in time."""
        limit_s = self.timeouts.start_s
        doing = {h.name: h.doing for h in self.registry.starting.values() if now - h.since >= limit_s}
        if self._asked is not None and now - self._alive_at >= limit_s:
            doing |= {name: self._asked.doing for name in self._asked.orders if name in self._missing}
        if doing:
            silence = f"no sign of life for {limit_s:.0f} s while {next(iter(doing.values()))}"
            advice = "look at what it printed, or allow more by timeout_s"
            return self.fail(f"{silence}; {advice}", hosts=", ".join(doing))
        return [self._starting] if self.phase is Phase.LAUNCHING else []

    def restart_replica(self, replica: ReplicaRecord, reason: str, now: float) -> list[CoordinatorEffect]:
        """Refuses: a session ends with the first host that is lost."""
        raise AssertionError("a session ends with the first host")

    def _result(self, *, complete: bool) -> EndRun:
        raise AssertionError("a session has no result")

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        super().validate()
        assert self._missing <= self.registry.hosts.keys(), self._missing
        assert self._asked is not None or not self._missing, self._missing
