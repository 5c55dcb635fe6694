"""The base of a part's clients: one link to each shard that holds parameters of the part's machine.

Parameters of a shard are staged when they arrive, and installed between two steps. Requests without an answer
are sent again. A client must not know the numbers, the network, the optimizer or the program of a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from partita.engine.protocol.events import Received, Span, payload_bytes
from partita.engine.protocol.messages import Parameters, Point
from partita.engine.protocol.retry import PendingRequest


@dataclass(frozen=True, slots=True)
class Started:
    """Event: the shards can be reached. The client asks for the first parameters."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Effect: keep the payload as the next values of the span, invisible to computations."""

    span: Span
    payload: object


@dataclass(frozen=True, slots=True)
class Install:
    """Effect: the staged values of the span become the part's parameters, before the step computes."""

    span: Span


@dataclass(frozen=True, slots=True)
class SwapBuffers:
    """Effect: the accumulated gradient of the span becomes the one in flight, and an empty one follows."""

    span: Span


@dataclass(slots=True)
class ShardLink:
    """State of the exchange with one shard, over `[start, stop)` of the machine's vector."""

    shard: str
    start: int
    stop: int
    fetch: PendingRequest | None = None

    def span(self, vector: str) -> Span:
        """The shard's range of a vector."""
        return Span(vector, self.start, self.stop)


LinkT = TypeVar("LinkT", bound=ShardLink)


class ShardClient(Generic[LinkT]):
    """Links by shard, and the checks of what shards send."""

    def __init__(self, links: Iterable[LinkT], *, retry_s: float, item_bytes: int) -> None:
        self._links: Final = {link.shard: link for link in links}
        self._retry_s: Final = retry_s
        self._item_bytes: Final = item_bytes

    def _rejection_reason(self, event: Received) -> str | None:
        link = self._links.get(event.sender)
        if link is None:
            return "it holds no parameters of this machine"
        expected, found = (link.stop - link.start) * self._item_bytes, payload_bytes(event.payload)
        if isinstance(event.message, Parameters | Point) and found != expected:
            return f"its parameters have {expected} bytes here, not {found}"
        return None
