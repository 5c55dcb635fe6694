"""A part whose forward pass is played in stages, one for each exit; each stage on the examples that go on.

Stage k computes what the scores of exit k need beyond earlier stages. A message belongs to the stage of the
first layer that reads it at its receiver, so that it leaves only for examples that reach this stage. Between
two stages a part keeps the activations of the examples that go on, until there are enough for a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.protocol.session_messages import Play
from partita.engine.runtime.session import SessionPart, SessionTask
from partita.layers.graph import Graph
from partita.partitioner.ir.buffer import Buffer, BufferKind
from partita.partitioner.ir.program import Instruction, Op, Operand
from partita.partitioner.plan import Plan


def stages_of(graph: Graph, ends: Sequence[str]) -> dict[str, int]:
    """Returns the stage of each layer and input: the first whose end depends on it.

    Args:
        graph: a network whose layers all lead to some end.
        ends: the layers of the exits' scores, in the order of the exits.
    """
    found: dict[str, int] = {}
    for stage, end in enumerate(ends):
        waiting = [end]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = stage
                waiting.extend(graph[name].sources)
    return found


@dataclass(frozen=True)
class ExitTask(SessionTask):
    """One machine's part of a plan without losses, played up to one exit after the other.

    Args:
        ends: the layers of the exits' scores, in the order of the exits.
    """

    ends: tuple[str, ...] = ()

    @override
    def part(self) -> SessionPart:
        return ExitPart(self)

    @cached_property
    @override
    def phases(self) -> tuple[tuple[int, ...], ...]:
        stages, found = stages_of(self.plan.graph, self.ends), self.instructions.instructions
        placed = [_stage(one, self.plan, self.machine, stages) for one in found]
        for n, one in enumerate(found):
            assert all(placed[k] <= placed[n] for k in one.after), f"{one} waits for a later exit"
        return tuple(
            tuple(n for n, stage in enumerate(placed) if stage == phase) for phase in range(len(self.ends))
        )

    @cached_property
    def kept(self) -> tuple[tuple[Operand, ...], ...]:
        """For each stage, the rows that it or a later one reads, and that an earlier one writes."""
        found = self.instructions.instructions
        written: dict[Operand, None] = {}
        kept = []
        for number, phase in enumerate(self.phases):
            later = {buffer for some in self.phases[number:] for n in some for buffer in _read(found[n])}
            kept.append(tuple(operand for operand in written if operand.buffer in later))
            written |= {found[n].target: None for n in phase if found[n].op is not Op.SEND}
        return tuple(kept)


def _read(instruction: Instruction) -> Iterator[Buffer]:
    """Yields the buffers of examples that an instruction reads."""
    operands = instruction.sources
    if instruction.op is Op.SEND or instruction.accumulate:
        operands = (*operands, instruction.target)
    return (one.buffer for one in operands if one.buffer.kind is not BufferKind.PARAMETERS)


def _stage(instruction: Instruction, plan: Plan, machine: int, stages: dict[str, int]) -> int:
    buffer, op = instruction.target.buffer, instruction.op
    if op is Op.FEED or buffer.kind is BufferKind.PARAMETERS:
        return 0
    if op in (Op.SEND, Op.RECV) and buffer.kind is BufferKind.ACTIVATIONS:
        receiver = instruction.peer if op is Op.SEND else machine
        assert receiver is not None, instruction
        readers = (name for name, _ in plan.graph.consumers(buffer.layer))
        return min(stages[name] for name in readers if plan.ownership.rows(name, receiver))
    return stages[buffer.layer]


class ExitPart(SessionPart):
    """One machine's arrays, and the activations of examples that wait for each stage."""

    def __init__(self, task: ExitTask) -> None:
        super().__init__(task)
        self._kept: Final = task.kept
        self._waiting: Final[list[list[Array]]] = [[] for _ in task.kept]  # by stage: [..., example]
        self._stage = 0

    @override
    def arrange(self, play: Play) -> None:
        """Keeps the examples of the last stage that go on, and takes those that a later stage has next."""
        if play.onward:
            self._keep(self._stage + 1, list(play.onward))
        if play.phase:
            self._take(play.phase, play.examples)
        self._stage = play.phase

    def _keep(self, stage: int, examples: list[int]) -> None:
        found = [
            array[..., examples]
            for operand in self._kept[stage]
            for array in self._buffers[operand.buffer].download(operand.rows)
        ]
        before = self._waiting[stage] or [one[..., :0] for one in found]
        self._waiting[stage] = [np.concatenate(pair, -1) for pair in zip(before, found, strict=True)]

    def _take(self, stage: int, count: int) -> None:
        arrays = iter(self._waiting[stage])
        for operand in self._kept[stage]:
            window = self._buffers[operand.buffer]
            for place in window.arriving(operand.rows):
                place[..., :count] = next(arrays)[..., :count]
            window.upload(operand.rows)
        self._waiting[stage] = [one[..., count:] for one in self._waiting[stage]]
