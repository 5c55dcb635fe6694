"""Where every parameter lies: on the machines of a replica, in one global vector, and on the shards.

All parameters of a machine lie one after another in its vector; the machines' vectors, machine 0 first,
make the global vector; shard k of K holds the k-th of K nearly equal runs of it. So what a machine keeps on
a shard is one contiguous range on both sides, and a machine talks only to the shards that hold its own
parameters (DistBelief, section 4.1). Plain data: this module must not know layers, plans, messages or
rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.vector import Vector

Shape: TypeAlias = tuple[int, ...]


class Slot(NamedTuple):
    """The flat range `[start, stop)` of a parameter, in the C order of its whole array."""

    parameter: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.stop - self.start


class Overlap(NamedTuple):
    """What a machine keeps on a shard: `[start, stop)` in the vector of each of the two."""

    machine: int
    shard: int
    machine_start: int
    machine_stop: int
    shard_start: int
    shard_stop: int


@dataclass(frozen=True)
class Layout:
    """Which flat ranges of which parameters live where.

    Args:
        machines: for each machine, the slots whose concatenation is its vector.
        shapes: the shape of each whole parameter.
        shards: how many shards hold the global vector; may exceed its size (some are then empty).

    Raises:
        ValueError: fewer than one shard, a slot outside its parameter or of an unknown one, or a number of a
            parameter that belongs to no machine or to several.
    """

    machines: tuple[tuple[Slot, ...], ...]
    shapes: Mapping[str, Shape]
    shards: int

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ValueError(f"{self.shards} shards cannot hold parameters; use 1 or more")
        machines = tuple(tuple(Slot(*slot) for slot in slots) for slots in self.machines)
        object.__setattr__(self, "machines", machines)
        shapes = {name: tuple(shape) for name, shape in self.shapes.items()}
        object.__setattr__(self, "shapes", MappingProxyType(shapes))
        check_cover((slot for slots in machines for slot in slots), self.shapes)

    @cached_property
    def machine_starts(self) -> tuple[int, ...]:
        """Where each machine's vector begins in the global one, and after the last its end."""
        starts = [0]
        for slots in self.machines:
            starts.append(starts[-1] + sum(slot.size for slot in slots))
        return tuple(starts)

    @cached_property
    def shard_starts(self) -> tuple[int, ...]:
        """Where each shard's vector begins in the global one, and after the last its end."""
        return tuple(shard * self.size // self.shards for shard in range(self.shards + 1))

    @property
    def size(self) -> int:
        """How many numbers the network learns."""
        return self.machine_starts[-1]

    def machine_size(self, machine: int) -> int:
        """How many numbers the machine's vector has."""
        return self.machine_starts[machine + 1] - self.machine_starts[machine]

    def shard_size(self, shard: int) -> int:
        """How many numbers the shard's vector has."""
        return self.shard_starts[shard + 1] - self.shard_starts[shard]

    @cached_property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Every pair of a machine and a shard that have something in common, machine by machine."""
        found = []
        for machine, (a, b) in enumerate(pairwise(self.machine_starts)):
            for shard, (c, d) in enumerate(pairwise(self.shard_starts)):
                start, stop = max(a, c), min(b, d)
                if start < stop:
                    found.append(Overlap(machine, shard, start - a, stop - a, start - c, stop - c))
        return tuple(found)

    def shards_of(self, machine: int) -> tuple[Overlap, ...]:
        """The shards that hold the machine's parameters, in the order of its vector."""
        return tuple(overlap for overlap in self.overlaps if overlap.machine == machine)

    def machines_of(self, shard: int) -> tuple[Overlap, ...]:
        """The machines whose parameters the shard holds, in the order of its vector."""
        return tuple(overlap for overlap in self.overlaps if overlap.shard == shard)

    def slots_of(self, shard: int) -> tuple[Slot, ...]:
        """The ranges of parameters whose concatenation is the shard's vector."""
        low, high = self.shard_starts[shard], self.shard_starts[shard + 1]
        held, position = [], 0
        for slot in (slot for slots in self.machines for slot in slots):
            start, stop = max(position, low), min(position + slot.size, high)
            if start < stop:
                offset = slot.start - position
                held.append(Slot(slot.parameter, start + offset, stop + offset))
            position += slot.size
        return tuple(held)

    def __str__(self) -> str:
        lines = [f"{self.size:,} parameters of {len(self.machines)} machines on {self.shards} shards"]
        for overlap in self.overlaps:
            lines.append(
                f"  machine {overlap.machine} [{overlap.machine_start}:{overlap.machine_stop}]"
                f" = shard {overlap.shard} [{overlap.shard_start}:{overlap.shard_stop}]"
            )
        return "\n".join(lines)


def check_cover(slots: Iterable[Slot], shapes: Mapping[str, Shape]) -> None:
    """Checks that these slots hold every number of every parameter exactly once.

    Raises:
        ValueError: they do not; says which numbers of which parameter, and how often they occur.
    """
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in shapes}
    for name, start, stop in slots:
        if name not in shapes:
            raise ValueError(
                f"a slot is of parameter {name!r}, whose shape is not given; known: {list(shapes)}"
            )
        size = math.prod(shapes[name])
        if not 0 <= start <= stop <= size:
            raise ValueError(f"slot [{start}:{stop}] leaves parameter {name!r}, which has {size} numbers")
        if start < stop:
            ranges[name].append((start, stop))
    for name, held in ranges.items():
        end = 0
        for start, stop in [*sorted(held), (math.prod(shapes[name]),) * 2]:
            if start != end:
                what = "no machine holds" if start > end else "several machines hold"
                low, high = sorted((start, end))
                raise ValueError(f"{what} {name!r} [{low}:{high}]; every number belongs to exactly one")
            end = stop


def gather(
    slots: Sequence[Slot],
    parameters: Mapping[str, Vector],
    dtype: npt.DTypeLike = np.float32,
    *,
    out: Vector | None = None,
) -> Vector:
    """The vector that these slots make out of whole parameters (any shape, C order).

    Args:
        slots: whose ranges follow one another.
        parameters: whole, by name.
        dtype: of a new vector.
        out: `[n]`, to be filled instead of a new one.
    """
    vector = np.empty(sum(slot.size for slot in slots), dtype) if out is None else out
    position = 0
    for name, start, stop in slots:
        vector[position : position + stop - start] = parameters[name].reshape(-1)[start:stop]
        position += stop - start
    return vector


def scatter(slots: Sequence[Slot], vector: Vector, parameters: Mapping[str, Vector]) -> None:
    """Writes a vector back into whole parameters (C-contiguous), at the ranges of its slots."""
    position = 0
    for name, start, stop in slots:
        whole = parameters[name]
        assert whole.flags.c_contiguous, f"{name!r} is not C-contiguous: its flat view would be a copy"
        whole.reshape(-1)[start:stop] = vector[position : position + stop - start]
        position += stop - start
