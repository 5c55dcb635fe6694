"""The function that is minimised: a sum over a few examples, in plain Python floats.

Every example couples all machines, as a network's does: each part's gradient depends on the numbers of the
others. Every computation of a portion has the same bits.
"""

from __future__ import annotations

from random import Random
from typing import TypeAlias

from partita.engine.protocol.commands import Portions
from partita.engine.testing.vectors import Vector, added

UnitResult: TypeAlias = tuple[tuple[Vector, ...], tuple[float, ...], tuple[int, ...]]
"""A replica's results of a work unit: by machine, gradients, sums of losses, and how many are right."""


class Function:
    """Least squares with a fourth power, so that a method has something to do.

    Attributes:
        machines: how many numbers each machine holds.
        portions: of the data; they come again after the last one.
        start: where it is minimised from, all machines' numbers in a row.
    """

    def __init__(self, random: Random, machines: tuple[int, ...], portions: Portions) -> None:
        size = sum(machines)
        self.machines = machines
        self.portions = portions
        self.start: Vector = tuple(random.uniform(-1.0, 1.0) for _ in range(size))
        self._examples = [
            (tuple(random.uniform(-1.0, 1.0) for _ in range(size)), random.uniform(-1.0, 1.0))
            for _ in range(portions.examples)
        ]
        self._known: dict[tuple[Vector, int, int], UnitResult] = {}

    def unit(self, x: Vector, first: int, count: int) -> UnitResult:
        """Evaluates portions `[first, first + count)`, one after the other, at this point."""
        key = (x, first, count)
        if key not in self._known:
            self._known[key] = self._compute(x, first, count)
        return self._known[key]

    def _compute(self, x: Vector, first: int, count: int) -> UnitResult:
        gradient: Vector = (0.0,) * len(x)
        losses, right = [0.0] * len(self.machines), [0] * len(self.machines)
        for portion in range(first, first + count):
            _, start, stop = self.portions.place(portion)
            for n, (features, target) in enumerate(self._examples[start:stop]):
                residual = sum([one * other for one, other in zip(features, x, strict=True)]) - target
                slope = residual + 0.4 * residual**3
                weight = slope / self.portions.size
                gradient = added(gradient, [weight * feature for feature in features])
                shard = (portion + n) % len(self.machines)
                losses[shard] += 0.5 * residual**2 + 0.1 * residual**4
                right[shard] += residual < 0.3
        pieces, start = [], 0
        for size in self.machines:
            pieces.append(gradient[start : start + size])
            start += size
        return tuple(pieces), tuple(losses), tuple(right)
