"""Placement: which host goes to which worker, by what they need and have. Pure, and always the same.

Hosts that have a place keep it. Of the others, those that name workers come first: each goes to the first of
these with room. At the first placement of a run, a strict host goes to the first that it names or nowhere;
when that worker is gone later, it goes wherever there is room. Then come groups (the parts of a replica), the
largest first: to the machine with the least room that takes the whole group, or, if none does, host by host
to where most of the group is. Hosts that are spread (shards) go to the machine with the fewest of them.
Greedy: a placement that exists may be missed where needs differ much within one run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from partita.engine.protocol.names import other_copy
from partita.engine.protocol.pool.messages import Need
from partita.engine.protocol.pool.resources import Resources

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Offer:
    """A worker that takes hosts.

    Args:
        session: identifies it.
        name: for messages.
        machine: label of its machine: workers with the same one are near one another.
        free: what it has left.
        total: what it has.
    """

    session: str
    name: str
    machine: str
    free: Resources
    total: Resources


@dataclass(frozen=True, slots=True)
class Placed:
    """The result.

    Args:
        seats: session of the worker, by host.
        missing: needs without a place.
        strict: whether strict hosts were placed at the workers that they name only.
    """

    seats: Mapping[str, str]
    missing: tuple[Need, ...]
    strict: bool = False


def place(needs: Sequence[Need], held: Mapping[str, str], offers: Sequence[Offer]) -> Placed:
    """Places hosts on workers.

    Args:
        needs: of all hosts of a run.
        held: the workers of hosts that have a place; `free` of the offers is without them.
        offers: workers.
    """
    board = _Board(offers)
    by_host = {need.host: need for need in needs}
    for host, session in held.items():
        if host in by_host and session in board.free:
            board.count(by_host[host], session)
    seats = {host: session for host, session in held.items() if session in board.free and host in by_host}
    left = [need for need in needs if need.host not in seats]
    for need in sorted(_largest_first(left), key=lambda one: not one.strict):
        names = need.workers[:1] if need.strict and not held else need.workers
        if (named := board.named_worker_for(need, names)) is not None:
            board.take(need, named)
            seats[need.host] = named
    missing = [need for need in left if need.host not in seats and need.strict and not held]
    groups: dict[str, list[Need]] = {}
    for need in left:
        if need.host not in seats and need not in missing:
            groups.setdefault(need.group, []).append(need)
    for group in sorted(groups.values(), key=lambda one: (one[0].spread, -len(one), one[0].host)):
        _place_group(group, board, seats, missing)
    return Placed(seats, tuple(missing), strict=not held)


def _place_group(group: list[Need], board: _Board, seats: dict[str, str], missing: list[Need]) -> None:
    together = not group[0].spread and group[0].group != ""
    whole = board.machine_for(group) if together else None
    for need in _largest_first(group):
        session = board.worker_for(need, whole)
        if session is None:
            missing.append(need)
        else:
            board.take(need, session)
            seats[need.host] = session


class _Board:
    """Workers with what is left of them."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self.offers = {
            offer.session: offer for offer in sorted(offers, key=lambda one: (one.name, one.session))
        }
        self.free = {session: offer.free for session, offer in self.offers.items()}
        self._groups: Counter[tuple[str, str]] = Counter()  # hosts by group and session
        self._on_machine: Counter[tuple[str, str]] = Counter()  # hosts by group and machine
        self._hosts: set[tuple[str, str]] = set()  # each with its machine

    def count(self, need: Need, session: str) -> None:
        """Notes a host that has its place already."""
        self._groups[need.group, session] += 1
        self._on_machine[need.group, self.offers[session].machine] += 1
        self._hosts.add((need.host, self.offers[session].machine))

    def take(self, need: Need, session: str) -> None:
        """Gives a host a place."""
        self.count(need, session)
        self.free[session] = self.free[session].minus(need.resources)

    def machine_for(self, group: Sequence[Need]) -> str | None:
        """Returns the machine with the least room whose workers take the whole group."""
        machines: dict[str, list[str]] = {}
        for session, offer in self.offers.items():
            machines.setdefault(offer.machine or session, []).append(session)
        fitting = [
            (_scarce(sum((self.free[session] for session in sessions), Resources())), machine)
            for machine, sessions in machines.items()
            if self._takes(sessions, group)
        ]
        return min(fitting)[1] if fitting else None

    def _takes(self, sessions: Sequence[str], group: Sequence[Need]) -> bool:
        free = [self.free[session] for session in sessions]
        for need in _largest_first(group):
            found = next((n for n, has in enumerate(free) if has.covers(need.resources)), None)
            if found is None:
                return False
            free[found] = free[found].minus(need.resources)
        return True

    def named_worker_for(self, need: Need, names: Sequence[str]) -> str | None:
        """Returns the first of the workers with these names which has room for a host."""
        by_name = {offer.name: session for session, offer in self.offers.items()}
        named = (by_name[name] for name in names if name in by_name)
        return next((session for session in named if self.free[session].covers(need.resources)), None)

    def worker_for(self, need: Need, machine: str | None) -> str | None:
        """Returns the worker for a host, on a given machine if there is one."""
        fitting = [
            session
            for session, offer in self.offers.items()
            if self.free[session].covers(need.resources) and machine in (None, offer.machine or session)
        ]
        if not fitting:
            return None
        if need.spread:
            emptiest = sorted(fitting, key=lambda one: _scarce(self.free[one]), reverse=True)
            return min(emptiest, key=lambda one: (self._is_beside(need, one), *self._near(need, one)))
        if machine is not None:
            return fitting[0]
        return max(fitting, key=lambda one: (self._near(need, one), _scarce(self.free[one])))

    def _is_beside(self, need: Need, session: str) -> bool:
        """Returns whether the other copy of a shard is on the machine: one failure must not cost both."""
        return (other_copy(need.host), self.offers[session].machine) in self._hosts

    def _near(self, need: Need, session: str) -> tuple[int, int]:
        """How many hosts of the group are on the machine, and at the worker."""
        if not need.group:
            return 0, 0
        machine = self.offers[session].machine
        return self._on_machine[need.group, machine], self._groups[need.group, session]


