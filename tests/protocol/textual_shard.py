"""A shard whose vectors are texts, which show the order of sums."""

from __future__ import annotations

from collections.abc import Sequence
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
from partita.engine.protocol.durability import Keep, Record
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
    ShardEffect,
    ShardEvent,
    StoreGradient,
    SumsTaken,
    TakeSums,
    WriteVector,
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
    keeps: bool = False
    leased: bool = True
    slow: bool = False  # what is to be done is done when `work` is called
    working: RunOperations | LoadCheckpoint | None = None
    done: list[Operation | Persist | LoadCheckpoint] = field(default_factory=list)
    sent: list[tuple[str, Message]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    vectors: dict[tuple[str, int], str] = field(default_factory=dict)
    kept: dict[tuple[int, int], str] = field(default_factory=dict)
    most_kept: int = 0
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = ShardRanges("shard 0", 0, self.ranges)
        self.policy = SumThenContinue(own, unit_size=UNIT_SIZE, number=self.number, keeps=self.keeps)
        self.machine = Machine(own, self.policy, keeps=self.keeps)
        if self.leased:
            self.receive("coordinator", Heartbeat(0, clock=0.0))

    def feed(self, event: ShardEvent, now: float = 0.0) -> None:
        self.carry_out(self.machine.receive(event, now), now)
        self.machine.validate()

    def carry_out(self, effects: Sequence[ShardEffect], now: float = 0.0) -> None:
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
                case Keep(record=record):
                    self.records.append(record)
                case TakeSums(vectors=vectors):
                    assert effect is effects[-1]
                    self.feed(SumsTaken(tuple(self.sum_of(vector) for vector in vectors)), now)
                case WriteVector(vector=vector, payload=payload):
                    assert isinstance(payload, Text)
                    texts = payload.text.split()
                    self.vectors |= {(vector, m): text for m, text in zip(self.ranges, texts, strict=True)}
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

    def sum_of(self, vector: str) -> Text:
        """Returns the texts of a vector for all machines."""
        stop = max(stop for _, stop in self.ranges.values())
        return Text(" ".join(self.vectors[vector, m] for m in self.ranges), 4 * stop)

    def work(self, now: float = 0.0) -> None:
        """Ends the operations. Scalars count from 0 over the whole life, so that repetitions differ."""
        self.feed(self.executed(), now)

    def executed(self) -> OperationsDone:
        """Executes the operations under way."""
        effect, self.working = self.working, None
        assert effect is not None
        if isinstance(effect, LoadCheckpoint):
            self.done.append(effect)
            return OperationsDone()
        scalars = []
        for operation in effect.operations:
            self.done.append(operation)
            if isinstance(operation, Combine) and not operation.terms:
                self.vectors |= {(operation.to, machine): "0" for machine in self.ranges}
            scalars += [0.5 + len(self.done)] * n_scalars(operation)
        return OperationsDone(scalars)

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
