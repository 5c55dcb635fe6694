"""The links of a part under Downpour: fetches and pushes without waiting, each push applied once.

The part reads its own writes: it computes with the shards' values, and over them what it has pushed and they
do not hold, then what it has accumulated. So the parameters of a part lack pushes of others alone, and a
replica without others has those of sequential gradient descent (`mirrors`).

The methods are the actions of a replica; `receive` handles what happens beside them. Between two steps the
gradient accumulates in place. A step that a shard has already, from an earlier process or an earlier run, is
computed for the other shards, and left out for that one.

Source: DistBelief, section 4.1 and algorithm 1.1. Reading one's own writes and the record of pushes are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from typing_extensions import override

from partita.engine.protocol.batch_messages import Point
from partita.engine.protocol.checkpoint_messages import AskUnsent, Unsent
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.link import Install, Link, Links, Stage, SwapBuffers, hosts_of
from partita.engine.protocol.message_form import step_of
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck
from partita.engine.protocol.ranges import Ranges
from partita.engine.protocol.watch_messages import MOST_STALENESS

UNSENT: Final = "unsent"
"""The vector of what compressed pushes have lacked so far."""

UNSENT_BEFORE: Final = "unsent before"
"""The same, before the last push."""


@dataclass(frozen=True, slots=True)
class ClearGradient:
    """Effect: the accumulated gradient of the span becomes zero: the shard has that of this step already."""

    span: Span


@dataclass(frozen=True, slots=True)
class SavePushRecord:
    """Effect: keep the number of a stream's acknowledged pushes where it outlives the process."""

    stream: str
    record: PushRecord


LinkEffect: TypeAlias = Send | Stage | Install | SwapBuffers | ClearGradient | SavePushRecord | Refuse


@dataclass(frozen=True, slots=True)
class Values:
    """The updates that fetched values hold.

    Args:
        version: (incarnation, version) of the shard; never goes back.
        pushes: the first so many pushes of this process.
        others: updates by anything else (other parts, earlier processes, earlier runs), less the pushes of
            this process that a checkpoint lacked.
    """

    version: tuple[int, int]
    pushes: int
    others: int


@dataclass(slots=True)
class ParameterLink(Link[Fetch, Push]):
    """The exchange of one stream, whose shard has the gradients of the steps below `held`.

    It began with those of the units `has`; `units` have accumulated since the last push.
    """

    earlier: tuple[PushRecord, ...] = ()  # of the part's earlier processes, ascending
    held: int = 0
    settled: int = 0  # the steps below it are acknowledged
    informed: bool = False  # the shard has reported what it has of them
    incarnation: int = 0
    requests: int = 0
    sequences: int = 0
    ahead: int = 0  # steps done since the push under way was sent
    is_due: bool = False  # a push is to follow as soon as the one under way is acknowledged
    pushed_from: Values | None = None
    staged: Values | None = None
    installed: Values | None = None
    accumulated_from: Values | None = None  # of the oldest accumulated step; None: nothing has accumulated
    is_wanted: bool = False  # values are to be fetched as soon as the push under way is acknowledged
    renews: bool = False  # values are to be fetched again when those under way are here
    mirrors: bool = False  # the part's own updates have given its parameters the bits of the shard's
    has: Ranges = field(default_factory=Ranges)
    units: Ranges = field(default_factory=Ranges)
    scale: float = 1.0  # of the learning rate, in the newest step that has accumulated
    pushed_scale: float = 1.0  # likewise, in the newest push
    rows_bytes: tuple[int, int] | None = None  # the least and the most bytes of values with some rows

    @property
    def acknowledged(self) -> int:
        """Pushes of this process that are acknowledged."""
        return self.sequences - (self.push is not None)

    @property
    def pushed(self) -> Push:
        """The push under way."""
        assert self.push is not None, self.stream
        return self.push.message

    @property
    def updates(self) -> int:
        """Updates of the shard's values when it will have applied every push made so far."""
        return self.sequences + (0 if self.installed is None else self.installed.others)


