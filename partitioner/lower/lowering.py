"""The lowering of a cut: messages, programs and windows of every kind of step, each made once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import Program
from partita.partitioner.ir.sizes import Sizes
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.arena import arranged
from partita.partitioner.lower.lower import ProgramInputs, program_inputs
from partita.partitioner.lower.messages import (
    GradientSums,
    Message,
    gradient_sums,
    messages_of,
    of_micro_batches,
)
from partita.partitioner.lower.windows import WindowPlan, windows_of
from partita.partitioner.memoised import memoised


@dataclass(frozen=True)
class Lowering:
    """Messages, programs and windows of a cut; `made` are programs of one kind of step made before."""

    owned: Ownership
    sizes: Sizes
    made: tuple[Program, ...] = field(default=(), compare=False, repr=False)

    def messages(self, kind: StepKind) -> tuple[Message, ...]:
        """Every message of a step of this kind."""
        return self._messages(kind.of(self.sizes.graph))

    def programs(self, kind: StepKind) -> tuple[Program, ...]:
        """A step of this kind, for each machine."""
        return self._programs(kind.of(self.sizes.graph))

    def program_inputs(self, kind: StepKind) -> list[ProgramInputs]:
        """Everything that determines the program of each machine; the kind is normalised."""
        messages, sums = self._per_micro_batch(kind), self._sums if kind.train else {}
        return program_inputs(self.owned, messages, sums, kind, micro_batches=self.sizes.micro_batches)

    def windows(self, program: Program, keep: Collection[Buffer] | None) -> dict[Buffer, WindowPlan]:
        """The arrays that a machine holds to play a program; see `Plan.windows`."""
        return arranged(self.owned, program, windows_of(self.owned, program, self.sizes), keep)

    @memoised
    def _messages(self, kind: StepKind) -> tuple[Message, ...]:
        of_one = self._per_micro_batch(kind)
        return of_micro_batches(of_one, micro_batches=self.sizes.micro_batches, overlap=kind.overlap)

    @memoised
    def _programs(self, kind: StepKind) -> tuple[Program, ...]:
        if self.made and self.made[0].kind == kind:
            return self.made
        return tuple(each.program() for each in self.program_inputs(kind))

    @memoised
    def _per_micro_batch(self, kind: StepKind) -> tuple[Message, ...]:
        return messages_of(self.owned, self.sizes, kind, self._sums if kind.train else {})

    @cached_property
    def _sums(self) -> GradientSums:
        return gradient_sums(self.owned)
