"""Events and effects between the machine of a part's program and its body, and what each part is given.

The body carries out effects in order, each finished before the next one starts, except those that name an
event as their end. An exchange adds its own, `AddChunk` and `CopyChunk` of `exchange`; `Persist` asks for the
file of a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from partita.engine.protocol.actions import Portion
from partita.engine.protocol.events import Received, Span
from partita.engine.protocol.loss_scale import ScaleState
from partita.engine.protocol.names import part_name

STEPS_OF_A_VIEW: Final = 1 << 32
"""All parts of a replica number the steps that they compute in view V from V times this number on."""

PREDICTIONS: Final = "predictions"
"""The vector of what teachers have predicted, see `teaching`."""

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

    Afterwards "gradient" holds this replica's share of the gradient of the mean over the joined batch, or see
    `alone`; zeros where it has no example.

    Args:
        number: of the step among those that the parts of this replica compute.
        step: of the run; what random numbers and schedules go by.
        position: of the joined batch: examples before it.
        rank, replicas: of the replica in its view.
        alone: the gradient is the mean over the examples of this replica.
        of: the examples of a client in the place of the joined batch's; the gradient is the mean over them.
        teaches, distil, entry: see `actions.Compute`.
        loss_scale: factor of the gradient.
    """

    number: int
    step: int
    position: int
    rank: int
    replicas: int
    alone: bool = False
    of: Portion | None = None
    teaches: float = 0.0
    distil: float = 0.0
    loss_scale: float = 1.0
    entry: int = 0


@dataclass(frozen=True, slots=True)
class Deliver:
    """Effect: give the step's instructions a message of another part of the replica (`Tensor`, `Credit`)."""

    event: Received


@dataclass(frozen=True, slots=True)
class ApplyUpdate:
    """Effect: update ranges of a vector by the same ranges of another one; `Applied` reports the end.

    Args:
        optimizer: computes the update; its state belongs to the part's state.
        spans: of the vector, "parameters" or one that the driver keeps.
        updates: updates of this vector before this one.
        scale: factor of the learning rate.
        gradient: the other vector.
    """

    optimizer: Any
    spans: tuple[Span, ...]
    updates: int
    scale: float = 1.0
    gradient: str = "gradient"


@dataclass(frozen=True, slots=True)
class CopyVector:
    """Effect: copy the numbers of a range of one vector to the same range of another one.

    "sum" is a vector for all-reduces of the parameters, which stay as they are until the result is complete,
    and for those that leave out the last replicas: the next gradient is computed while others may still ask
    for the last sum.
    """

    source: Span
    target: str


