"""Events and effects of a pool's worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.registry_events import Log


@dataclass(frozen=True, slots=True)
class FromRegistry:
    """Event: an answer of the registry."""

    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class FromClient:
    """Event: a client's message, at the worker's own door; `key` is the authenticated one."""

    route: bytes
    key: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class HostBegan:
    """Event: the process of a host runs."""

    run: str
    name: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class HostEnded:
    """Event: the process of a host has ended, for this reason."""

    run: str
    name: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reached:
    """Event, answers `Reach`: all can be reached, or `trouble` says what cannot, and why."""

    run: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """Event: there is no connection to the registry, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class SendToRegistry:
    """Effect: send this to the registry, if there is a connection."""

    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class SendToClient:
    """Effect: answer a client."""

    route: bytes
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Reach:
    """Effect: find out whether these endpoints can be reached from here, and these files are here.

    Args:
        run: the run that needs them.
        endpoints: names and endpoints.
        files: paths and texts.
    """

    run: str
    endpoints: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StartHost:
    """Effect: start a host of a run."""

    run: str
    name: str
    incarnation: int
    bootstrap: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndHost:
    """Effect: end the process of a host at once."""

    run: str
    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Effect, the last one: end this worker, with this text; `failed`: it was of no use."""

    reason: str
    failed: bool = False


WorkerEffect: TypeAlias = SendToRegistry | SendToClient | Reach | StartHost | EndHost | EndWorker | Log
