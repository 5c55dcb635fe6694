"""Events and effects of a pool's registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from partita.engine.protocol.pool import messages as m


@dataclass(frozen=True, slots=True)
class FromVisitor:
    """Event: a message came to the registry's door, from the owner of an authorised key.

    Args:
        route: the connection, for the answer.
        member: name of the key, as it was authorised.
        role: role of the key.
        message: what was asked.
    """

    route: bytes
    member: str
    role: str
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Probed:
    """Event, answers `Probe`: the worker can be reached, or `trouble` says why not."""

    session: str
    trouble: str


@dataclass(frozen=True, slots=True)
class PoolTick:
    """Event: time passes; comes several times a second."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """Event: the keys that are authorised have changed; these members still are."""

    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Effect: answer over this connection."""

    route: bytes
    message: m.PoolMessage


@dataclass(frozen=True, slots=True)
class Probe:
    """Effect: find out whether the endpoint can be reached; `Probed` reports it."""

    session: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Log:
    """Effect: show a line."""

    text: str


RegistryEffect: TypeAlias = Answer | Probe | Log
