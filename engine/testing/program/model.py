"""The reference model of a run of programs: views, work, and the state that every part should have.

It sees what crosses the surface of the machines and nothing inside. The state after a step is settled by the
first replica that reaches it, and compared with the reference; every other one must have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import machine_of, part_indices, part_name
from partita.engine.protocol.program_effects import STEPS_OF_A_VIEW, RunStep
from partita.engine.protocol.replica_messages import View
from partita.engine.protocol.views import JoinedBatches
from partita.engine.testing.invariants import ProcessId, Writers, require
from partita.engine.testing.program.lockstep import State

Known: TypeAlias = tuple[tuple[float | None, ...], ...]
"""The vectors of a part's state, as far as it has them."""

NextStates: TypeAlias = Callable[[View, State], Sequence[State]]
"""The states that a step of a view may lead to, from the state before it; none: it may be any."""

ROUNDING: Final = 1e-9
"""Largest difference to the reference: sums may be taken in another order there."""


class ProgramModel:
    """The reference of one schedule.

    Attributes:
        positions: by step, the examples before it, since the first epoch began.
        apart: whether replicas compute steps alone, and so have states of their own.
    """

    def __init__(
        self,
        start: State,
        places: Sequence[Sequence[int]],
        *,
        batches: JoinedBatches,
        next_states: NextStates,
        backup_workers: int,
        writers: Writers,
        rounds: bool = False,
        loss_scale: Callable[[int], ScaleState | None] = lambda step: None,
    ) -> None:
        """A model of a run that begins.

        Args:
            start: its state.
            places: by machine, the place of each of its numbers among those of all machines.
            batches: of the run.
            next_states: the reference.
            backup_workers: replicas that a sum leaves out, those that come last.
            writers: the processes that may act.
            rounds: whether replicas compute portions of clients in a step, and some of them may have none.
            loss_scale: of a step; None: losses are not scaled.
        """
        self.positions: dict[int, int] = {0: 0}
        self.apart = False
        size = 1 + max(place for machine in places for place in machine)
        self._places: Final = places
        self._states: dict[int, list[list[float | None]]] = {0: [[None] * size for _ in start[0]]}
        self._since: dict[int, int] = {}  # of steps that changed nothing, the one before them that did
        for machine, vectors in zip(places, start, strict=True):
            for whole, vector in zip(self._states[0], vectors, strict=True):
                for place, number in zip(machine, vector, strict=True):
                    whole[place] = number
        self._batches: Final = batches
        self._next_states: Final = next_states
        self._backup_workers: Final = backup_workers
        self._writers: Final = writers
        self._rounds: Final = rounds
        self._loss_scale: Final = loss_scale
        self._views: dict[int, View] = {}
        self._places_of: dict[tuple[int, int], tuple[int, ...]] = {}  # by view and machine
        self._members: dict[int, Mapping[str, int]] = {}  # by view: incarnations of its parts
        self._entered: dict[ProcessId, int] = {}  # the view that a part is in
        self._at: dict[ProcessId, int | None] = {}  # steps in the state of a part
        self._done: dict[tuple[int, int], set[int]] = {}  # by view and step: ranks that have computed it
        self._running: dict[int, tuple[int, int]] = {}  # by step: view and replicas
        self._agreed: dict[tuple[int, int], dict[tuple[str, int], float]] = {}  # by step and safe point

    # The coordinator.

    def publishes(self, view: View, current: Mapping[str, int], *, machine: int) -> None:
        """Requires that a number stands for one view, of whole replicas that are each seated once.

        The parts of each machine get the places of their own.
        """
        places = self._places_of.setdefault((view.number, machine), view.places)
        require(places == view.places, "V1", view, "has other places before:", places)
        view, known = replace(view, places=()), self._views.get(view.number)
        if known is not None:
            require(known == view, "V1", view, "has the number of", known)
            return
        require(
            view.number > max(self._views, default=0), "V1", view, "comes after", max(self._views, default=0)
        )
        require(len(set(view.members)) == len(view.members), "V2", view, "seats a replica twice")
        require(bool(view.members), "V2", view, "has no members")
        self._views[view.number] = view
        self._members[view.number] = {
            name: incarnation
            for name, incarnation in current.items()
            if (part_indices(name) or (-1,))[0] in view.members
        }
        settled = self.positions.get(view.step)
        require(settled == view.position, "W1", view, "begins at", view.position, "and step is at", settled)
        ahead = [
            part
            for part, step in self._at.items()
            if self._members[view.number].get(part[0]) == part[1] and (step or 0) > view.step
            if not any(part[0] == part_name(copy.target, copy.machine) for copy in view.copies)
        ]
        require(not ahead, "V3", view, "goes back, and", ahead, "have done more")
        for place in [place for place in self._agreed if place > (view.step, view.points)]:
            del self._agreed[place]
        for step in [step for step in self.positions if step > view.step]:
            del self.positions[step]
            self._states.pop(step, None)

    def whole(self, parts: Iterable[ProcessId]) -> int:
        """Returns the steps of the furthest state that is whole among these parts; 0: none, or the start."""
        steps: dict[int, set[int]] = {machine: set() for machine in range(len(self._places))}
        for part in parts:
            if (step := self._at.get(part)) is not None:
                steps[machine_of(part[0])].add(step)
        return 0 if self.apart else max(set.intersection(*steps.values()), default=0)

    # Parts.

    def enters(self, part: ProcessId, number: int) -> None:
        """Requires that a part begins a view of which it is a member."""
        view = number // STEPS_OF_A_VIEW
        require(view in self._views, "V1", part, "begins view", view, "which nobody published")
        member = self._members[view].get(part[0])
        require(member == part[1], "V2", part, "begins view", view, "of which", member, "is a member")
        require(view > self._entered.get(part, 0), "V1", part, "begins view", view, "again")
        self._entered[part] = view

    def begins(self, part: ProcessId, replica: int, step: RunStep) -> None:
        """Requires that a part computes the next step of its view, over the examples of its rank (W1)."""
        self.apart = self.apart or step.alone
        number = step.number // STEPS_OF_A_VIEW
        require(number == self._entered.get(part), "V1", part, "computes in view", number)
        view = self._views[number]
        if step.teaches:
            is_later = step.position >= self.positions.get(step.step, 0)
            require(step.rank < len(view.members) == step.replicas and is_later, "W1", part, step)
            return
        rank = view.members.index(replica)
        require((step.rank, step.replicas) == (rank, len(view.members)), "W1", part, step, "in", view.members)
        if self._writers.is_current(part) and self._may_lead_on(part):
            settled = self.positions.get(step.step)
            require(step.position == settled, "W1", part, "computes", step, "and the step is at", settled)
            self._running[step.step] = (number, step.replicas)
            wanted = self._loss_scale(step.step)
            same = wanted is None or step.loss_scale == wanted.scale
            require(same, "S1", part, "computes", step, "and the loss scale is", wanted)

    def requires_scale(self, part: ProcessId, step: int, found: ScaleState | None) -> None:
        """Requires that a file of the state after some steps has the loss scale of then (S1)."""
        wanted = self._loss_scale(step)
        same = found == wanted or (step == 0 and found is None)
        require(same, "S1", part, "writes the loss scale", found, "after step", step, "not", wanted)

    def computed(self, replica: int, step: RunStep) -> None:
        """Notes a share of a step's examples."""
        number = step.number // STEPS_OF_A_VIEW
        self._done.setdefault((number, step.step), set()).add(replica)

    def accepts(self, part: ProcessId, payload: Any) -> None:
        """Requires that numbers of another part are of the view that this one is in (V4)."""
        view = self._entered.get(part, 0)
        require(payload.view == view, "V4", part, "takes numbers of view", payload.view, "in view", view)
        name, incarnation = payload.sender
        member = self._members[view].get(name)
        require(member == incarnation, "V4", part, "takes numbers of", payload.sender, "in view", view)

    def receives(self, part: ProcessId) -> None:
        """Notes that the state of another replica takes the place of a part's own."""
        self._at[part] = None

    def reaches(self, part: ProcessId, machine: int, step: int, state: Known) -> None:
        """Requires the same bits in all replicas after a step (R1), near the reference's (R2)."""
        if not self._writers.is_current(part) or not self._may_lead_on(part):
            return
        self._at[part] = step
        if step not in self._states:
            first = max(self._states) + 1 if self._rounds else step
            for settled in range(first, step + 1):
                self._settle_step(settled)
                if settled > first:  # nobody has computed in a round of no clients: nothing changes
                    self._states[settled], self._since[settled] = self._states[first], first
        if self.apart:
            return
        known = self._states[step]
        whole = not any(None in vector for vector in known)
        for vector, numbers in zip(known, state, strict=True):
            for place, number in zip(self._places[machine], numbers, strict=True):
                if number is not None:
                    held = vector[place]
                    same = held is None or held == number
                    require(same, "R1", part, "has", number, "at", place, "after step", step, "not", held)
                    vector[place] = number
        if not whole and not any(None in vector for vector in known):
            self._compare(self._since.get(step, step))

    def agrees(
        self, part: ProcessId, machine: int, place: tuple[int, int], vectors: Mapping[str, Sequence[float]]
    ) -> None:
        """Requires the same bits of vectors in all replicas after a further safe point of a step (R3)."""
        if not self._writers.is_current(part) or not self._may_lead_on(part):
            return
        known = self._agreed.setdefault(place, {})
        for name, numbers in vectors.items():
            for where, number in zip(self._places[machine], numbers, strict=True):
                held = known.setdefault((name, where), number)
                require(held == number, "R3", part, "has", number, "in", name, "after", place, "not", held)

    def _may_lead_on(self, part: ProcessId) -> bool:
        """Returns whether what a part does may count: its replica has not left since the part's last view."""
        if part not in self._entered:
            return True
        return self._members[max(self._views)].get(part[0]) == part[1]

    def _settle_step(self, step: int) -> None:
        """Adds the examples of a step whose sum is complete: each share must have been computed (W2)."""
        if self._rounds:  # R2 says whether the right portions were computed
            number = max(self._views)
            self._running[step - 1] = number, len(self._views[number].members)
        require(step - 1 in self._running, "W2", "step", step - 1, "ends, and was never computed")
        number, replicas = self._running[step - 1]
        missing = set(self._views[number].members) - self._done.get((number, step - 1), set())
        enough = self.apart or self._rounds or len(missing) <= self._backup_workers
        require(enough, "W2", "step", step - 1, "ends without the examples of replicas", missing)
        self.positions[step] = self._batches.after(self.positions[step - 1], replicas)
        self._states[step] = [[None] * len(vector) for vector in self._states[step - 1]]

    def _compare(self, step: int) -> None:
        number, _ = self._running[step - 1]
        view = self._views[number]
        position = self.positions[step - 1]
        before = View(number, view.members, 0, step - 1, position, view.until, scale=view.scale)
        before = replace(before, loss_scale=self._loss_scale(step - 1))
        expected = [_flat(state) for state in self._next_states(before, self.state(step - 1))]
        if not expected:
            return
        for n, held in enumerate(_flat(self.state(step))):
            wanted = [state[n] for state in expected]
            near = any(abs(held - one) <= ROUNDING * (1 + abs(one)) for one in wanted)
            require(near, "R2", "a part has", held, "after step", step, "and should have", wanted)

    def state(self, step: int) -> State:
        """The state after a step, by machine."""
        vectors: Any = self._states[step]
        return tuple(
            tuple(tuple(vector[place] for place in places) for vector in vectors) for places in self._places
        )

    # Files, and the end.

    def commits(self, step: int, files: Sequence[tuple[int, Mapping[int, Sequence[float]]]]) -> None:
        """Requires that files (machine, its numbers by place) hold the state after a step, all of it (I5)."""
        require(step in self._states, "I5", "a checkpoint of step", step, "which is not done")
        known, covered = self._states[step], set[int]()
        for machine, contents in files:
            for i, numbers in contents.items():
                place = self._places[machine][i]
                wanted = [vector[place] for vector in known]
                same = self.apart or [*numbers] == wanted
                require(same, "I5", "a file has", numbers, "at", place, "not", wanted)
                covered.add(place)
        require(len(covered) == len(known[0]), "I5", "a checkpoint holds only", covered, "of", len(known[0]))

    def ends(self, position: int) -> None:
        """Requires that every example of every epoch was done (W1)."""
        done = self.positions[max(self.positions)]
        require(done == position, "W1", "the run ends at example", done, "of", position)


def _flat(state: State) -> list[float]:
    return [number for machine in state for vector in machine for number in vector]
