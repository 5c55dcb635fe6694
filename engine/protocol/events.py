"""Events and effects that the state machines of all protocols share.

A machine is `receive(event, now) -> list[Effect]`. Payloads pass through as opaque tokens: a machine never
touches the bytes of an array. Events and effects that only one machine knows stand in that machine's module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.message_base import UnitRange
from partita.engine.protocol.messages import Malformed, Message
from partita.engine.protocol.names import stream_name

HeldUnits: TypeAlias = Mapping[tuple[int, int], tuple[UnitRange, ...]]
"""For ranges of a shard's vector, the units of work whose gradients the numbers hold: ascending ranges."""


class Received(msgspec.Struct, frozen=True):
    """A message from an authenticated host, and the payload that came with it (opaque; None without one)."""

    sender: str
    incarnation: int
    message: Message | Malformed
    payload: object = None


def stream_of(event: Received) -> str:
    """Returns the stream that a part's or a shard's message is of."""
    return stream_name(event.sender, getattr(event.message, "fragment", 0))


class Tick(msgspec.Struct, frozen=True):
    """The passing of time. Hosts make one about ten times a second."""


@dataclass(frozen=True, slots=True)
class Died:
    """The process of this host has ended, or is declared dead."""

    name: str
    incarnation: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A new process has this name; requests that the old one had not answered are open again."""

    name: str
    incarnation: int


class Span(msgspec.Struct, frozen=True):
    """A contiguous range `[start, stop)` of a named flat vector."""

    vector: str
    start: int
    stop: int


class Send(msgspec.Struct, frozen=True):
    """Effect: send a message, with the numbers of a span, or a payload that was received, beside it.

    `Delivered` follows if that is wanted, and true.
    """

    to: str
    message: Message
    payload: Span | None = None
    forwarded: object = None
    reports: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """Event: a peer has this message, and all that was sent to it before, see `Mailbox.send`."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Persist:
    """Effect: write the shard's state, as it is now, to its file of this checkpoint, with these counts;
    `Persisted` or `NotPersisted` reports the end. `version` counts the pushes or commands applied;
    `units` are those of the pushes; `updates_of` the updates of each machine's numbers, and `updates` is the
    largest of them; `finite` refuses to write numbers that are not. `loss_scale` is that of replicas which
    keep the parameters, where losses are scaled. `collects`: the file is written after `WriteFile`, with
    what `KeepUnsent` has brought until then.
    """

    checkpoint: int
    incarnation: int
    version: int
    updates: int = 0
    seen: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stops: Mapping[str, int] = field(default_factory=dict)
    units: HeldUnits = field(default_factory=dict)
    finite: bool = False
    updates_of: Mapping[int, int] = field(default_factory=dict)
    loss_scale: ScaleState | None = None
    collects: bool = False


@dataclass(frozen=True, slots=True)
class Persisted:
    """The shard's file of this checkpoint is on disk."""

    checkpoint: int
    version: int
    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class NotPersisted:
    """The shard's file of this checkpoint could not be written: a full disk, no free descriptor ..."""

    checkpoint: int
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Effect: report a message that breaks the protocol and had no effect, and count it."""

    sender: str
    reason: str


def payload_bytes(payload: object) -> int:
    """Returns the size of an opaque payload in bytes, without reading it; -1 where there is none."""
    n_bytes = getattr(payload, "n_bytes", None)
    if isinstance(n_bytes, int):
        return n_bytes
    return len(payload) if isinstance(payload, bytes | bytearray) else -1
