"""The book of work that all replicas of a view do together: a step is a joined batch of the view's replicas.

Units are examples, counted from the first epoch on. A view leases all that are left, and its successor goes
on where it ends: forward, or back where the last steps are lost. So no example of an epoch is left out or
done twice, however many replicas each view has. The book must not know who they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from partita.engine.protocol.views import JoinedBatches
from partita.engine.protocol.work_book import Held, Holder, WorkBook

_VIEW: Final = 0


@dataclass(slots=True, eq=False)
class JoinedUnits(Held):
    """Units that so many replicas do together, as joined batches from `step` on."""

    batches: JoinedBatches = field(kw_only=True)
    replicas: int = field(kw_only=True)

    @property
    @override
    def end(self) -> int:
        return self.step + self.batches.steps(self.start, self.stop, self.replicas)

    @override
    def unit(self, step: int) -> int:
        return self.batches.position(self.start, step - self.step, self.replicas)

    @override
    def rest(self, step: int) -> JoinedUnits:
        return JoinedUnits(step, self.unit(step), self.stop, batches=self.batches, replicas=self.replicas)


class JoinedBook(WorkBook[Holder]):
    """The units of one run.

    Attributes:
        batches: of the run.
    """

    def __init__(self, batches: JoinedBatches, position: int) -> None:
        """Creates a run without work, of which the units below `position` will be done already."""
        super().__init__(((0, position),))
        self._wanted = 0
        self.batches: Final = batches
        self._start: Final = position
        self._views: list[JoinedUnits] = []  # what each had leased; a view that began later ended later
        self.holders[_VIEW] = Holder()

    @override
    def extend(self, units: int, *, among: Sequence[int] = ()) -> bool:
        """Adds units up to this number, see `WorkBook`. A view rounds them up to whole steps of its own."""
        self._wanted = max(self._wanted, units)
        return super().extend(units, among=among)

    def renew(self, step: int, replicas: int, *, stops: bool = False) -> JoinedUnits:
        """Leases what is left at a step to a view of so many replicas, in whole steps. `stops`: nothing.

        Views that began later are forgotten, since their steps are done again. Before the first step that is
        known lies only the state from which the run began.
        """
        while self._views and self._views[-1].step > step:
            self._views.pop()
        position = self._views[-1].unit(step) if self._views else self._start
        if position >= self.done.size:
            self.complete(_VIEW, step)
        self.give_back(_VIEW)
        self._add(*self.done.cut(position))
        holder, stop = self.holders[_VIEW], position
        if position < self._wanted and not stops:
            steps = self.batches.steps(position, self._wanted, replicas)
            stop = self.batches.position(position, steps, replicas)
            super().extend(stop)
            self._take(_VIEW, stop - position)
        leased = JoinedUnits(step, position, stop, batches=self.batches, replicas=replicas)
        holder.open, holder.next = ({step: leased} if stop > position else {}), leased.end
        self._views.append(leased)
        return leased

    def forget(self, step: int) -> None:
        """Forgets views that ended before a step, below which none will begin."""
        while len(self._views) > 1 and self._views[1].step <= step:
            del self._views[0]

    def position(self, step: int) -> int:
        """The first unit of a step of the present view, or of one before it."""
        return next(view for view in reversed(self._views) if view.step <= step).unit(step)

    @override
    def validate(self, *, once: bool = True) -> None:
        """Checks that each unit is done, leased to the view, or free. Raises AssertionError."""
        super().validate(once=once)
        assert [*self.done] in ([], [(0, self.done.size)]), [*self.done]
