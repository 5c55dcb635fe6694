"""Plays plans of one task, again and again: what a change leaves as it was is not made anew.

A machine's program follows from its own pieces, messages and sums, so a change of some layers on some
machines leaves the programs of the others, and what these cost.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from partita.partitioner.ir.program import Program
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.lower import Share, shares
from partita.partitioner.lower.messages import messages_of
from partita.partitioner.plan import Plan
from partita.partitioner.predict.simulate import simulate_programs
from partita.partitioner.predict.timed_program import TimedProgram, timed_program
from partita.partitioner.search.task import Task


@dataclass(frozen=True, order=True)
class Score:
    """How good a plan is: what does not fit into memory (bytes) counts before its step (seconds)."""

    excess_bytes: int
    step_s: float


@dataclass
class _Part:
    """A machine's program, in numbers; and its memory, if that was asked for."""

    track: TimedProgram
    n_bytes: int | None = None


class Evaluator:
    """Plays plans of a task."""

    def __init__(self, task: Task) -> None:
        self.task, self.hosts, self.kind = task, task.cluster.hosts, StepKind().of(task.graph)
        self.spent = 0.0
        """Instructions that were made so far; to play one takes an eighth of that."""
        self.programs: tuple[Program, ...] = ()
        """Of the plan that was played last."""
        self._parts: dict[Hashable, _Part] = {}

    def score(self, plan: Plan, *, limit_s: float = math.inf) -> Score:
        """What a plan's step takes; of one that takes longer than the limit, memory is not looked at."""
        messages = messages_of(plan.ownership, self.task.costs.sizes, self.kind)
        found = shares(plan.ownership, messages, self.kind, micro_batches=self.task.portions)
        parts = [self._part(share) for share in found]
        self.spent += sum(len(part.track.kinds) for part in parts) / 8
        self.programs = tuple(part.track.program for part in parts)
        record = simulate_programs([part.track for part in parts], self.hosts)
        excess = 0
        for machine, limit in self.task.tight_limits.items() if record.step_s < limit_s else ():
            part = parts[machine]
            if part.n_bytes is None:
                part.n_bytes = plan.program_bytes(part.track.program)
                self.spent += len(part.track.program)
            excess += max(part.n_bytes - limit, 0)
        return Score(excess, record.step_s)

    def _part(self, share: Share) -> _Part:
        key = share.key
        if key not in self._parts:
            program = share.program()
            self.spent += len(program)
            self._parts[key] = _Part(timed_program(program, self.task.costs, self.task.costs.sizes))
        return self._parts[key]
