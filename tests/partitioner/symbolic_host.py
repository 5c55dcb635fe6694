"""State of a machine while programs are executed on symbols.

A step may be of several portions: what a machine knows of each is a `Host` of its own, which forgets when the
next takes its place; what is learnt they share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from partita.partitioner import Instruction, Op, Program
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.lower.windows import WindowPlan

Term: TypeAlias = tuple[object, ...]
"""Of an error: (step, consumer, which of its inputs, its row, on which machine), or (step, "delta")."""


@dataclass
class Host:
    """One machine: its buffers by (buffer, row), which of them share memory, and how far it is.

    `step` is the step; in what belongs to a portion, the step and its number. `learnt` is the number of the
    minibatch, of all steps; `updated` how often each parameter must have been updated before this portion's
    instruction, and `given` when the parameters that another machine shares were.
    """

    program: Program
    beside: dict[Buffer, set[Buffer]]
    step: object = 0
    learnt: int = 0
    updated: int = 0
    given: tuple[int, int] = (0, 0)
    done: set[int] = field(default_factory=set)
    states: dict[tuple[Buffer, int], object] = field(default_factory=dict)
    sums: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    errors: dict[tuple[Buffer, int], list[Term]] = field(default_factory=dict)
    gradients: dict[Buffer, list[Term]] = field(default_factory=dict)
    values: dict[tuple[Buffer, int], object] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    spoilt: set[Buffer] = field(default_factory=set)
    shared: dict[tuple[Buffer, int], object] = field(default_factory=dict)
    portions: dict[int, Host] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Number of the step."""
        assert isinstance(self.step, int)
        return self.step

    def of(self, instruction: Instruction) -> Host:
        """State of the portion of an instruction; for one that updates parameters, of the last portion."""
        names = [operand.buffer for operand in (instruction.target, *instruction.sources)]
        numbered = [name for name in names if name.micro_batch is not None]
        numbers = [name.micro_batch or 0 for name in numbered if not name.is_of_minibatch]
        pipeline = self.program.pipeline
        if pipeline.total == 1:
            return replace(self, learnt=self.number, updated=self.number, given=(self.number, self.number))
        if not numbers:  # a message of what is learnt, or what follows it
            learnt = self.updates.get(names[-1 if instruction.op is Op.SQUARES else 0].layer, 0)
            minibatch = numbered[0].micro_batch or 0 if numbered else learnt % pipeline.overlap
            is_given = instruction.op in (Op.SEND, Op.RECV) and names[0].kind is BufferKind.PARAMETERS
            return self.portion(minibatch * pipeline.micro_batches, up=is_given)
        is_up = instruction.op in (Op.FORWARD, Op.MULTIPLY, Op.SUMMARISE)
        return self.portion(max(numbers), up=is_up)

    def portion(self, number: int, *, up: bool) -> Host:
        """State of a portion, in its forward or backward pass."""
        pipeline = self.program.pipeline
        size, depth, count = pipeline.micro_batches, pipeline.stage, pipeline.overlap
        kept = self.portions.setdefault(number % pipeline.slots, Host(self.program, {}))
        begun = self.number * count
        latest = (number if up else min(number + depth, pipeline.total - 1)) // size
        return replace(
            kept,
            step=(self.step, number),
            learnt=begun + number // size,
            updated=begun + (max(0, number - depth) if up else number) // size,
            given=(begun + latest, begun + max(0, latest * size - depth) // size),
            done=self.done,
            gradients=self.gradients,
            updates=self.updates,
            shared=self.shared,
        )


def beside_each_other(windows: Mapping[Buffer, WindowPlan]) -> dict[Buffer, set[Buffer]]:
    """For each buffer, the others in the same bytes."""
    ends = {name: (window.offset, window.offset + window.n_bytes) for name, window in windows.items()}
    return {
        name: {other for other, (c, d) in ends.items() if other != name and max(a, c) < min(b, d)}
        for name, (a, b) in ends.items()
    }
