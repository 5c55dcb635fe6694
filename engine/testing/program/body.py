"""The simulated body of a part that runs a driver's program: its vectors are lists of a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from partita.engine.protocol.events import Persist, Send, Span
from partita.engine.protocol.exchange import AddChunk, CopyChunk
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.names import part_indices
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.program_effects import (
    Applied,
    ApplyUpdate,
    CopyVector,
    MeasureNorms,
    RestartSteps,
    RunStep,
    StateReceived,
    StepDone,
)
from partita.engine.testing.host import Numbers, SimulatedBody, SimulatedHost
from partita.engine.testing.invariants import ProcessId, require
from partita.engine.testing.program.lockstep import share
from partita.engine.testing.program.regression import STATE, VECTORS

if TYPE_CHECKING:
    from partita.engine.testing.program.schedule import ProgramSchedule


class Marked(Numbers):
    """Numbers that bear who sent them, and in which view."""

    sender: ProcessId
    view: int
    item_bytes: int

    @property
    def n_bytes(self) -> int:
        """Their size, as far as the parts know."""
        return self.item_bytes * len(self)


class PartBody(SimulatedBody):
    """The vectors of a part.

    Attributes:
        vectors: "gradient" and those of the state.
        view: of the newest step or exchange.
    """

    work: JoinedWork

    def __init__(self, schedule: ProgramSchedule, host: SimulatedHost, state: tuple[Any, ...]) -> None:
        super().__init__(host)
        indices = part_indices(host.name)
        assert indices is not None
        self.replica, self.machine_index = indices
        self.schedule, self.model = schedule, schedule.model
        self.vectors = {name: list(vector) for name, vector in zip(STATE, state, strict=True)}
        self.vectors |= {name: [0.0] * len(state[0]) for name in VECTORS if name not in STATE}
        self.vectors["norms"] = [0.0] * schedule.function.norms(schedule.environment.topology.replicas)
        self.own: tuple[Span, ...] = (Span("parameters", 0, len(state[0])),)
        self.step: RunStep | None = None
        self._normed = False  # the program has measured norms since it computed
        self._reached: int | None = None

    @property
    def state(self) -> tuple[tuple[float | None, ...], ...]:
        """The vectors of the state as they are now; None: numbers of the optimizer that others have."""
        parameters, momentum = (self.vectors[name] for name in STATE)
        own = {i for span in self.own for i in range(span.start, span.stop)}
        return tuple(parameters), tuple(n if i in own else None for i, n in enumerate(momentum))

    @override
    def carry_out(self, effect: Any, event: Any) -> Any:
        match effect:
            case RunStep():
                self._run(effect)
            case RestartSteps(first=first):
                self.step = None
                self.model.enters(self.host.id, first)
            case MeasureNorms(spans=spans):
                ranges = [(span.start, span.stop) for span in spans]
                place = {"replica": self.replica, "machine": self.machine_index}
                self.schedule.function.measure(self.vectors, ranges, **place)
                self._normed = True
            case ApplyUpdate():
                self._apply(effect)
            case AddChunk(span=span, payload=Marked() as payload, divisor=divisor):
                self.model.accepts(self.host.id, payload)
                held = self.vectors[span.vector]
                for i, number in zip(range(span.start, span.stop), payload, strict=True):
                    held[i] = (held[i] + number) / divisor if divisor != 1 else held[i] + number
            case CopyChunk(span=span, payload=Marked() as payload):
                self.model.accepts(self.host.id, payload)
                self.vectors[span.vector][span.start : span.stop] = payload
            case CopyVector(source=source, target=target):
                start, stop = source.start, source.stop
                self.vectors[target][start:stop] = self.vectors[source.vector][start:stop]
            case Persist():
                self._persist(effect)
            case StateReceived() | LookForWaits():
                pass  # the vectors were replaced where they lie
            case _:
                raise AssertionError(effect)
        return None

    @override
    def payload(self, send: Send) -> Marked:
        span = send.payload
        assert span is not None
        numbers = Marked(self.vectors[span.vector][span.start : span.stop])
        message: Any = send.message
        numbers.sender, numbers.view = self.host.id, message.view
        numbers.item_bytes = self.schedule.item_bytes
        return numbers

    @override
    def handled(self, event: Any) -> None:
        self._look()

    def _look(self) -> None:
        """Shows the model the state after another step."""
        step = self.work.step
        if step != self._reached:
            self._reached = step
            if step is None:
                self.model.receives(self.host.id)
            else:
                self.model.reaches(self.host.id, self.machine_index, step, self.state)

    def _run(self, step: RunStep) -> None:
        self._look()
        self.step, self._normed = step, False
        self.model.begins(self.host.id, self.replica, step)
        parts = self.schedule.meet(self, self.replica, step.number)
        if parts:
            parts.sort(key=lambda part: part.machine_index)
            parameters = [part.vectors["parameters"] for part in parts]
            first, stop, joined = share(self.schedule.batches, step.position, step.rank, step.replicas)
            n = stop - first if step.alone else joined
            gradients = self.schedule.function.gradient(parameters, first, stop, n)
            longest_s = self.schedule.scenario.step_s * self.schedule.slowness(self.replica)
            wait_s = longest_s * (0.2 + 0.8 * self.host.world.random.random())
            for part in parts:
                part.host.later(wait_s, part.on_computed, (step.number, gradients[part.machine_index]))

    def on_computed(self, what: tuple[int, list[float]]) -> None:
        """Ends a step with its gradient, unless the step was dropped."""
        number, gradient = what
        if self.step is None or self.step.number != number:
            return
        if self.schedule.raises(self.host.name):
            self.step = None
            self.host.fail("the user's function raised")
            return
        self.vectors["gradient"] = list(gradient)
        self.model.computed(self.replica, self.step)
        self.step = None
        self.host.on_event(StepDone(number, 1))

    def _apply(self, effect: ApplyUpdate) -> None:
        self.own = effect.spans
        needed = getattr(effect.optimizer, "needs_norms", False)
        require(self._normed or not needed, "program", effect.optimizer, "needs norms, and has none")
        update, machine = self.schedule.function.update, self.machine_index
        for span in effect.spans:
            update(self.vectors, span.start, span.stop, machine=machine, normed=self._normed)
        self.host.result(0.2 * self.schedule.scenario.step_s * self.host.world.random.random(), Applied())

    def _persist(self, order: Persist) -> None:
        """Writes the numbers of the state that the part updates, as they are now, by place."""
        numbers = enumerate(zip(*self.state, strict=True))
        contents = {place: both for place, both in numbers if None not in both}
        self.write(self.schedule, order, contents)
