"""Where every parameter lies: on the machines of a replica, in one global vector, and on the shards.

All parameters of a machine lie one after another in its vector; the machines' vectors, machine 0 first,
make the global vector; shard k of K holds the k-th of K nearly equal runs of it. So what a machine keeps on
a shard is one contiguous range on both sides, and a machine talks only to the shards that hold its own
parameters (DistBelief, section 4.1). Plain data: this module must not know layers, plans, messages or
optimizers.
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

from partita.engine.parameters.slots import Slot
from partita.engine.parameters.vector import Vector

Shape: TypeAlias = tuple[int, ...]


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
        held: list[Slot] = []
        position = 0
        for slot in (slot for slots in self.machines for slot in slots):
            start, stop = max(position, low), min(position + slot.size, high)
            if start < stop:
                held.extend(slot.between(start - position, stop - position))
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
    by_name: dict[str, list[Slot]] = {name: [] for name in shapes}
    for slot in slots:
        name = slot.parameter
        if name not in shapes:
            raise ValueError(
                f"a slot is of parameter {name!r}, whose shape is not given; known: {list(shapes)}"
            )
        size = math.prod(shapes[name])
        if not slot.fits(size):
            columns = f" by {slot.run} of {slot.stride}" if slot.stride else ""
            written = f"[{slot.start}:{slot.stop}]{columns}"
            raise ValueError(f"slot {written} leaves parameter {name!r}, which has {size} numbers")
        if slot.size:
            by_name[name].append(slot)
    for name, found in by_name.items():
        size = math.prod(shapes[name])
        runs = np.concatenate([*(slot.runs for slot in found), [[size, size]]])
        runs = runs[np.lexsort((runs[:, 1], runs[:, 0]))]
        ends = np.concatenate([[0], runs[:-1, 1]])
        wrong = np.flatnonzero(runs[:, 0] != ends)
        if len(wrong):
            start, end = int(runs[wrong[0], 0]), int(ends[wrong[0]])
            what = "no machine holds" if start > end else "several machines hold"
            low, high = sorted((start, end))
            raise ValueError(f"{what} {name!r} [{low}:{high}]; every number belongs to exactly one")


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
    for slot in slots:
        numbers = slot.of(parameters[slot.parameter].reshape(-1))
        vector[position : position + slot.size].reshape(numbers.shape)[...] = numbers
        position += slot.size
    return vector


def scatter(slots: Sequence[Slot], vector: Vector, parameters: Mapping[str, Vector]) -> None:
    """Writes a vector back into whole parameters (C-contiguous), at the ranges of its slots."""
    position = 0
    for slot in slots:
        whole = parameters[slot.parameter]
        assert whole.flags.c_contiguous, (
            f"{slot.parameter!r} is not C-contiguous: its flat view would be a copy"
        )
        numbers = slot.of(whole.reshape(-1))
        numbers[...] = vector[position : position + slot.size].reshape(numbers.shape)
        position += slot.size
