"""Work leased in ranges: the units of all epochs, in order, to whoever takes the next ones.

A unit is the examples of one step. A replica numbers its own steps, and each unit that it is leased is its
next step: so its steps have the same examples in every process of it, whatever other replicas do. A unit is
done when its step's gradient is held by the shards, and not before. A replica that leaves gives back what is
not done, and its numbers are not used again: a shard may hold a gradient of one of them.

`WorkLeases` is the coordinator's side, `LeasedSteps` a part's. Neither knows examples or messages' ways.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from partita.engine.protocol.messages import Lease, UnitRange


class Ranges:
    """A set of whole numbers, as ascending ranges `[start, stop)` of which none touches the next."""

    def __init__(self, ranges: Iterable[UnitRange] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.size = 0
        for start, stop in ranges:
            self.add(start, stop)

    def __iter__(self) -> Iterator[UnitRange]:
        return iter(zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, stop: int) -> None:
        """Adds a range, none of whose numbers is in the set."""
        if start >= stop:
            return
        n = bisect_right(self._starts, start)
        before = n > 0 and self._stops[n - 1] == start
        after = n < len(self._starts) and self._starts[n] == stop
        assert n == 0 or self._stops[n - 1] <= start, (start, stop, self._stops[n - 1])
        assert n == len(self._starts) or stop <= self._starts[n], (start, stop, self._starts[n])
        self.size += stop - start
        if before and after:
            self._stops[n - 1] = self._stops.pop(n)
            del self._starts[n]
        elif before:
            self._stops[n - 1] = stop
        elif after:
            self._starts[n] = start
        else:
            self._starts.insert(n, start)
            self._stops.insert(n, stop)

    def take(self, most: int) -> UnitRange:
        """Removes the first range, or its first `most` numbers, from a set that is not empty."""
        start, stop = self._starts[0], self._stops[0]
        end = min(start + most, stop)
        self.size -= end - start
        if end < stop:
            self._starts[0] = end
        else:
            del self._starts[0], self._stops[0]
        return start, end

    def gaps(self, first: int, size: int) -> Iterator[UnitRange]:
        """Yields the ranges of the numbers from `first` on and below `size` that are not in the set."""
        for start, stop in self:
            if first < min(start, size):
                yield first, min(start, size)
            first = max(first, stop)
        if first < size:
            yield first, size


@dataclass(slots=True, eq=False)
class _Holder:
    """The steps of a replica: those that are not done, and the number of the next one."""

    open: deque[Lease] = field(default_factory=deque)
    next: int = 0
    done: int = 0


class WorkLeases:
    """The units of a run: done, leased to a replica, or free.

    Attributes:
        done: units whose gradients are held by the shards.
    """

    def __init__(self, units: int, replicas: int, *, done: Iterable[UnitRange] = ()) -> None:
        """Creates a run of so many units, of which some are done."""
        self.units = 0
        self.done: Final = Ranges(done)
        self._free: Final = Ranges()
        self._holders: Final = [_Holder() for _ in range(replicas)]
        self.extend(units)

    def extend(self, units: int) -> bool:
        """Makes a run of so many units. Returns whether any of those that are new is not done."""
        for start, stop in self.done.gaps(self.units, units):
            self._free.add(start, stop)
        self.units = max(self.units, units)
        return bool(self._free.size)

    @property
    def free(self) -> int:
        """The number of units that nobody has."""
        return self._free.size

    def next_step(self, replica: int) -> int:
        """Returns the number of the replica's next step that has no unit."""
        return self._holders[replica].next

    def first_open(self, replica: int) -> int:
        """Returns the number of the replica's first step that is not done."""
        holder = self._holders[replica]
        return holder.open[0].step if holder.open else holder.next

    def n_open(self, replica: int) -> int:
        """Returns the number of the replica's steps that are not done."""
        return sum(lease.stop - lease.start for lease in self._holders[replica].open)

    def steps_done(self, replica: int) -> int:
        """Returns the number of units that the replica has done."""
        return self._holders[replica].done

    def open(self, replica: int, step: int = 0) -> tuple[Lease, ...]:
        """Returns the leases of a replica that are not done, from a step on, in the order of its steps."""
        return tuple(lease for lease in self._holders[replica].open if lease.end > step)

    def grant(self, replica: int, most: int) -> Lease | None:
        """Leases the next units to a replica, at most so many; None where nobody needs them done."""
        if not self._free.size or most < 1:
            return None
        holder = self._holders[replica]
        start, stop = self._free.take(most)
        last = holder.open[-1] if holder.open else None
        if last is not None and last.stop == start and last.end == holder.next:  # it goes on where that ends
            holder.open.pop()
            granted = Lease(last.step, last.start, stop)
        else:
            granted = Lease(holder.next, start, stop)
        holder.open.append(granted)
        holder.next += stop - start
        return granted

    def complete(self, replica: int, below: int) -> None:
        """Notes that the units of a replica's steps below this one are done."""
        holder = self._holders[replica]
        while holder.open and holder.open[0].step < below:
            lease = holder.open.popleft()
            cut = min(lease.start + below - lease.step, lease.stop)
            self.done.add(lease.start, cut)
            holder.done += cut - lease.start
            if cut < lease.stop:
                holder.open.appendleft(Lease(below, cut, lease.stop))

    def give_back(self, replica: int) -> int:
        """Frees what a replica has not done, since it has left. Returns the number of units."""
        holder, units = self._holders[replica], 0
        for lease in holder.open:
            self._free.add(lease.start, lease.stop)
            units += lease.stop - lease.start
        holder.open.clear()
        return units

    def validate(self) -> None:
        """Checks that each unit is done, free, or leased to one replica. Raises AssertionError."""
        ranges = [*self.done, *self._free]
        for holder in self._holders:
            ranges += [(lease.start, lease.stop) for lease in holder.open]
            steps = [number for lease in holder.open for number in (lease.step, lease.end)]
            assert steps == sorted(steps) and all(step <= holder.next for step in steps), steps
        ranges.sort()
        assert not ranges or (ranges[0][0] == 0 and ranges[-1][1] >= self.units), ranges
        assert all(a[1] == b[0] for a, b in pairwise(ranges)), ranges


class LeasedSteps:
    """The units of a part's steps, from the orders of the coordinator.

    Attributes:
        stop: the steps below this one have a unit.
        is_last: whether no more will come, as far as is known.
    """

    def __init__(self) -> None:
        self.stop = 0
        self.is_last = False
        self._known = False
        self._leases: list[Lease] = []

    def take(self, leases: Sequence[Lease], stop: int, *, is_last: bool) -> bool:
        """Adds leases; returns whether anything is new. An order that was overtaken changes nothing."""
        if self._known and (stop, is_last) <= (self.stop, self.is_last):
            return False
        self._known = True
        known = {lease.step: lease for lease in self._leases}
        for lease in leases:
            before = known.get(lease.step)
            if before is None or lease.stop > before.stop:
                known[lease.step] = lease
        self._leases = sorted(known.values(), key=lambda lease: lease.step)
        self.stop, self.is_last = stop, is_last
        return True

    def unit(self, step: int) -> int:
        """Returns the unit of a step, and forgets those of the steps before it."""
        leases = self._leases
        n = bisect_right(leases, step, key=lambda lease: lease.step) - 1
        assert n >= 0 and step < leases[n].end, f"step {step} has no unit: {leases}"
        del leases[:n]
        return leases[0].start + step - leases[0].step
