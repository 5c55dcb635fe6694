"""The kinds of exchanges that a driver's program yields: what each does, and between whom results go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from partita.engine.protocol.actions import AllGather, AllReduce, Dots, ExchangeMessages, ReduceScatter
from partita.engine.protocol.exchange import Group
from partita.engine.protocol.exchange.algorithm import Phase
from partita.engine.protocol.program_messages import is_gathered

ExchangeAction: TypeAlias = AllReduce | ReduceScatter | AllGather | Dots | ExchangeMessages

_PHASES: Final[Mapping[type, Phase]] = {
    AllReduce: "all-reduce",
    Dots: "all-reduce",
    ReduceScatter: "reduce-scatter",
    AllGather: "all-gather",
    ExchangeMessages: "all-reduce",
}


def phase_of(action: ExchangeAction) -> Phase:
    """Returns what a use of an exchange does."""
    collects = isinstance(action, ExchangeMessages) and is_gathered(action)
    return "all-gather" if collects else _PHASES[type(action)]


def neighbours_of(action: ExchangeAction, group: Group) -> tuple[set[str], set[str]]:
    """Returns the members that send this one what it may ask for again, and those that it sends that to."""
    sources, targets = set[str](), set[str]()
    for segment in range(action.by.segments(group.machines)):
        route = action.by.route(group.rank, segment, group.machines)
        if isinstance(action, ReduceScatter):
            sources |= {group.members[rank].name for rank in route.adds}
            targets |= set() if route.sums_to is None else {group.members[route.sums_to].name}
            continue
        if route.copies_from is not None:
            sources.add(group.members[route.copies_from].name)
        targets |= {group.members[rank].name for rank in route.copies_to}
    return sources, targets
