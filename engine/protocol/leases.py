"""The units of a part's steps, which the coordinator leases in ranges (`work_book`).

A step has the same unit in every process of a part, whatever other replicas do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from partita.engine.protocol.messages import Lease


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

    def following(self, step: int, count: int) -> list[int]:
        """Returns the units of at most so many steps after one, as far as they are leased."""
        found: list[int] = []
        for lease in self._leases:
            first = max(step + 1, lease.step)
            last = min(lease.end, first + count - len(found))
            found += range(lease.start + first - lease.step, lease.start + last - lease.step)
        return found
