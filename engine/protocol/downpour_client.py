"""Downpour SGD as one part of a replica runs it: fetches and pushes without waiting, each push applied once.

A slow shard costs staleness and never memory: each link has at most one fetch and one push under way, and the
gradient accumulates in place meanwhile.

Source: DistBelief, section 4.1 and algorithm 1.1 (`n_fetch`, `n_push`, steps counted from 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck, PushRecord
from partita.engine.protocol.retry import PendingRequest
from partita.engine.protocol.shard_client import Install, ShardClient, ShardLink, Stage, Started, SwapBuffers

Version: TypeAlias = tuple[int, int]
"""(incarnation, version) of a shard: never goes back."""


@dataclass(frozen=True, slots=True)
class StepBegins:
    """Event: the part is about to begin this step (counted from 0); only when the client is `ready`."""

    step: int


@dataclass(frozen=True, slots=True)
class StepEnded:
    """Event: the step's gradient has been accumulated and applied locally."""

    step: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Event: the last step has ended; the rest of the gradient is to be pushed."""


@dataclass(frozen=True, slots=True)
class ClearGradient:
    """Effect: the accumulated gradient of the span becomes zero: the shard has that of this step already."""

    span: Span


@dataclass(frozen=True, slots=True)
class SavePushRecord:
    """Effect: keep the number of acknowledged pushes where it outlives the process."""

    shard: str
    record: PushRecord


@dataclass(frozen=True, slots=True)
class Drained:
    """Effect: every gradient is acknowledged. Repeated when a replaced shard has answered."""


DownpourEvent: TypeAlias = Started | StepBegins | StepEnded | Drain | Received | Replaced | Tick
DownpourEffect: TypeAlias = (
    Send | Stage | Install | SwapBuffers | ClearGradient | SavePushRecord | Drained | Refuse
)


@dataclass(slots=True)
class _Link(ShardLink):
    """The exchange with one shard, which has the gradients of the steps below `held`."""

    earlier: tuple[PushRecord, ...] = ()  # of the part's earlier processes, ascending
    held: int = 0
    informed: bool = False  # the shard has reported what it has of them
    incarnation: int = 0
    requests: int = 0
    sequences: int = 0
    push: PendingRequest | None = None
    ahead: int = 0  # steps done since the push under way was sent
    pushed_from: Version = (0, 0)
    pushed_stop: int = 0  # the push under way holds the steps below
    staged: Version | None = None
    installed: Version | None = None
    accumulated_from: Version | None = None  # of the oldest accumulated step; None: nothing has accumulated

    @property
    def acknowledged(self) -> int:
        return self.sequences - (self.push is not None)


class DownpourClient(ShardClient[_Link]):
    """The Downpour client of one part.

    Attributes:
        pushes: pushes acknowledged since the start.
        staleness: the sum over them of the pushes by others that the shard applied in between.
    """

    def __init__(
        self,
        *,
        incarnation: int,
        shards: tuple[tuple[str, int, int], ...],
        earlier: Mapping[str, Sequence[PushRecord]] | None = None,
        fetch_every: int = 1,
        push_every: int = 1,
        run_ahead: int = 16,
        retry_s: float = 1.0,
        item_bytes: int = 4,
    ) -> None:
        """Creates a client without parameters.

        Args:
            incarnation: of the part's process; answers to an older one are ignored.
            shards: (name, start, stop) of each shard's range in the machine's vector; may be empty.
            earlier: for each shard, the records that the part's earlier processes saved.
            fetch_every: steps between two fetches.
            push_every: steps between two pushes.
            run_ahead: steps that may follow a push before its acknowledgement; then the part waits.
            retry_s: seconds without an answer after which a request is sent again.
            item_bytes: bytes of one number of a payload.

        Raises:
            ValueError: an interval below 1.
        """
        if min(fetch_every, push_every, run_ahead) < 1:
            raise ValueError(f"{fetch_every=}, {push_every=}, {run_ahead=}: all count steps; use 1 or more")
        known = earlier or {}
        links = [_Link(*shard, earlier=tuple(known.get(shard[0], ()))) for shard in shards]
        super().__init__(links, retry_s=retry_s, item_bytes=item_bytes)
        for link in links:
            link.held = max((record.stop for record in link.earlier), default=0)
        self.incarnation: Final = incarnation
        self.pushes = 0
        self.staleness = 0
        self._fetch_every: Final = fetch_every
        self._push_every: Final = push_every
        self._run_ahead: Final = run_ahead
        self._step: int | None = None
        self._done = 0  # the steps below this one have ended
        self._draining = False
        self._drained = False

    @property
    def informed(self) -> bool:
        """Whether every shard has reported what it has of the part's earlier processes."""
        return all(link.informed for link in self._links.values())

    @property
    def continues(self) -> int | None:
        """The step below which no shard needs a gradient of this part; None where no shard ever does."""
        return min((link.held for link in self._links.values()), default=None)

    @property
    def ready(self) -> bool:
        """Whether a step can begin: all parameters are here, and no push waits too long for its ack."""
        return all(
            (link.staged or link.installed) and (link.push is None or link.ahead < self._run_ahead)
            for link in self._links.values()
        )

    @property
    def drained(self) -> bool:
        """Whether every gradient is acknowledged, after `Drain`."""
        return self._drained

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The shards with an open request, for reports and error messages."""
        return tuple(name for name, link in self._links.items() if link.fetch or link.push)

    def receive(self, event: DownpourEvent, now: float) -> list[DownpourEffect]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock), in order."""
        return list(self._receive(event, now))

    def _receive(self, event: DownpourEvent, now: float) -> Iterator[DownpourEffect]:
        match event:
            case StepBegins(step=step):
                yield from self._begin(step, now)
            case StepEnded(step=step):
                yield from self._end(step, now)
            case Received(sender=sender, message=Parameters() | PushAck() as message):
                reason = self._rejection_reason(event)
                if reason is not None:
                    yield Refuse(sender, reason)
                elif isinstance(message, Parameters):
                    yield from self._parameters(self._links[sender], message, event.payload)
                else:
                    yield from self._acknowledged(self._links[sender], message, now)
            case Received(sender=sender, message=message):
                yield Refuse(sender, f"a Downpour client does not take a {type(message).__name__}")
            case Replaced():
                yield from self._replaced(event, now)
            case Tick():
                yield from self._retry(now)
            case Started():
                for link in self._links.values():
                    if link.fetch is None:
                        yield self._fetch(link, now)
            case Drain():
                yield from self._drain(now)

    def _begin(self, step: int, now: float) -> Iterator[DownpourEffect]:
        assert self.ready, f"step {step} begins without the parameters of {self.waits_for}"
        assert self._step is None, f"step {step} begins inside step {self._step}"
        assert not self._draining, f"step {step} begins after the last one"
        self._step = step
        for link in self._links.values():
            first = link.installed is None  # `Started` has sent the fetch of this step
            if link.staged is not None:
                link.installed, link.staged = link.staged, None
                yield Install(link.span("parameters"))
            if step % self._fetch_every == 0 and link.fetch is None and not first:
                yield self._fetch(link, now)

    def _end(self, step: int, now: float) -> Iterator[DownpourEffect]:
        assert step == self._step, f"step {step} ends inside step {self._step}"
        self._step = None
        self._done = step + 1
        for link in self._links.values():
            assert link.installed is not None
            if step < link.held:  # an earlier process has pushed it; other shards lack it
                yield ClearGradient(link.span("accumulated"))
                continue
            link.accumulated_from = link.accumulated_from or link.installed
            if link.push is not None:
                link.ahead += 1
            elif (step + 1) % self._push_every == 0:
                yield from self._push(link, now)

    def _drain(self, now: float) -> Iterator[DownpourEffect]:
        assert self._step is None, f"drained inside step {self._step}"
        self._draining = True
        for link in self._links.values():
            if link.push is None and link.accumulated_from is not None:
                yield from self._push(link, now)
        yield from self._finish()

    def _finish(self) -> Iterator[DownpourEffect]:
        """Drained when no request is open: a fetch, too, may report to a new process what it lacks."""
        if self._draining and not self._drained and not self.waits_for:
            self._drained = True
            yield Drained()

    def _fetch(self, link: _Link, now: float) -> Send:
        link.fetch = PendingRequest(link.requests, now)
        link.requests += 1
        return self._send_fetch(link, link.fetch)

    def _send_fetch(self, link: _Link, fetch: PendingRequest) -> Send:
        return Send(link.shard, Fetch(fetch.number, link.acknowledged, link.earlier))

    def _push(self, link: _Link, now: float) -> Iterator[DownpourEffect]:
        assert link.accumulated_from is not None, link.shard
        link.push = PendingRequest(link.sequences, now)
        link.ahead = 0
        link.sequences += 1
        link.pushed_from, link.accumulated_from = link.accumulated_from, None
        link.pushed_stop = self._done
        yield SwapBuffers(link.span("in_flight"))
        yield self._send_push(link, link.push)

    def _send_push(self, link: _Link, push: PendingRequest) -> Send:
        message = Push(self.incarnation, push.number, *link.pushed_from, link.pushed_stop)
        return Send(link.shard, message, link.span("in_flight"))

    def _parameters(self, link: _Link, message: Parameters, payload: object) -> Iterator[DownpourEffect]:
        if message.shard_incarnation < link.incarnation or message.incarnation != self.incarnation:
            return  # from a replaced process (the fetch stays open), or for an earlier one of the part
        if link.fetch is None or link.fetch.number != message.request:
            return  # a duplicate
        link.incarnation = message.shard_incarnation
        link.fetch = None
        if not link.informed:
            link.informed = True
            yield from self._inherit(link, message.earlier)
        link.staged = (message.shard_incarnation, message.version)
        yield Stage(link.span("staged"), payload)
        yield from self._finish()

    def _inherit(self, link: _Link, earlier: PushRecord | None) -> Iterator[DownpourEffect]:
        """Counts pushes of an earlier process as acknowledged that were under way when it died; their steps
        are not pushed again.
        """
        if earlier is None or earlier.incarnation >= self.incarnation:
            return
        known = {record.incarnation: record for record in link.earlier}
        before = known.get(earlier.incarnation, PushRecord(earlier.incarnation, 0))
        link.held = max(link.held, earlier.stop)
        if earlier.pushes > before.pushes:
            known[earlier.incarnation] = earlier
            link.earlier = tuple(known[incarnation] for incarnation in sorted(known))
            yield SavePushRecord(link.shard, earlier)

    def _acknowledged(self, link: _Link, message: PushAck, now: float) -> Iterator[DownpourEffect]:
        if message.shard_incarnation < link.incarnation or message.incarnation != self.incarnation:
            return
        if link.push is None or link.push.number != message.sequence:
            return  # a duplicate
        link.incarnation = message.shard_incarnation
        link.push = None
        yield SavePushRecord(link.shard, PushRecord(self.incarnation, link.acknowledged, link.pushed_stop))
        self.pushes += 1
        self.staleness += message.staleness
        if self._draining and link.accumulated_from is not None:
            yield from self._push(link, now)
        yield from self._finish()

    def _replaced(self, event: Replaced, now: float) -> Iterator[DownpourEffect]:
        """Sends open requests to a restarted shard, and fetches its values.

        A drained part fetches, too: the new process learns thereby which pushes it lacks, and the part
        is drained again when the answer is here.
        """
        link = self._links.get(event.name)
        if link is None or event.incarnation <= link.incarnation:
            return
        link.incarnation = event.incarnation
        link.staged = None
        self._drained = False
        yield self._fetch(link, now)
        if link.push is not None:
            link.push.restart(now)
            yield self._send_push(link, link.push)

    def _retry(self, now: float) -> Iterator[DownpourEffect]:
        for link in self._links.values():
            if link.fetch is not None and link.fetch.retry(now, self._retry_s):
                yield self._send_fetch(link, link.fetch)
            if link.push is not None and link.push.retry(now, self._retry_s):
                yield self._send_push(link, link.push)

    def validate(self) -> None:
        """Checks invariants I1 and I3 as far as one part can see them. Raises AssertionError."""
        for link in self._links.values():
            assert link.fetch is None or link.fetch.number == link.requests - 1, link
            assert link.push is None or link.push.number == link.sequences - 1, link
            assert link.staged is None or link.installed is None or link.staged >= link.installed, link
            assert (link.staged or link.installed or (0, 0))[0] <= link.incarnation, link
            assert link.accumulated_from is None or link.installed is not None, link
            assert self._step is None or link.installed is not None, link
            assert not self._drained or link.accumulated_from is None, link
        assert not (self._drained and self.waits_for), self.waits_for