class ParameterLinks(Links[ParameterLink]):
    """The links of one part.

    Attributes:
        pushes: pushes acknowledged since the start.
        staleness: the sum over them of the pushes by others that the shard applied in between.
        by_staleness: their numbers by staleness; the last entry has those with more, too.
    """

    takes: ClassVar[tuple[type, ...]] = (Parameters, PushAck, AskUnsent)

    def __init__(
        self,
        *,
        incarnation: int,
        streams: tuple[tuple[str, int, int], ...],
        earlier: Mapping[str, Sequence[PushRecord]] | None = None,
        alone: bool = False,
        stateful: bool = True,
        state_updates: int = 0,
        retry_s: float = 1.0,
        item_bytes: int = 4,
        moves: bool = False,
    ) -> None:
        """Creates links without values.

        Args:
            incarnation: of the part's process; answers to an older one are ignored.
            streams: (name, start, stop) of each one's range in the machine's vector; may be empty.
            earlier: for each stream, the records that the part's earlier processes saved.
            alone: no other replica pushes to the shards. Then no push merges gradients that belong to two,
                and nothing is fetched that the part has already.
            stateful: the optimizer has a state, which is not fetched.
            state_updates: that have led to the state with which the part begins. Where a shard has had as
                many, it is the shard's own.
            retry_s: seconds without an answer after which a request is sent again.
            item_bytes: bytes of one number of a payload.
            moves: a push has what the part has changed, or its movement towards the shards' parameters, not
                gradients: no learning rate has a factor for it.
        """
        known = earlier or {}
        links = [ParameterLink(*stream, earlier=tuple(known.get(stream[0], ()))) for stream in streams]
        super().__init__(links, retry_s=retry_s, item_bytes=item_bytes)
        for link in links:
            link.held = max((record.stop for record in link.earlier), default=0)
        self.incarnation: Final = incarnation
        self.pushes = 0
        self.staleness = 0
        self.by_staleness: Final = [0] * (MOST_STALENESS + 1)
        self._alone: Final = alone
        self._moves: Final = moves
        self._stateful: Final = stateful
        self._state_updates: Final = state_updates
        self._done: int | None = None  # the steps below this one have ended; None before the first
        self._draining = False

    @property
    def informed(self) -> bool:
        """Returns whether every shard has reported what it has of the part's earlier processes."""
        return all(link.informed for link in self._links.values())

    @property
    def continues(self) -> int | None:
        """The step below which no shard needs a gradient of this part; None where no shard ever does."""
        return min((link.held for link in self._links.values()), default=None)

    @property
    def held(self) -> int:
        """The step below which the shards have acknowledged every gradient of this part."""
        done = self._done or 0
        waits = (link for link in self._links.values() if link.push or link.accumulated_from)
        return min((max(link.settled, link.held) for link in waits), default=done)

    @property
    def updates(self) -> int:
        """Updates of the parameters when the shards have applied every push made so far, for schedules."""
        return max((link.updates for link in self._links.values()), default=0)

    @property
    def drained(self) -> bool:
        """Returns whether every gradient is acknowledged, after `drain`, and every fetch answered: that,
        too, may report to a new process what it lacks.
        """
        return self._draining and not self.waits_for

    @property
    def installed(self) -> bool:
        """Returns whether the part has parameters of every shard."""
        return all(link.installed for link in self._links.values())

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The shards with an open request, for reports and error messages."""
        return hosts_of(link for link in self._links.values() if link.fetch or link.push)

    def take_rows(self, rows_bytes: Mapping[str, tuple[int, int]]) -> None:
        """Asks for the rows alone that have changed of sparse tables.

        Args:
            rows_bytes: for each stream with such tables, the least and the most bytes of such an answer.
        """
        for stream, both in rows_bytes.items():
            self._links[stream].rows_bytes = both

    @override
    def _expected_bytes(self, link: ParameterLink, message: Parameters | Point) -> tuple[int, int]:
        if isinstance(message, Parameters) and message.pushes_since is not None:
            return link.rows_bytes or (0, 0)
        return super()._expected_bytes(link, message)

    # Actions.

    def pull(self, now: float, *, only: int | None = None, after_push: bool = False) -> Iterator[LinkEffect]:
        """Asks for the values of all fragments, or only of one, where no request is open and the part does
        not have them; with `after_push`, as soon as a push under way is acknowledged.

        Before the first step one request is enough, where the part does not move towards these values.
        """
        for link in self._chosen(only):
            is_first = self._done is None and link.requests > 0 and not (self._moves and link.installed)
            if after_push and link.push is not None:
                link.is_wanted = True
            elif link.fetch is None and not is_first and not (self._alone and link.mirrors):
                yield self._fetch(link, now)

    def _chosen(self, only: int | None) -> Iterator[ParameterLink]:
        return (link for link in self._links.values() if only in (None, link.fragment))

    def install(self) -> Iterator[LinkEffect]:
        """Puts the values that have arrived in place, with the part's own gradients over them."""
        for link in self._links.values():
            yield from self._install(link)

    def renew(self, evaluation: int, now: float) -> Iterator[LinkEffect]:
        """Asks each shard for the values that it has from now on, after those that are under way."""
        for link in self._links.values():
            link.renews = link.fetch is not None
            if link.fetch is None and not (self._alone and link.mirrors):
                yield self._fetch(link, now)

    def not_renewed(self, evaluation: int) -> tuple[str, ...]:
        """Returns the shards whose values, which `renew` has asked for, are not here yet."""
        return hosts_of(link for link in self._links.values() if link.fetch or link.renews)

    def take(self) -> Iterator[LinkEffect]:
        """Puts them in place."""
        yield from self.install()

    def make_way(self, unit: int, now: float, *, scale: float = 1.0) -> Iterator[LinkEffect]:
        """Pushes what has accumulated for a shard that has this unit, which comes next, already, and what has
        accumulated under another factor of the learning rate: a push has one.
        """
        for link in self._in_the_way(unit, scale):
            if link.push is None:
                yield from self._push(link, now)
            else:
                link.is_due = True

    def has_way(self, unit: int, *, scale: float = 1.0) -> bool:
        """Returns whether this unit can be computed: where it is left out, nothing else has accumulated, and
        nothing anywhere under another factor of the learning rate.
        """
        return not any(self._in_the_way(unit, scale))

    def _in_the_way(self, unit: int, scale: float) -> Iterator[ParameterLink]:
        accumulated = (link for link in self._links.values() if link.accumulated_from)
        splits = not self._moves
        return (link for link in accumulated if unit in link.has or (splits and link.scale != scale))

    def computed(self, step: int, unit: int, now: float, *, scale: float = 1.0) -> Iterator[LinkEffect]:
        """Counts a step's gradient, which has been accumulated and applied to the part's parameters.

        `unit`: the examples of the step; `scale`: the factor of its learning rate.
        """
        self._done = step + 1
        for link in self._links.values():
            assert link.installed is not None, link
            if step < link.held or unit in link.has:  # another process has pushed it; other shards lack it
                yield from self._take_back(link, now)
                continue
            link.accumulated_from = link.accumulated_from or link.installed
            link.scale = 1.0 if self._moves else scale
            link.units.cover(unit, unit + 1)
            link.ahead += link.push is not None

    def push(self, now: float, *, only: int | None = None) -> Iterator[LinkEffect]:
        """Pushes what has accumulated in all fragments, or only in one, where no push is under way."""
        for link in self._chosen(only):
            if link.accumulated_from is None:
                continue
            if link.push is None:
                yield from self._push(link, now)
            else:
                link.is_due = self._alone

    def has_room(self, ahead: int) -> bool:
        """Returns whether a step can begin: all parameters are here, and no push waits for the
        acknowledgement of one that was sent `ahead` steps before.
        """
        return all(
            (link.staged or link.installed) and not link.is_due and (link.push is None or link.ahead < ahead)
            for link in self._links.values()
        )

    def go_on(self) -> None:
        """More steps follow after `drain`."""
        self._draining = False

    def drain(self, now: float) -> Iterator[LinkEffect]:
        """Pushes what has accumulated; no step follows."""
        self._draining = True
        for link in self._links.values():
            if link.push is None and link.accumulated_from is not None:
                yield from self._push(link, now)

    # Events.

    def _received(self, link: ParameterLink, event: Received, now: float) -> Iterator[LinkEffect]:
        match event.message:
            case Parameters() as message:
                yield from self._parameters(link, message, event.payload, now)
            case PushAck() as message:
                yield from self._acknowledged(link, message, now)
            case AskUnsent() as message if message.incarnation == self.incarnation:
                yield from self._asked(link, message)

    def _asked(self, link: ParameterLink, message: AskUnsent) -> Iterator[LinkEffect]:
        """Answers what compressed pushes lacked after one that is the last, or the one before that."""
        vector = {link.sequences: UNSENT, link.sequences - 1: UNSENT_BEFORE}.get(message.pushes)
        if vector is not None:
            known = message.checkpoint, self.incarnation, message.pushes, message.fragment
            yield Send(link.shard, Unsent(*known), link.span(vector))

    def _fetch(self, link: ParameterLink, now: float) -> Send:
        link.requests += 1
        has_base = link.rows_bytes is not None and link.installed is not None and not self._alone
        since = link.installed.version if has_base and link.installed is not None else None
        fetch = Fetch(link.requests - 1, link.acknowledged, link.earlier, since, link.fragment)
        return link.request(fetch, now)

    def _install(self, link: ParameterLink) -> Iterator[LinkEffect]:
        if link.staged is None:
            return
        unheld = ["in_flight"] * (link.staged.pushes < link.sequences)
        unheld += ["accumulated"] * (link.accumulated_from is not None)
        scales = tuple(link.pushed_scale if name == "in_flight" else link.scale for name in unheld)
        updates = link.staged.others + link.staged.pushes
        link.installed, link.staged = link.staged, None
        yield Install(link.span("parameters"), tuple(unheld), updates, scales)

    def _push(self, link: ParameterLink, now: float) -> Iterator[LinkEffect]:
        assert link.accumulated_from is not None and self._done is not None, link
        if link.staged is not None and link.staged.pushes < link.sequences:
            yield from self._install(link)  # the values lack the gradient that this push overwrites
        link.ahead, link.is_due = 0, False
        link.pushed_from, link.accumulated_from = link.accumulated_from, None
        units, link.units = tuple(link.units), Ranges()
        message = Push(
            self.incarnation,
            link.sequences,
            *link.pushed_from.version,
            self._done,
            units,
            link.scale,
            self._draining,
            link.fragment,
        )
        link.sequences += 1
        link.pushed_scale = link.scale
        yield SwapBuffers(link.span("in_flight"), step_of(message.stop))
        yield link.transmit(message, now)

    def _take_back(self, link: ParameterLink, now: float) -> Iterator[LinkEffect]:
        """Undoes a step whose gradient the values of this shard hold already, by values that come again."""
        yield ClearGradient(link.span("accumulated"))
        link.installed = None
        if link.staged is None and link.fetch is None:
            yield self._fetch(link, now)

    def _parameters(
        self, link: ParameterLink, message: Parameters, payload: object, now: float
    ) -> Iterator[LinkEffect]:
        if message.shard_incarnation < link.incarnation or message.incarnation != self.incarnation:
            return  # from a replaced process (the fetch stays open), or for an earlier one of the part
        if link.fetch is None or link.fetch.message.request != message.request:
            return  # a duplicate
        if message.pushes > link.sequences:
            yield Refuse(link.shard, f"it holds {message.pushes} pushes, and {link.sequences} were made")
            return
        link.incarnation = message.shard_incarnation
        link.fetch = None
        if not link.informed:
            link.informed, link.has = True, Ranges(message.units)
            yield from self._inherit(link, message.earlier)
        if link.renews or message.pushes < link.sequences - 1:  # overtaken by the end of a push, they lack it
            link.renews = False
            yield self._fetch(link, now)
            return
        version = (message.shard_incarnation, message.version)
        values = Values(version, message.pushes, message.updates - message.pushes)
        before = link.staged or link.installed
        if before is None:
            link.mirrors = not self._stateful or values.others == self._state_updates
        elif values.others != before.others:
            link.mirrors = not self._stateful
        elif self._alone and link.mirrors and link.installed is not None:
            return  # the part's parameters are these, and its own gradients over them
        link.staged = values
        yield Stage(link.span("staged"), payload, message.pushes_since is not None)

    def _inherit(self, link: ParameterLink, earlier: PushRecord | None) -> Iterator[LinkEffect]:
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
            yield SavePushRecord(link.stream, earlier)

    def _acknowledged(self, link: ParameterLink, message: PushAck, now: float) -> Iterator[LinkEffect]:
        if message.shard_incarnation < link.incarnation or message.incarnation != self.incarnation:
            return
        if link.push is None or link.pushed.sequence != message.sequence:
            return  # a duplicate
        assert link.pushed_from is not None, link
        stop, own = link.pushed.stop, message.sequence - link.pushed_from.pushes
        link.incarnation = message.shard_incarnation
        link.push, link.settled = None, stop
        yield SavePushRecord(link.stream, PushRecord(self.incarnation, link.acknowledged, stop))
        self.pushes += 1
        staleness = max(0, message.staleness - own)
        self.staleness += staleness
        self.by_staleness[min(staleness, MOST_STALENESS)] += 1
        if link.is_wanted and link.fetch is None:
            yield self._fetch(link, now)
        link.is_wanted = False
        if link.accumulated_from is not None and (self._draining or link.is_due):
            yield from self._push(link, now)

    def _replaced(self, event: Replaced, now: float) -> Iterator[LinkEffect]:
        """Sends open requests to a restarted shard, and fetches its values.

        A drained part fetches, too: the new process learns thereby which pushes it lacks, and the part
        is drained again when the answer is here.
        """
        for link in self._links.values():
            if link.shard == event.name and event.incarnation > link.incarnation:
                link.incarnation = event.incarnation
                link.staged = None
                yield self._fetch(link, now)
                yield from link.push_again(now)

    def validate(self) -> None:
        """Checks invariants I1 and I3 as far as one part can see them. Raises AssertionError."""
        for link in self._links.values():
            assert link.fetch is None or link.fetch.message.request == link.requests - 1, link
            assert link.push is None or link.pushed.sequence == link.sequences - 1, link
            assert link.accumulated_from is None or link.installed is not None, link
            assert bool(link.units) == (link.accumulated_from is not None), link
            assert not link.is_due or (link.push is not None and link.accumulated_from is not None), link
            if link.staged is not None:
                before = link.installed or link.staged
                assert link.staged.version >= before.version, link
                assert link.staged.pushes in (link.sequences - 1, link.sequences), link
            newest = link.staged or link.installed
            assert newest is None or newest.version[0] <= link.incarnation, link
            assert not self.drained or link.accumulated_from is None, link
