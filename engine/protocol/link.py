"""Links of a part to the shards that hold parameters of its machine: requests, repeats, staged values.

There is one for each shard and fragment that have parameters of the machine in common. A link has at most one
fetch and one push under way, so that a slow shard costs staleness and never memory.
Values are staged when they arrive, and installed between two steps. Requests without an answer are sent
again. A link must not know the numbers, the network, the optimizer or the program of a step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from partita.engine.protocol import actions as a
from partita.engine.protocol.batch_messages import Contribution, FetchPoint, Point
from partita.engine.protocol.carrier import Carrier
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, payload_bytes, stream_of
from partita.engine.protocol.messages import Fetch, Parameters, Push
from partita.engine.protocol.names import host_and_fragment
from partita.engine.protocol.retry import PendingRequest


@dataclass(frozen=True, slots=True)
class Stage:
    """Effect: keep the payload as the next values of the span, invisible to computations.

    `has_rows`: of sparse tables, it has the rows alone that have changed since some values that were
    installed, these or ones before them.
    """

    span: Span
    payload: object
    has_rows: bool = False


@dataclass(frozen=True, slots=True)
class Install:
    """Effect: the staged values of the span become the part's parameters, before the step computes.

    `unheld` names the vectors ("in_flight", "accumulated") whose gradients the values do not hold. Each is
    applied over them as a shard will apply it, in this order, after so many `updates` of the values, with the
    factor of the learning rate at its place in `scales`.
    """

    span: Span
    unheld: tuple[str, ...] = ()
    updates: int = 0
    scales: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SwapBuffers:
    """Effect: the accumulated gradient of the span becomes the one in flight, and an empty one follows.

    Where pushes are compressed, the gradient in flight becomes what the message of this step means.
    """

    span: Span
    step: int = 0


FetchT = TypeVar("FetchT", Fetch, FetchPoint)
PushT = TypeVar("PushT", Push, Contribution)


@dataclass(slots=True)
class Link(Generic[FetchT, PushT]):
    """The exchange with one shard, over `[start, stop)` of the machine's vector.

    `stream` names the shard, and the fragment.
    """

    stream: str
    start: int
    stop: int
    fetch: PendingRequest[FetchT] | None = None
    push: PendingRequest[PushT] | None = None

    @property
    def shard(self) -> str:
        """The host at the other end."""
        return host_and_fragment(self.stream)[0]

    @property
    def fragment(self) -> int:
        """The fragment that the range is of."""
        return host_and_fragment(self.stream)[1]

    def span(self, vector: str) -> Span:
        """The link's range of a vector."""
        return Span(vector, self.start, self.stop)

    def request(self, message: FetchT, now: float) -> Send:
        """Asks for values; an earlier request is open no more."""
        self.fetch = PendingRequest(message, now)
        return Send(self.shard, message)

    def transmit(self, message: PushT, now: float) -> Send:
        """Sends the gradient in flight."""
        self.push = PendingRequest(message, now)
        return self._send(self.push)

    def push_again(self, now: float) -> Iterator[Send]:
        """Sends the push under way, if there is one, to a shard's new process."""
        if self.push is not None:
            self.push.restart(now)
            yield self._send(self.push)

    def retry(self, now: float, retry_s: float) -> Iterator[Send]:
        """Sends again what has waited too long for its answer."""
        if self.fetch is not None and self.fetch.retry(now, retry_s):
            yield Send(self.shard, self.fetch.message)
        if self.push is not None and self.push.retry(now, retry_s):
            yield self._send(self.push)

    def _send(self, push: PendingRequest[PushT]) -> Send:
        return Send(self.shard, push.message, self.span("in_flight"))


def hosts_of(links: Iterable[Link[Any, Any]]) -> tuple[str, ...]:
    """Returns the shards of links, each once, in their order."""
    return tuple(dict.fromkeys(link.shard for link in links))


LinkT = TypeVar("LinkT", bound=Link)  # type: ignore[type-arg]


