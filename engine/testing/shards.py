"""The simulated body of a shard: named vectors of a few numbers, and files on the simulated disk.

It stands for `runtime.shard`: one after the other, gradients are applied or added up, operations are
executed, and files are written. A driver's own body adds how long that takes, and shows it to the checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Persist, Send
from partita.engine.protocol.shard_effects import (
    AddGradient,
    ApplyGradient,
    DropGradients,
    Fenced,
    LoadCheckpoint,
    LongEffect,
    MoveGradient,
    OperationsDone,
    ReceiveAgain,
    StoreGradient,
)
from partita.engine.testing.host import Numbers, SimulatedBody, SimulatedHost
from partita.engine.testing.schedule import Schedule
from partita.engine.testing.vectors import Vector, Vectors, added, operate


class ShardBody(SimulatedBody):
    """A shard's vectors of `size` numbers each; an update by a gradient is its sum."""

    schedule: Schedule

    def __init__(self, schedule: Schedule, host: SimulatedHost, vectors: Mapping[str, Vector]) -> None:
        super().__init__(host)
        self.schedule = schedule
        self.id = host.id
        self.vectors: Vectors = dict(vectors)
        self.size = schedule.layout.sizes[host.name]
        self._kept: dict[tuple[int, int], Vector] = {}

    def carry_out(self, effect: Any, event: Any) -> Any:
        """Carries out an effect of the shard's machine."""
        match effect:
            case ApplyGradient():
                self.apply(effect)
            case StoreGradient():
                self.store(effect)
            case AddGradient(machine=machine, into=into, of=of):
                whole = added(self._kept[machine, into], self._kept.pop((machine, of)))
                self._kept[machine, into] = whole
            case MoveGradient(machine=machine, unit=unit, span=span):
                vector = list(self.vectors.get(span.vector, (0.0,) * self.size))
                vector[span.start : span.stop] = self._kept.pop((machine, unit))
                self.vectors[span.vector] = tuple(vector)
            case DropGradients():
                self._kept.clear()
            case Persist():
                self.write(self.schedule, effect, self.contents(effect))
            case ReceiveAgain(event=again):
                return again
            case Fenced():
                self.host.exit()
            case _:
                return self.work(effect)
        return None

    def payload(self, send: Send) -> Numbers:
        """Returns the numbers of a span."""
        assert send.payload is not None
        return Numbers(self.vectors[send.payload.vector][send.payload.start : send.payload.stop])

    def apply(self, effect: ApplyGradient) -> None:
        """Adds a gradient to `x`."""
        assert isinstance(effect.payload, Numbers)
        x = list(self.vectors[POINT])
        for i, number in enumerate(effect.payload, effect.span.start):
            x[i] += number
        self.vectors[POINT] = tuple(x)

    def store(self, effect: StoreGradient) -> None:
        """Keeps a gradient for a sum."""
        assert isinstance(effect.payload, Numbers)
        machine, unit, numbers = effect.machine, effect.unit, tuple(effect.payload)
        if effect.beside is not None:
            numbers = added(self._kept.pop((machine, effect.beside)), numbers)
            unit = min(unit, effect.beside)
        self._kept[machine, unit] = numbers

    def work(self, effect: LongEffect) -> OperationsDone | None:
        """Executes operations, or loads a checkpoint. Returns the end if that is now."""
        assert not isinstance(effect, LoadCheckpoint), effect
        return OperationsDone(
            [one for asked in effect.operations for one in operate(self.vectors, asked, self.size)]
        )

    def contents(self, order: Persist) -> object:
        """Returns the contents of a file, as they are now."""
        return dict(self.vectors)
