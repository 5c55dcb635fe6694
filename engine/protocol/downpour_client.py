"""Downpour SGD as one part of a replica speaks it: fetch and push without waiting, each push settled once.

The machine decides when parameters are taken over and when gradients leave; it must not know the numbers,
the rule, the network or the program of a step. A slow shard costs staleness and never memory: there is at
most one fetch and one push under way with each, and meanwhile the gradient goes on accumulating in place.

Source: DistBelief, section 4.1 and algorithm 1.1 (`n_fetch`, `n_push`, steps counted from 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick, payload_bytes
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck, PushRecord
from partita.engine.protocol.retry import PendingRequest

Version: TypeAlias = tuple[int, int]
"""(epoch, version) of a shard: never goes back."""


@dataclass(frozen=True, slots=True)
class Started:
    """Event: the shards can be reached. Asks for the first parameters."""


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
    """Event: no step follows; push what is left."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Effect: keep this payload as the next values of the span; nothing that computes may see it yet."""

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


@dataclass(frozen=True, slots=True)
class ClearGradient:
    """Effect: the accumulated gradient of the span becomes zero: the shard has that of this step already."""

    span: Span


@dataclass(frozen=True, slots=True)
class SavePushRecord:
    """Effect: keep this where it outlives the process: pushes that the shard has acknowledged."""

    shard: str
    settled: PushRecord


@dataclass(frozen=True, slots=True)
class Drained:
    """Effect: every gradient is acknowledged. Again, once a shard was replaced and the new one answered."""


DownpourEvent: TypeAlias = Started | StepBegins | StepEnded | Drain | Received | Replaced | Tick
DownpourEffect: TypeAlias = (
    Send | Stage | Install | SwapBuffers | ClearGradient | SavePushRecord | Drained | Refuse
)


class _Link:
    """What is under way with one shard, for the range `[start, stop)` of the machine's vector."""

    def __init__(self, shard: str, start: int, stop: int, earlier: Sequence[PushRecord]) -> None:
        self.shard: Final = shard
        self.start: Final = start
        self.stop: Final = stop
        self.earlier = tuple(earlier)  # pushes of the processes before this one, ascending
        self.held = max((settled.stop for settled in earlier), default=0)  # the shard has the steps below
        self.informed = False  # the shard has said what it has of them
        self.epoch = 0
        self.requests = 0
        self.sequences = 0
        self.fetch: PendingRequest | None = None
        self.push: PendingRequest | None = None
        self.ahead = 0  # steps done since the push under way was sent
        self.pushed_from: Version = (0, 0)
        self.pushed_stop = 0  # the push under way holds the steps below
        self.staged: Version | None = None
        self.installed: Version | None = None
        self.accumulated_from: Version | None = None  # None: nothing has accumulated since the last swap

    def span(self, vector: str) -> Span:
        return Span(vector, self.start, self.stop)

    @property
    def settled(self) -> int:
        """How many pushes are acknowledged: all but the one under way."""
        return self.sequences - (self.push is not None)

    @property
    def newest(self) -> Version:
        return self.staged or self.installed or (0, 0)


