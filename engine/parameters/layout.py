"""Layout of the parameters: on the machines of a replica, in one global vector, and on the shards.

The parameters of a machine lie one after another in its vector; the machines' vectors in order make the
global vector; shard k of K has the k-th of K nearly equal ranges of it, which cut no row of a sparse table.
So what a machine has on a shard is one contiguous range on both sides, and a machine communicates only with
the shards of its own parameters (DistBelief, section 4.1). Fragments, in which replicas exchange the
parameters one after another, are such ranges, too: fragment p of P is the p-th of P, whatever the shards. So
it may have parts of several shards, and a shard parts of several fragments.
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

from partita.engine.parameters.compression.compressor import Exact
from partita.engine.parameters.slots import Slot, Table, learning, split, tables_in, within
from partita.engine.parameters.vector import Vector

Shape: TypeAlias = tuple[int, ...]


class SharedRange(NamedTuple):
    """Parameters of a machine on a shard, of one fragment: `[start, stop)` in the vector of each."""

    machine: int
    shard: int
    fragment: int
    machine_start: int
    machine_stop: int
    shard_start: int
    shard_stop: int


@dataclass(frozen=True)
class Layout:
    """Positions of all parameters.

    Args:
        machines: for each machine, the slots whose concatenation is its vector.
        shapes: of whole parameters, by name.
        shards: number of shards; may exceed the global vector's size (some are then empty).
        fragments: number of fragments; likewise.
        frozen: names of the parameters that are not trainable.
        averaged: of these, those that are running averages.
        sparse: names of the tables whose gradients are of a few rows; each is whole on one machine.

    Raises:
        ValueError: fewer than one shard or fragment, a slot outside its parameter or of an unknown one, or a
            number of a parameter that belongs to no machine or to several.
    """

    machines: tuple[tuple[Slot, ...], ...]
    shapes: Mapping[str, Shape]
    shards: int
    frozen: frozenset[str] = frozenset()
    averaged: frozenset[str] = frozenset()
    sparse: frozenset[str] = frozenset()
    fragments: int = 1

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ValueError(f"{self.shards} shards cannot hold parameters; use 1 or more")
        if self.fragments < 1:
            raise ValueError(f"{self.fragments} fragments cannot have all parameters; use 1 or more")
        machines = tuple(tuple(Slot(*slot) for slot in slots) for slots in self.machines)
        object.__setattr__(self, "machines", machines)
        shapes = {name: tuple(shape) for name, shape in self.shapes.items()}
        object.__setattr__(self, "shapes", MappingProxyType(shapes))
        check_cover((slot for slots in machines for slot in slots), self.shapes)

    @cached_property
    def machine_starts(self) -> tuple[int, ...]:
        """Starts of the machines' vectors in the global one, and its size."""
        starts = [0]
        for slots in self.machines:
            starts.append(starts[-1] + sum(slot.size for slot in slots))
        return tuple(starts)

    @cached_property
    def shard_starts(self) -> tuple[int, ...]:
        """Starts of the shards' vectors in the global one, and its size."""
        return self._cut_into(self.shards)

    @cached_property
    def fragment_starts(self) -> tuple[int, ...]:
        """Starts of the fragments in the global vector, and its size."""
        return self._cut_into(self.fragments)

    def _cut_into(self, ranges: int) -> tuple[int, ...]:
        """Returns the starts of nearly equal ranges that cut no row of a table, and the size of all."""
        tables = tables_in((slot for slots in self.machines for slot in slots), self._widths)
        found = []
        for number in range(ranges + 1):
            at = number * self.size // ranges
            inside = (table for table in tables if table.start < at < table.stop)
            found.append(at - sum((at - table.start) % table.width for table in inside))
        return tuple(found)

    @cached_property
    def _widths(self) -> dict[str, int]:
        return {name: self.shapes[name][-1] for name in self.sparse}

    @property
    def size(self) -> int:
        """Number of all parameters of the network."""
        return self.machine_starts[-1]

    def machine_size(self, machine: int) -> int:
        """Returns the size of the machine's vector."""
        return self.machine_starts[machine + 1] - self.machine_starts[machine]

    @cached_property
    def shared_ranges(self) -> tuple[SharedRange, ...]:
        """Ranges of every machine on every shard, where there are any, machine by machine, in the order of
        their vectors; of each fragment.
        """
        found = []
        for machine, (a, b) in enumerate(pairwise(self.machine_starts)):
            for shard, (c, d) in enumerate(pairwise(self.shard_starts)):
                for fragment, (e, f) in enumerate(pairwise(self.fragment_starts)):
                    start, stop = max(a, c, e), min(b, d, f)
                    if start < stop:
                        place = start - a, stop - a, start - c, stop - c
                        found.append(SharedRange(machine, shard, fragment, *place))
        return tuple(found)

    def shards_of(self, machine: int) -> tuple[SharedRange, ...]:
        """Returns the ranges of a machine on the shards, in the order of its vector."""
        return tuple(shared for shared in self.shared_ranges if shared.machine == machine)

    def machines_of(self, shard: int) -> tuple[SharedRange, ...]:
        """Returns the ranges of the machines on a shard, in the order of its vector."""
        return tuple(shared for shared in self.shared_ranges if shared.shard == shard)

    def slots_of(self, shard: int) -> tuple[Slot, ...]:
        """Returns the slots whose concatenation is the shard's vector."""
        low, high = self.shard_starts[shard], self.shard_starts[shard + 1]
        return tuple(within((slot for slots in self.machines for slot in slots), low, high))

    def tables_of(self, machine: int) -> tuple[Table, ...]:
        """Returns the sparse tables in the machine's vector, ascending."""
        return tables_in(self.machines[machine], self._widths)

    def tables_on(self, shard: int) -> tuple[Table, ...]:
        """Returns the sparse tables, or parts of them, in the shard's vector, ascending."""
        return tables_in(self.slots_of(shard), self._widths)

    def tensor(self, slot: Slot) -> Shape:
        """Returns the shape of the part of a parameter in a slot: rows or columns of it, or just numbers.

        Messages have the numbers of running averages as they are.
        """
        if slot.parameter in self.averaged:
            return Exact((slot.size,))
        inner = math.prod(self.shapes[slot.parameter][1:])
        if slot.stride:
            return slot.n_runs, slot.run
        is_rows = inner > 1 and slot.start % inner == 0 and slot.size % inner == 0
        return (slot.size // inner, inner) if is_rows else (slot.size,)

    def tensors(self, machine: int, start: int, stop: int) -> tuple[Shape, ...]:
        """Returns the shapes of tensors in `[start, stop)` of a machine's vector, less sparse tables."""
        slots = within(self.machines[machine], start, stop)
        return tuple(self.tensor(slot) for slot in slots if slot.parameter not in self.sparse)

    def learning_on(self, shard: int) -> tuple[tuple[int, int], ...]:
        """Returns the ranges of the shard's vector that are trainable, ascending."""
        return learning(self.slots_of(shard), self.frozen)

    def averaged_on(self, shard: int) -> tuple[tuple[int, int], ...]:
        """Returns the ranges of the shard's vector that are running averages, ascending."""
        return learning(self.slots_of(shard), self.shapes.keys() - self.averaged)

    def __str__(self) -> str:
        lines = [f"{self.size:,} parameters of {len(self.machines)} machines on {self.shards} shards"]
        for shared in self.shared_ranges:
            of = f" (fragment {shared.fragment})" if self.fragments > 1 else ""
            lines.append(
                f"  machine {shared.machine} [{shared.machine_start}:{shared.machine_stop}]"
                f" = shard {shared.shard} [{shared.shard_start}:{shared.shard_stop}]{of}"
            )
        return "\n".join(lines)


def check_cover(slots: Iterable[Slot], shapes: Mapping[str, Shape]) -> None:
    """Checks that the slots contain every number of every parameter exactly once.

    Raises:
        ValueError: they do not; names the parameter, the range, and how often it occurs.
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
    """Returns the vector that slots make out of whole parameters, given by name (any shape, C order).

    Fills `out`, `[n]`, if it is given; else a new vector of `dtype`.
    """
    vector = np.empty(sum(slot.size for slot in slots), dtype) if out is None else out
    for slot, piece in split(slots, vector):
        numbers = slot.of(parameters[slot.parameter].reshape(-1))
        piece.reshape(numbers.shape)[...] = numbers
    return vector


def scatter(slots: Sequence[Slot], vector: Vector, parameters: Mapping[str, Vector]) -> None:
    """Writes a vector into the slots of whole parameters (C-contiguous)."""
    for slot, piece in split(slots, vector):
        whole = parameters[slot.parameter]
        assert whole.flags.c_contiguous, (
            f"{slot.parameter!r} is not C-contiguous: its flat view would be a copy"
        )
        numbers = slot.of(whole.reshape(-1))
        numbers[...] = piece.reshape(numbers.shape)
