"""Events and effects between the machine of a part's program and its body, and what each part is given.

The body carries out effects in order, each finished before the next one starts, except those that name an
event as their end. An exchange has effects of its own, see `exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from partita.engine.protocol.actions import AllGather, AllReduce, ReduceScatter
from partita.engine.protocol.events import Received, Span
from partita.engine.protocol.names import part_name

STEPS_OF_A_VIEW: Final = 1 << 32
"""All parts of a replica number the steps that they compute in view V from V times this number on."""

# Effects.


@dataclass(frozen=True, slots=True)
class RestartSteps:
    """Effect: drop the step that is computed, if any; the next `RunStep` has the number `first`.

    The vectors other than "gradient" keep their values. A `StepDone` below `first` counts for nothing.
    """

    first: int


@dataclass(frozen=True, slots=True)
class RunStep:
    """Effect: compute a step, as soon as the part's receivers keep up; `StepDone` reports its end.

    Afterwards "gradient" holds this replica's share of the gradient of the mean over the joined batch, zeros
    where it has no example.

    Args:
        number: of the step among those that the parts of this replica compute.
        step: of the run; what random numbers and schedules go by.
        position: of the joined batch: examples before it.
        rank, replicas: of the replica in its view.
    """

    number: int
    step: int
    position: int
    rank: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Effect: give the step's instructions a message of another part of the replica (`Tensor`, `Credit`)."""

    event: Received


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Effect: update the parameters of a range by the same range of "gradient"; `Applied` reports the end.

    Args:
        optimizer: computes the update; its state belongs to the part's state.
        span: of the vector "parameters".
        updates: updates of these parameters before this one.
    """

    optimizer: Any
    span: Span
    updates: int


@dataclass(frozen=True, slots=True)
class Scale:
    """Effect: multiply the numbers of a span by a factor."""

    span: Span
    factor: float


@dataclass(frozen=True, slots=True)
class StateReceived:
    """Effect: every vector of the part's state is now that of another replica, after `step` steps."""

    step: int


# Events.


@dataclass(frozen=True, slots=True)
class StepDone:
    """Event, answers `RunStep`: the gradient is there, and finite; else the body raises, and not the machine.

    The sums are over the examples whose losses this part evaluates; `examples` counts those it reports.
    """

    number: int
    examples: int = 0
    loss: float = 0.0
    correct: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """Event, answers `ApplyUpdate`: the parameters and the optimizer's state are updated."""


@dataclass(frozen=True, slots=True)
class StuckOn:
    """Event: while nothing is computed, the step waits for these: (host, what); none: it goes on again."""

    number: int
    waits: tuple[tuple[str, str], ...]


# What a part is given.


@dataclass(frozen=True, slots=True)
class SharedSpan:
    """A range `[start, stop)` of a part's vectors, and the machines of each replica that hold these numbers.

    The ranges of a plan are numbered alike on all of them: `index`.
    """

    index: int
    start: int
    stop: int
    machines: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSeat:
    """A part, as far as its program must know it.

    Args:
        replica, machine, machines: of the part, and of the plan.
        incarnation: of the process.
        size: numbers in each of its vectors.
        spans: disjoint, covering the vectors; `exchanges` counts those of all machines.
        exchanges: ranges that the plan has in all.
        state: the vectors that are the part's state: "parameters", and those of the optimizer.
        step: steps done in the state that the process starts from.
    """

    replica: int
    machine: int
    machines: int
    incarnation: int
    size: int
    spans: tuple[SharedSpan, ...]
    exchanges: int
    state: tuple[str, ...] = ("parameters",)
    step: int = 0

    @property
    def name(self) -> str:
        """The name of the part's host."""
        return part_name(self.replica, self.machine)

    @property
    def others(self) -> tuple[str, ...]:
        """The hosts of the replica's other parts."""
        machines = (machine for machine in range(self.machines) if machine != self.machine)
        return tuple(part_name(self.replica, machine) for machine in machines)


# Exchanges.


@dataclass(frozen=True, slots=True)
class CopyState:
    """The exchange in which one member sends its vectors to another one."""


@dataclass(frozen=True, slots=True)
class Partner:
    """A member of an exchange: a host, its incarnation, and a label of where it runs ("": unknown)."""

    name: str
    incarnation: int
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """One exchange, as one of its members takes part in it.

    Args:
        view, exchange, number: name the exchange; its messages carry them. `exchange` is the index of the
            range, `number` counts the exchanges of a view.
        kind: what is done.
        spans: of this member's vectors; of the same sizes on all members. One, except for `CopyState`.
        members: in the exchange's order. `CopyState`: the source, then the target.
        me: the name of this member.
    """

    view: int
    exchange: int
    number: int
    kind: AllReduce | ReduceScatter | AllGather | CopyState
    spans: tuple[Span, ...]
    members: tuple[Partner, ...]
    me: str


class Exchange(Protocol):
    """One member's side of one exchange: a pure machine."""

    @property
    def done(self) -> bool:
        """Whether this member has its result, and no other one needs anything of it any more."""

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The members without which it gets no further."""

    def start(self, now: float) -> Sequence[Any]:
        """Returns the first effects: this member's vectors are ready."""

    def receive(self, event: Any, now: float) -> Sequence[Any]:
        """Returns the effects of a `Received` message of this exchange, a `Tick`, or a result of the body.

        Also after its end: a message that comes again is answered again.
        """


class MakeExchange(Protocol):
    """Makes the machine of an exchange; `protocol.exchange` has one for every kind."""

    def __call__(self, plan: ExchangePlan) -> Exchange:
        """Returns a machine that has not started."""


ProgramEffect: TypeAlias = RestartSteps | RunStep | Deliver | ApplyUpdate | Scale | StateReceived
ProgramResult: TypeAlias = StepDone | Applied | StuckOn
