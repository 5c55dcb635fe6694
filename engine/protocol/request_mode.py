"""The work of a session: its user's calls, each of which some parts answer within a time limit.

Hosts start as in any run. A call is an action of the user, and its result are the answers. No host is started
again: the run ends with the first one that fails, dies or does not answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol import messages as m
from partita.engine.protocol.actions import Calls, CoordinatorAction
from partita.engine.protocol.coordinator_effects import CoordinatorEffect
from partita.engine.protocol.events import Send, Span
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.host_registry import HostRecord, ReplicaRecord
from partita.engine.protocol.session_messages import Load, Loaded, Ping, Play, Played, Pong
from partita.engine.protocol.work_mode import WorkMode


@dataclass(frozen=True, slots=True)
class Call:
    """Event: send a request to hosts, and wait for an answer of each. One at a time.

    Args:
        request: `Load`, `Play` or `Ping`.
        hosts: their names.
        has_payload: whether the interpreter has a payload for each of them.
    """

    request: m.Message
    hosts: tuple[str, ...]
    has_payload: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """Effect: the message just received is the answer of this host, about this unit; take its payload."""

    name: str
    message: m.Message
    unit: int = 0


@dataclass(frozen=True, slots=True)
class Compiling:
    """Effect: display that hosts have compiled functions for a request."""

    functions: int


_ANSWERS: Final[Mapping[type, tuple[type, str]]] = {
    Load: (Loaded, "taking in its parameters"),
    Play: (Played, "playing a step"),
    Ping: (Pong, "sending its clock"),
}
"""The type of the answers to a request, and what a host does that has not answered."""


class RequestMode(WorkMode):
    """The calls of one run."""

    works = saves = restarts = False

    def __init__(self, timeout_s: float) -> None:
        """No call yet.

        Args:
            timeout_s: seconds without a sign of life for the start of a host, and for every answer.
        """
        self._timeout_s: Final = timeout_s
        self._asked: tuple[type, str] = (NoneType, "")  # see _ANSWERS
        self._missing: set[str] = set()
        self._alive_at = -math.inf  # last sign of life of those that are asked
        self._compiled: Final[dict[str, int]] = {}  # functions, for requests

    @property
    def is_begun(self) -> bool:
        """Returns whether all hosts are ready and know one another."""
        hosts = self.run.registry.hosts.values()
        return self.run.phase is Phase.RUNNING and all(host.informed == host.sent > 0 for host in hosts)

    @property
    def is_answered(self) -> bool:
        """Returns whether every host that was asked has answered."""
        return not self._missing

    @override
    def check(self, action: CoordinatorAction | None) -> None:
        if not isinstance(action, Calls):
            super().check(action)

    @override
    def own_event(self, event: Any, now: float) -> list[CoordinatorEffect]:
        assert isinstance(event, Call), event
        self._asked, self._missing = _ANSWERS[type(event.request)], set(event.hosts)
        self._alive_at = now
        payload = Span("request", 0, 0) if event.has_payload else None
        return [Send(name, event.request, payload) for name in event.hosts]

    @override
    def joined(self, replica: ReplicaRecord, now: float) -> list[CoordinatorEffect]:
        return [self.run.starting_effect]  # the last of them: all are ready

    @override
    def receive(self, host: HostRecord, message: object, now: float) -> list[Any]:
        if host.name in self._missing and isinstance(message, self._asked[0]):
            self._missing.remove(host.name)
            return [Answered(host.name, message)]  # type: ignore[arg-type]
        if isinstance(message, m.SetUpProgress):
            self._alive_at, self._compiled[host.name] = now, message.compiled
            return [Compiling(sum(self._compiled.values()))]
        return []

    @override
    def watch(self, now: float) -> list[CoordinatorEffect]:
        """Looks for hosts that neither start nor answer in time."""
        run, limit_s = self.run, self._timeout_s
        doing = {h.name: h.doing for h in run.registry.starting.values() if now - h.since >= limit_s}
        if now - self._alive_at >= limit_s:
            doing |= dict.fromkeys(sorted(self._missing), self._asked[1])
        if not doing:
            return []
        silence = f"no sign of life for {limit_s:.0f} s while {next(iter(doing.values()))}"
        advice = "look at what it printed, or allow more by timeout_s"
        return run.fail(f"{silence}; {advice}", host=", ".join(doing))

    @override
    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self._missing <= self.run.registry.hosts.keys(), self._missing
