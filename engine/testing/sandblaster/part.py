"""The simulated arithmetic of a part that evaluates: a few floats.

The parts of a replica begin an assignment together and get its gradient together: that stands for the states
and errors that they would send to one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.batch_messages import Contribution
from partita.engine.protocol.events import Send
from partita.engine.protocol.names import part_name
from partita.engine.protocol.part import Part
from partita.engine.protocol.point_links import PointLinks
from partita.engine.protocol.program_effects import StepDone
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.parts import OF_LINKS, RETRY_S, PartArithmetic, PartBody
from partita.engine.testing.sandblaster.schedule import SandblasterCoordinatorHost, SandblasterSchedule
from partita.engine.testing.vectors import Vector

MEANINGLESS = 123.456
"""A part's result in an assignment that another part of its replica plays on something else."""


def build_part(schedule: SandblasterSchedule, host: SimulatedHost) -> tuple[Part, PartBody]:
    """Builds the task of a part: its machine, and the body around it."""
    arithmetic, machines = Portions(schedule, host), schedule.environment.topology.machines
    spans = schedule.layout.of_machine[arithmetic.machine]
    links = schedule.kind(PointLinks)(streams=spans, retry_s=RETRY_S)
    arithmetic.work = work = schedule.kind(AssignedWork)(links, alone=machines == 1)
    others = [part_name(arithmetic.replica, n) for n in range(machines) if n != arithmetic.machine]
    needed, replica = (*others, *links.shards), schedule.scenario.driver.replica
    part = schedule.kind(Part)(replica, work, needed=needed, watched=links.shards)
    size = sum(stop - start for _, start, stop in spans)
    return part, PartBody(schedule, host, {name: [0.0] * size for name in OF_LINKS}, arithmetic)


class Portions(PartArithmetic):
    """Gradients of work units, for the invariants of a run."""

    inside = "I6"
    work: AssignedWork

    def __init__(self, schedule: SandblasterSchedule, host: SimulatedHost) -> None:
        super().__init__(host)
        assert isinstance(host.coordinator, SandblasterCoordinatorHost)
        self.schedule, self.coordinator = schedule, host.coordinator

    @override
    def begins(self, step: RunAssignment) -> None:
        if step.discarded:
            self.world.note(self.host, "plays for the others", step)
        else:
            point = tuple(self.body.vectors["parameters"])
            self.coordinator.invariants.plays(self.id, step.evaluation, self.machine, point)
        run, incarnation = self.coordinator.incarnation, self.host.incarnation
        parts = self.schedule.meet(self, run, self.replica, incarnation, step.number)
        if parts:
            _compute(sorted(parts, key=lambda one: one.machine), step, self.schedule)

    @override
    def computed(self, step: RunAssignment, found: tuple[Vector, float, int]) -> StepDone:
        """Ends the assignment: its gradient has accumulated, from nothing."""
        gradient, loss, right = found
        if self.work.is_over(step.evaluation):  # it may have been cut short: the numbers are anything
            gradient, loss, right = (MEANINGLESS,) * len(gradient), math.nan, 0
        self.body.vectors["accumulated"] = list(gradient)
        return StepDone(step.number, loss=loss, correct=right)

    @override
    def numbers(self, send: Send, values: Sequence[float]) -> Numbers:
        message = send.message
        assert isinstance(message, Contribution)
        invariants = self.coordinator.invariants
        invariants.contributes(self.id, message.evaluation, message.unit, self.machine)
        return Numbers(values)


def _compute(parts: list[Portions], step: RunAssignment, schedule: SandblasterSchedule) -> None:
    """Computes an assignment for all parts of a replica; meaningless numbers unless all play the same."""
    found: list[tuple[Vector, float, int]]
    if any(part.body.step != step or step.discarded for part in parts):
        sizes = (len(part.body.vectors["accumulated"]) for part in parts)
        found = [((MEANINGLESS,) * size, MEANINGLESS, 1) for size in sizes]
    else:
        x: Vector = tuple([number for part in parts for number in part.body.vectors["parameters"]])
        found = [*zip(*schedule.function.unit(x, step.first, step.count), strict=True)]
    scenario, replica = schedule.scenario, parts[0].replica
    slowness = (scenario.slowness[replica:] or (1.0,))[0]
    wait_s = scenario.portion_s * step.count * slowness * (0.5 + 0.5 * schedule.world.random.random())
    for part, result in zip(parts, found, strict=True):
        part.host.later(wait_s, part.body.on_computed, (part.body.step, result))