class DownpourClient:
    """The Downpour client of one part: one link with each shard that holds parameters of its machine.

    Attributes:
        pushes: pushes settled since the start.
        staleness: the sum over them of the pushes that others had applied in between.
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
        """A client that has no parameters yet.

        Args:
            incarnation: of the part's process; pushes of an older one are no business of this one.
            shards: (name, start, stop) of each shard's range in the machine's vector; may be empty.
            earlier: for each shard, what the processes of the part before this one had noted.
            fetch_every: steps between two fetches.
            push_every: steps between two pushes.
            run_ahead: steps that may follow a push before it is settled; then the part waits for the shard.
            retry_s: after this long without an answer the same thing is sent again.
            item_bytes: bytes of one number of a payload.

        Raises:
            ValueError: an interval below 1.
        """
        if min(fetch_every, push_every, run_ahead) < 1:
            raise ValueError(f"{fetch_every=}, {push_every=}, {run_ahead=}: all count steps; use 1 or more")
        self.incarnation: Final = incarnation
        self.pushes = 0
        self.staleness = 0
        known = earlier or {}
        self._links: Final = {
            name: _Link(name, start, stop, known.get(name, ())) for name, start, stop in shards
        }
        self._fetch_every: Final = fetch_every
        self._push_every: Final = push_every
        self._run_ahead: Final = run_ahead
        self._retry_s: Final = retry_s
        self._item_bytes: Final = item_bytes
        self._step: int | None = None
        self._done = 0  # the steps below this one have ended
        self._draining = False
        self._drained = False

    @property
    def informed(self) -> bool:
        """Whether every shard has said what it has of the processes before this one."""
        return all(link.informed for link in self._links.values())

    @property
    def continues(self) -> int | None:
        """The step below which no shard needs a gradient of this part; None where no shard ever does."""
        return min((link.held for link in self._links.values()), default=None)

    @property
    def ready(self) -> bool:
        """Whether a step can begin: every shard's parameters are here, and no push is settled too late."""
        return all(
            (link.staged or link.installed) and (link.push is None or link.ahead < self._run_ahead)
            for link in self._links.values()
        )

    @property
    def drained(self) -> bool:
        """Whether nothing is left to say to any shard, after `Drain`."""
        return self._drained

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The shards that owe an answer, for reports and error messages."""
        return tuple(name for name, link in self._links.items() if link.fetch or link.push)

    def receive(self, event: DownpourEvent, now: float) -> list[DownpourEffect]:
        """What follows from an event at `now` (seconds, the host's monotonic clock), to be done in order."""
        match event:
            case StepBegins():
                return list(self._begin(event.step, now))
            case StepEnded():
                return list(self._end(event.step, now))
            case Received(message=Parameters() as parameters):
                return list(self._parameters(event, parameters))
            case Received(sender=sender, message=PushAck() as pushed):
                return list(self._pushed(sender, pushed, now))
            case Received(sender=sender, message=message):
                return [Refuse(sender, f"a Downpour client does not take a {type(message).__name__}")]
            case Replaced():
                return list(self._replaced(event, now))
            case Tick():
                return list(self._retry(now))
            case Started():
                return [self._fetch(link, now) for link in self._links.values() if link.fetch is None]
            case Drain():
                return list(self._drain(now))

    def _begin(self, step: int, now: float) -> Iterator[DownpourEffect]:
        assert self.ready, f"step {step} begins without the parameters of {self.waits_for}"
        assert self._step is None, f"step {step} begins inside step {self._step}"
        assert not self._draining, f"step {step} begins after the last one"
        self._step = step
        for link in self._links.values():
            first = link.installed is None  # the fetch that `Started` sent is this step's
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
            if step < link.held:  # a process before this one has pushed it; other shards lack it
                yield ClearGradient(link.span("accumulated"))
                continue
            # What has accumulated is as old as the parameters of its oldest step.
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
        """Drained, when no shard owes an answer: a fetch may be what tells a new process what it misses."""
        if self._draining and not self._drained and not self.waits_for:
            self._drained = True
            yield Drained()

    def _fetch(self, link: _Link, now: float) -> Send:
        link.fetch = PendingRequest(link.requests, now)
        link.requests += 1
        return self._fetch_again(link, link.fetch)

    def _fetch_again(self, link: _Link, fetch: PendingRequest) -> Send:
        return Send(link.shard, Fetch(fetch.number, link.settled, link.earlier))

    def _push(self, link: _Link, now: float) -> Iterator[DownpourEffect]:
        assert link.accumulated_from is not None, link.shard
        link.push = PendingRequest(link.sequences, now)
        link.ahead = 0
        link.sequences += 1
        link.pushed_from, link.accumulated_from = link.accumulated_from, None
        link.pushed_stop = self._done
        yield SwapBuffers(link.span("in_flight"))
        yield self._push_again(link, link.push)

    def _push_again(self, link: _Link, push: PendingRequest) -> Send:
        message = Push(self.incarnation, push.number, *link.pushed_from, link.pushed_stop)
        return Send(link.shard, message, link.span("in_flight"))

    def _parameters(self, event: Received, message: Parameters) -> Iterator[DownpourEffect]:
        link = self._links.get(event.sender)
        if link is None:
            yield Refuse(event.sender, "it holds no parameters of this machine")
            return
        expected, found = (link.stop - link.start) * self._item_bytes, payload_bytes(event.payload)
        if found != expected:
            yield Refuse(link.shard, f"its parameters have {expected} bytes here, not {found}")
            return
        if message.epoch < link.epoch:
            return  # of a process that has been replaced; the fetch stays open
        if message.incarnation != self.incarnation:
            return  # a process before this one has asked, under the same name
        if link.fetch is None or link.fetch.number != message.request:
            return  # a repeat: this request is settled
        link.epoch = message.epoch
        link.fetch = None
        if not link.informed:
            link.informed = True
            yield from self._inherit(link, message.earlier)
        link.staged = (message.epoch, message.version)
        yield Stage(link.span("staged"), event.payload)
        yield from self._finish()

    def _inherit(self, link: _Link, earlier: PushRecord | None) -> Iterator[DownpourEffect]:
        """The shard has more of the processes before this one than they knew: what was on its way when the
        last one died. It counts as acknowledged from now on, and its steps are not pushed again.
        """
        if earlier is None or earlier.incarnation >= self.incarnation:
            return
        known = {settled.incarnation: settled for settled in link.earlier}
        before = known.get(earlier.incarnation, PushRecord(earlier.incarnation, 0))
        link.held = max(link.held, earlier.stop)
        if earlier.pushes > before.pushes:
            known[earlier.incarnation] = earlier
            link.earlier = tuple(known[incarnation] for incarnation in sorted(known))
            yield SavePushRecord(link.shard, earlier)

    def _pushed(self, sender: str, message: PushAck, now: float) -> Iterator[DownpourEffect]:
        link = self._links.get(sender)
        if link is None:
            yield Refuse(sender, "it holds no parameters of this machine")
            return
        if message.epoch < link.epoch or message.incarnation != self.incarnation:
            return
        if link.push is None or link.push.number != message.sequence:
            return  # a repeat: this push is settled
        link.epoch = message.epoch
        link.push = None
        yield SavePushRecord(link.shard, PushRecord(self.incarnation, link.settled, link.pushed_stop))
        self.pushes += 1
        self.staleness += message.staleness
        if self._draining and link.accumulated_from is not None:
            yield from self._push(link, now)
        yield from self._finish()

    def _replaced(self, event: Replaced, now: float) -> Iterator[DownpourEffect]:
        """A shard has started again: what it had not answered is asked again, and its values are news."""
        link = self._links.get(event.name)
        if link is None or event.incarnation <= link.epoch:
            return
        link.epoch = event.incarnation
        link.staged = None
        # A drained part asks too: so the new process learns of the pushes that it misses, and the part is
        # drained again when it has answered.
        self._drained = False
        yield self._fetch(link, now)
        if link.push is not None:
            link.push.renew(now)
            yield self._push_again(link, link.push)

    def _retry(self, now: float) -> Iterator[DownpourEffect]:
        for link in self._links.values():
            if link.fetch is not None and link.fetch.is_due(now, self._retry_s):
                link.fetch.repeat(now)
                yield self._fetch_again(link, link.fetch)
            if link.push is not None and link.push.is_due(now, self._retry_s):
                link.push.repeat(now)
                yield self._push_again(link, link.push)

    def validate(self) -> None:
        """The invariants I1 and I3 as far as one part can see them. Raises AssertionError."""
        for link in self._links.values():
            assert link.fetch is None or link.fetch.number == link.requests - 1, link.shard
            assert link.push is None or link.push.number == link.sequences - 1, link.shard
            assert link.staged is None or link.installed is None or link.staged >= link.installed, link.shard
            assert link.newest[0] <= link.epoch, link.shard
            assert link.accumulated_from is None or link.installed is not None, link.shard
            assert self._step is None or link.installed is not None, link.shard
        if self._drained:
            assert not self.waits_for, self.waits_for
            assert all(link.accumulated_from is None for link in self._links.values())
