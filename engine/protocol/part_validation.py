"""Validations in one part: minibatches of the validation data, one after the other, beside the program.

The coordinator orders them (`ValidationWork`) while the replicas have nothing else to do. A part first gets
the parameters that all replicas agree on, where others may have changed them. The steps have numbers of their
own, so that messages between the parts of a replica belong either to a training step or to a minibatch here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from typing_extensions import override

from partita.engine.protocol.carrier import Carrier
from partita.engine.protocol.events import Received, Refuse, Send
from partita.engine.protocol.messages import Credit, Tensor
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.program_effects import Deliver
from partita.engine.protocol.validation_messages import ValidationResult, ValidationWork

VALIDATION_STEPS: Final = 1 << 52
"""Steps from this number on are those of validations."""

_STEPS_OF_A_ROUND: Final = 1 << 24
_MOST_EARLY: Final = 1024
"""Messages of a later round that are kept until the coordinator's order is here."""


@dataclass(frozen=True, slots=True)
class RestartValidation:
    """Effect: drop the minibatch that is evaluated, if any; the next one has the number `first`."""

    first: int


@dataclass(frozen=True, slots=True)
class RunValidation:
    """Effect: evaluate a minibatch of the validation data; `ValidationDone` reports the end."""

    number: int
    unit: int


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """Event, answers `RunValidation`: the sums over the examples whose losses this part evaluates."""

    number: int
    loss: float
    correct: int
    sums: tuple[float, ...] = ()


class SharedParameters(Protocol):
    """Links to shards, as far as a validation needs the parameters of all of them."""

    def renew(self, evaluation: int, now: float) -> Iterable[Any]:
        """Asks for the parameters that the shards have from now on, or at this command."""

    def not_renewed(self, evaluation: int) -> tuple[str, ...]:
        """Returns the shards whose parameters are not here yet."""

    def take(self) -> Iterable[Any]:
        """Puts them in place."""


class PartValidation(Carrier):
    """The validations of a part."""

    takes: ClassVar[tuple[type, ...]] = (ValidationWork, ValidationDone)

    def __init__(self, parameters: SharedParameters | None = None) -> None:
        """Begins without a validation; `parameters` are links to shards, None: the part has them itself."""
        self._parameters: Final = parameters
        self._work: ValidationWork | None = None
        self._units: tuple[int, ...] = ()
        self._answers: list[ValidationResult] = []  # of the round, in the order of its minibatches
        self._is_fresh = False
        self._computing = False
        self._early: Final[deque[Received]] = deque(maxlen=_MOST_EARLY)

    @property
    def _round(self) -> int:
        return 0 if self._work is None else self._work.round

    @property
    def _first(self) -> int:
        return VALIDATION_STEPS + self._round * _STEPS_OF_A_ROUND

    @override
    def receive(self, event: Any, now: float) -> Iterator[Any]:
        match event:
            case Received(message=ValidationWork() as work):
                yield from self._order(work, now)
            case ValidationDone(number=number) if self._computing and number == self._number:
                self._computing = False
                unit = self._units[len(self._answers)]
                answer = ValidationResult(self._round, unit, event.loss, event.correct, event.sums)
                self._answers.append(answer)
                yield Send(COORDINATOR, answer)

    @property
    def _number(self) -> int:
        """The number of the minibatch that is evaluated next, or now."""
        return self._first + len(self._answers)

    def _order(self, work: ValidationWork, now: float) -> Iterator[Any]:
        if work.round < self._round:
            return
        if work.round == self._round:  # a repeat
            yield from (Send(COORDINATOR, answer) for answer in self._answers)
            return
        self._work = work
        self._units = tuple(unit for start, stop in work.units for unit in range(start, stop))
        self._answers, self._computing = [], False
        self._is_fresh = self._parameters is None
        yield RestartValidation(self._first)
        early, later = [*self._early], self._first + _STEPS_OF_A_ROUND
        self._early.clear()
        for event in early:
            if _step_of(event) >= later:
                self._early.append(event)
            elif _step_of(event) >= self._first:
                yield Deliver(event)
        if self._parameters is not None:
            yield from self._parameters.renew(work.evaluation, now)

    def advance(self) -> Iterator[Any]:
        """Begins the next minibatch, where the part computes nothing else and has the parameters."""
        if self._work is None or self._computing or len(self._answers) == len(self._units):
            return
        if not self._is_fresh:
            assert self._parameters is not None
            if self._parameters.not_renewed(self._work.evaluation):
                return
            yield from self._parameters.take()
            self._is_fresh = True
        self._computing = True
        yield RunValidation(self._number, self._units[len(self._answers)])

    def waits(self) -> Iterator[tuple[str, str]]:
        """Yields (host, what) that the next minibatch waits for: one that never answers must be reported."""
        if self._work is not None and self._parameters is not None and not self._is_fresh:
            what = "the parameters that are validated"
            yield from ((shard, what) for shard in self._parameters.not_renewed(self._work.evaluation))

    def deliver(self, event: Received) -> Iterator[Any]:
        """Returns the effects of a message of another part, which is of a step of a validation."""
        step = _step_of(event)
        if step >= self._first + _STEPS_OF_A_ROUND or not self._round:
            if len(self._early) == _MOST_EARLY:
                yield Refuse(event.sender, f"more than {_MOST_EARLY} messages of validations to come")
                return
            self._early.append(event)
        elif step >= self._first:
            yield Deliver(event)

    @override
    def validate(self) -> None:
        assert len(self._answers) + self._computing <= len(self._units), (self._answers, self._units)
        assert not self._computing or self._is_fresh, self._work


def is_of_validation(event: Received) -> bool:
    """Returns whether a message of another part is of a step of a validation."""
    return isinstance(event.message, Tensor | Credit) and event.message.step >= VALIDATION_STEPS


def _step_of(event: Received) -> int:
    assert isinstance(event.message, Tensor | Credit), event
    return event.message.step
