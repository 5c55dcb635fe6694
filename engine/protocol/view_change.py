"""The change from one view to the next: all parts say how far they are, and that decides who copies to whom.

After each step all replicas have the same state. So it is there as long as each machine's part of it is, in
whichever replica: one replica that is alive is enough, and so are parts of several.

It must not know why the view changes, or when a message is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import part_name
from partita.engine.protocol.replica_messages import Pause, Paused, StateCopy


@dataclass(frozen=True, slots=True)
class Agreement:
    """The state from which a view goes on: `step` steps done, and the copies that come first.

    `points`: safe points after the first one of its step. `loss_scale`: of the state.
    """

    step: int
    copies: tuple[StateCopy, ...]
    points: int = 0
    loss_scale: ScaleState | None = None


Place: TypeAlias = tuple[int, int]
"""The place of a state in a run: steps done, and safe points after the first one of the last of them."""

_NOWHERE: Final = (-1, 0)


def _at(answer: Paused) -> Place | None:
    return None if answer.step is None else (answer.step, answer.points)


def _may_reach(answer: Paused) -> Place | None:
    """The place of the next safe point, if a part reaches it by itself."""
    if answer.step is None or not answer.completes:
        return None
    return (answer.step, answer.points + 1) if answer.within else (answer.step + 1, 0)


@dataclass(slots=True)
class ViewChange:
    """A view that was announced and is not published.

    Args:
        number: of the view.
        members: its replicas, ascending.
        machines: of each replica.
        asked_at: when the parts were asked last (seconds).
        groups: of replicas with parameters of their own: replica r is of group r modulo this number.
    """

    number: int
    members: tuple[int, ...]
    machines: int
    asked_at: float
    groups: int = 1
    _answers: dict[str, Paused] = field(default_factory=dict)

    @property
    def missing(self) -> Iterator[str]:
        """The parts that have not answered."""
        names = (part_name(replica, m) for replica in self.members for m in range(self.machines))
        return (name for name in names if name not in self._answers)

    @property
    def is_complete(self) -> bool:
        """Returns whether all parts have answered."""
        return len(self._answers) == len(self.members) * self.machines

    @property
    def question(self) -> Pause:
        """The message that every part is sent until it has answered."""
        return Pause(self.number)

    def take(self, part: str, answer: Paused) -> bool:
        """Notes the answer of a member's part. Returns whether it was the last one missing."""
        if answer.view != self.number or part in self._answers:
            return False
        self._answers[part] = answer
        return self.is_complete

    def agree(self) -> Agreement | None:
        """Returns what the view goes on from; None: no whole state is left.

        That is the furthest state of a whole replica; or of parts of several, if that is further.
        """
        reached = {replica: self._reached(self._parts(replica)) for replica in self.members}
        whole = {replica: step for replica, step in reached.items() if step is not None}
        place, of_parts = max(whole.values(), default=_NOWHERE), self._reached_by_parts()
        if of_parts > place:
            copies = [copy for machine in range(self.machines) for copy in self._to_parts(of_parts, machine)]
            return Agreement(of_parts[0], tuple(copies), of_parts[1], self._loss_scale(of_parts))
        if not whole:
            return None
        sources = self._trusted([replica for replica, its in whole.items() if its == place])
        return Agreement(place[0], tuple(self._copies(place, sources)), place[1], self._loss_scale(place))

    def _loss_scale(self, place: Place) -> ScaleState | None:
        """The loss scale of a state, of which one part at least is there already."""
        return next((one.loss_scale for one in self._answers.values() if _at(one) == place), None)

    def _trusted(self, sources: list[int]) -> list[int]:
        """The replicas of those at a place whose states the others of their groups have, too.

        A checkpoint has the state of the first group: where some parts have read one, and others have not,
        theirs is of none.
        """
        loaded = {replica: sum(answer.loaded for answer in self._parts(replica)) for replica in sources}
        if self.groups == 1 or min(loaded.values()) == self.machines:
            return sources
        return [replica for replica in sources if not loaded[replica]] or sources[:1]

    def _reached_by_parts(self) -> Place:
        """The furthest state of a part that one of each machine has, or reaches by itself.

        States that replicas have made alone do not go together.
        """
        if any(answer.alone for answer in self._answers.values()):
            return _NOWHERE
        places = {place for answer in self._answers.values() if (place := _at(answer)) is not None}
        for place in sorted(places, reverse=True):
            if all(self._sources(place, machine) for machine in range(self.machines)):
                return place
        return _NOWHERE

    def _sources(self, place: Place, machine: int) -> list[int]:
        """The replicas whose part of a machine has a state, or reaches it by itself."""
        answers = ((replica, self._answers[part_name(replica, machine)]) for replica in self.members)
        return [replica for replica, answer in answers if place in (_at(answer), _may_reach(answer))]

    def _to_parts(self, place: Place, machine: int) -> Iterator[StateCopy]:
        sources = self._sources(place, machine)
        behind = [replica for replica in self.members if replica not in sources]
        for n, replica in enumerate(behind):
            yield StateCopy(machine, sources[n % len(sources)], replica)

    def _is_alone(self, replica: int) -> bool:
        return any(answer.alone for answer in self._parts(replica))

    def _parts(self, replica: int) -> list[Paused]:
        return [self._answers[part_name(replica, machine)] for machine in range(self.machines)]

    @staticmethod
    def _reached(parts: Sequence[Paused]) -> Place | None:
        """The state that all parts of a replica have, or reach by themselves; None without one."""
        furthest = max((place for part in parts if (place := _at(part)) is not None), default=(0, 0))
        there = [part for part in parts if furthest in (_at(part), _may_reach(part))]
        return furthest if len(there) == len(parts) else None

    def _copies(self, place: Place, sources: Sequence[int]) -> Iterator[StateCopy]:
        apart = self.groups > 1
        behind = [
            (replica, machine)
            for replica in self.members
            if replica not in sources
            for machine in range(self.machines)
            if _at(self._answers[part_name(replica, machine)]) != place or self._is_alone(replica) or apart
        ]
        turns = dict.fromkeys(range(self.machines), 0)
        for replica, machine in behind:
            found = self._of_group(replica, sources)
            yield StateCopy(machine, found[turns[machine] % len(found)], replica)
            turns[machine] += 1

    def _of_group(self, replica: int, sources: Sequence[int]) -> Sequence[int]:
        """The sources of a replica's group; the same one for all of a group that has none."""
        if self.groups == 1:
            return sources
        return [one for one in sources if (one - replica) % self.groups == 0] or sources[:1]
