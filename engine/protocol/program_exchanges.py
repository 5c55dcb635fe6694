"""The exchanges of one part in one view, one round after another: a machine for each range of its vectors.

The first round copies states to those that are behind. All parts of a replica complete a round before one of
them goes on (`Reduced`): what follows then needs no other replica, so a view never finds half of a replica
behind the other half. And a part that sends results to others overwrites them only when these have completed
the round, too: until then they may ask again for what was lost.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.actions import (
    Action,
    AllGather,
    AllReduce,
    Dots,
    ExchangeMessages,
    Norms,
    ReduceScatter,
)
from partita.engine.protocol.carrier import Carrier
from partita.engine.protocol.events import Received, Refuse, Send, Span, Tick
from partita.engine.protocol.exchange import (
    Broadcast,
    CopySource,
    CopyTarget,
    Exchange,
    Group,
    Numbers,
    create_exchange,
)
from partita.engine.protocol.exchange import Member as Partner
from partita.engine.protocol.exchange.exchange import ExchangeDone
from partita.engine.protocol.names import part_name
from partita.engine.protocol.program_effects import (
    CombineVectors,
    CommitMessages,
    CopyVector,
    MeasureDots,
    MeasureNorms,
    PartSeat,
    ReadDots,
    SharedSpan,
)
from partita.engine.protocol.program_kinds import ExchangeAction, neighbours_of, phase_of
from partita.engine.protocol.program_messages import (
    MessagePlace,
    decoded,
    encoded,
    places_of,
    vector_of_messages,
)

DOTS: Final = "dots"
"""The vector of inner products: a place for each replica of the view, machine and pair, in float64."""

_DOT_BYTES: Final = 8

MOST_EARLY: Final = 1024
"""Messages of an exchange that has not begun, or of a view that is not here yet, that are kept."""

_COPIES: Final = 1 << 32
"""Exchanges from this number on are copies of states."""


class Exchanges(Carrier):
    """The rounds of exchanges of a part."""

    carries: ClassVar[tuple[type, ...]] = (
        AllReduce,
        ReduceScatter,
        AllGather,
        ExchangeMessages,
        Norms,
        Dots,
    )

    def __init__(self, seat: PartSeat, *, retry_s: float) -> None:
        self._seat: Final = seat
        self._others: Final = seat.others
        self._retry_s: Final = retry_s
        self._view = rm.View(0, (), 0, 0, 0, 0)
        self._peers: Mapping[str, int] = {}
        self._results = 0  # that the body was asked for
        self._reset()

    def _reset(self) -> None:
        self._slots: dict[Hashable, int] = {}  # the different exchanges of the program, as they came
        self._summed: int | None = None  # slot of the last exchange of the gradient; None: its messages
        self._has_messages = False  # they were exchanged since the last safe point
        self._neighbours: dict[int, tuple[set[str], set[str]]] = {}  # who sends results here, and gets them
        self._machines: dict[int, Exchange | CopySource | CopyTarget] = {}  # by exchange
        self._uses: dict[int, int] = {}  # of each exchange
        self._open: set[int] = set()  # exchanges of the round under way that are not complete
        self._round = 0
        self._completed = 0  # rounds, by this part
        self._reduced: dict[str, int] = {}  # rounds, by others
        self._informs: set[str] = set()  # others that wait for this part in the round under way
        self._served: dict[str, tuple[int, frozenset[str]]] = {}  # by vector: round, and who may ask again
        self._asked_at = 0.0
        self._early: list[Received] = []
        self._in_step = False  # all parts of the replica have what the next update needs
        self._is_closed = True

    # Actions.

    def may_begin(self, action: Action) -> bool:
        """Returns whether no peer may ask again for what an exchange overwrites."""
        return self.released("norms" if isinstance(action, Norms) else self.vector_of(action))

    def begin(self, action: Action, now: float) -> list[Any]:
        """Begins an exchange, in the next round, and takes what others have sent for it already."""
        if isinstance(action, Norms):
            return [MeasureNorms(self.owned)]
        assert isinstance(action, ExchangeAction) and not self._is_closed, action
        self._in_step = True
        effects = [*self._prepare(action), *self._begin(action, now)]
        early, self._early = self._early, []
        for event in early:
            effects += self.receive_message(event, now)
        return effects

    def is_done(self, action: Action) -> bool:
        """Returns whether the exchange under way is complete."""
        return isinstance(action, Norms) or self._is_closed or self.complete

    def begin_step(self) -> None:
        """Notes that a step begins: before its update, all parts of the replica have to come so far."""
        self._in_step = False

    @property
    def is_in_step(self) -> bool:
        """Returns whether the step under way has had an exchange, or a round without one."""
        return self._in_step

    def settle(self, step: int) -> list[Any]:
        """Returns the effects of a safe point at the end of a step, which had messages or not."""
        had, self._has_messages = self._has_messages, False
        return [CommitMessages(step)] * had

    def close(self) -> None:
        """Ends all exchanges of the view: nothing is sent or answered until the next one."""
        self._is_closed = True

    # Rounds.

    def begin_view(self, view: rm.View, peers: Mapping[str, int], now: float) -> list[Any]:
        """Drops everything of an earlier view, and begins the round that copies states."""
        self._view, self._peers = view, peers
        self._reset()
        self._is_closed = False
        self._begin_round(now)
        me, served = self._seat, set[str]()
        effects: list[Any] = []
        for n, copy in enumerate(view.copies):
            if copy.machine != me.machine or me.replica not in (copy.source, copy.target) or not me.size:
                continue
            source, target = self._partner(copy.source, me.machine), self._partner(copy.target, me.machine)
            group = Group((source, target), me.name, view.number, _COPIES + n)
            spans = [Span(vector, 0, me.size) for vector in me.state]
            if me.replica == copy.source:
                self._machines[_COPIES + n] = CopySource(group, spans, item_bytes=me.item_bytes)
                served.add(target.name)
                continue
            machine = CopyTarget(group, source.name, spans, item_bytes=me.item_bytes, retry_s=self._retry_s)
            self._machines[_COPIES + n] = machine
            self._open.add(_COPIES + n)
            self._informs.add(source.name)
            effects += machine.begin(now)
        for vector in me.state:
            self._served[vector] = self._round, frozenset(served)
        return self._noted(effects, now)

    def _begin(self, action: ExchangeAction, now: float) -> list[Any]:
        """Begins the next round, over all of the part's ranges; the vector is `released`."""
        self._begin_round(now)
        if isinstance(action, ExchangeMessages):
            return self._begin_messages(action, now)
        key = replace(action, weight=None) if isinstance(action, AllReduce) else action
        slot = self._slots.setdefault(key, len(self._slots))
        if self._is_of_gradient(action):
            self._summed = slot
        vector = self.vector_of(action)
        effects: list[Any] = []
        served = set[str]()
        for one in self._ranges(action):
            number = self._number(slot, one)
            machine = self._machine(action, number, one, one.stop - one.start)
            if machine is not None:
                effects += self._use(machine, number, Span(vector, one.start, one.stop), served, now)
        self._served[vector] = self._round, frozenset(served)
        return self._noted(effects, now)

    def _rank(self, one: SharedSpan) -> int:
        """The part's place among the members of an exchange of a range."""
        return [partner.name for partner in self._partners(one)].index(self._seat.name)

    def _begin_messages(self, action: ExchangeMessages, now: float) -> list[Any]:
        """Exchanges messages of a compressor; those of another size are another exchange."""
        places, served = [*self._places(action)], set[str]()
        stage = action.compress.stage(action.step)
        key = action.by, action.compress, action.turn, action.vector, stage
        slot = self._slots.setdefault(key, len(self._slots))
        self._has_messages = True
        if action.vector == "gradient":
            self._summed = None
        effects: list[Any] = []
        for place in places:
            number, length = self._number(slot, place.one), place.span.stop - place.span.start
            machine = self._machine(action, number, place.one, length) if place.items else None
            if machine is not None:
                effects += self._use(machine, number, place.span, served, now)
        self._served[vector_of_messages(action)] = self._round, frozenset(served)
        return self._noted(effects, now)

    def _places(self, action: ExchangeMessages) -> Iterator[MessagePlace]:
        """The places of the messages of all ranges of the vector."""
        return places_of(
            action,
            self._seat.ranges(action.vector),
            members=lambda one: len(self._partners(one)),
            item_bytes=self._seat.item_bytes,
        )

    def _use(self, machine: Exchange, number: int, span: Span, served: set[str], now: float) -> list[Any]:
        """Begins the next use of an exchange; adds those that may ask for its results to `served`."""
        use = self._uses[number] = self._uses.get(number, -1) + 1
        self._open.add(number)
        sources, targets = self._neighbours[number]
        self._informs |= sources
        served |= targets
        return [*machine.begin(use, span, now)]

    def _prepare(self, action: ExchangeAction) -> list[Any]:
        """Returns the effects by which the vector that is exchanged holds this part's own numbers."""
        if isinstance(action, Dots):
            return [self._measure(action)]
        if isinstance(action, ExchangeMessages):
            view = self._view.number
            ranked = [(place, self._rank(place.one)) for place in self._places(action)]
            root = action.by.root if isinstance(action.by, Broadcast) else None
            return [
                encoded(action, place, rank=rank, view=view) for place, rank in ranked if root in (None, rank)
            ]
        vector, weight = self.vector_of(action), action.weight if isinstance(action, AllReduce) else None
        if weight is not None:
            spans, terms = self._spans(action, vector), ((action.vector, weight),)
            return [CombineVectors(span, terms) for span in spans]
        if vector == action.vector:
            return []
        return [CopyVector(span, vector) for span in self._spans(action, action.vector)]

    def vector_of(self, action: Any) -> str:
        """Returns the vector that is exchanged: a part's state does not change while the sum is not
        complete.
        """
        if isinstance(action, Dots):
            return DOTS
        if isinstance(action, ExchangeMessages):
            return vector_of_messages(action)
        beside = action.vector in self._seat.state or action.by.backup_workers
        return "sum" if isinstance(action, AllReduce) and beside else str(action.vector)

    def _spans(self, action: AllReduce | ReduceScatter | AllGather, vector: str) -> list[Span]:
        return [Span(vector, one.start, one.stop) for one in self._ranges(action)]

    def _ranges(self, action: AllReduce | ReduceScatter | AllGather | Dots) -> tuple[SharedSpan, ...]:
        if not isinstance(action, Dots):
            return self._seat.ranges(action.vector)
        machines = range(self._seat.machines)
        return (SharedSpan(self._seat.exchanges, 0, self._size(action), (*machines,)),)

    def _number(self, slot: int, one: SharedSpan) -> int:
        return slot * (self._seat.exchanges + 1) + one.index

    def end(self, action: Action) -> list[Any]:
        """Returns the effects by which the action's vector holds the result of a complete round."""
        if isinstance(action, Dots):
            self._results += 1
            return [ReadDots(self._results, self._size(action))]
        if isinstance(action, ExchangeMessages):
            return [decoded(action, place) for place in self._places(action)]
        if not isinstance(action, ExchangeAction) or (vector := self.vector_of(action)) == action.vector:
            return []
        return [CopyVector(span, action.vector) for span in self._spans(action, vector)]

    # Inner products.

    def awaits(self, action: Action) -> int | None:
        """Returns the number of the result of inner products."""
        return self._results if isinstance(action, Dots) else None

    def _size(self, action: Dots) -> int:
        return len(self._view.members) * self._seat.machines * len(action.pairs)

    def _measure(self, action: Dots) -> MeasureDots:
        me, n = self._seat, len(action.pairs)
        place = (self._view.members.index(me.replica) * me.machines + me.machine) * n
        own = tuple((one.start, one.stop) for one in me.spans if one.machines[0] == me.machine)
        return MeasureDots(action.pairs, own, place, self._size(action))

    def products(self, values: Sequence[float]) -> tuple[tuple[float, ...], ...]:
        """Returns the inner products of each replica: those of its machines, added in their order."""
        replicas, machines = len(self._view.members), self._seat.machines
        n = len(values) // (replicas * machines)
        rows = [values[start : start + n] for start in range(0, len(values), n)]
        of_replicas = (rows[start : start + machines] for start in range(0, len(rows), machines))
        return tuple(tuple(math.fsum(column) for column in zip(*own, strict=True)) for own in of_replicas)

    def wait_for_replica(self, now: float) -> list[Any]:
        """Begins a round without exchanges, complete when all parts of the replica have come so far.

        An exchange of this step was such a round, too.
        """
        return [] if self._in_step else self.meet_replica(now)

    def meet_replica(self, now: float) -> list[Any]:
        """Begins a round without exchanges, complete when all parts of the replica have come so far."""
        self._in_step = True
        self._begin_round(now)
        return self._noted((), now)

    def _begin_round(self, now: float) -> None:
        self._round += 1
        self._open = set()
        self._informs = set(self._others)
        self._asked_at = now

    def _machine(self, action: ExchangeAction, number: int, one: SharedSpan, length: int) -> Exchange | None:
        if number not in self._machines:
            among = None if isinstance(action, ExchangeMessages) else action.among
            members = self._partners(one, among, rooted=isinstance(action.by, Broadcast))
            if len(members) == 1 or self._seat.name not in (member.name for member in members):
                return None
            group = Group(members, self._seat.name, self._view.number, number)
            self._machines[number] = create_exchange(
                action.by,
                group,
                Numbers(length, _DOT_BYTES if isinstance(action, Dots) else self._seat.item_bytes),
                mean=isinstance(action, AllReduce) and action.mean,
                phase=phase_of(action),
                retry_s=self._retry_s,
            )
            self._neighbours[number] = neighbours_of(action, group)
        machine = self._machines[number]
        assert isinstance(machine, Exchange)
        return machine

    def _noted(self, effects: Sequence[Any], now: float) -> list[Any]:
        """Notes the exchanges that are complete, and reports the round when all of them are."""
        kept: list[Any] = []
        for effect in effects:
            if isinstance(effect, ExchangeDone):
                self._open.discard(effect.exchange)
            else:
                kept.append(effect)
        if not self._open and self._completed < self._round:
            self._completed = self._round
            self._asked_at = now
            message = rm.Reduced(self._view.number, self._round)
            kept += [Send(name, message) for name in sorted(self._informs)]
        return kept

    # Events.

    def receive_message(self, event: Received, now: float) -> list[Any]:
        """Returns the effects of a message of this view; keeps it if its exchange has not begun here."""
        message: Any = event.message
        if message.exchange not in self._machines:
            if len(self._early) >= MOST_EARLY:
                return [Refuse(event.sender, "more than the messages of the next exchanges")]
            self._early.append(event)
            return []
        return self._noted(self._machines[message.exchange].receive(event, now), now)

    def receive(self, event: Any, now: float) -> list[Any]:
        """Has every exchange repeat what was lost, and asks others how far they are, at a `Tick`."""
        if self._is_closed:
            return []
        effects = [effect for one in self._machines.values() for effect in one.receive(Tick(), now)]
        effects = self._noted(effects, now)
        lacking = self._lacking if self._completed == self._round else ()
        if lacking and now - self._asked_at >= self._retry_s:
            self._asked_at = now
            message = rm.Reduced(self._view.number, self._completed, asks=True)
            effects += [Send(name, message) for name in lacking]
        return effects

    def reduced(self, sender: str, message: rm.Reduced) -> list[Any]:
        """Notes the rounds that another part has completed, and answers if it asks for that."""
        self._reduced[sender] = max(message.number, self._reduced.get(sender, 0))
        if not message.asks or self._completed < message.number:
            return []
        return [Send(sender, rm.Reduced(self._view.number, self._completed))]

    # Questions.

    @property
    def complete(self) -> bool:
        """Returns whether the round under way is complete on all parts of the replica."""
        return self._completed == self._round and not self._behind(self._others, self._round)

    @property
    def has_completed(self) -> bool:
        """Returns whether this part has completed the round under way."""
        return self._completed == self._round

    def released(self, vector: str) -> bool:
        """Returns whether nobody may ask again for numbers of a vector, so that it may change."""
        number, served = self._served.get(vector, (0, frozenset()))
        return not self._behind(served, number)

    @property
    def owned(self) -> tuple[Span, ...]:
        """The ranges of the part's parameters that are its replica's own, by the sums of "gradient".

        Where messages were exchanged in its place, each member has an equal share.
        """
        spans: list[Span] = []
        for one in self._seat.spans:
            if self._summed is None:
                own = [Numbers(one.stop - one.start).segment(self._rank(one), len(self._partners(one)))]
            else:
                machine = self._machines.get(self._number(self._summed, one))
                own = machine.owned if isinstance(machine, Exchange) else [(0, one.stop - one.start)]
            spans += [Span("parameters", one.start + start, one.start + stop) for start, stop in own]
        return tuple(spans)

    @staticmethod
    def _is_of_gradient(action: ExchangeAction) -> bool:
        return isinstance(action, AllReduce | ReduceScatter | AllGather) and action.vector == "gradient"

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The hosts that the part gets no further without, each once."""
        if self._completed == self._round:
            return self._lacking
        found: dict[str, None] = {}
        for number in sorted(self._open):
            machine = self._machines[number]
            if isinstance(machine, Exchange):
                found |= dict.fromkeys(machine.waits_for)
            elif isinstance(machine, CopyTarget):
                found[part_name(self._view.copies[number - _COPIES].source, self._seat.machine)] = None
        return tuple(found)

    @property
    def _lacking(self) -> tuple[str, ...]:
        """The hosts that have not completed what this part waits for."""
        found = self._behind(self._others, self._round)
        for number, served in self._served.values():
            found += self._behind(sorted(served), number)
        return tuple(dict.fromkeys(found))

    def _behind(self, names: Iterable[str], number: int) -> list[str]:
        return [name for name in names if self._reduced.get(name, 0) < number]

    def _partners(
        self, one: SharedSpan, among: tuple[int, ...] | None = None, *, rooted: bool = False
    ) -> tuple[Partner, ...]:
        """The members of an exchange of a range, of all replicas or some. All have the same labels of places,
        where they have any. Around a root each is of the part's own machine: the root is a rank of a replica.
        """
        places = self._view.places if one.machines == (self._seat.machine,) else ()
        return tuple(
            self._partner(replica, machine, str(places[rank]) if places else "")
            for rank, replica in enumerate(self._view.members)
            if among is None or rank in among
            for machine in ((self._seat.machine,) if rooted else one.machines)
        )

    def _partner(self, replica: int, machine: int, place: str = "") -> Partner:
        name = part_name(replica, machine)
        mine = name == self._seat.name
        return Partner(name, self._seat.incarnation if mine else self._peers.get(name, 0), place)

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert self._completed <= self._round <= self._completed + 1
        assert bool(self._open) <= (self._completed < self._round)
        for machine in self._machines.values():
            if not isinstance(machine, CopySource):
                machine.validate()
