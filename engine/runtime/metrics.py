"""Sums of a machine's losses over the examples of one step or more.

Each micro-batch of a step has sums of its own, so that the order in which they end changes no bit.
"""

from __future__ import annotations

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.plan import Plan


class Metrics:
    """Sums over examples by each loss's buffer. One thread at a time adds to a loss."""

    def __init__(self) -> None:
        self._losses: dict[Buffer, float] = {}
        self._correct: dict[Buffer, int] = {}
        self._sums: dict[Buffer, Array] = {}
        self._terms: dict[str, float] = {}  # by parameter

    def expect(self, loss_buffer: Buffer) -> None:
        """Adds a loss in this buffer, or sets its sums to zero."""
        self._losses[loss_buffer], self._correct[loss_buffer] = 0.0, 0
        self._sums.pop(loss_buffer, None)

    def add(self, loss_buffer: Buffer, loss: float, correct: int, sums: Array | None = None) -> None:
        """Adds the sums of a micro-batch; `sums` are those of `ReportedSums`, where there are any."""
        self._losses[loss_buffer] += loss
        self._correct[loss_buffer] += correct
        if sums is not None:
            self._sums[loss_buffer] = self._sums.get(loss_buffer, 0.0) + sums

    def add_term(self, parameter: str, loss: float) -> None:
        """Adds the sum over examples of a parameter's regulariser."""
        self._terms[parameter] = self._terms.get(parameter, 0.0) + loss

    def clear(self) -> None:
        """Sets all sums to zero."""
        self._terms = dict.fromkeys(self._terms, 0.0)
        for loss_buffer in self._losses:
            self.expect(loss_buffer)

    @property
    def loss(self) -> float:
        """The sum of all losses, in the order of the program, and of the terms of regularisers."""
        terms = [self._terms[name] for name in sorted(self._terms)]
        return sum(self._losses.values()) + sum(terms)

    @property
    def sums(self) -> tuple[float, ...]:
        """The further sums, in the order of `ReportedSums`."""
        found = [self._sums[buffer] for buffer in self._losses if buffer in self._sums]
        return tuple(np.sum(found, axis=0).tolist()) if found else ()

    @property
    def correct(self) -> int:
        """The number of examples that all losses count as correct."""
        return sum(self._correct.values())


def examples_counted(plan: Plan, machine: int, examples: int) -> int:
    """Returns the number of a step's examples that this machine reports.

    The machines that evaluate the first loss share them, as they share its sum, so that the sum of some
    reports is about right, too.
    """
    counted = plan.ownership.loss_owners(plan.graph.losses[0])
    if machine not in counted:
        return 0
    index = counted.index(machine)
    return examples * (index + 1) // len(counted) - examples * index // len(counted)