class Links(Carrier, Generic[LinkT]):
    """The links of one part by stream: actions on all of them, and the checks of what shards send."""

    carries: ClassVar[tuple[type, ...]] = (a.Pull, a.Install, a.Push, a.Room, a.Drain)

    def __init__(self, links: Iterable[LinkT], *, retry_s: float, item_bytes: int) -> None:
        self._links: Final = {link.stream: link for link in links}
        self._retry_s: Final = retry_s
        self._item_bytes: Final = item_bytes

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards that hold parameters of the machine."""
        return hosts_of(self._links.values())

    # Actions.

    def may_begin(self, action: a.Action) -> bool:
        """Returns whether an action can begin: all but `Room` can."""
        if not isinstance(action, a.Room):
            return True
        is_fetching = action.fetched and any(link.fetch for link in self._links.values())
        return self.has_room(action.ahead) and not is_fetching

    def begin(self, action: a.Action, now: float) -> Iterable[Any]:
        """Begins an action, and returns its effects."""
        match action:
            case a.Install():
                return self.install()
            case a.Push():
                return self.push(now, only=action.fragment)
            case a.Pull():
                return self.pull(now, only=action.fragment, after_push=action.after_push)
            case a.Drain():
                return self.drain(now)
        return ()

    def is_done(self, action: a.Action) -> bool:
        """Returns whether an action is complete: all but `Drain` are at once."""
        return not isinstance(action, a.Drain) or self.drained

    @abstractmethod
    def pull(self, now: float, *, only: int | None = None, after_push: bool = False) -> Iterator[Any]:
        """Asks for the values of all fragments, or only of one, where no request is open."""

    @abstractmethod
    def install(self) -> Iterator[Any]:
        """Puts the values that have arrived in place."""

    @abstractmethod
    def push(self, now: float, *, only: int | None = None) -> Iterator[Any]:
        """Pushes what has accumulated in all fragments, or only in one, where no push is under way."""

    @abstractmethod
    def has_room(self, ahead: int) -> bool:
        """Returns whether a step can begin, whose gradient there is room for."""

    @abstractmethod
    def drain(self, now: float) -> Iterator[Any]:
        """Pushes what has accumulated; no step follows."""

    @property
    @abstractmethod
    def drained(self) -> bool:
        """Returns whether every gradient is acknowledged."""

    # Events.

    def receive(self, event: Any, now: float) -> list[Any]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        if isinstance(event, Received):
            reason = self._rejection_reason(event)
            if reason is not None:
                return [Refuse(event.sender, reason)]
            return [*self._received(self._links[stream_of(event)], event, now)]
        return [*(self._replaced(event, now) if isinstance(event, Replaced) else self._retry(now))]

    @abstractmethod
    def _received(self, link: LinkT, event: Received, now: float) -> Iterator[Any]:
        """Handles a shard's message."""

    @abstractmethod
    def _replaced(self, event: Replaced, now: float) -> Iterator[Any]:
        """Sends open requests to a restarted shard."""

    def _retry(self, now: float) -> Iterator[Send]:
        for link in self._links.values():
            yield from link.retry(now, self._retry_s)

    def _rejection_reason(self, event: Received) -> str | None:
        if not isinstance(event.message, self.takes):
            return f"a link does not take a {type(event.message).__name__}"
        link = self._links.get(stream_of(event))
        if link is None:
            return "it holds no parameters of this machine"
        if isinstance(event.message, Parameters | Point):
            (least, most), found = self._expected_bytes(link, event.message), payload_bytes(event.payload)
            if not least <= found <= most:
                wanted = f"{least}" if least == most else f"{least} to {most}"
                return f"its parameters have {wanted} bytes here, not {found}"
        return None

    def _expected_bytes(self, link: LinkT, message: Parameters | Point) -> tuple[int, int]:
        """Returns the least and the most bytes of the payload with values."""
        return ((link.stop - link.start) * self._item_bytes,) * 2
