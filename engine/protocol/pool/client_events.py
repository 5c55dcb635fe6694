"""Events and effects of a pool's client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.registry_events import Log


@dataclass(frozen=True, slots=True)
class FromWorker:
    """Event: a worker's message."""

    session: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class FromPool:
    """Event: the registry's answer."""

    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class NotSent:
    """Event: there was no connection for a message to this worker; "": to the registry."""

    session: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Event: the connection to a worker has ended, and a new one could not be made."""

    session: str


@dataclass(frozen=True, slots=True)
class SendToPool:
    """Effect: send this to the registry."""

    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """Effect: send this to a worker."""

    session: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Connect:
    """Effect: connect to a worker's door."""

    worker: m.Contact


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Effect: end the connection to a worker."""

    session: str


@dataclass(frozen=True, slots=True)
class Began:
    """Effect: the process of a host runs."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Effect: the process of a host has ended."""

    name: str
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class CannotRun:
    """Effect: the run cannot go on, for this reason."""

    reason: str


ClientEffect: TypeAlias = SendToPool | SendToWorker | Connect | Disconnect | Began | Ended | CannotRun | Log
