"""The exchanges of one part, as the machine of its program asks for them: `MakeExchange`.

A program has a machine for each use of an exchange; here all uses of one exchange in a view are one machine,
because it answers requests for the use before, and may have to wait for acknowledgements of it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from partita.engine.protocol.actions import AllGather, AllReduce, ReduceScatter
from partita.engine.protocol.events import Span
from partita.engine.protocol.exchange.copy import CopySource, CopyTarget
from partita.engine.protocol.exchange.create import create_exchange
from partita.engine.protocol.exchange.exchange import Exchange, ExchangeDone, ExchangeEffect, Phase
from partita.engine.protocol.exchange.group import Group, Member, Numbers
from partita.engine.protocol.exchange.ring import Ring
from partita.engine.protocol.program_effects import CopyState, ExchangePlan

_Key: TypeAlias = tuple[int, object, str]


class PlannedUse:
    """One use of an exchange, as the protocol `Exchange` of a program's effects."""

    def __init__(self, machine: Exchange, number: int, span: Span) -> None:
        """A use that has not begun."""
        self._machine, self._number, self._span = machine, number, span

    @property
    def done(self) -> bool:
        """Whether this member has its result. The numbers must stay until the next use is done, too."""
        return self._number < self._machine.next and self._machine.under_way != self._number

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The members without which it gets no further."""
        return () if self.done else self._machine.waits_for

    def start(self, now: float) -> list[ExchangeEffect]:
        """Returns the first effects."""
        return _without_end(self._machine.begin(self._number, self._span, now))

    def receive(self, event: Any, now: float) -> list[ExchangeEffect]:
        """Returns the effects of an event, also after the end."""
        return _without_end(self._machine.receive(event, now))


class PlannedCopy:
    """A copy of state, as the protocol `Exchange` of a program's effects. The source is done at once."""

    def __init__(self, machine: CopySource | CopyTarget) -> None:
        """A copy that has not begun."""
        self._machine: Final = machine
        self._begun = False

    @property
    def done(self) -> bool:
        """Whether nothing is missing here."""
        if isinstance(self._machine, CopySource):
            return True
        return self._begun and not self._machine.under_way

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The source, while something is missing."""
        return () if isinstance(self._machine, CopySource) or self.done else (self._machine.source,)

    def start(self, now: float) -> list[ExchangeEffect]:
        """Returns the first effects."""
        self._begun = True
        if isinstance(self._machine, CopySource):
            return []
        return _without_end(self._machine.begin(now))

    def receive(self, event: Any, now: float) -> list[ExchangeEffect]:
        """Returns the effects of an event, also after the end."""
        return _without_end(self._machine.receive(event, now))


class PlannedExchanges:
    """Makes the exchanges of one part: `MakeExchange`."""

    def __init__(self, *, item_bytes: int = 4, retry_s: float = 1.0) -> None:
        """No exchange yet.

        Args:
            item_bytes: bytes of a number of the part's vectors.
            retry_s: seconds without a piece after which missing ones are asked for.
        """
        self._item_bytes, self._retry_s = item_bytes, retry_s
        self._view = -1
        self._machines: dict[_Key, Exchange] = {}  # of the view

    def __call__(self, plan: ExchangePlan) -> PlannedUse | PlannedCopy:
        """Returns an exchange that has not started. The first plan of a view ends all of earlier views."""
        if plan.view != self._view:
            self._view = plan.view
            self._machines.clear()
        members = tuple(Member(one.name, one.incarnation, one.place) for one in plan.members)
        group = Group(members, plan.me, plan.view, plan.exchange)
        if isinstance(plan.kind, CopyState):
            return PlannedCopy(self._copy(plan, group))
        (span,) = plan.spans
        key = (plan.exchange, plan.kind, span.vector)
        if key not in self._machines:
            self._machines[key] = self._create(plan, group, Numbers(span.stop - span.start, self._item_bytes))
        return PlannedUse(self._machines[key], plan.number, span)

    def _copy(self, plan: ExchangePlan, group: Group) -> CopySource | CopyTarget:
        source = plan.members[0].name
        if plan.me == source:
            return CopySource(group, plan.spans, number=plan.number, item_bytes=self._item_bytes)
        return CopyTarget(
            group,
            source,
            plan.spans,
            number=plan.number,
            item_bytes=self._item_bytes,
            retry_s=self._retry_s,
        )

    def _create(self, plan: ExchangePlan, group: Group, numbers: Numbers) -> Exchange:
        kind = plan.kind
        return create_exchange(
            kind.by if isinstance(kind, AllReduce) else Ring(),
            group,
            numbers,
            first=plan.number,
            mean=isinstance(kind, AllReduce) and kind.mean,
            phase=_phase(plan),
            retry_s=self._retry_s,
        )


def _without_end(effects: list[ExchangeEffect]) -> list[ExchangeEffect]:
    """The effects without the last one if it is the end, which a program asks for by itself."""
    if effects and isinstance(effects[-1], ExchangeDone):
        effects.pop()
    return effects


def _phase(plan: ExchangePlan) -> Phase:
    if isinstance(plan.kind, ReduceScatter):
        return "reduce-scatter"
    return "all-gather" if isinstance(plan.kind, AllGather) else "all-reduce"
