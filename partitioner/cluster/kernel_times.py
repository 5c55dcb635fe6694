"""Measured times of a machine's kernels, by signature, and estimates for all others.

The estimate is the time on the reference machine times a ratio of measured to reference time: interpolated
between the sizes below and above of the kernel's own family; otherwise that of its kind, of its operation, or
of all kernels.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from partita.layers.text import counted
from partita.partitioner.cluster.work import Work, family_of, kind_of

Origin: TypeAlias = Literal["measured", "interpolated", "scaled"]


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured time, and the time on the reference machine (see `Work.reference_s`)."""

    seconds: float
    reference_s: float


@dataclass(frozen=True, eq=False)
class KernelTimes:
    """Measured times of a machine's kernels, by signature. Immutable."""

    table: Mapping[str, Timed]

    def seconds(self, work: Work) -> float:
        """Returns the time of a kernel, measured or estimated."""
        return self.find(work)[0]

    def find(self, work: Work) -> tuple[float, Origin]:
        """Returns the time of a kernel, and its origin."""
        known = self.table.get(work.signature)
        if known is not None:
            return known.seconds, "measured"
        points = self._families.get(work.family)
        if points:
            return work.reference_s * _interpolated(points, work.reference_s), "interpolated"
        kind = kind_of(work.family)
        for group in (kind, kind.partition(" ")[0], ""):
            ratio = self._ratios.get(group)
            if ratio is not None:
                return work.reference_s * ratio, "scaled"
        return work.reference_s, "scaled"

    def knows(self, work: Work) -> bool:
        """Returns whether kernels of the family were measured."""
        return work.family in self._families

    def with_more(self, more: Mapping[str, Timed]) -> KernelTimes:
        """Returns these times and others, which take precedence."""
        return KernelTimes({**self.table, **more})

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"KernelTimes({counted(len(self.table), 'kernel')})"

    @cached_property
    def _families(self) -> dict[str, list[tuple[float, float]]]:
        """For each family, pairs of reference seconds and the logarithm of the ratio, ascending."""
        found: dict[str, dict[float, list[float]]] = {}
        for signature, timed in self.table.items():
            if timed.seconds > 0 and timed.reference_s > 0:
                points = found.setdefault(family_of(signature), {})
                points.setdefault(timed.reference_s, []).append(math.log(timed.seconds / timed.reference_s))
        return {
            family: sorted((size, sum(logs) / len(logs)) for size, logs in points.items())
            for family, points in found.items()
        }

    @cached_property
    def _ratios(self) -> dict[str, float]:
        """For each kind, each operation and all: measured seconds over reference seconds."""
        sums: dict[str, tuple[float, float]] = {}
        for signature, timed in self.table.items():
            kind = kind_of(signature)
            for group in (kind, kind.partition(" ")[0], ""):
                took, reference = sums.get(group, (0.0, 0.0))
                sums[group] = took + timed.seconds, reference + timed.reference_s
        return {group: took / reference for group, (took, reference) in sums.items() if reference > 0}


def _interpolated(points: list[tuple[float, float]], size: float) -> float:
    """The ratio at a size: linear between logarithms, constant beyond the smallest and the largest."""
    above = bisect_left(points, (size,))
    if above == 0 or above == len(points):
        return math.exp(points[min(above, len(points) - 1)][1])
    (low, first), (high, last) = points[above - 1], points[above]
    share = math.log(size / low) / math.log(high / low)
    return math.exp(first + share * (last - first))
