"""The simulated body of a part under Sandblaster: a few floats.

The parts of a replica begin an assignment together and get its gradient together: that stands for the states
and errors that they would send to one another.
"""

from __future__ import annotations

import math
from typing import Any

from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.batch_messages import Contribution
from partita.engine.protocol.events import Send
from partita.engine.protocol.names import part_name
from partita.engine.protocol.part import Part
from partita.engine.protocol.point_links import PointLinks
from partita.engine.protocol.program_effects import StepDone
from partita.engine.testing import bodies
from partita.engine.testing.bodies import RETRY_S
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import require
from partita.engine.testing.sandblaster.schedule import SandblasterCoordinatorHost, SandblasterSchedule
from partita.engine.testing.vectors import Vector

MEANINGLESS = 123.456
"""A part's result in an assignment that another part of its replica plays on something else."""


def build_part(schedule: SandblasterSchedule, host: SimulatedHost) -> tuple[Part, PartBody]:
    """Builds the task of a part: its machine, and the body around it."""
    body, machines = PartBody(schedule, host), schedule.environment.topology.machines
    links = schedule.kind(PointLinks)(shards=body.spans, retry_s=RETRY_S)
    body.work = schedule.kind(AssignedWork)(links, alone=machines == 1)
    others = [part_name(body.replica, n) for n in range(machines) if n != body.machine]
    needed = (*others, *links.shards)
    replica = schedule.scenario.driver.replica
    return schedule.kind(Part)(replica, body.work, needed=needed, watched=links.shards), body


class PartBody(bodies.PartBody):
    """Carries out the effects of a `Part`, and plays assignments."""

    schedule: SandblasterSchedule
    work: AssignedWork

    def __init__(self, schedule: SandblasterSchedule, host: SimulatedHost) -> None:
        super().__init__(schedule, host)
        assert isinstance(host.coordinator, SandblasterCoordinatorHost)
        self.coordinator = host.coordinator
        self.playing: RunAssignment | None = None
        self.found: tuple[Vector, float, int] = ((), 0.0, 0)

    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out an effect of the machine."""
        if not isinstance(effect, RunAssignment):
            return super().carry_out(effect, event)
        self._play(effect)
        return None

    def _play(self, assignment: RunAssignment) -> None:
        require(self.playing is None, "I6", self.id, "begins", assignment, "inside", self.playing)
        self.playing = assignment
        if assignment.discarded:
            self.world.note(self.host, "plays for the others", assignment)
        else:
            point = tuple(self.vectors["parameters"])
            self.coordinator.invariants.plays(self.id, assignment.evaluation, self.machine, point)
        schedule, run = self.schedule, self.coordinator.incarnation
        parts = sorted(
            schedule.meet(self, run, self.replica, self.incarnation, assignment.number),
            key=lambda one: one.machine,
        )
        if parts:
            _compute(parts, assignment, schedule)

    def on_computed(self, _: object) -> None:
        """Ends the assignment: its gradient has accumulated, from nothing."""
        if self.raises():
            return
        assignment, self.playing = self.playing, None
        assert assignment is not None
        gradient, loss, right = self.found
        if self.work.is_over(assignment.evaluation):  # it may have been cut short: the numbers are anything
            gradient, loss, right = (MEANINGLESS,) * len(gradient), math.nan, 0
        self.vectors["accumulated"] = list(gradient)
        self.host.on_event(StepDone(assignment.number, loss=loss, correct=right))

    def payload(self, send: Send) -> Numbers:
        """Returns the gradient of a contribution."""
        message = send.message
        assert isinstance(message, Contribution)
        invariants = self.coordinator.invariants
        invariants.contributes(self.id, message.evaluation, message.unit, self.machine)
        return super().payload(send)


def _compute(parts: list[PartBody], assignment: RunAssignment, schedule: SandblasterSchedule) -> None:
    """Computes an assignment for all parts of a replica; meaningless numbers unless all play the same."""
    if any(part.playing != assignment or assignment.discarded for part in parts):
        for part in parts:
            part.found = ((MEANINGLESS,) * len(part.vectors["accumulated"]), MEANINGLESS, 1)
    else:
        x: Vector = tuple([number for part in parts for number in part.vectors["parameters"]])
        gradients, losses, right = schedule.function.unit(x, assignment.first, assignment.count)
        for part in parts:
            part.found = (gradients[part.machine], losses[part.machine], right[part.machine])
    scenario, replica = schedule.scenario, parts[0].replica
    slowness = (scenario.slowness[replica:] or (1.0,))[0]
    wait_s = scenario.portion_s * assignment.count * slowness * (0.5 + 0.5 * schedule.world.random.random())
    for part in parts:
        part.later(wait_s, part.on_computed)
