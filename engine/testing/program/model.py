"""The reference model of a run of programs: views, work, and the state that every part should have.

It sees what crosses the surface of the machines and nothing inside. The state after a step is settled by the
first replica that reaches it, and compared with the reference; every other one must have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from partita.engine.protocol.messages import View
from partita.engine.protocol.names import part_indices
from partita.engine.protocol.program_effects import STEPS_OF_A_VIEW, RunStep
from partita.engine.protocol.views import JoinedBatches
from partita.engine.testing.invariants import ProcessId, Writers, require
from partita.engine.testing.program.lockstep import State
from partita.engine.testing.program.regression import Vector

ROUNDING: Final = 1e-9
"""Largest difference to the reference: sums may be taken in another order there."""


class ProgramModel:
    """The reference of one schedule.

    Attributes:
        positions: by step, the examples before it, since the first epoch began.
    """

    def __init__(
        self,
        start: State,
        *,
        step: int,
        position: int,
        batches: JoinedBatches,
        next_state: Callable[[View, State], State],
        writers: Writers,
    ) -> None:
        """A model of a run that has done `step` steps, over the examples before `position`."""
        self.positions: dict[int, int] = {step: position}
        self._states: dict[int, dict[int, tuple[Vector, ...]]] = {step: dict(enumerate(start))}
        self._machines: Final = len(start)
        self._batches: Final = batches
        self._next_state: Final = next_state
        self._writers: Final = writers
        self._views: dict[int, View] = {}
        self._members: dict[int, Mapping[str, int]] = {}  # by view: incarnations of its parts
        self._entered: dict[ProcessId, int] = {}  # the view that a part is in
        self._at: dict[ProcessId, int | None] = {}  # steps in the state of a part
        self._done: dict[tuple[int, int], set[int]] = {}  # by view and step: ranks that have computed it
        self._running: dict[int, tuple[int, int]] = {}  # by step: view and replicas

    # The coordinator.

    def publishes(self, view: View, current: Mapping[str, int]) -> None:
        """Requires that a number stands for one view, of whole replicas that are each seated once."""
        known = self._views.get(view.number)
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
        ]
        require(not ahead, "V3", view, "goes back, and", ahead, "have done more")
        for step in [step for step in self.positions if step > view.step]:
            del self.positions[step]
            self._states.pop(step, None)

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
        number = step.number // STEPS_OF_A_VIEW
        require(number == self._entered.get(part), "V1", part, "computes in view", number)
        view = self._views[number]
        rank = view.members.index(replica)
        require((step.rank, step.replicas) == (rank, len(view.members)), "W1", part, step, "in", view.members)
        if self._writers.is_current(part):
            settled = self.positions.get(step.step)
            require(step.position == settled, "W1", part, "computes", step, "and the step is at", settled)
            self._running[step.step] = (number, step.replicas)

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

    def reaches(self, part: ProcessId, machine: int, step: int, state: tuple[Vector, ...]) -> None:
        """Requires the same bits in all replicas after a step (R1), near the reference's (R2)."""
        if not self._writers.is_current(part):
            return
        self._at[part] = step
        if step not in self._states:
            self._settle_step(step)
        states = self._states[step]
        if machine not in states:
            states[machine] = state
            if len(states) == self._machines:
                self._compare(step)
            return
        held = states[machine]
        require(held == state, "R1", part, "has", state, "after step", step, "and others have", held)

    def _settle_step(self, step: int) -> None:
        """Adds the examples of a step whose sum is complete: each share must have been computed."""
        require(step - 1 in self._running, "W2", "step", step - 1, "ends, and was never computed")
        number, replicas = self._running[step - 1]
        members, done = self._views[number].members, self._done.get((number, step - 1), set())
        missing = set(members) - done
        require(not missing, "W2", "step", step - 1, "ends without the examples of replicas", missing)
        self.positions[step] = self._batches.after(self.positions[step - 1], replicas)
        self._states[step] = {}

    def _compare(self, step: int) -> None:
        before = self._states[step - 1]
        number, _ = self._running[step - 1]
        published = self._views[number]
        view = View(
            number,
            published.members,
            0,
            step - 1,
            self.positions[step - 1],
            published.until,
        )
        expected = self._next_state(view, tuple(before[m] for m in range(self._machines)))
        for machine, state in self._states[step].items():
            near = all(
                abs(one - other) <= ROUNDING * (1 + abs(other))
                for held, wanted in zip(state, expected[machine], strict=True)
                for one, other in zip(held, wanted, strict=True)
            )
            require(
                near, "R2", "machine", machine, "holds", state, "after step", step, "not", expected[machine]
            )

    # Files, and the end.

    def holds(self, machine: int, step: int, contents: Mapping[tuple[int, int], Sequence[Vector]]) -> None:
        """Requires that a file holds the state after a step (I5)."""
        require(step in self._states, "I5", "a file of step", step, "which is not done")
        state = self._states[step][machine]
        for (start, stop), vectors in contents.items():
            wanted = tuple(vector[start:stop] for vector in state)
            require(tuple(vectors) == wanted, "I5", "machine", machine, "wrote", vectors, "and had", wanted)

    def ends(self, position: int) -> None:
        """Requires that every example of every epoch was done (W1)."""
        done = self.positions[max(self.positions)]
        require(done == position, "W1", "the run ends at example", done, "of", position)
