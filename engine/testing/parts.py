"""The simulated body of a part, whatever its driver: a few vectors of its machine's numbers.

It stands for `runtime.part_body`: it carries out what links, exchanges and updates ask for. A driver's
arithmetic stands for the network, and its checks see everything that the body does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from partita.engine.protocol.assigned_work import RunAssignment
from partita.engine.protocol.events import Persist, Send, Span
from partita.engine.protocol.exchange import AddChunk, CopyChunk
from partita.engine.protocol.leased_work import RunUnit
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.names import part_indices
from partita.engine.protocol.parameter_links import ClearGradient, SavePushRecord
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.part_validation import RestartValidation, RunValidation, ValidationDone
from partita.engine.protocol.program_effects import (
    Applied,
    ApplyUpdate,
    CombineVectors,
    CommitMessages,
    CopyVector,
    DecodeMessages,
    DotsRead,
    EncodeMessage,
    MeasureDots,
    MeasureNorms,
    ReadDots,
    RestartSteps,
    RunStep,
    StateReceived,
    StepDone,
    StuckOn,
)
from partita.engine.testing.host import Numbers, SimulatedBody, SimulatedHost
from partita.engine.testing.invariants import require
from partita.engine.testing.schedule import Schedule

RETRY_S: Final = 1.0
VALIDATION_S: Final = 0.4
"""The longest that a minibatch of a validation takes."""

OF_LINKS: Final = ("parameters", "staged", "accumulated", "in_flight")
"""The vectors of a part with links to shards."""

Step: TypeAlias = RunUnit | RunStep | RunAssignment


def combined(terms: Sequence[tuple[Sequence[float], float]], n: int) -> list[float]:
    """Returns the sum of vectors of `n` numbers times their factors, in this order."""
    total = [0.0] * n
    for vector, factor in terms:
        total = [held + factor * number for held, number in zip(total, vector, strict=True)]
    return total


def product(one: Sequence[float], other: Sequence[float], spans: Iterable[tuple[int, int]]) -> float:
    """Returns the inner product of two vectors over some ranges."""
    return sum(one[i] * other[i] for start, stop in spans for i in range(start, stop))


class PartArithmetic:
    """The computations of one part, and the checks of its driver. A subclass overrides what concerns it.

    Attributes:
        body: whose numbers these are.
        inside: the invariant that is broken where a step begins inside another one.
    """

    inside = "I8"

    def __init__(self, host: SimulatedHost) -> None:
        indices = part_indices(host.name)
        assert indices is not None
        self.host, self.id, self.world = host, host.id, host.world
        self.replica, self.machine = indices
        self.body: PartBody

    # Steps.

    def begins(self, step: Any) -> None:
        """Begins a step; `PartBody.on_computed` ends it, with what is found."""
        raise AssertionError(step)

    def computed(self, step: Any, found: Any) -> StepDone | None:
        """Ends a step; None: it is done when the replica's other parts have come so far."""
        raise AssertionError(step)

    def restarts(self, first: int) -> None:
        """Looks at the end of all steps below this number."""

    # Shards.

    def installed(self, effect: Install, message: Any) -> None:
        """Looks at new parameters, and at the message in which they came."""

    def swapped(self, span: Span) -> None:
        """Looks at a gradient that is in flight from now on."""

    def cleared(self, span: Span) -> None:
        """Looks at a gradient that was dropped."""

    def notes(self, effect: SavePushRecord, message: Any) -> None:
        """Keeps a record of acknowledged pushes."""

    # Exchanges.

    def accepts(self, payload: Any) -> None:
        """Looks at numbers that are added or copied."""

    def updates(self, effect: ApplyUpdate) -> float:
        """Updates the parameters. Returns the seconds that it takes."""
        raise AssertionError(effect)

    def measures(self, effect: MeasureNorms) -> None:
        """Writes sums of squares."""

    def persists(self, order: Persist) -> object:
        """Returns the contents of a file."""
        raise AssertionError(order)

    # Messages.

    def numbers(self, send: Send, values: Sequence[float]) -> Numbers:
        """Returns the payload of a message."""
        return Numbers(values)

    def sends(self, message: Any) -> None:
        """Looks at a message that leaves."""

    def handled(self) -> None:
        """Looks at the part when all effects of an event were carried out."""


