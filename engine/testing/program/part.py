"""The simulated arithmetic of a part that exchanges with other replicas: a regression over a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from partita.engine.protocol.events import Persist, Send, Span
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.part import Part
from partita.engine.protocol.program_effects import ApplyUpdate, MeasureNorms, PartSeat, RunStep, StepDone
from partita.engine.testing.host import Numbers, SimulatedHost
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.parts import RETRY_S, PartArithmetic, PartBody
from partita.engine.testing.program.lockstep import portion, share
from partita.engine.testing.program.regression import scratch_of, state_of

if TYPE_CHECKING:
    from partita.engine.testing.program.schedule import ProgramSchedule


def build_part(schedule: ProgramSchedule, host: SimulatedHost) -> tuple[Part, PartBody]:
    """Builds the task of a part: its machine, and the body around it."""
    arithmetic = Gradients(schedule, host)
    replica, machine = arithmetic.replica, arithmetic.machine
    step, state = schedule.state_of(machine, host.checkpoint)
    topology = schedule.environment.topology
    names = state_of(schedule.driver)
    vectors = {name: list(vector) for name, vector in zip(names, state, strict=True)}
    vectors |= {name: [0.0] * len(state[0]) for name in scratch_of(schedule.driver)}
    vectors["norms"] = [0.0] * schedule.function.norms(topology.replicas)
    entries = getattr(schedule.driver, "taught_minibatches", 0)
    vectors["predictions"] = [0.0] * entries
    arithmetic.own = (Span("parameters", 0, len(state[0])),)
    seat = PartSeat(
        replica=replica,
        machine=machine,
        machines=topology.machines,
        incarnation=host.incarnation,
        size=len(state[0]),
        spans=schedule.spans[machine],
        norms=schedule.norms,
        exchanges=schedule.norms.index + 1,
        state=names,
        item_bytes=schedule.item_bytes,
        entries=entries,
        entry_size=1,
        step=step,
        points=int(step > 0),
        loss_scale=schedule.loss_scales.get(-1 if host.checkpoint is None else host.checkpoint),
    )
    arithmetic.work = schedule.kind(JoinedWork)(seat, schedule.batches, retry_s=RETRY_S)
    part = schedule.kind(Part)(schedule.driver.replica, arithmetic.work, version=step)
    return part, PartBody(schedule, host, vectors, arithmetic)


class Marked(Numbers):
    """Numbers that bear who sent them, and in which view."""

    sender: ProcessId
    view: int
    item_bytes: int

    @property
    def n_bytes(self) -> int:
        """Their size, as far as the parts know."""
        return self.item_bytes * len(self)


class Gradients(PartArithmetic):
    """Gradients of a regression, and updates, for the model of a run.

    Attributes:
        own: the ranges of the last update.
    """

    work: JoinedWork
    own: tuple[Span, ...]

    def __init__(self, schedule: ProgramSchedule, host: SimulatedHost) -> None:
        super().__init__(host)
        self.schedule, self.model = schedule, schedule.model
        self._normed = False  # the program has measured norms since it computed
        self._reached: int | None = None
        self._agreed = (0, 0)

    @property
    def state(self) -> tuple[tuple[float | None, ...], ...]:
        """The vectors of the state as they are now; None: numbers of the optimizer that others have."""
        parameters, momentum, *kept = (self.body.vectors[name] for name in state_of(self.schedule.driver))
        own = {i for span in self.own for i in range(span.start, span.stop)}
        of_optimizer = tuple(n if i in own else None for i, n in enumerate(momentum))
        return tuple(parameters), of_optimizer, *map(tuple, kept)

    @override
    def begins(self, step: RunStep) -> None:
        self.handled()
        self._normed, schedule = False, self.schedule
        self.model.begins(self.id, self.replica, step)
        parts = sorted(schedule.meet(self, self.replica, step.number), key=lambda part: part.machine)
        if not parts:
            return
        parameters = [part.body.vectors["parameters"] for part in parts]
        if step.of is not None:
            first, stop, n = portion(schedule.driver, schedule.batches, step.of)
        else:
            first, stop, joined = share(schedule.batches, step.position, step.rank, step.replicas)
            n = stop - first if step.alone else joined
        gradients = schedule.function.gradient(parameters, first, stop, n)
        if (scale := step.loss_scale) != 1.0:
            is_hit = step.alone or step.rank == step.step % step.replicas
            gradients = schedule.function.scaled(gradients, step.step, scale, is_hit=is_hit)
        longest_s = schedule.scenario.step_s * schedule.slowness(self.replica)
        longest_s *= 0.25 if step.teaches else 1.0  # without a backward pass
        wait_s = longest_s * (0.2 + 0.8 * self.world.random.random())
        for part in parts:
            part.host.later(wait_s, part.body.on_computed, (part.body.step, gradients[part.machine]))

    @override
    def computed(self, step: RunStep, found: list[float]) -> StepDone:
        predictions, examples = self.body.vectors["predictions"], float(step.position + step.rank + 1)
        if step.teaches:
            predictions[step.entry] += step.teaches * examples
            return StepDone(step.number, 1)
        if step.distil:
            known = predictions[step.entry]
            near = math.isclose(known, examples, rel_tol=1e-9)
            require(near, "T1", self.id, step, "learns predictions of other examples:", known, examples)
        self.body.vectors["gradient"] = list(found)
        self.model.computed(self.replica, step)
        return StepDone(step.number, 1)

    @override
    def restarts(self, first: int) -> None:
        self.model.enters(self.id, first)

    @override
    def accepts(self, payload: Any) -> None:
        self.model.accepts(self.id, payload)

    @override
    def measures(self, effect: MeasureNorms) -> None:
        ranges = [(span.start, span.stop) for span in effect.spans]
        vectors, function = self.body.vectors, self.schedule.function
        function.measure(vectors, ranges, replica=self.replica, machine=self.machine)
        self._normed = True

    @override
    def updates(self, effect: ApplyUpdate) -> float:
        to = effect.spans[0].vector if effect.spans else "parameters"
        if to == "parameters":
            self.own = effect.spans
        needed = getattr(effect.optimizer, "needs_norms", False)
        require(self._normed or not needed, "program", effect.optimizer, "needs norms, and has none")
        of = partial(self.schedule.function.update, to=to, by=effect.gradient, scale=effect.scale)
        for span in effect.spans:
            normed = self._normed and to == "parameters"
            of(self.body.vectors, span.start, span.stop, machine=self.machine, normed=normed)
        return 0.2 * self.schedule.scenario.step_s * self.world.random.random()

    @override
    def persists(self, order: Persist) -> object:
        """Returns the numbers of the state that the part updates, as they are now, by place."""
        self.model.requires_scale(self.id, order.version, order.loss_scale)
        self.schedule.loss_scales[order.checkpoint] = order.loss_scale
        numbers = enumerate(zip(*self.state, strict=True))
        return {place: both for place, both in numbers if None not in both}

    @override
    def numbers(self, send: Send, values: Sequence[float]) -> Marked:
        numbers, message = Marked(values), send.message
        numbers.sender, numbers.view = self.id, message.view  # type: ignore[union-attr]
        is_dots = send.payload is not None and send.payload.vector == "dots"
        numbers.item_bytes = 8 if is_dots else self.schedule.item_bytes
        return numbers

    @override
    def handled(self) -> None:
        """Shows the model the state after another step, or a further safe point of one."""
        step, points = self.work.step, self.work.points
        if points and step is not None and (step, points) != self._agreed:
            self._agreed = step, points
            vectors = {name: self.body.vectors[name] for name in self.schedule.agreed}
            self.model.agrees(self.id, self.machine, self._agreed, vectors)
        if step == self._reached:
            return
        self._reached = step
        if step is None:
            self.model.receives(self.id)
        else:
            self.model.reaches(self.id, self.machine, step, self.state)
