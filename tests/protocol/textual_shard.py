"""A shard whose vectors are texts, which show the order of sums."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.engine.protocol import Message, ShardRanges, SumThenContinue
from partita.engine.protocol import Shard as Machine
from partita.engine.protocol.batch_messages import Command, Contribution, Point
from partita.engine.protocol.commands import (
    Combine,
    Evaluate,
    Operation,
    Segment,
    n_scalars,
)
from partita.engine.protocol.events import Persist, Received, Refuse, Send, Span
from partita.engine.protocol.messages import Heartbeat
from partita.engine.protocol.names import machine_of
from partita.engine.protocol.shard_effects import (
    AddGradient,
    DropGradients,
    Fenced,
    LoadCheckpoint,
    MoveGradient,
    OperationsDone,
    ReceiveAgain,
    RunOperations,
    ShardEvent,
    StoreGradient,
)

RANGES = {0: (0, 3), 1: (3, 8)}
UNIT_SIZE = 2
HALF = Evaluate((Segment("g", 0, 5),))  # work units 0, 1, 2


@dataclass
class Text:
    """A payload with a text; sums of payloads show the order of additions."""

    text: str
    n_bytes: int


@dataclass
class Shard:
    """The shard, and an interpreter that records the operations. Vectors are texts for each machine."""

    ranges: dict[int, tuple[int, int]] = field(default_factory=lambda: dict(RANGES))
    number: int = 0
    leased: bool = True
    slow: bool = False  # what is to be done is done when `work` is called
    working: RunOperations | LoadCheckpoint | None = None
    done: list[Operation | Persist | LoadCheckpoint] = field(default_factory=list)
    sent: list[tuple[str, Message]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    vectors: dict[tuple[str, int], str] = field(default_factory=dict)
    kept: dict[tuple[int, int], str] = field(default_factory=dict)
    most_kept: int = 0

    def __post_init__(self) -> None:
        own = ShardRanges("shard 0", 0, self.ranges)
        self.policy = SumThenContinue(own, unit_size=UNIT_SIZE, number=self.number)
        self.machine = Machine(own, self.policy)
        if self.leased:
            self.receive("coordinator", Heartbeat(0, clock=0.0))

    def feed(self, event: ShardEvent, now: float = 0.0) -> None:
        effects = self.machine.receive(event, now)
        self.machine.validate()
        for effect in effects:
            match effect:
                case RunOperations() | LoadCheckpoint():
                    assert effect is effects[-1] and self.working is None
                    self.working = effect
                    if not self.slow:
                        self.work(now)
                case Persist():
                    self.done.append(effect)
                case StoreGradient(machine=machine, unit=unit, payload=payload, beside=beside):
                    assert isinstance(payload, Text) and (machine, unit) not in self.kept
                    self.kept[machine, unit] = payload.text
                    if beside is not None:
                        into, of = sorted((unit, beside))
                        both = f"({self.kept[machine, into]}+{self.kept.pop((machine, of))})"
                        self.kept[machine, into] = both
                    self.most_kept = max(self.most_kept, len(self.kept))
                case AddGradient(machine=machine, into=into, of=of):
                    self.kept[machine, into] = f"({self.kept[machine, into]}+{self.kept.pop((machine, of))})"
                case MoveGradient(machine=machine, unit=unit, span=span):
                    assert (span.start, span.stop) == self.ranges[machine]
                    self.vectors[span.vector, machine] = self.kept.pop((machine, unit))
                case DropGradients():
                    self.kept.clear()
                case Send(to=to, message=message, payload=span):
                    is_point = isinstance(message, Point)
                    assert span == (Span("x", *self.ranges[machine_of(to)]) if is_point else None)
                    self.sent.append((to, message))
                case Refuse(reason=reason):
                    self.refused.append(reason)
                case Fenced():
                    self.done.clear()
        for effect in effects:
            if isinstance(effect, ReceiveAgain):
                self.feed(effect.event, now)

    def work(self, now: float = 0.0) -> None:
        """Ends the operations. Scalars count from 0 over the whole life, so that repetitions differ."""
        effect, self.working = self.working, None
        assert effect is not None
        if isinstance(effect, LoadCheckpoint):
            self.done.append(effect)
            self.feed(OperationsDone(), now)
            return
        scalars = []
        for operation in effect.operations:
            self.done.append(operation)
            if isinstance(operation, Combine) and not operation.terms:
                self.vectors |= {(operation.to, machine): "0" for machine in self.ranges}
            scalars += [0.5 + len(self.done)] * n_scalars(operation)
        self.feed(OperationsDone(scalars), now)

    def receive(self, sender: str, message: Message, payload: object = None, *, now: float = 0.0) -> None:
        self.feed(Received(sender, 0, message, payload), now)

    def command(self, number: int, *operations: Operation, now: float = 0.0) -> list[Message]:
        """Returns the messages to the coordinator."""
        self.sent.clear()
        self.receive("coordinator", Command(number, operations), now=now)
        return [message for to, message in self.sent if to == "coordinator"]

    def contribute(
        self, evaluation: int, unit: int, machine: int = 0, *, replica: int = 0, n_bytes: int | None = None
    ) -> list[Message]:
        """Returns the messages sent, the acknowledgement first."""
        self.sent.clear()
        start, stop = RANGES[machine]
        text = Text(f"{unit}", 4 * (stop - start) if n_bytes is None else n_bytes)
        self.receive(f"part {replica}.{machine}", Contribution(evaluation, unit), text)
        return [message for _, message in self.sent]