class PartBody(SimulatedBody):
    """The vectors of a part.

    Attributes:
        vectors: by name.
        step: that is computed; None: none.
    """

    def __init__(
        self,
        schedule: Schedule,
        host: SimulatedHost,
        vectors: Mapping[str, list[float]],
        arithmetic: PartArithmetic,
    ) -> None:
        super().__init__(host)
        self.schedule, self.vectors, self.arithmetic = schedule, dict(vectors), arithmetic
        self.step: Step | None = None
        self._staged: dict[int, Any] = {}  # messages, by the place of their numbers
        self._validated: RunValidation | None = None  # a minibatch that is evaluated
        arithmetic.body = self

    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out an effect of the part's machine."""
        vectors, arithmetic = self.vectors, self.arithmetic
        match effect:
            case RunUnit() | RunStep() | RunAssignment():
                require(self.step is None, arithmetic.inside, self.host.id, "begins", effect, "in", self.step)
                self.step = effect
                arithmetic.begins(effect)
            case LookForWaits():
                return StuckOn(0, ())
            case RunValidation() | RestartValidation():
                self._validate(effect)
            case Stage(span=Span(start=start, stop=stop), payload=Numbers() as numbers):
                vectors["staged"][start:stop] = numbers
                self._staged[start] = event.message
            case Install():
                self._install(effect)
            case SwapBuffers(span=Span(start=start, stop=stop)):
                vectors["in_flight"][start:stop] = vectors["accumulated"][start:stop]
                vectors["accumulated"][start:stop] = [0.0] * (stop - start)
                arithmetic.swapped(effect.span)
            case ClearGradient(span=span):
                vectors["accumulated"][span.start : span.stop] = [0.0] * (span.stop - span.start)
                arithmetic.cleared(span)
            case SavePushRecord():
                arithmetic.notes(effect, event.message)
            case AddChunk(span=span, payload=Numbers() as payload, divisor=divisor):
                arithmetic.accepts(payload)
                held = vectors[span.vector]
                for i, number in zip(range(span.start, span.stop), payload, strict=True):
                    held[i] = (held[i] + number) / divisor if divisor != 1 else held[i] + number
            case CopyChunk(span=span, payload=Numbers() as payload):
                arithmetic.accepts(payload)
                self._room(span)[span.start : span.stop] = payload
            case ReadDots(number=number, size=size):
                return DotsRead(number, tuple(vectors["dots"][:size]))
            case _:
                self._change(effect)
        return None

    def _change(self, effect: Any) -> None:
        match effect:
            case CopyVector(source=Span(vector=source, start=start, stop=stop), target=target):
                self.vectors[target][start:stop] = self.vectors[source][start:stop]
            case CombineVectors(span=span, terms=terms):
                of_terms = [(self.vectors[name][span.start : span.stop], factor) for name, factor in terms]
                self.vectors[span.vector][span.start : span.stop] = combined(of_terms, span.stop - span.start)
            case MeasureDots(pairs=pairs, spans=spans, place=place, size=size):
                dots = self.vectors["dots"] = [0.0] * size
                for n, (one, other) in enumerate(pairs):
                    dots[place + n] = product(self.vectors[one], self.vectors[other], spans)
            case EncodeMessage():
                self._encode(effect)
            case DecodeMessages():
                self._decode(effect)
            case MeasureNorms():
                self.arithmetic.measures(effect)
            case ApplyUpdate():
                self.host.result(self.arithmetic.updates(effect), Applied())
            case RestartSteps(first=first):
                self.step = None
                self.arithmetic.restarts(first)
            case Persist():
                self.write(self.schedule, effect, self.arithmetic.persists(effect))
            case StateReceived() | CommitMessages():
                pass  # the vectors were replaced where they lie, and messages are whole
            case _:
                raise AssertionError(effect)

    def _encode(self, effect: EncodeMessage) -> None:
        """Writes a message of the compressor's size whose first number stands for the whole gradient."""
        source, target = effect.source, effect.target
        held, numbers = self._room(effect.whole), self.vectors[source.vector][source.start : source.stop]
        if effect.compress.rounds[effect.turn] == "gather":
            numbers = [tuple(numbers), *[0.0] * (target.stop - target.start - 1)]  # type: ignore[list-item]
        held[target.start : target.stop] = numbers[: target.stop - target.start]

    def _room(self, span: Span) -> list[float]:
        """Returns the vector of a range, which messages lengthen."""
        held = self.vectors.setdefault(span.vector, [])
        held += [0.0] * (span.stop - len(held))
        return held

    def _decode(self, effect: DecodeMessages) -> None:
        source, target = effect.source, effect.target
        found: Any = self.vectors[source.vector][source.start : source.stop]
        if effect.compress.rounds[effect.turn] == "gather":
            found = map(sum, zip(*(one for one in found if isinstance(one, tuple)), strict=True))
        elif not found:
            return  # the rounds before had all
        self.vectors[target.vector][target.start : target.stop] = found

    def _install(self, effect: Install) -> None:
        require(self.step is None, "I3", self.host.id, "installs parameters inside a step")
        start, stop = effect.span.start, effect.span.stop
        numbers = self.vectors["staged"][start:stop]
        for name, scale in zip(effect.unheld, effect.scales, strict=True):
            gradient = self.vectors[name][start:stop]
            numbers = [a + scale * b for a, b in zip(numbers, gradient, strict=True)]
        self.vectors["parameters"][start:stop] = numbers
        self.arithmetic.installed(effect, self._staged[start])

    # Validations.

    def _validate(self, effect: RunValidation | RestartValidation) -> None:
        """Begins a minibatch, which ends when all parts of the replica have come so far, or drops it."""
        if isinstance(effect, RestartValidation):
            self._validated = None
            return
        require(self.step is None, "E3", self.host.id, "evaluates", effect, "in", self.step)
        require(self._validated is None, "E1", self.host.id, "evaluates", effect, "in", self._validated)
        self._validated, schedule, run = effect, self.schedule, self.host.coordinator.incarnation
        for body in schedule.meet(self, "validation", run, self.arithmetic.replica, effect.number):
            wait_s = VALIDATION_S * schedule.world.stops.random()
            body.host.later(wait_s, body.on_validated, effect.number)

    def on_validated(self, number: int) -> None:
        """Ends a minibatch; its sums say what was evaluated, and with which parameters."""
        begun = self._validated
        if begun is None or begun.number != number:
            return
        self._validated = None
        parameters = tuple(self.vectors["parameters"])
        self.host.on_event(
            ValidationDone(number, float(begun.unit), self.arithmetic.machine, sums=parameters)
        )

    # Steps.

    def on_computed(self, what: tuple[Step, Any]) -> None:
        """Ends a step, unless it was dropped or the user's function raises in it."""
        step, found = what
        if self.step is not step:
            return
        if self.schedule.raises(self.host.name):
            self.host.fail("the user's function raised")
            return
        done = self.arithmetic.computed(step, found)
        if done is not None:
            self.on_done(done)

    def on_done(self, done: StepDone) -> None:
        """Reports the end of a step."""
        self.step = None
        self.host.on_event(done)

    # Messages.

    def payload(self, send: Send) -> Numbers:
        """Returns the numbers of a span."""
        span = send.payload
        assert span is not None, send
        return self.arithmetic.numbers(send, self.vectors[span.vector][span.start : span.stop])

    def sends(self, send: Send) -> None:
        """Shows a message to the checks of the driver."""
        self.arithmetic.sends(send.message)

    def handled(self, event: Any) -> None:
        """Shows the part to them, after an event."""
        self.arithmetic.handled()