@dataclass(frozen=True, slots=True)
class CombineVectors:
    """Effect: replace a range by the sum of factors times the same range of vectors, in their order.

    `unlearned` are the terms for numbers that no optimizer changes; None: the same.
    """

    span: Span
    terms: tuple[tuple[str, float], ...]
    unlearned: tuple[tuple[str, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class MeasureDots:
    """Effect: write inner products of vectors into "dots", of `size` numbers in float64; zeros elsewhere.

    Args:
        pairs: of vectors.
        spans: ranges of them, of which each number counts once in the replica.
        place: of the first product; the others follow.
        size: of "dots" in this exchange.
    """

    pairs: tuple[tuple[str, str], ...]
    spans: tuple[tuple[int, int], ...]
    place: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadDots:
    """Effect: read the first `size` numbers of "dots"; `DotsRead` reports them."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class EncodeMessage:
    """Effect: write the message of a step for a range of a vector.

    Args:
        compress: the compressor; its state for this range belongs to this replica alone.
        source: the range.
        target: of the vector of messages: this replica's.
        whole: of the vector of messages: where those of all members come for this range.
        shapes: of the tensors in the range.
        step: of the run.
        turn: which of the compressor's rounds.
        view: number of the view.
        members: that exchange messages.
    """

    compress: Any
    source: Span
    target: Span
    whole: Span
    shapes: tuple[tuple[int, ...], ...]
    step: int
    turn: int
    view: int
    members: int


@dataclass(frozen=True, slots=True)
class DecodeMessages:
    """Effect: make a range of a vector what the messages of a round mean.

    Args:
        compress, shapes, step, turn: see `EncodeMessage`.
        source: of the vector of messages: those of all members, one after the other, or their sum.
        target: the range.
    """

    compress: Any
    source: Span
    target: Span
    shapes: tuple[tuple[int, ...], ...]
    step: int
    turn: int


@dataclass(frozen=True, slots=True)
class CommitMessages:
    """Effect: what the messages of this step lacked belongs to the part's state from now on."""

    step: int


@dataclass(frozen=True, slots=True)
class MeasureNorms:
    """Effect: write sums of squares of these ranges of the parameters and the gradient into "norms"."""

    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class StateReceived:
    """Effect: every vector of the part's state is now that of another replica, after `step` steps."""

    step: int


# Events.


@dataclass(frozen=True, slots=True)
class StepDone:
    """Event, answers `RunStep`: the gradient is there, and finite; else the body raises, and not the machine.

    The sums are over the examples whose losses this part evaluates; `examples` counts those it reports.
    `sums` are further ones, in an order that the coordinator's user knows. `read` has seconds and examples of
    reading the data, in such an order, too; () where nothing is read.
    """

    number: int
    examples: int = 0
    loss: float = 0.0
    correct: int = 0
    sums: tuple[float, ...] = ()
    read: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """Event, answers `ApplyUpdate`: the parameters and the optimizer's state are updated."""


@dataclass(frozen=True, slots=True)
class DotsRead:
    """Event, answers `ReadDots`: the numbers, in their places."""

    number: int
    values: tuple[float, ...]


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

    Args:
        shapes: of the tensors in the range, for compressors; (): it is one vector.
    """

    index: int
    start: int
    stop: int
    machines: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def tensors(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its tensors."""
        return self.shapes or ((self.stop - self.start,),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSeat:
    """A part, as far as its program must know it.

    Args:
        replica, machine, machines: of the part, and of the plan.
        incarnation: of the process.
        size: numbers in each of its vectors.
        spans: disjoint, covering the vectors; `exchanges` counts those of all machines.
        norms: range of the vector "norms", which all machines hold; None where the optimizer needs none.
        exchanges: ranges that the plan has in all, with that of the norms.
        state: the vectors that are the part's state: "parameters", those that the driver keeps, and those of
            the optimizers.
        item_bytes: bytes of a number in all of them; "dots" has eight.
        entries: minibatches whose predictions the part keeps, in "predictions".
        entry_size: numbers in one of them: 0 where the part has no scores.
        step: steps done in the state that the process starts from.
        points: safe points of it, after the first one of its step: a checkpoint has the last state of one.
        loss_scale: of it; None where losses are not scaled, or the state is that of the start.
    """

    replica: int
    machine: int
    machines: int
    incarnation: int
    size: int
    spans: tuple[SharedSpan, ...]
    exchanges: int
    norms: SharedSpan | None = None
    state: tuple[str, ...] = ("parameters",)
    item_bytes: int = 4
    entries: int = 0
    entry_size: int = 0
    step: int = 0
    points: int = 0
    loss_scale: ScaleState | None = None

    @property
    def name(self) -> str:
        """The name of the part's host."""
        return part_name(self.replica, self.machine)

    def ranges(self, vector: str) -> tuple[SharedSpan, ...]:
        """Returns the ranges of a vector that are exchanged, other than "dots"."""
        if vector == PREDICTIONS:
            n = self.length(vector)
            return (SharedSpan(self.machine, 0, n, (self.machine,)),) if n else ()
        if vector != "norms":
            return self.spans
        assert self.norms is not None, "the optimizer needs no norms"
        return (self.norms,)

    def length(self, vector: str) -> int:
        """Returns the numbers in a vector that `Combine` may name."""
        return self.entries * self.entry_size if vector == PREDICTIONS else self.size

    @property
    def others(self) -> tuple[str, ...]:
        """The hosts of the replica's other parts."""
        machines = (machine for machine in range(self.machines) if machine != self.machine)
        return tuple(part_name(self.replica, machine) for machine in machines)


ProgramEffect: TypeAlias = (
    RestartSteps
    | RunStep
    | Deliver
    | CopyVector
    | EncodeMessage
    | DecodeMessages
    | CommitMessages
    | CombineVectors
    | MeasureNorms
    | MeasureDots
    | ReadDots
    | ApplyUpdate
    | StateReceived
)
ProgramResult: TypeAlias = StepDone | Applied | DotsRead | StuckOn
