"""The reference of leased work: each unit of a run is one step of one replica, and is done (I15).

It sees which unit a part computes in which step, in every process of it. A replica that has left may have
done a unit that another one does again: that is as far as pushes allow.
"""

from __future__ import annotations

from collections.abc import Iterable

from partita.engine.protocol.message_base import UnitRange
from partita.engine.testing.invariants import require


class WorkModel:
    """The units of one run."""

    def __init__(self, units: int, done: Iterable[UnitRange]) -> None:
        """A run of so many units, of which some were done before."""
        before = {unit for start, stop in done for unit in range(start, stop)}
        self._wanted = set(range(units)) - before
        self._unit: dict[tuple[int, int], int] = {}  # of each replica and step
        self._owner: dict[int, tuple[int, int]] = {}  # the replica and step that has a unit
        self._given_back: set[tuple[int, int]] = set()
        self._of_two: set[int] = set()  # units of those
        self._left: dict[int, int] = {}  # replicas that have left, and the incarnation that did so last

    def has_left(self, replica: int) -> bool:
        """Returns whether a replica has left at least once: it does not use some numbers."""
        return replica in self._left

    def computes(self, replica: int, incarnation: int, step: int, unit: int) -> None:
        """Requires that a step has the same unit in each part and process, and no other step has it."""
        if incarnation <= self._left.get(replica, -1):
            self._of_two.add(unit)
            return  # a process that could not be ended goes on
        own = replica, step
        known = self._unit.setdefault(own, unit)
        require(known == unit, "I15", "step", own, "is unit", unit, "and was unit", known)
        require(unit in self._wanted, "I15", "unit", unit, "of step", own, "was done before, or is none")
        owner = self._owner.get(unit, own)
        require(owner == own or owner in self._given_back, "I15", "unit", unit, "is step", own, "and", owner)
        self._owner[unit] = own

    def leaves(self, replica: int, incarnation: int) -> None:
        """Notes that a replica leaves: what it had not done may be done by others."""
        self._left[replica] = incarnation
        self._given_back |= {own for own in self._unit if own[0] == replica}
        self._of_two |= {unit for own, unit in self._unit.items() if own[0] == replica}

    def is_of_two(self, unit: int) -> bool:
        """Returns whether a replica that has left may have done a unit that another one does again."""
        return unit in self._of_two

    def require_computed(self, units: Iterable[UnitRange]) -> None:
        """Requires that each of these units that was not done before has been computed."""
        found = [unit for start, stop in units for unit in range(start, stop) if unit in self._wanted]
        never = [unit for unit in found if unit not in self._owner]
        require(not never, "I15", "units", never, "count as done, and nobody has computed them")