def explained(placed: Placed, offers: Sequence[Offer]) -> str:
    """Words what has no place, with need and have of every worker; "" if everything has one."""
    if not placed.missing:
        return ""
    need = max(placed.missing, key=lambda one: (_scarce(one.resources), one.host))
    others = len(placed.missing) - 1
    also = f" (and {others} more)" if others else ""
    needs, asked = f"{need.host}{also} needs {need.resources}", list(offers)
    if not offers:
        return f"{needs}, and no worker has joined"
    if placed.strict and need.strict and need.workers:
        needs += f" at worker '{need.workers[0]}', for which the plan was made"
        asked = [offer for offer in offers if offer.name == need.workers[0]]
        if not asked:
            joined = ", ".join(sorted(offer.name for offer in offers)[:_MOST_NAMED])
            return (
                f"{needs}, and which has not joined; there are {joined}; start it with --name, or plan "
                "without its name"
            )
    lines = [
        f"{offer.name} has {offer.free} free of {offer.total}"
        for offer in sorted(asked, key=lambda one: one.name)
    ]
    more = f"; and {len(lines) - _MOST_NAMED} more workers" if len(lines) > _MOST_NAMED else ""
    return f"{needs}; {'; '.join(lines[:_MOST_NAMED])}{more}"


def _scarce(resources: Resources) -> tuple[int, int, int]:
    """Amounts in the order in which they are scarce."""
    return resources.gpu, resources.cpu, resources.memory


def _largest_first(needs: Sequence[Need]) -> list[Need]:
    return sorted(
        sorted(needs, key=lambda one: one.host), key=lambda one: _scarce(one.resources), reverse=True
    )
