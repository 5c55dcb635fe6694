"""The book of work: the units of a run that are done, free, or leased to a replica.

Units are numbered through all of the work: steps of epochs, or units of one evaluation after another. A
replica numbers its own steps, and each unit that it takes is its next step. It takes from a range that is
kept for it, so that it gets sequential units again and again; then from what is anybody's, in order; then the
end of the longest range of another one. What it has not done is given back when it leaves, and the numbers of
its steps are not used again. The book must not know time, or what a unit is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

from partita.engine.protocol.message_base import UnitRange
from partita.engine.protocol.ranges import Ranges


@dataclass(slots=True, eq=False)
class Held:
    """Units `[start, stop)` that a replica has, as its steps from `step` on.

    `order` is the message by which it was told, and `unfinished` the machines that have not answered, where
    each unit is ordered by itself.
    """

    step: int
    start: int
    stop: int
    order: Any = None
    unfinished: set[int] = field(default_factory=set)

    @property
    def end(self) -> int:
        """The number of the step after these."""
        return self.step + self.stop - self.start

    def unit(self, step: int) -> int:
        """The first unit of a step, which is one of these or the one after them."""
        return self.start + step - self.step

    def rest(self, step: int) -> Held:
        """Those from a step on."""
        return Held(step, self.unit(step), self.stop)


@dataclass(slots=True, eq=False)
class Holder:
    """The units of a replica that are not done, by the first step of each range, in order.

    `next` is the number of its next step, and `done` that of the units it has done.
    """

    open: dict[int, Held] = field(default_factory=dict)
    next: int = 0
    done: int = 0

    @property
    def first_open(self) -> int:
        """The first step that is not done."""
        return next(iter(self.open), self.next)

    @property
    def n_open(self) -> int:
        """The number of units that are not done."""
        return sum(held.stop - held.start for held in self.open.values())


H = TypeVar("H", bound=Holder)


class WorkBook(Generic[H]):
    """The units of a run.

    Attributes:
        units: their number.
        done: those that need not be leased again.
        free: the number of units that nobody has.
        holders: the replicas that may have units.
    """

    def __init__(self, done: Iterable[UnitRange] = ()) -> None:
        """Creates a run without work, of which some units will be done already."""
        self.units = 0
        self.done: Final = Ranges(done)
        self.free = 0
        self.holders: Final[dict[int, H]] = {}
        self._anybodys: Final = Ranges()
        self._kept: Final[dict[int, list[int]]] = {}  # [start, stop) for a replica, not empty
        self._longest: list[tuple[int, int]] = []  # (-length, replica), a heap; lengths may be old, too large

    def extend(self, units: int, *, among: Sequence[int] = ()) -> bool:
        """Adds units up to this number; those that are not done are anybody's, or divided among replicas.

        Returns:
            whether any unit is free.
        """
        first, self.units = self.units, max(self.units, units)
        if among:
            n, new = len(among), units - first
            ranges = ([first + new * k // n, first + new * (k + 1) // n] for k in range(n))
            self._kept.update((r, kept) for r, kept in zip(among, ranges, strict=True) if kept[0] < kept[1])
            self._longest = [(start - stop, replica) for replica, (start, stop) in self._kept.items()]
            heapq.heapify(self._longest)
            self.free += new
        else:
            for start, stop in self.done.gaps(first, units):
                self._add(start, stop)
        return self.free > 0

    def settle(self, done: Iterable[UnitRange]) -> None:
        """Notes that units are done already: ascending ranges, of which no replica has any."""
        for start, stop in done:
            for new in [*self.done.gaps(start, stop)]:
                self._anybodys.discard(*new)
                self.done.add(*new)
        self.free = self._anybodys.size

    def withdraw(self) -> None:
        """Makes all units that are free needless."""
        while self._anybodys:
            self._anybodys.take(self._anybodys.size)
        self._kept.clear()
        self.free = 0

    def _add(self, start: int, stop: int) -> None:
        self._anybodys.add(start, stop)
        self.free += stop - start

    # Leases.

    def grant(self, replica: int, most: int) -> Held | None:
        """Leases the next units to a replica, at most so many; a range goes on where the last one ends."""
        if not self.free or most < 1:
            return None
        holder, (start, stop) = self.holders[replica], self._take(replica, most)
        last = next(reversed(holder.open.values()), None)
        if last is None or last.stop != start or last.end != holder.next:
            return self.lease(replica, start, stop)
        last.stop = stop
        holder.next += stop - start
        return last

    def next_unit(self, replica: int) -> Held | None:
        """Leases the next unit to a replica, by itself."""
        return self.lease(replica, *self._take(replica, 1)) if self.free else None

    def lease(self, replica: int, start: int, stop: int) -> Held:
        """Leases units that are not free to a replica: also those that another one has, as a backup."""
        holder = self.holders[replica]
        held = holder.open[holder.next] = Held(holder.next, start, stop)
        holder.next += stop - start
        return held

    def _take(self, replica: int, most: int) -> UnitRange:
        kept = self._kept.get(replica)
        if kept is None and self._anybodys:
            start, stop = self._anybodys.take(most)
        elif kept is not None:
            start, stop = kept[0], min(kept[0] + most, kept[1])
            kept[0] = stop
        else:
            replica = self._longest_range()
            kept = self._kept[replica]
            kept[1] -= 1
            start, stop = kept[1], kept[1] + 1
        if kept is not None and kept[0] == kept[1]:
            del self._kept[replica]
        self.free -= stop - start
        return start, stop

    def _longest_range(self) -> int:
        """Updates lengths in the heap when they come to the top: ranges only become shorter."""
        while True:
            length, replica = self._longest[0]
            start, stop = self._kept.get(replica, (0, 0))
            if stop - start == -length:
                return replica
            if start < stop:
                heapq.heapreplace(self._longest, (start - stop, replica))
            else:
                heapq.heappop(self._longest)

    def complete(self, replica: int, below: int) -> None:
        """Notes that the units of a replica's steps below this one are done."""
        holder = self.holders[replica]
        while holder.open and holder.first_open < below:
            held = holder.open.pop(holder.first_open)
            cut = held.unit(below) if below < held.end else held.stop
            self.done.add(held.start, cut)
            holder.done += cut - held.start
            if cut < held.stop:
                holder.open = {below: held.rest(below), **holder.open}

    def give_back(self, replica: int) -> int:
        """Frees what a replica has not done, since it has left. Returns the number of units."""
        holder = self.holders[replica]
        units = holder.n_open
        for held in holder.open.values():
            self._add(held.start, held.stop)
        holder.open.clear()
        return units

    def release(self, replica: int) -> None:
        """Makes what is kept for a replica anybody's."""
        if replica in self._kept:
            self._anybodys.add(*self._kept.pop(replica))

    def is_free(self, unit: int) -> bool:
        """Returns whether nobody has a unit."""
        kept = self._kept.values()
        return unit in self._anybodys or any(start <= unit < stop for start, stop in kept)

    def has(self, unit: int) -> bool:
        """Returns whether a replica has a unit."""
        every = (held for holder in self.holders.values() for held in holder.open.values())
        return any(held.start <= unit < held.stop for held in every)

    def add(self, unit: int) -> None:
        """Frees a unit that no replica has any more, unless it is free."""
        if not self.is_free(unit) and not self.has(unit):
            self._add(unit, unit + 1)

    def validate(self, *, once: bool = True) -> None:
        """Checks that each unit is done, free, or leased to one replica; `once`: without backups.

        Raises:
            AssertionError: one is not.
        """
        kept = [(start, stop) for start, stop in self._kept.values()]
        free = sorted([*self._anybodys, *kept])
        assert self.free == sum(stop - start for start, stop in free), (self.free, free)
        assert all(a[1] <= b[0] for a, b in pairwise(free)), free
        ranges = [*self.done, *free]
        for holder in self.holders.values():
            ranges += [(held.start, held.stop) for held in holder.open.values()]
            steps = [number for held in holder.open.values() for number in (held.step, held.end)]
            assert steps == sorted(steps) and all(step <= holder.next for step in steps), steps
            assert all(step == held.step for step, held in holder.open.items()), holder.open
        if once:
            counted = sum(min(stop, self.units) - start for start, stop in ranges if start < self.units)
            assert counted == self.units, (counted, self.units)
            assert all(a[1] <= b[0] for a, b in pairwise(sorted(ranges))), ranges
