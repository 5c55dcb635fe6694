"""Traces of a session's steps: the records of its parts, on one clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partita.engine.protocol.clocks import Offset
from partita.engine.runtime.trace import PartTrace, StepTrace, Times, table_shape
from partita.partitioner.ir.program import Program

COMPARED_EVERY_S: Final = 1.0
"""Seconds after which clocks are compared again; those of two machines may drift apart by 20 us in a second.
"""


@dataclass
class Tracer:
    """Converts the records of parts to one clock.

    Args:
        programs: programs of the parts.
        clocks: compares the parts' clocks with this thread's.
    """

    programs: Sequence[Program]
    clocks: Callable[[], list[Offset]]
    _offsets: list[Offset] = field(default_factory=list)
    _compared_at: float = float("-inf")

    def compare(self) -> None:
        """Compares clocks where the last comparison is old. To be called before a step, never in it."""
        if time.monotonic() - self._compared_at > COMPARED_EVERY_S:
            self._offsets = self.clocks()
            self._compared_at = time.monotonic()

    def tables(self) -> list[Times]:
        """Allocates the parts' tables."""
        return [np.empty(table_shape(program)) for program in self.programs]

    def trace(self, tables: Sequence[Times]) -> StepTrace:
        """Makes a trace of the tables of a step."""
        records = zip(self.programs, tables, self._offsets, strict=True)
        return StepTrace(tuple(PartTrace.of(*part) for part in records))
